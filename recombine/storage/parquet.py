"""Rows <-> the bytes of one Parquet part: floats bit for bit, mixed columns with their types, damage told."""

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

META = b"recombine"
ORDER = ("run", "step")
_MIXED = {b"recombine": b"json"}
_SEAL, _MARK = b"recombine.seal", b"recombine-sha256:"
_BLANK = _MARK + 64 * b"0"


def pack(rows: pd.DataFrame, document: bytes) -> bytes:
    """Rows and a JSON document as one file that carries its own checksum."""
    data = encode(rows, {META: document, _SEAL: _BLANK})
    place = data.rfind(_BLANK)
    return data[:place] + _sealed(data) + data[place + len(_BLANK) :]


def _sealed(data: bytes) -> bytes:
    return _MARK + hashlib.sha256(data).hexdigest().encode()


def _is_sealed(data: bytes) -> bool:
    """Whether a file is as `pack` made it; also where it has no checksum, as older ones."""
    place = data.rfind(_MARK)
    if place < 0:
        return True
    end = place + len(_BLANK)
    return data[place:end] == _sealed(data[:place] + _BLANK + data[end:])


def encode(rows: pd.DataFrame, metadata: dict[bytes, bytes] | None = None) -> bytes:
    """Rows as the bytes of one Parquet file."""
    fields, arrays = [], []
    for name, values in rows.items():
        array, mark = _column(values)
        fields.append(pa.field(str(name), array.type, metadata=mark))
        arrays.append(array)
    return _write(pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=metadata)))


def _write(table: pa.Table) -> bytes:
    # Statistics, and dictionaries of anything but text, would only slow down the reading of many small parts.
    text: Any = [
        field.name for field in table.schema if field.type in (pa.string(), pa.large_string())
    ]
    options = {"compression": "zstd", "use_dictionary": text, "write_statistics": False}
    buffer = io.BytesIO()
    pq.write_table(table, buffer, write_page_checksum=True, **options)
    return buffer.getvalue()


def _column(values: pd.Series) -> tuple[pa.Array, dict[bytes, bytes] | None]:
    """One column as Arrow: floats stay as they are, NaN too; mixed values become JSON, typed as it is."""
    if isinstance(values.dtype, np.dtype) and values.dtype.kind == "f":
        return pa.array(values.to_numpy(), from_pandas=False), None
    if values.dtype != object and not isinstance(values.dtype, pd.CategoricalDtype):
        return pa.Array.from_pandas(values), None
    plain = [None if pd.api.types.is_scalar(v) and pd.isna(v) else v for v in values.astype(object)]
    plain = [v.item() if isinstance(v, np.generic) else v for v in plain]
    kinds = {type(v) for v in plain} - {type(None)}
    odd = ", ".join(sorted(kind.__name__ for kind in kinds - {str, bool, int, float}))
    require(not odd, f"column {values.name!r} holds {odd}: rows hold text and numbers")
    if len(kinds) > 1:
        return pa.array([None if v is None else json.dumps(v) for v in plain], pa.string()), _MIXED
    return pa.array(plain), None


def digest(data: bytes) -> str:
    """What a part is called: a hash of its bytes."""
    return hashlib.sha256(data).hexdigest()[:24]


def _open(part: Path) -> pq.ParquetFile:
    try:
        data = part.read_bytes()
        # Older parts are called by 16 random digits; Parquet's own checksums do not cover its footer.
        named = re.fullmatch(r"part-\w{24}", part.stem)
        if (named and part.stem != f"part-{digest(data)}") or not _is_sealed(data):
            raise pa.ArrowInvalid("its bytes are not those that were written")
        return pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _unreadable(part, error) from error


def metadata(part: Path) -> bytes:
    """What is noted in a packed file, as JSON."""
    with _open(part) as file:
        return (file.schema_arrow.metadata or {}).get(META, b"{}")


def _unreadable(part: Path, error: Exception) -> InputError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InputError(
        f"{part} is not a readable Parquet part ({reason}): move it away and run the same command again; "
        "its runs will be trained anew"
    )


def load(part: Path, wanted: list[str] | None = None) -> pa.Table | None:
    """The wanted columns of a part, as far as it has them; None if it has gone."""
    try:
        file = _open(part)
    except FileNotFoundError:
        return None
    with file:
        names = file.schema_arrow.names
        require(
            "run" in names,
            f"{part} has no column 'run': it was not written by recombine, move it away",
        )
        try:
            columns = None if wanted is None else [name for name in wanted if name in names]
            return file.read(columns, use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(part, error) from error


def join(tables: list[pa.Table]) -> pd.DataFrame:
    """The rows of all tables, ordered by run and step; what is there twice counts as the first table has it."""
    whole = _as_one(tables)
    return sort(
        concat([_decode(table) for table in _ordered(tables)])
        if whole is None
        else whole.to_pandas()
    )


def merge(tables: list[pa.Table]) -> bytes:
    """All tables as one part, which reads like them."""
    whole = _as_one(tables)
    return encode(join(tables)) if whole is None else _write(whole)


def _as_one(tables: list[pa.Table]) -> pa.Table | None:
    if any(field.metadata == _MIXED for table in tables for field in table.schema):
        return None
    try:
        whole = pa.concat_tables(_ordered(tables), promote_options="permissive")
    except pa.ArrowException:
        return None  # a column is, say, text in one part and numbers in another: pandas keeps both
    repeated = (
        whole.select([name for name in ORDER if name in whole.column_names])
        .to_pandas()
        .duplicated()
    )
    return whole.filter(pa.array(~repeated)) if repeated.any() else whole


def _ordered(tables: list[pa.Table]) -> list[pa.Table]:
    # By contents, so that the columns too have one order. The largest first: what is left of the parts that were merged
    # into it, when that was killed, must not win over it.
    return sorted(tables, key=lambda table: (-table.num_rows, _first(table)))


def _first(table: pa.Table) -> list[str]:
    return [str(table[name][:1].to_pylist()) for name in ORDER if name in table.column_names]


def _decode(table: pa.Table) -> pd.DataFrame:
    rows = table.to_pandas()
    for field in table.schema:
        if field.metadata == _MIXED:
            values = [None if v is None else json.loads(v) for v in table[field.name].to_pylist()]
            rows[field.name] = pd.Series(values, dtype=object)
    return rows


def concat(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Frames below each other, null where one lacks a column."""
    filled = [frame for frame in frames if len(frame)]
    rows = pd.concat(filled or frames[-1:], ignore_index=True)
    for name in [
        name for name in rows if rows[name].dtype == object
    ]:  # pandas fills these with NaN where Arrow has None
        rows[name] = rows[name].where(rows[name].notna(), None)
    return rows


def sort(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows by run and step, each once: the first counts."""
    keys = [name for name in ORDER if name in rows]
    return rows.drop_duplicates(keys).sort_values(keys, kind="stable", ignore_index=True)
