"""Rows to and from the bytes of one Parquet file, here called a part.

Floats survive bit for bit, columns of mixed types keep their types, and damage is detected.
"""

import base64
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from recombine.basics.errors import InputError, require
from recombine.basics.parquet_reader import LimitedFile
from recombine.storage import checksums

DOCUMENT_KEY = b"recombine"  # of the JSON document in a file's metadata
SORT_COLUMNS = ("run", "step")
_MIXED_TYPES = {b"recombine": b"json"}  # metadata of a column whose values are stored as JSON
_CHECKSUM_KEY = b"recombine.seal"


def pack(rows: pd.DataFrame, document: bytes) -> bytes:
    """Rows and a JSON document as one file that contains its own checksum."""
    return checksums.insert(
        encode(rows, {DOCUMENT_KEY: document, _CHECKSUM_KEY: checksums.PLACEHOLDER})
    )


def encode(rows: pd.DataFrame, metadata: dict[bytes, bytes] | None = None) -> bytes:
    """Rows as the bytes of one Parquet file."""
    fields = []
    arrays = []
    for name, values in rows.items():
        array, column_metadata = _column(values)
        fields.append(pa.field(str(name), array.type, metadata=column_metadata))
        arrays.append(array)
    return _write(pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=metadata)))


def _write(table: pa.Table) -> bytes:
    # Statistics, and dictionaries of other columns than text, slow down reading many small parts.
    text_columns: Any = [
        field.name for field in table.schema if field.type in (pa.string(), pa.large_string())
    ]
    buffer = io.BytesIO()
    pq.write_table(
        table,
        buffer,
        compression="zstd",
        use_dictionary=text_columns,
        write_statistics=False,
        write_page_checksum=True,
    )
    return buffer.getvalue()


def _column(values: pd.Series) -> tuple[pa.Array, dict[bytes, bytes] | None]:
    """One column as Arrow, with its metadata. NaN stays NaN; mixed values are stored as JSON."""
    if isinstance(values.dtype, np.dtype) and values.dtype.kind == "f":
        return pa.array(values.to_numpy(), from_pandas=False), None
    if values.dtype != object and not isinstance(values.dtype, pd.CategoricalDtype):
        return pa.Array.from_pandas(values), None
    plain = [_plain(value) for value in values.astype(object)]
    plain = [storable(value) for value in plain]
    types = {type(value) for value in plain} - {type(None)}
    unsupported = types - {str, bool, int, float}
    names = ", ".join(sorted(cls.__name__ for cls in unsupported))
    require(
        not unsupported,
        f"column {values.name!r} holds values of type {names}: store text, numbers or booleans",
    )
    if len(types) > 1:
        texts = [None if value is None else json.dumps(value) for value in plain]
        return pa.array(texts, pa.string()), _MIXED_TYPES
    return pa.array(plain), None


def _plain(value: Any) -> Any:
    """A value as Python's own type; None for NaN and other missing values."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def storable(value: Any) -> Any:
    """A value that UTF-8 can hold: a lone surrogate in a text becomes its escape sequence."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode()


def digest(data: bytes) -> str:
    """The hash of a part's bytes, which is in its file name."""
    return hashlib.sha256(data).hexdigest()[:24]


def _open(part: Path) -> LimitedFile:
    try:
        data = part.read_bytes()
        # Parquet's own checksums do not cover its footer. Older parts have random names.
        is_named_by_hash = re.fullmatch(r"part-\w{24}", part.stem) is not None
        has_wrong_name = is_named_by_hash and part.stem != f"part-{digest(data)}"
        if has_wrong_name or not _has_valid_checksum(data):
            raise pa.ArrowInvalid("its bytes have changed since it was written")
        file = LimitedFile(part, pa.BufferReader(data), page_checksum_verification=True)
        # The schema has a second copy of the metadata: damage of one of them does not hide it.
        was_packed = _CHECKSUM_KEY in _copy_of_schema(file)
        if was_packed and checksums.is_valid(data) is None:
            raise pa.ArrowInvalid("its checksum is damaged")
        return file
    except (FileNotFoundError, InputError):
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(part, error) from error


def _has_valid_checksum(data: bytes) -> bool:
    """Whether a file is as `pack` made it. Files of older versions have no checksum and pass."""
    is_valid = checksums.is_valid(data)
    return _CHECKSUM_KEY not in data if is_valid is None else is_valid


def _copy_of_schema(file: LimitedFile) -> bytes:
    """The schema as Arrow stored it beside Parquet's own, with the metadata of that time."""
    stored = (file.metadata or {}).get(b"ARROW:schema", b"")
    return base64.b64decode(stored)


def metadata(part: Path) -> bytes:
    """The JSON document of a packed file."""
    with _open(part) as file:
        return (file.schema.metadata or {}).get(DOCUMENT_KEY, b"{}")


def _unreadable(part: Path, error: Exception) -> InputError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InputError(
        f"{part} is not a readable Parquet file ({reason}): move it away and run the same command "
        "again, which trains its runs again"
    )


def load(part: Path, wanted: list[str] | None = None) -> pa.Table | None:
    """The wanted columns that a part has, or all; None if the file does not exist any more."""
    try:
        file = _open(part)
    except FileNotFoundError:
        return None
    with file:
        names = file.schema.names
        require(
            "run" in names,
            f"{part} has no column 'run', so Recombine did not write it: move it away",
        )
        columns = None if wanted is None else [name for name in wanted if name in names]
        try:
            return file.read(columns)
        except InputError:
            raise
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(part, error) from error


def decode(data: bytes, source: Path) -> pd.DataFrame:
    """The rows that `encode` was given, in their order. `source` names them in error messages."""
    try:
        with LimitedFile(source, pa.BufferReader(data), page_checksum_verification=True) as file:
            return _decode(file.read())
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(source, error) from error


def join(tables: list[pa.Table]) -> pd.DataFrame:
    """The rows of all tables, sorted by run and step.

    If a run and step are in several tables, the row of the first one in `_by_contents` is kept.
    """
    joined = _concat_tables(tables)
    if joined is not None:
        return sort(joined.to_pandas())
    return sort(concat([_decode(table) for table in _by_contents(tables)]))


def merge(tables: list[pa.Table]) -> bytes:
    """One part with the rows of all tables."""
    joined = _concat_tables(tables)
    return encode(join(tables)) if joined is None else _write(joined)


def _concat_tables(tables: list[pa.Table]) -> pa.Table | None:
    """All tables as one without repeated rows; None where only pandas can join them."""
    if any(field.metadata == _MIXED_TYPES for table in tables for field in table.schema):
        return None
    try:
        joined = pa.concat_tables(_by_contents(tables), promote_options="permissive")
    except pa.ArrowException:
        return None  # for example, a column is text in one part and numbers in another
    keys = joined.select([name for name in SORT_COLUMNS if name in joined.column_names])
    is_repeated = keys.to_pandas().duplicated()
    return joined.filter(pa.array(~is_repeated)) if is_repeated.any() else joined


def _by_contents(tables: list[pa.Table]) -> list[pa.Table]:
    """Tables in an order that depends only on their contents, so that columns have one order, too.

    The largest is first. If a compaction was killed, the merged part must win over the parts it was
    made from.
    """
    return sorted(tables, key=lambda table: (-table.num_rows, _first_row(table)))


def _first_row(table: pa.Table) -> list[str]:
    names = [name for name in SORT_COLUMNS if name in table.column_names]
    return [str(table[name][:1].to_pylist()) for name in names]


def _decode(table: pa.Table) -> pd.DataFrame:
    rows = table.to_pandas()
    for field in table.schema:
        if field.metadata == _MIXED_TYPES:
            texts = table[field.name].to_pylist()
            values = [None if text is None else _value_of(text) for text in texts]
            rows[field.name] = pd.Series(values, dtype=object)
    return rows


def _value_of(text: str) -> Any:
    """A value that was stored as JSON. Text that is not JSON, of a foreign file, stays text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def concat(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """The rows of all frames; null where a frame lacks a column."""
    not_empty = [frame for frame in frames if len(frame)]
    rows = pd.concat(not_empty or frames[-1:], ignore_index=True)
    for name in rows:
        if rows[name].dtype == object:  # pandas fills these with NaN, Arrow with None
            rows[name] = rows[name].where(rows[name].notna(), None)
    return rows


def sort(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows by run and step. If a run and step are there twice, the first row is kept."""
    keys = [name for name in SORT_COLUMNS if name in rows]
    return rows.drop_duplicates(keys).sort_values(keys, kind="stable", ignore_index=True)
