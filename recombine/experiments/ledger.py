"""The ledger: every claim with its measurement and its verdict, computed from the committed tables.

Nothing is typed by hand: the numbers come from `docs/results/NAME.parquet`. Because the bootstrap
takes a while, the lines of an experiment are cached (`VerdictCache`) until its table or its code
changes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.basics import user_files
from recombine.basics.atomic_io import write_atomically
from recombine.basics.errors import InputError
from recombine.basics.version import CHECKOUT, PACKAGE
from recombine.experiments import catalogue
from recombine.experiments.claim import OURS, Claim, claims_of, makes_claims
from recombine.storage.table import Table
from recombine.sweeps.package_imports import named_data_files, needed_files, package_file

RESULTS = CHECKOUT / "docs" / "results"
Line = dict[str, Any]
ReportStep = Callable[[str, int, int], None]  # what is done, its number, how many there are
Tell = ReportStep  # the earlier name
COLUMNS = (
    "experiment",
    "title",
    "name",
    "statement",
    "source",
    "ours",
    "published",
    "measured",
    "interval",
    "control",
    "note",
    "threshold",
    "threshold_published",
    "interval_kind",
    "seeds",
    "group",
    "repeats",
    "after_rows",
    "columns",
    "runs",
    "computed",
    "outdated",
    "seconds",
    "date",
    "scale",
    "device",
    "recipe",
    "verdict",
    "command",
)
MAX_RECIPES = 6  # recipes that are named for one table
LIBRARIES = ("numpy", "pandas", "scipy", "scikit-learn")  # with a version that may change a number


def ledger(
    experiments: Sequence[str] | Mapping[str, Any],
    results: Path,
    report_step: ReportStep = lambda *_: None,
) -> pd.DataFrame:
    """One line per claim of these experiments, measured on the tables in `results`.

    `experiments` are our names or users' files. A mapping of names to modules is judged without the
    cache.
    """
    lines: list[Line] = []
    for number, name in enumerate(experiments, start=1):
        report_step(f"judging {Path(name).stem}", number, len(experiments))
        table = Table(results / f"{Path(name).stem}.parquet")
        if isinstance(experiments, Mapping):
            lines += judge(name, experiments[name], table)
        else:
            lines += cached_lines(name, table)
    return frame_of(lines)


def frame_of(lines: Sequence[Line]) -> pd.DataFrame:
    """The lines as a frame. Numbers of seeds stay integers where others are missing."""
    frame = pd.DataFrame(list(lines), columns=list(COLUMNS))
    seeds = pd.Series([line["seeds"] for line in lines], index=frame.index, dtype=object)
    return frame.assign(seeds=seeds)


def results_folder() -> Path:
    """The folder of the committed tables.

    It is in the checkout of this code; if the code is installed elsewhere, in the current folder.
    """
    current = Path("docs") / "results"
    return current if current.is_dir() and not RESULTS.is_dir() else RESULTS


def cached_lines(name: str, table: Table) -> list[Line]:
    """The lines of one experiment, from the cache if neither its table nor its code changed."""
    if name not in catalogue.experiment_names():  # a user's file may import anything
        return judge(name, catalogue.experiment(name), table)
    cache = VerdictCache(name, table)
    lines = cache.load()
    if lines is None:
        lines = judge(name, catalogue.experiment(name), table)
        cache.save(lines)
    return lines


def judge(name: str, module: Any, table: Table) -> list[Line]:
    """The lines of one experiment (a name of ours or a user's file), measured on its table."""
    if not makes_claims(module):
        return []
    rows = shown(table)
    meta = table.meta()
    scale = meta.get("scale", "full")
    is_ours = table.path.is_relative_to(CHECKOUT)
    path = table.path.relative_to(CHECKOUT) if is_ours else table.path
    command = shlex.join(["recombine", "run", name, "--scale", scale, "--out", str(path)])
    devices = sorted(set(rows["meta/device"].dropna())) if "meta/device" in rows else []
    shared = {
        "experiment": Path(name).stem,
        "title": getattr(module, "TITLE", Path(name).stem),
        "runs": rows["run"].nunique() if len(rows) else 0,
        "computed": hasattr(module, "cells"),
        "outdated": _num_outdated(name, module, table, rows),
        "seconds": device_seconds(rows),
        "date": meta.get("date", ""),
        "scale": scale,
        "device": " + ".join(devices) or meta.get("device", ""),
        "recipe": getattr(module, "RECIPE", "") or recipes_of(rows),
        "command": command,
    }
    return [_plain(shared | _line(claim)) for claim in _claims(module, table, rows, command)]


def _num_outdated(name: str, module: Any, table: Table, rows: pd.DataFrame) -> int:
    """How many runs of the table the experiment no longer lists, at the scale of the table."""
    from recombine.sweeps.run import identity
    from recombine.training.computed import Cell, own_code_hash

    scale = table.meta().get("scale")
    list_function = getattr(module, "cells", getattr(module, "runs", None))
    if rows.empty or scale is None or list_function is None:
        return 0
    try:
        listed = list_function(scale)
    except Exception as error:
        reason = user_files.describe_error(error, Path(getattr(module, "__file__", None) or ""))
        raise InputError(f"{name} cannot list its runs at scale {scale}: {reason}") from error
    names = set()
    for item in listed:
        if isinstance(item, Mapping):
            names.add(Cell(Path(name).stem, item, own_code_hash(module)).name)
        else:
            names.add(identity(item))
    return len(set(rows["run"]) - names)


def _claims(module: Any, table: Table, rows: pd.DataFrame, command: str) -> list[Claim]:
    try:
        claims = list(claims_of(module, None if rows.empty else rows))
    except KeyError as error:
        raise InputError(
            f"{table.path} has no column {error}: run `{command}` to make the table again"
        ) from error
    except Exception as error:
        reason = user_files.describe_error(error, Path(getattr(module, "__file__", None) or ""))
        raise InputError(f"cannot compute the claims from {table.path}: {reason}") from error
    for claim in claims:
        if not isinstance(claim, Claim):
            kind = type(claim).__name__
            raise InputError(
                "claims(rows) must return a list of Claim (recombine/experiments/claim.py), "
                f"got {kind}"
            )
    return claims


def _line(claim: Claim) -> Line:
    published = OURS if claim.ours else claim.published
    return vars(claim) | {
        "verdict": claim.verdict,
        "ours": claim.ours,
        "published": published,
        "group": claim.group,
    }


def _plain(line: Line) -> Line:
    """The line with Python's own types, just as the cache gives it back."""
    return _restore(json.loads(json.dumps(line, default=_to_python)))


def _to_python(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)  # a NumPy scalar, or any object


def _restore(line: Line) -> Line:
    interval = line["interval"]
    columns = tuple(line["columns"])
    return line | {"interval": None if interval is None else tuple(interval), "columns": columns}


def shown(table: Table) -> pd.DataFrame:
    """The rows of the runs of the last command; the table may hold other runs, too."""
    rows = table.read()
    meta = table.meta()
    return rows.loc[rows["run"].isin(meta["shown"]), :] if len(rows) and "shown" in meta else rows


class VerdictCache:
    """The lines of one experiment and one table, on disk beside the program cache.

    An entry is valid for the bytes of the table, the code and data that the experiment uses
    (`source_digest`) and the versions of the libraries. A cache that cannot be read or written is
    ignored. RECOMBINE_CACHE=off switches it off.
    """

    def __init__(self, name: str, table: Table) -> None:
        self.name = name
        self.table = table.path
        folder = cache_folder()
        path_hash = hashlib.sha256(str(self.table.absolute()).encode()).hexdigest()[:12]
        self.file = None if folder is None else folder / "verdicts" / f"{name}-{path_hash}.json"
        # Computed before judging: if the table changes meanwhile, the entry is not valid.
        self._key = "" if self.file is None else self.key()

    def load(self) -> list[Line] | None:
        """The lines of an entry that is still valid, or None."""
        if self.file is None:
            return None
        try:
            entry = json.loads(self.file.read_text())
            return list(map(_restore, entry["lines"])) if entry["key"] == self._key else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, lines: list[Line]) -> None:
        """Keep lines that were just computed."""
        if self.file is None:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.file, json.dumps({"key": self._key, "lines": lines}).encode())
        except OSError:
            pass

    def key(self) -> str:
        """A hash of everything that the lines depend on."""
        table = self.table.read_bytes() if self.table.exists() else b""
        parts = [
            source_digest(self.name),
            sys.version,
            *(version(library) for library in LIBRARIES),
        ]
        return hashlib.sha256("\n".join(parts).encode() + table).hexdigest()


def source_digest(name: str, package: Path = PACKAGE) -> str:
    """A hash of the code and the data that the claims of an experiment depend on.

    That is its file, this module, all that both import of the package, and the data files that any
    of these names: tables of other experiments, and files beside the code.
    """
    start = (package_file(catalogue.module_name(name), package), package_file(__name__, package))
    digest = hashlib.sha256()
    for path in sorted(needed_files(filter(None, start), package)):
        for file in (path, *named_data_files(path, (path.parent, RESULTS))):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def cache_folder() -> Path | None:
    """`$RECOMBINE_CACHE`, or `recombine` in the user's cache folder; None if it is `off`."""
    chosen = os.environ.get("RECOMBINE_CACHE", "")
    if chosen == "off":
        return None
    try:
        default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recombine"
    except RuntimeError:  # there is no home
        return Path(chosen) if chosen else None
    return Path(chosen) if chosen else default


def recipes_of(rows: pd.DataFrame) -> str:
    """The recipes of the trained runs as Python would write them, with their number of steps."""
    if "recipe" not in rows or "num_steps" not in rows:
        return ""
    columns = [
        "recipe",
        "recipe.learning_rate",
        "recipe.weight_decay",
        "recipe.vector_rate",
        "num_steps",
        "recipe.precision",
    ]
    runs = rows.drop_duplicates("run").reindex(columns=columns)
    counts = runs[runs["recipe.learning_rate"] != 0].value_counts(dropna=False)
    index: Any = counts.index
    recipes = list(dict.fromkeys(recipe_text(*values) for values in index))
    recipes.sort(key=lambda text: not text.startswith("Paper"))  # the paper's own first
    num_more = len(recipes) - MAX_RECIPES
    more = f"; and {num_more} more" if num_more > 0 else ""
    return "; ".join(recipes[:MAX_RECIPES]) + more


def recipe_text(
    name: str,
    learning_rate: float,
    weight_decay: float,
    vector_rate: float,
    num_steps: float,
    precision: str = "auto",
) -> str:
    """A recipe and its steps. If `vector_rate` is NaN, the rows were trained with 1."""
    fields = f"learning_rate={learning_rate:g}, weight_decay={weight_decay:g}"
    if name == "Fast":
        fields += f", vector_rate={1 if math.isnan(vector_rate) else vector_rate:g}"
    suffix = f", {precision}" if precision in ("float32", "bfloat16") else ""
    return f"{name}({fields}), {num_steps:,.0f} steps{suffix}"


def device_seconds(rows: pd.DataFrame) -> float:
    """The device time of these runs: their training, and the compilation of each program once."""
    if "meta/compile_seconds" not in rows:
        return 0.0
    runs = rows.drop_duplicates("run")
    # Runs of one program have the same two values.
    programs = runs.drop_duplicates(["meta/seconds", "meta/compile_seconds"])
    return sum(runs["meta/seconds"]) + sum(programs["meta/compile_seconds"])
