"""The status of a running sweep: a small JSON file in its folder, read by `recombine watch`.

    {"state": "training", "began": "2026-11-15T18:00:00+00:00", "runs": 40, "reused": 4,
     "finished": 12, "seconds": 33.1, "left": 120.5, "rate": 9500.0,
     "now": [{"runs": 16, "phase": "training", "step": 400, "num_steps": 1000, "score": 0.93}],
     "failures": [{"runs": ["1f…", …], "reason": "…"}], "notes": ["…"],
     "command": "…", "host": "…"}

| key | meaning |
|---|---|
| `state` | `training`, `finished`, `failed` (some runs were not trained) or `stopped` (Ctrl-C) |
| `now` | the chunks that train at this moment |
| `left` | estimated seconds until the end; null while unknown |
| `rate` | training steps of single runs per second; null while unknown |
| `has_checksum`, `checksum` | the first and the last key, see `checksums.py` |

A killed process leaves the state `training` behind. `is_active` checks if a process still writes.
"""

import contextlib
import datetime
import json
import math
import shlex
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recombine.basics.atomic_io import lock_owner, temporary_path
from recombine.storage import checksums

NAME = "status.json"
MAX_NUMBER = 1e15  # of a valid count or time
PAUSE = 1.0  # least number of seconds between two writes


class Status:
    """The status of one sweep, written to its folder at most once a second.

    Without a folder it is only in memory. `document` holds the keys above except `now` and
    `seconds`; `chunks` holds the entries of `now` by chunk.
    """

    def __init__(self, folder: Path | None, runs: int, reused: int):
        self.path = None if folder is None else folder / NAME
        self.start_time = time.perf_counter()
        self.last_write = -PAUSE  # in seconds since the start
        self.chunks: dict[Any, dict[str, Any]] = {}
        self.document: dict[str, Any] = {
            "state": "training",
            "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "runs": runs,
            "reused": reused,
            "finished": reused,
            "left": None,
            "rate": None,
            "failures": [],
            "notes": [],
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "host": socket.gethostname(),
        }
        self.write(immediately=True)

    def write(self, immediately: bool = False, **changes: Any) -> None:
        """Change these keys, and write the file unless that was done within the last second."""
        self.document |= changes
        seconds = time.perf_counter() - self.start_time
        is_too_soon = seconds - self.last_write < PAUSE
        if self.path is None or (is_too_soon and not immediately):
            return
        self.last_write = seconds
        measured = {"seconds": round(seconds, 3), "now": list(self.chunks.values())}
        data = checksums.to_json(self.document | measured, default=float)
        # Not synced: it is useless after a power cut. A full disk must not stop the sweep.
        with contextlib.suppress(OSError):
            unfinished = temporary_path(self.path)
            try:
                unfinished.write_bytes(data)
                unfinished.replace(self.path)
            finally:
                unfinished.unlink(missing_ok=True)


def read(folder: Path) -> dict[str, Any] | None:
    """The status of the last sweep in a folder; None if there is none or it is not valid."""
    try:
        document = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not _is_valid(document):
        return None
    return checksums.without_checksum(document)


def problem(folder: Path) -> str | None:
    """What is wrong with the status file, in one line; None if nothing is, or if there is none."""
    path = folder / NAME
    try:
        reason = checksums.json_problem(path.read_bytes())
    except FileNotFoundError:
        return None
    if reason is None and read(folder) is None:
        reason = "a key is missing or has another type"
    return None if reason is None else f"{path} is damaged ({reason}): delete it, no row is lost"


def _is_valid(document: dict[str, Any]) -> bool:
    """Whether every key has a value of its type, so that the views need not check again."""
    for name in ("runs", "reused", "finished"):
        if not _is_number(document.get(name), int):
            return False
    for name in ("seconds", "left", "rate"):
        if not _is_number(document.get(name, 0.0)) and document.get(name) is not None:
            return False
    for name in ("state", "began", "command", "host"):
        if not isinstance(document.get(name, ""), str | None):
            return False
    began = document.get("began")
    return (
        "state" in document
        and "seconds" in document
        and (not began or _is_date(began))
        and _are_texts(document.get("notes", []))
        and _is_list_of(document.get("now"), _is_chunk)
        and _is_list_of(document.get("failures", []), _is_failure)
    )


def _is_number(value: Any, kinds: Any = (int, float)) -> bool:
    if not isinstance(value, kinds) or isinstance(value, bool):
        return False
    return math.isfinite(value) and abs(value) < MAX_NUMBER


def _is_date(text: str) -> bool:
    try:
        datetime.datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError):
        return False
    return True


def _is_list_of(values: Any, is_valid: Callable[[Any], bool]) -> bool:
    return isinstance(values, list) and all(map(is_valid, values))


def _are_texts(values: Any) -> bool:
    return _is_list_of(values, lambda value: isinstance(value, str))


def _is_chunk(chunk: Any) -> bool:
    if not isinstance(chunk, dict) or not isinstance(chunk.get("phase"), str):
        return False
    numbers = [chunk.get(name) for name in ("runs", "step", "num_steps")]
    has_counts = all(_is_number(number, int) for number in numbers) and chunk["num_steps"] > 0
    score = chunk.get("score")
    # A score may be NaN: training diverged.
    return has_counts and (score is None or isinstance(score, int | float))


def _is_failure(failure: Any) -> bool:
    if not isinstance(failure, dict) or not isinstance(failure.get("reason"), str):
        return False
    return _are_texts(failure.get("runs"))


def is_active(folder: Path) -> bool:
    """Whether a process writes to the folder at this moment."""
    return lock_owner(folder) is not None
