"""Experiments that are computed, not trained: a list of cells, and a function that measures one.

    cells(scale) -> list of {name: number or text}
    measure(**cell) -> {name: number or text}, or a list of such dicts

A cell gives one row, or one row for each dict of the list. Its rows are stored, reused and reported
like those of a run. They are found again by the experiment's name and the cell's values.

Arguments of `cells` with a default are settings (`--set name=value`). Two arguments of `measure`
are special, for cells that take long:

    folder          a folder beside the rows, for intermediate results
    show_progress   a function that shows a text (`tell` is its old name)
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import inspect
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from recombine.basics.console import ProgressBar, print_line, say
from recombine.basics.errors import InputError, require
from recombine.basics.moved_modules import MOVED
from recombine.basics.suggest import counted
from recombine.basics.version import PACKAGE
from recombine.storage.parquet import storable
from recombine.storage.table import Table
from recombine.sweeps.code_hash import hash_of_files, hash_of_function
from recombine.sweeps.package_imports import package_file
from recombine.sweeps.syntax import parse_file
from recombine.training import device
from recombine.training.chunk import provenance
from recombine.training.row_writer import RowWriter, lock_table

Measure = Callable[..., Mapping[str, Any] | Sequence[Mapping[str, Any]]]
ShowText = Callable[[str], None]

# Rooms whose code may change the rows of a computed experiment, and modules there that only judge,
# draw and run.
COMPUTING = ("experiments.", "coverage.", "planning.")
PRESENTATION = tuple(
    f"experiments.{name}"
    for name in ("claim", "plots", "ledger", "record", "runner", "catalogue", "device_time")
)
PLAIN_TYPES = (bool, int, float, str)  # of a cell's values
PROGRESS_ARGUMENTS = ("show_progress", "tell")  # of `measure`


class Cell(NamedTuple):
    """One measurement of a computed experiment.

    `code` is the hash of the function that measures it if that is the user's: a cell that other
    code measures is another cell, and is computed anew. Our own experiments leave it empty, so that
    committed rows stay.
    """

    experiment: str
    values: Mapping[str, Any]
    code: str = ""

    @property
    def name(self) -> str:
        """A hash that identifies the cell in the column `run`."""
        identity: list[Any] = [self.experiment, dict(self.values)]
        text = json.dumps(identity + [self.code] * bool(self.code), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.values.items() if value != "")


def compute_cells(
    cells: Sequence[Cell],
    measure: Measure,
    table: Table,
    about: Mapping[str, Any],
    show_progress: bool,
    code_hash: str,
) -> tuple[pd.DataFrame, int]:
    """Compute the cells that are missing in the table. Each is written before the next one begins.

    Returns the rows of all cells, and how many cells were computed. The table is locked and read
    as in `scheduler.complete`.
    """
    with contextlib.ExitStack() as stack:
        lock_error = lock_table(table, stack)
        rows_before = table.read()
        computed_before = set(rows_before["run"]) if len(rows_before) else set()
        missing = [cell for cell in cells if cell.name not in computed_before]
        if not missing:
            rows = _rows_in_order(cells, rows_before)
            _note_other_code(rows, code_hash)
            return rows, 0
        if lock_error is not None:
            raise lock_error
        table.check_writable()
        table.note(**about)
        device.enable_program_cache()  # a small cell spends most of its time on compilation
        writer = RowWriter(table, written_before=computed_before)
        with writer.writing(say):
            for cell, show_text in _with_progress(missing, len(cells), show_progress):
                measure_cell = _with_show_text(measure, show_text)
                writer.add(_measure_rows(cell, measure_cell, code_hash), [cell.name])
    rows = finished_rows(cells, table)
    if computed_before:
        _note_other_code(rows.loc[rows["run"].isin(list(computed_before)), :], code_hash)
    return rows, len(missing)


def finished_rows(cells: Sequence[Cell], table: Table) -> pd.DataFrame:
    """The rows of the cells that are in the table, in the order of the cells."""
    rows = _rows_in_order(cells, table.read())
    require(
        len(rows) > 0,
        f"none of the {len(cells)} cells is computed in {table.path}: leave out --no-train",
    )
    return rows


def _rows_in_order(cells: Sequence[Cell], rows: pd.DataFrame) -> pd.DataFrame:
    if not len(rows):
        return rows
    position = {cell.name: i for i, cell in enumerate(cells)}
    rows = rows.loc[rows["run"].isin(list(position)), :]
    rows = rows.sort_values("run", key=lambda names: names.map(position), kind="stable")
    return rows.reset_index(drop=True)


def _with_show_text(measure: Measure, show_text: ShowText) -> Measure:
    """The measure with the function that shows a text, if it has an argument for it."""
    parameters = inspect.signature(measure).parameters
    for name in PROGRESS_ARGUMENTS:
        if name in parameters:
            return functools.partial(measure, **{name: show_text})
    return measure


def _measure_rows(cell: Cell, measure: Measure, code_hash: str) -> pd.DataFrame:
    """Measure a cell, check the result and add the columns `meta/…`."""
    started = time.perf_counter()
    measured = measure(**cell.values)
    rows = [measured] if isinstance(measured, Mapping) else measured
    is_list = isinstance(rows, Sequence) and len(rows) > 0
    require(
        is_list and all(isinstance(row, Mapping) for row in rows),
        f"{cell.experiment}: measure must return {{name: number or text}}, "
        f"or a list of them, for {cell}",
    )
    meta = provenance(code_hash)
    meta |= {"meta/seconds": time.perf_counter() - started, "meta/compile_seconds": 0.0}
    columns = []
    for i, row in enumerate(rows):
        values = {name: storable(value) for name, value in {**cell.values, **row}.items()}
        columns.append({"run": cell.name, "step": i, **values, **meta})
    return pd.DataFrame(columns)


def _note_other_code(reused: Any, code_hash: str) -> None:
    """Print a note if reused rows were computed by other code."""
    num_others = num_other_code(reused, code_hash)
    if num_others:
        say(
            f"{num_others} reused cells were computed by other code: they are kept. "
            "To compute them again, choose another --out"
        )


def num_other_code(rows: Any, code_hash: str) -> int:
    """How many runs or cells were made by other code than this."""
    hashes = rows.drop_duplicates("run").get("meta/code", [])
    return sum(other != code_hash for other in hashes)


def _with_progress(
    missing: Sequence[Cell], num_cells: int, show_progress: bool
) -> Iterator[tuple[Cell, ShowText]]:
    """The cells, each shown when it begins, and a function that shows a text meanwhile."""
    num_done = num_cells - len(missing)
    with ProgressBar(num_cells, visible=show_progress, show_count=True) as bar:
        if show_progress and num_done:
            print_line(f"{num_done} of {num_cells} cells are computed already: reused", stderr=True)

        def show_text(text: str) -> None:
            bar.update(text, num_done)

        for cell in missing:
            show_text(str(cell))
            yield cell, show_text
            num_done += 1
        bar.fill()


def check_cells(experiment: str, source: str, values: Any, code: str = "") -> list[Cell]:
    """The cells of an experiment, from the list that its function `cells` returned.

    Every cell must be a dict of plain values, and no two may be equal. `source` names the function
    in error messages, `code` is the hash of a user's own `measure`.
    """
    is_list = isinstance(values, Sequence) and all(map(_is_plain_dict, values))
    require(is_list, f"{source} must return a list of {{name: number or text}}")
    require(len(values) > 0, f"{source} returned no cell")
    cells = [Cell(experiment, cell_values, code) for cell_values in values]
    num_repeated = len(cells) - len({cell.name for cell in cells})
    if num_repeated:
        raise InputError(f"{source} returned {counted(num_repeated, 'cell')} twice")
    return cells


def _is_plain_dict(cell: Any) -> bool:
    if not isinstance(cell, Mapping):
        return False
    return all(isinstance(value, PLAIN_TYPES) for value in cell.values())


def own_code_hash(module: Any) -> str:
    """The hash of a user's `measure` and all that it uses. Empty for our own experiments."""
    path = getattr(module, "__file__", None)
    if path is None or module.__name__.startswith(f"{PACKAGE.name}."):
        return ""
    return hash_of_function(module, "measure")


def experiment_code_hash(path: Path) -> str:
    """A hash of the code that a computed experiment depends on.

    That is its own file, the probe, our statistics, the private helper modules of our experiments
    that it names, and what all of these import of our experiments, of the coverage and of the
    planner.
    """
    text = path.read_text()
    for old_name, new_names in MOVED.items():  # a user's file may still import an old name
        text = text.replace(f"recombine.{old_name}", f"recombine.{new_names[0]}")
    helpers = [file for file in (PACKAGE / "experiments").rglob("*.py") if _is_helper(file)]
    used_folders = {file.parent for file in helpers if _helper_name(file) in text}
    used_helpers = [file for file in helpers if file.parent in used_folders]
    probe_files = PACKAGE.glob("probe/*.py")
    statistics_file = PACKAGE / "basics" / "statistics.py"
    imported = _imported_files([path, *used_helpers])
    return hash_of_files([*probe_files, statistics_file, *used_helpers, *imported, path])


def _imported_files(paths: Iterable[Path]) -> set[Path]:
    """What files import of the rooms that compute rows, and what that imports in turn."""
    queue = list(paths)
    imported: set[Path] = set()
    while queue:
        for node in ast.walk(parse_file(queue.pop())):
            modules = [alias.name for alias in getattr(node, "names", []) if alias.name != "*"]
            if isinstance(node, ast.ImportFrom):
                modules = [str(node.module), *(f"{node.module}.{name}" for name in modules)]
            elif not isinstance(node, ast.Import):
                continue
            new = set(filter(None, map(_computing_file, modules))) - imported
            imported |= new
            queue += new
    return imported


def _computing_file(module: str) -> Path | None:
    """The file of one of our modules, if rows of computed experiments may depend on it."""
    name = module.partition(".")[2]
    if name.startswith(PRESENTATION) or not name.startswith(COMPUTING):
        return None
    return package_file(module)


def _is_helper(file: Path) -> bool:
    """Whether a file is private, or in a private package."""
    is_private_module = file.name.startswith("_") and file.name != "__init__.py"
    return is_private_module or file.parent.name.startswith("_")


def _helper_name(file: Path) -> str:
    """The name in an import: of the private package, or of the private module."""
    return file.parent.name if file.parent.name.startswith("_") else file.stem
