"""Tables of results in Parquet files. They are valid at every moment, even if a process is killed.

A `Table` is a folder while an experiment runs, or one packed `.parquet` file to keep:

    rows/part-<hash of its bytes>.parquet
    experiment.json
    figures/NN-name.json
    figures/checksums.json

`experiment.json` and `checksums.json` end with their own checksums; the figures are plain Plotly
JSON, so their checksums are in `checksums.json`. `verify` compares them.

Every file is written under a temporary name, synced and renamed, so that a reader never sees half a
file. Rows are only added. If a run and step are there twice, the contents decide which row counts,
so a killed compaction or a second writer does not change what is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from recombine.basics.atomic_io import (
    remove_leftovers,
    temporary_path,
    write_atomically,
    write_lock,
)
from recombine.basics.errors import InputError, require
from recombine.storage import checksums, parquet

MAX_READERS = 8  # threads that read parts
FIGURE_CHECKSUMS = "checksums.json"
REDRAW = "run the same command again, which draws the figures again"
MAX_READ_ATTEMPTS = 100  # if parts are compacted while they are read


class Table:
    """The rows, metadata and figures of one experiment, in a folder or in one `.parquet` file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.packed = self.path.suffix == ".parquet"
        try:
            is_folder = self.path.is_dir()
            is_file = self.path.is_file()
        except (OSError, ValueError) as error:  # the name is too long or has invalid characters
            message = f"cannot use the path {self.path} ({error}): choose another path"
            raise InputError(message) from error
        require(
            not (self.packed and is_folder),
            f"{self.path} is a folder, but .parquet is the ending of a file: choose another path",
        )
        require(
            self.packed or not is_file,
            f"{self.path} is a file, not a folder of results: choose a folder or a .parquet file",
        )

    def append(self, rows: pd.DataFrame) -> Path:
        """Add rows and return the file that holds them. Existing parts are never changed."""
        require("run" in rows, f"rows for {self.path} need a column 'run'")
        if self.packed:
            self._pack(parquet.concat([self.read(), rows]), self._document())
            return self.path
        return self._add_part(parquet.encode(rows))

    def compact(self) -> None:
        """Merge all parts into one. Call it only while the table is `held`.

        If it is killed, the rows that are read stay the same.
        """
        parts = self.parts()
        if self.packed or len(parts) < 2:
            return
        merged = self._add_part(parquet.merge(self._load_all(None)))
        for part in set(parts) - {merged}:
            part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the table for writing, or raise an `InputError` that names who holds the lock."""
        with write_lock(self.path):
            if self.packed:
                remove_leftovers(self.path.parent)
            else:
                remove_leftovers(self.path, self.path / "rows", self.path / "figures")
            yield

    def num_parts(self) -> int:
        """The number of files that hold the rows."""
        return len(self.parts())

    def read(self, columns: list[str] | None = None) -> pd.DataFrame:
        """All rows, sorted by run and step; null where a part lacks a column."""
        wanted = None
        if columns is not None:
            wanted = list(dict.fromkeys([*parquet.SORT_COLUMNS, *columns]))
        tables = self._load_all(wanted)
        if not tables:
            return pd.DataFrame(columns=columns)
        rows = parquet.join(tables)
        if columns is None:
            return rows
        missing = [name for name in columns if name not in rows]
        require(not missing, f"{self.path} has no column {', '.join(map(repr, missing))}")
        return rows.loc[:, columns]

    def finished(self) -> set[str]:
        """The runs that have rows."""
        return {run for part in self._load_all(["run"]) for run in part["run"].to_pylist()}

    def note(self, **meta: Any) -> None:
        """Set these keys of the experiment's metadata; the others stay."""
        self._save(self._document() | meta)

    def meta(self) -> dict[str, Any]:
        """The experiment's metadata: its settings, the command and the versions that made it."""
        document = self._document()
        if self.packed:
            document.pop("figures", None)
        runs = document.get("shown", [])
        if not isinstance(runs, list) or not all(isinstance(run, str) for run in runs):
            del document["shown"]  # damaged: then all rows are shown
        return document

    def save_figures(self, figures: Mapping[str, str]) -> None:
        """Store figures (name -> Plotly JSON) in this order. Earlier figures are removed."""
        for name in figures:
            require(
                re.fullmatch(r"[\w.-]+", name) is not None,
                "the name of a figure must consist of letters, digits, '.', '_' and '-', "
                f"got {name!r}",
            )
        if self.packed:
            self._save(self._document() | {"figures": dict(figures)})
            return
        # Written last: figures of a process that was killed here have no checksums.
        checksum_file = self.path / "figures" / FIGURE_CHECKSUMS
        checksum_file.unlink(missing_ok=True)
        written = {}
        for number, (name, text) in enumerate(figures.items()):
            path = self.path / "figures" / f"{number:02d}-{name}.json"
            written[write_atomically(path, text.encode())] = parquet.digest(text.encode())
        for outdated in set(self._figure_files()) - set(written):
            outdated.unlink()
        if written:
            document = {path.name: checksum for path, checksum in written.items()}
            write_atomically(checksum_file, checksums.to_json(document, indent=2))

    def figures(self) -> dict[str, str]:
        """The stored figures: name -> Plotly JSON."""
        if self.packed:
            return self._document().get("figures", {})
        figures = {}
        for file in self._figure_files():
            _, name = file.stem.split("-", 1)
            try:
                figures[name] = file.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{file} is not valid UTF-8 text ({error.reason}): {REDRAW}"
                ) from error
        return figures

    def problems_beside_rows(self) -> list[str]:
        """What is wrong with the metadata and the figures, a line for each damaged file."""
        if self.packed:
            return []  # they are inside the file, which has a checksum
        problems = []
        metadata = self.path / "experiment.json"
        if metadata.exists():
            reason = checksums.json_problem(metadata.read_bytes())
            if reason is not None:
                problems.append(f"{metadata} is damaged ({reason}): move it away and run again")
        return problems + self._figure_problems()

    def _figure_problems(self) -> list[str]:
        figures = {file.name: file.read_bytes() for file in self._figure_files()}
        checksum_file = self.path / "figures" / FIGURE_CHECKSUMS
        if not checksum_file.exists():  # figures of an older version
            reasons = {name: checksums.json_problem(data) for name, data in figures.items()}
        else:
            data = checksum_file.read_bytes()
            reason = checksums.json_problem(data)
            if reason is not None:
                return [f"{checksum_file} is damaged ({reason}): {REDRAW}"]
            expected = checksums.without_checksum(json.loads(data))
            reasons = {}
            for name in sorted(set(expected) | set(figures)):
                if name not in figures:
                    reasons[name] = "it is missing"
                elif parquet.digest(figures[name]) != expected.get(name):
                    reasons[name] = "it has changed since it was written"
        folder = self.path / "figures"
        return [
            f"{folder / name} is damaged ({reason}): {REDRAW}"
            for name, reason in reasons.items()
            if reason is not None
        ]

    def check_writable(self) -> None:
        """Raise an `InputError` unless rows can be written here; called before any work starts."""
        folder = self.path.parent if self.packed else self.path / "rows"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = temporary_path(folder / "probe")
            probe.touch(exist_ok=False)
            probe.unlink()
        except OSError as error:
            reason = error.strerror or error
            message = f"cannot write results to {self.path} ({reason}): choose another path"
            raise InputError(message) from error

    def _add_part(self, data: bytes) -> Path:
        return write_atomically(self.path / "rows" / f"part-{parquet.digest(data)}.parquet", data)

    def _load_all(self, wanted: list[str] | None) -> list[pa.Table]:
        """The wanted columns of every part, or all columns."""
        with ThreadPoolExecutor(min(MAX_READERS, os.cpu_count() or 1)) as pool:
            for _ in range(MAX_READ_ATTEMPTS):
                parts = self.parts()
                tables = list(pool.map(lambda part: parquet.load(part, wanted), parts))
                # A part that is gone was compacted while we read: its rows are in a new part.
                if set(self.parts()) >= set(parts):
                    return [table for table in tables if table is not None]
        raise InputError(
            f"{self.path} changes faster than it can be read: try again when the sweep has ended"
        )

    def parts(self) -> list[Path]:
        """The files that hold the rows."""
        if self.packed:
            return [self.path] if self.path.exists() else []
        return sorted((self.path / "rows").glob("part-*.parquet"))

    def _figure_files(self) -> list[Path]:
        files = (self.path / "figures").glob("[0-9]*-*.json")
        return sorted(files, key=lambda file: int(file.name.split("-")[0]))

    def _document(self) -> dict[str, Any]:
        """The metadata as stored; in a packed file the figures are part of it."""
        source = self.path if self.packed else self.path / "experiment.json"
        if not source.exists():
            return {}
        text = parquet.metadata(source) if self.packed else source.read_bytes()
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            message = f"{source} is not valid JSON ({error}): move it away and run again"
            raise InputError(message) from error
        require(
            isinstance(document, dict), f"{source} is not a JSON object: move it away and run again"
        )
        return checksums.without_checksum(document)

    def _save(self, document: dict[str, Any]) -> None:
        if self.packed:
            self._pack(self.read(), document)
        else:
            data = checksums.to_json(document, indent=2, default=_to_json)
            write_atomically(self.path / "experiment.json", data)

    def _pack(self, rows: pd.DataFrame, document: dict[str, Any]) -> None:
        # `load` refuses a file without this column, so a file with metadata only has it, too.
        if "run" not in rows:
            rows = pd.DataFrame({"run": pd.Series(dtype=str)})
        text = json.dumps(document, default=_to_json)
        write_atomically(self.path, parquet.pack(parquet.sort(rows), text.encode()))


def _to_json(value: Any) -> Any:
    """A value that JSON does not know, such as a NumPy number or a path, as one that it knows."""
    return value.item() if isinstance(value, np.generic) else str(value)
