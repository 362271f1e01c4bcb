"""Rows of results as Parquet: whole at every moment, whatever is killed.

A `Table` is a folder (`rows/part-<hash of its bytes>.parquet`, `experiment.json`, `figures/NN-name.json`) while an
experiment runs, or one packed `.parquet` file to keep. Every file is written under a temporary name, synced and
renamed, so a reader never meets half of one. Rows are only added: where a run and step are there twice, the part that
comes first by its contents counts, so a killed compaction or a second writer changes nothing.
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

from recombine.basics.atomic_io import held, replace, sweep_up, temporary
from recombine.basics.errors import InputError, require
from recombine.storage import parquet


class Table:
    """The rows, metadata and figures of one experiment, in a folder or in one `.parquet` file."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.packed = self.path.suffix == ".parquet"
        try:
            is_folder, is_file = self.path.is_dir(), self.path.is_file()
        except (
            OSError,
            ValueError,
        ) as error:  # a name that is too long, or holds what the system does not allow
            raise InputError(f"{self.path} cannot be used ({error}): name another path") from error
        require(
            not (self.packed and is_folder),
            f"{self.path} is a folder, and only files may end in .parquet: rename it or choose another path",
        )
        require(
            self.packed or not is_file,
            f"{self.path} is a file, not a folder of results: name a folder or a .parquet file",
        )

    def append(self, rows: pd.DataFrame) -> Path:
        """Add rows and return the file that holds them; no existing part is ever touched."""
        require("run" in rows, f"rows for {self.path} need a column 'run'")
        if self.packed:
            self._pack(parquet.concat([self.read(), rows]), self._document())
            return self.path
        return self._add(parquet.encode(rows))

    def compact(self) -> None:
        """Put the rows of all parts into one; for who holds the table. Killed in between, it changes nothing."""
        parts = self._parts()
        if self.packed or len(parts) < 2:
            return
        whole = self._add(parquet.merge(self._load_all(None)))
        for part in set(parts) - {whole}:
            part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Be the only process that writes here, or raise an `InputError` that says who does."""
        with held(self.path):
            sweep_up(
                *(
                    (self.path.parent,)
                    if self.packed
                    else (self.path, self.path / "rows", self.path / "figures")
                )
            )
            yield

    def num_parts(self) -> int:
        """How many files hold the rows."""
        return len(self._parts())

    def read(self, columns: list[str] | None = None) -> pd.DataFrame:
        """All rows, ordered by run and step; where a part lacks a column its rows are null there."""
        wanted = None if columns is None else list(dict.fromkeys([*parquet.ORDER, *columns]))
        tables = self._load_all(wanted)
        if not tables:
            return pd.DataFrame(columns=columns)
        rows = parquet.join(tables)
        if columns is None:
            return rows
        lost = [name for name in columns if name not in rows]
        require(not lost, f"{self.path} has no column {', '.join(map(repr, lost))}")
        return rows.loc[:, columns]

    def finished(self) -> set[str]:
        """The runs that have rows."""
        return {run for part in self._load_all(["run"]) for run in part["run"].to_pylist()}

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
        return {
            file.stem.split("-", 1)[1]: file.read_text(encoding="utf-8")
            for file in self._figure_files()
        }

    def check_writable(self) -> None:
        """Raise an `InputError` unless rows can be written here; called before any work starts."""
        folder = self.path.parent if self.packed else self.path / "rows"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = temporary(folder / "probe")
            probe.touch(exist_ok=False)
            probe.unlink()
        except OSError as error:
            reason = error.strerror or error
            raise InputError(
                f"cannot write results to {self.path} ({reason}): name another path"
            ) from error

    def _add(self, data: bytes) -> Path:
        return replace(self.path / "rows" / f"part-{parquet.digest(data)}.parquet", data)

    def _load_all(self, wanted: list[str] | None) -> list[pa.Table]:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for _ in range(100):
                parts = self._parts()
                tables = list(pool.map(lambda part: parquet.load(part, wanted), parts))
                # A part that has gone was compacted while we read: its rows are in another one by now.
                if set(self._parts()) >= set(parts):
                    return [table for table in tables if table is not None]
        raise InputError(
            f"{self.path} changes faster than it can be read: try again when its writer has finished"
        )

    def _parts(self) -> list[Path]:
        if self.packed:
            return [self.path] if self.path.exists() else []
        return sorted((self.path / "rows").glob("part-*.parquet"))

    def _figure_files(self) -> list[Path]:
        files = (self.path / "figures").glob("[0-9]*-*.json")
        return sorted(files, key=lambda file: int(file.name.split("-")[0]))

    def _document(self) -> dict[str, Any]:
        if self.packed:
            text, source = parquet.metadata(self.path) if self.path.exists() else b"{}", self.path
        else:
            source = self.path / "experiment.json"
            text = source.read_bytes() if source.exists() else b"{}"
        try:
            document = json.loads(text)
        except ValueError as error:
            raise InputError(
                f"{source} is not JSON ({error}): move it away and run again"
            ) from error
        require(
            isinstance(document, dict), f"{source} is not a JSON object: move it away and run again"
        )
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
        replace(
            self.path,
            parquet.pack(parquet.sort(rows), json.dumps(document, default=_plain).encode()),
        )


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
