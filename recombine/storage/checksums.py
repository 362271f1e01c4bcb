"""Files that contain their own checksum: JSON files and packed Parquet files.

The checksum is computed of the whole file with zeros in its place. It detects damage, not
tampering. Files of older versions have none.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any

PREFIX = b"recombine-sha256:"
PLACEHOLDER = PREFIX + 64 * b"0"  # in place of the checksum while it is computed
# The first and the last key of a JSON file. Damage of one of them does not hide the other.
MARK_KEY = "has_checksum"
CHECKSUM_KEY = "checksum"
MARKS = (f'"{MARK_KEY}"'.encode(), f'"{CHECKSUM_KEY}"'.encode(), PREFIX)


def insert(data: bytes) -> bytes:
    """The bytes of a file with its checksum in place of the last placeholder."""
    start = data.rfind(PLACEHOLDER)
    return data[:start] + _checksum(data) + data[start + len(PLACEHOLDER) :]


def is_valid(data: bytes) -> bool | None:
    """Whether the bytes of a file are as `insert` made them. None if they hold no checksum."""
    start = data.rfind(PREFIX)
    if start < 0:
        return None
    end = start + len(PLACEHOLDER)
    return data[start:end] == _checksum(data[:start] + PLACEHOLDER + data[end:])


def _checksum(data: bytes) -> bytes:
    return PREFIX + hashlib.sha256(data).hexdigest().encode()


def to_json(
    document: dict[str, Any],
    indent: int | None = None,
    default: Callable[[Any], Any] | None = None,
) -> bytes:
    """A document as the bytes of a JSON file with its checksum."""
    marked = {MARK_KEY: True} | document | {CHECKSUM_KEY: PLACEHOLDER.decode()}
    return insert(json.dumps(marked, indent=indent, default=default).encode())


def without_checksum(document: dict[str, Any]) -> dict[str, Any]:
    """The document that `to_json` was given."""
    return {key: value for key, value in document.items() if key not in (MARK_KEY, CHECKSUM_KEY)}


def json_problem(data: bytes) -> str | None:
    """What is wrong with the bytes of a JSON file; None if nothing is. Older files pass."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        return f"it is not valid JSON: {' '.join(str(error).split())}"
    if not isinstance(document, dict):
        return "it is not a JSON object"
    has_marks = any(mark in data for mark in MARKS)
    if has_marks and not is_valid(data):
        return "it has changed since it was written"
    return None
