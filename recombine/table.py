"""Rows of results as Parquet: append-only, and whole at every moment, whatever is killed.

A `Table` is a folder (`rows/part-<id>.parquet`, `experiment.json`, `figures/NN-name.json`) while an
experiment runs, or one packed `.parquet` file to keep. Every file is written under a temporary name, synced
and renamed, so a reader never meets half of one.
"""

from __future__ import annotations

import io
import json
import os
import re
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from recombine.core import InputError, require

_META = b"recombine"
_MIXED = {b"recombine": b"json"}
_ORDER = ("run", "step")


class Table:
    """The rows, metadata and figures of one experiment, in a folder or in one `.parquet` file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.packed = self.path.suffix == ".parquet"
        require(
            not (self.packed and self.path.is_dir()),
            f"{self.path} is a folder, and only files may end in .parquet: rename it or choose another path",
        )
        require(
            self.packed or not self.path.is_file(),
            f"{self.path} is a file, not a folder of results: name a folder or a .parquet file",
        )

    def append(self, rows: pd.DataFrame) -> Path:
        """Add rows and return the file that holds them; no existing part is ever touched."""
        require("run" in rows, f"rows for {self.path} need a column 'run'")
        if self.packed:
            self._pack(_concat([self.read(), rows]), self._document())
            return self.path
        data = _encode(rows)
        part = self._part()
        while part.exists():
            part = self._part()
        return replace(part, data)

    def read(self, columns: list[str] | None = None) -> pd.DataFrame:
        """All rows, ordered by run and step; where a part lacks a column its rows are null there."""
        parts = self._parts()
        if not parts:
            return pd.DataFrame(columns=columns)
        wanted = None if columns is None else list(dict.fromkeys([*_ORDER, *columns]))
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            rows = _sort(_join(list(pool.map(lambda part: _load(part, wanted), parts))))
        if columns is None:
            return rows
        lost = [name for name in columns if name not in rows]
        require(not lost, f"{self.path} has no column {', '.join(map(repr, lost))}")
        return rows.loc[:, columns]

    def finished(self) -> set[str]:
        """The runs that have rows."""
        return {run for part in self._parts() for run in _load(part, ["run"])["run"].to_pylist()}

    def note(self, **meta: Any) -> None:
        """Merge these keys into the experiment's metadata."""
        self._save(self._document() | meta)

    def meta(self) -> dict[str, Any]:
        """The experiment's metadata: what was run, by which command, with which versions."""
        document = self._document()
        if self.packed:
            document.pop("figures", None)
        return document

    def save_figures(self, figures: Mapping[str, str]) -> None:
        """Keep these figures (name -> Plotly JSON), in this order, in place of any earlier ones."""
        for name in figures:
            require(
                re.fullmatch(r"[\w.-]+", name) is not None,
                f"a figure's name is letters, digits, '.', '_' and '-', got {name!r}",
            )
        if self.packed:
            return self._save(self._document() | {"figures": dict(figures)})
        kept = {
            replace(self.path / "figures" / f"{number:02d}-{name}.json", text.encode())
            for number, (name, text) in enumerate(figures.items())
        }
        for stale in set(self._figure_files()) - kept:
            stale.unlink()

    def figures(self) -> dict[str, str]:
        """The kept figures: name -> Plotly JSON."""
        if self.packed:
            return self._document().get("figures", {})
        return {file.stem.split("-", 1)[1]: file.read_text(encoding="utf-8") for file in self._figure_files()}

    def check_writable(self) -> None:
        """Raise an `InputError` unless rows can be written here; called before any work starts."""
        folder = self.path.parent if self.packed else self.path / "rows"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = _temporary(folder)
            probe.touch(exist_ok=False)
            probe.unlink()
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"cannot write results to {self.path} ({reason}): name another path") from error

    def _part(self) -> Path:
        return self.path / "rows" / f"part-{uuid.uuid4().hex[:16]}.parquet"

    def _parts(self) -> list[Path]:
        if self.packed:
            return [self.path] if self.path.exists() else []
        return sorted((self.path / "rows").glob("part-*.parquet"))

    def _figure_files(self) -> list[Path]:
        files = (self.path / "figures").glob("[0-9]*-*.json")
        return sorted(files, key=lambda file: int(file.name.split("-")[0]))

    def _document(self) -> dict[str, Any]:
        if self.packed:
            text, source = _metadata(self.path) if self.path.exists() else b"{}", self.path
        else:
            source = self.path / "experiment.json"
            text = source.read_bytes() if source.exists() else b"{}"
        try:
            document = json.loads(text)
        except ValueError as error:
            raise InputError(f"{source} is not JSON ({error}): move it away and run again") from error
        require(isinstance(document, dict), f"{source} is not a JSON object: move it away and run again")
        return document

    def _save(self, document: dict[str, Any]) -> None:
        if self.packed:
            self._pack(self.read(), document)
        else:
            text = json.dumps(document, indent=2, default=_plain)
            replace(self.path / "experiment.json", text.encode())

    def _pack(self, rows: pd.DataFrame, document: dict[str, Any]) -> None:
        # A file with metadata only still has the column that marks it as ours.
        rows = rows if "run" in rows else pd.DataFrame({"run": pd.Series(dtype=str)})
        replace(self.path, _encode(_sort(rows), {_META: json.dumps(document, default=_plain).encode()}))


def replace(path: Path, data: bytes) -> Path:
    """Write a file so that it is there whole or not at all, even after a crash or a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path.parent)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name itself is safe only once its folder is synced
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return path


def _temporary(folder: Path) -> Path:
    return folder / f".{uuid.uuid4().hex}.tmp"


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _encode(rows: pd.DataFrame, metadata: dict[bytes, bytes] | None = None) -> bytes:
    fields, arrays = [], []
    for name, values in rows.items():
        array, mark = _column(values)
        fields.append(pa.field(str(name), array.type, metadata=mark))
        arrays.append(array)
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=metadata))
    # Statistics, and dictionaries of anything but text, would only slow down the reading of many small parts.
    text: Any = [field.name for field in fields if field.type in (pa.string(), pa.large_string())]
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


def _open(part: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(part, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(part, error) from error


def _metadata(part: Path) -> bytes:
    with _open(part) as file:
        return (file.schema_arrow.metadata or {}).get(_META, b"{}")


def _unreadable(part: Path, error: Exception) -> InputError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InputError(
        f"{part} is not a readable Parquet part ({reason}): move it away and run the same command again; "
        "its runs will be trained anew"
    )


def _load(part: Path, wanted: list[str] | None) -> pa.Table:
    with _open(part) as file:
        names = file.schema_arrow.names
        require("run" in names, f"{part} has no column 'run': it was not written by recombine, move it away")
        try:
            columns = None if wanted is None else [name for name in wanted if name in names]
            return file.read(columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(part, error) from error


def _join(tables: list[pa.Table]) -> pd.DataFrame:
    # Parts go by their first rows, so that the columns too have one order, whatever the files are called.
    tables = sorted(tables, key=_first)
    if not any(field.metadata == _MIXED for table in tables for field in table.schema):
        try:
            return pa.concat_tables(tables, promote_options="permissive").to_pandas()
        except pa.ArrowException:
            pass  # a column is, say, text in one part and numbers in another: pandas keeps both
    return _concat([_decode(table) for table in tables])


def _first(table: pa.Table) -> list[str]:
    return [str(table[name][:1].to_pylist()) for name in _ORDER if name in table.column_names]


def _decode(table: pa.Table) -> pd.DataFrame:
    rows = table.to_pandas()
    for field in table.schema:
        if field.metadata == _MIXED:
            values = [None if v is None else json.loads(v) for v in table[field.name].to_pylist()]
            rows[field.name] = pd.Series(values, dtype=object)
    return rows


def _concat(frames: list[pd.DataFrame]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    rows = pd.concat(filled or frames[-1:], ignore_index=True)
    for name in [
        name for name in rows if rows[name].dtype == object
    ]:  # pandas fills these with NaN where Arrow has None
        rows[name] = rows[name].where(rows[name].notna(), None)
    return rows


def _sort(rows: pd.DataFrame) -> pd.DataFrame:
    keys = [name for name in _ORDER if name in rows]
    if rows.duplicated(keys).any():  # only then does the order of arrival show, unless the contents decide
        hashed = pd.util.hash_pandas_object(rows[sorted(rows)], index=False)  # pyright: ignore
        rows = rows.iloc[np.argsort(hashed.to_numpy(), kind="stable")]
    return rows.sort_values(keys, kind="stable", ignore_index=True)
