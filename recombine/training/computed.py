"""Experiments that are computed, not trained: the experiment lists its cells and gives the row of one.

    cells(scale) -> list of {name: number or text}        measure(**cell) -> {name: number or text}, or a list of them

A cell makes one row, or one for each of a list. It is kept, reused, shown and judged as a run is; it is found again by
the experiment's name and its own values. Arguments of `cells` that have a default are settings (`--set name=value`).
A measure that has an argument `folder` gets one beside the rows, to keep what would be lost if it is stopped half-way;
one that has an argument `tell` gets a function that shows a text, where a cell takes long.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from recombine.basics.console import ProgressBar, print_line, say
from recombine.basics.errors import InputError, require
from recombine.basics.moved_modules import MOVED
from recombine.basics.version import PACKAGE
from recombine.storage.table import Table
from recombine.sweeps.code_hash import of_files
from recombine.training import device
from recombine.training.chunk import stamp
from recombine.training.row_writer import Writer, hold

Measure = Callable[..., Mapping[str, Any] | Sequence[Mapping[str, Any]]]


class Cell(NamedTuple):
    """One thing to be computed."""

    experiment: str
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What finds its row again."""
        text = json.dumps([self.experiment, dict(self.values)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.values.items() if value != "")


def take(
    cells: Sequence[Cell],
    measure: Measure,
    table: Table,
    about: Mapping[str, Any],
    shown: bool,
    code: str,
) -> tuple[pd.DataFrame, int]:
    """Compute the cells that are not in the table yet, each written before the next begins; the rows of all, and how
    many cells were computed. The table is held and read as that of a sweep is (`scheduler.complete`)."""
    with contextlib.ExitStack() as stack:
        problem = hold(table, stack)
        before = table.read()
        done = set(before["run"]) if len(before) else set()
        left = [cell for cell in cells if cell.name not in done]
        if not left:
            rows = _of_cells(cells, before)
            if shown:
                _tell_mixed(rows, code)
            return rows, 0
        if problem is not None:
            raise problem
        table.check_writable()
        table.note(**about)
        device.keep_programs()  # most of the time of a small cell is compilation
        writer = Writer(table, before=done)
        with writer.writing(say):
            hears = "tell" in inspect.signature(measure).parameters
            for cell, tell in _with_progress(left, len(cells), shown):
                one = functools.partial(measure, tell=tell) if hears else measure
                writer.add(_rows(cell, one, code), [cell.name])
    rows = finished(cells, table)
    if shown:
        _tell_mixed(rows.loc[rows["run"].isin(list(done)), :], code)
    return rows, len(left)


def finished(cells: Sequence[Cell], table: Table) -> pd.DataFrame:
    """The rows of those cells that are in the table, in the order of the cells."""
    rows = _of_cells(cells, table.read())
    require(
        len(rows) > 0,
        f"none of the {len(cells)} cells is computed in {table.path}: leave out --finished",
    )
    return rows


def _of_cells(cells: Sequence[Cell], rows: pd.DataFrame) -> pd.DataFrame:
    if not len(rows):
        return rows
    place = {cell.name: i for i, cell in enumerate(cells)}
    rows = rows.loc[rows["run"].isin(list(place)), :]
    return rows.sort_values("run", key=lambda names: names.map(place), kind="stable").reset_index(
        drop=True
    )


def _rows(cell: Cell, measure: Measure, code: str) -> pd.DataFrame:
    clock = time.perf_counter()
    found = measure(**cell.values)
    rows = [found] if isinstance(found, Mapping) else found
    fine = (
        isinstance(rows, Sequence)
        and len(rows) > 0
        and all(isinstance(row, Mapping) for row in rows)
    )
    require(
        fine,
        f"{cell.experiment}: measure must give {{name: number or text}}, or a list of them, for {cell}",
    )
    made = stamp(code) | {"meta/seconds": time.perf_counter() - clock, "meta/compile_seconds": 0.0}
    return pd.DataFrame(
        [{"run": cell.name, "step": i, **cell.values, **row, **made} for i, row in enumerate(rows)]
    )


def _tell_mixed(reused: Any, code: str) -> None:
    """Say where reused rows were made by other code: they are kept, but never silently."""
    made = reused.drop_duplicates("run").get("meta/code", [])
    if others := sum(one != code for one in made):
        say(
            f"{others} reused cells were computed by other code: they are kept; name another --out for new ones"
        )


def _with_progress(
    left: Sequence[Cell], num_cells: int, shown: bool
) -> Iterator[tuple[Cell, Callable[[str], None]]]:
    """The cells, each shown as it begins, and a function that shows a text while a cell is computed."""
    num_done = num_cells - len(left)
    with ProgressBar(num_cells, shown=shown, counted=True) as bar:
        if shown and num_done:
            print_line(f"{num_done} of {num_cells} cells are computed already: reused", stderr=True)

        def show(text: str) -> None:
            bar.update(text, num_done)

        for cell in left:
            show(str(cell))
            yield cell, show
            num_done += 1
        bar.fill()


def cells_of(name: str, told: str, given: Any) -> list[Cell]:
    """An experiment's cells, checked: names and plain values, no two alike."""
    plain = (bool, int, float, str)
    fine = isinstance(given, Sequence) and all(
        isinstance(cell, Mapping) and all(isinstance(value, plain) for value in cell.values())
        for cell in given
    )
    require(fine, f"{told} must give a list of {{name: number or text}}")
    require(len(given) > 0, f"{told} gave no cell")
    cells = [Cell(name, cell) for cell in given]
    twice = len(cells) - len({cell.name for cell in cells})
    if twice:
        raise InputError(f"{told} gave {twice} cells twice")
    return cells


def code_of(path: Path) -> str:
    """A hash of the code that a computed experiment depends on: its own file, the probe's, ours that results depend on,
    and the helpers beside our experiments, where it names one of them."""
    text = path.read_text()
    for old, homes in MOVED.items():  # a user's file may still import by an old name
        text = text.replace(f"recombine.{old}", f"recombine.{homes[0]}")
    helpers = [file for file in (PACKAGE / "experiments").rglob("*.py") if _is_helper(file)]
    folders = {file.parent for file in helpers if _helper_name(file) in text}
    named = [file for file in helpers if file.parent in folders]
    return of_files(
        [*PACKAGE.glob("probe/*.py"), PACKAGE / "basics" / "statistics.py", *named, path]
    )


def _is_helper(file: Path) -> bool:
    """Whether a file is private, or in a private package."""
    return any(
        part.startswith("_") and part != "__init__.py" for part in (file.parent.name, file.name)
    )


def _helper_name(file: Path) -> str:
    """How an import names it: a private package, or a private module."""
    return file.parent.name if file.parent.name.startswith("_") else file.stem
