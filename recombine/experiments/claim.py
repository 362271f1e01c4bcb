"""The ledger: what was published, what we measured, and whether it holds, one line per claim.

Nothing is typed in by hand: each experiment's `claims(rows)` computes its numbers from the committed rows
`results/NAME.parquet`, so the ledger cannot disagree with them.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.basics import statistics, user_files
from recombine.basics.errors import InputError
from recombine.basics.version import CHECKOUT
from recombine.storage.table import Table

RESULTS = CHECKOUT / "docs" / "results"
Tell = Callable[[str, int, int], None]  # what is done, which one of how many it is
OURS = (
    "ours"  # in place of what was published, where nothing was: a control or a question of our own
)
COLUMNS = (
    *(
        "experiment",
        "title",
        "name",
        "statement",
        "source",
        "ours",
        "published",
        "measured",
        "interval",
    ),
    *(
        "control",
        "note",
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
    ),
)


@dataclass(frozen=True)
class Claim:
    """One statement, published or (`published=OURS`) not, and what we found; `holds` is None until it has run."""

    name: str
    statement: str
    source: str
    published: str
    measured: float | None
    holds: bool | None
    control: str = ""
    interval: tuple[float, float] | None = None
    better: bool = False
    confounded: bool = (
        False  # found as published, but a control that should fail explains it as well
    )
    note: str = ""  # shown with the number; it does not decide the verdict

    @property
    def ours(self) -> bool:
        """Whether nothing was published of it, also where that is spelt otherwise."""
        return self.published in (OURS, "", "-", "none")

    @property
    def verdict(self) -> str:
        """`reproduced`, `better`, `confounded`, `not reproduced`; `not yet run` also where there is only one seed."""
        if self.holds is None or any(map(math.isnan, self.interval or ())):
            return "not yet run"
        if not self.holds:
            return "not reproduced"
        if self.confounded:
            return "confounded"
        return "better" if self.better else "reproduced"


def judged(
    rows: Any, statistic: statistics.Statistic, passes: Callable[[float, float], bool], **told: Any
) -> Claim:
    """A claim about a statistic of rows, which its interval over seeds passes or not; without rows, not yet run."""
    if rows is None:
        return Claim(measured=None, holds=None, **told)
    interval = statistics.over_seeds(rows, statistic)
    return Claim(measured=statistic(rows), holds=passes(*interval), interval=interval, **told)


def last(rows: pd.DataFrame) -> Any:
    """The last evaluation of every run: what most claims are about."""
    return rows[rows["step"] == rows.groupby("run")["step"].transform("max")].copy()


@dataclass(frozen=True)
class Trend:
    """How a score goes as a size grows, with every seed at every size."""

    gain: float  # from the smallest size to the largest
    interval: tuple[float, float]
    spread: float  # between seeds: the largest standard deviation at a size
    drop: float  # the deepest fall of the mean below its best at a smaller size
    fall: float  # the deepest one that is larger than the spread there, with its interval above zero; 0 without one
    fall_interval: tuple[float, float]

    @property
    def grows(self) -> bool:
        """Whether the score grows by more than seeds differ, from one end to the other."""
        return self.interval[0] > 0 and self.gain > self.spread


def trend(frame: Any, size: str, score: str, sizes: Iterable[Any]) -> Trend | None:
    """The trend of a score along these sizes; nothing where they are not the frame's, or a seed lacks one."""
    cells = frame.pivot_table(score, "seed", size)
    if list(cells) != sorted(sizes) or cells.isna().any(axis=None):
        return None
    means, spreads = cells.mean(), cells.std().fillna(0.0)

    def gain(few: Any, many: Any) -> tuple[float, float]:
        def paired(drawn: Any) -> float:
            return drawn[many].mean() - drawn[few].mean()

        return statistics.over_seeds(cells.reset_index(), paired)

    drop, clear = (
        0.0,
        (0.0, (0.0, 0.0) if len(cells) > 1 else (math.nan, math.nan)),
    )  # one seed tells no interval
    for place, many in enumerate(means.index[1:], start=1):
        best = means.iloc[:place].idxmax()
        fall = float(means[best] - means[many])
        drop = max(drop, fall)
        if fall > max(spreads[best], spreads[many]) and (lost := gain(many, best))[0] > 0:
            clear = max(clear, (fall, lost))
    first, last = means.index[0], means.index[-1]
    return Trend(
        float(means[last] - means[first]), gain(first, last), float(spreads.max()), drop, *clear
    )


def trends(
    frame: Any, line: str, size: str, score: str, wanted: Iterable[Mapping[Any, Any]]
) -> dict[Any, Trend]:
    """The trend of each line of a sweep; nothing unless one of the wanted sweeps, sizes by line, is there whole."""
    for lines in wanted:
        found = {
            name: trend(frame[frame[line] == name], size, score, sizes)
            for name, sizes in lines.items()
        }
        whole = {name: one for name, one in found.items() if one is not None}
        if len(whole) == len(found):
            return whole
    return {}


def never_falls(trends: Iterable[Trend], statement: str, source: str) -> Claim:
    """That no trend falls by more than seeds differ: the strict half of "monotone". The deepest such fall is told."""
    deepest = max(trends, key=lambda one: one.fall, default=None)
    return Claim(
        name="never falls",
        statement=f"{statement} (the deepest fall that is larger than the spread of seeds)",
        source=source,
        published="monotone gain",
        measured=deepest and deepest.fall,
        holds=deepest and deepest.fall == 0,
        interval=deepest and deepest.fall_interval,
        control="a fall within the spread of seeds does not count",
    )


def ledger(
    experiments: Mapping[str, Any], results: Path, tell: Tell = lambda *_: None
) -> pd.DataFrame:
    """Return one line per claim of these experiment modules, measured on the packed tables in `results`."""
    told, judged = (
        [],
        {name: module for name, module in experiments.items() if hasattr(module, "claims")},
    )
    for number, (name, module) in enumerate(judged.items(), start=1):
        tell(f"judging {Path(name).stem}", number, len(judged))
        told += judge(name, module, Table(results / f"{Path(name).stem}.parquet"))
    return pd.DataFrame(told, columns=list(COLUMNS))


def results_folder() -> Path:
    """The committed tables: of the checkout that this code is in, or else of the one that is worked in."""
    here = (
        Path("docs") / "results"
    )  # where this code is a copy elsewhere, as `pip install .` makes one
    return here if here.is_dir() and not RESULTS.is_dir() else RESULTS


def judge(name: str, module: Any, table: Table) -> list[dict[str, Any]]:
    """The lines of one experiment (a name of ours or a user's file), measured on the runs that its table shows."""
    rows, meta = shown(table), table.meta()
    place = table.path.relative_to(CHECKOUT) if table.path.is_relative_to(CHECKOUT) else table.path
    scale = meta.get("scale", "full")
    command = shlex.join(["recombine", "run", name, "--scale", scale, "--out", str(place)])
    devices = sorted(set(rows["meta/device"].dropna())) if "meta/device" in rows else []
    shared = {
        "experiment": Path(name).stem,
        "title": getattr(module, "TITLE", Path(name).stem),
        "runs": rows["run"].nunique() if len(rows) else 0,
        "computed": hasattr(module, "cells"),
        "outdated": _outdated(name, module, table, rows),
        "seconds": device_seconds(rows),
        "date": meta.get("date", ""),
        "scale": scale,
        "device": " + ".join(devices) or meta.get("device", ""),
        "recipe": getattr(module, "RECIPE", "") or recipes_of(rows),
        "command": command,
    }
    return [shared | _line(claim) for claim in _claims(module, table, rows, command)]


def _outdated(name: str, module: Any, table: Table, rows: pd.DataFrame) -> int:
    """How many of these runs the experiment does not ask for today, at the scale at which they were made."""
    from recombine.sweeps.run import identity
    from recombine.training.computed import Cell

    scale, listing = (
        table.meta().get("scale"),
        getattr(module, "cells", getattr(module, "runs", None)),
    )
    if rows.empty or scale is None or listing is None:
        return 0
    try:
        listed = listing(scale)
    except Exception as error:
        told = user_files.where(error, Path(getattr(module, "__file__", None) or ""))
        raise InputError(f"{name} cannot list what it asks for at {scale} scale: {told}") from error
    names = (
        Cell(Path(name).stem, one).name if isinstance(one, Mapping) else identity(one)
        for one in listed
    )
    return len(set(rows["run"]) - set(names))


def recipes_of(rows: pd.DataFrame) -> str:
    """The recipes of the trained runs as they would be written, with their steps; six at most."""
    names = [
        "recipe",
        "recipe.learning_rate",
        "recipe.weight_decay",
        "recipe.vector_rate",
        "num_steps",
    ]
    names.append("recipe.precision")
    if "recipe" not in rows or "num_steps" not in rows:
        return ""
    runs = rows.drop_duplicates("run").reindex(columns=names)
    counts = runs[runs["recipe.learning_rate"] != 0].value_counts(dropna=False)
    listed: Any = counts.index
    recipes = list(dict.fromkeys(recipe_text(*values) for values in listed))
    recipes.sort(key=lambda text: not text.startswith("Paper"))  # the paper's own first
    more = f"; and {len(recipes) - 6} more" if len(recipes) > 6 else ""
    return "; ".join(recipes[:6]) + more


def recipe_text(
    name: str,
    learning_rate: float,
    weight_decay: float,
    vector_rate: float,
    num_steps: float,
    precision: str = "auto",
) -> str:
    """A recipe and its steps in words. Rows from before `vector_rate` was added (NaN) were trained with 1."""
    fields = f"learning_rate={learning_rate:g}, weight_decay={weight_decay:g}"
    if name == "Fast":
        fields += f", vector_rate={1 if math.isnan(vector_rate) else vector_rate:g}"
    typed = f", {precision}" if precision in ("float32", "bfloat16") else ""
    return f"{name}({fields}), {num_steps:,.0f} steps{typed}"


def _line(claim: Claim) -> dict[str, Any]:
    published = OURS if claim.ours else claim.published
    return vars(claim) | {"verdict": claim.verdict, "ours": claim.ours, "published": published}


def shown(table: Table) -> pd.DataFrame:
    """The rows of the runs that the table's last command was about; it may hold others too."""
    rows, meta = table.read(), table.meta()
    return rows.loc[rows["run"].isin(meta["shown"]), :] if len(rows) and "shown" in meta else rows


def _claims(module: Any, table: Table, rows: pd.DataFrame, command: str) -> list[Claim]:
    if rows.empty:
        return module.claims(None)
    try:
        return module.claims(rows)
    except KeyError as error:
        raise InputError(
            f"{table.path} has no column {error}: make it anew with `{command}`"
        ) from error
    except Exception as error:
        told = user_files.where(error, Path(getattr(module, "__file__", None) or ""))
        raise InputError(f"the claims cannot be computed from {table.path}: {told}") from error


def device_seconds(rows: pd.DataFrame) -> float:
    """How long the device was held for these runs: their training, and the compilation of each program once."""
    if "meta/compile_seconds" not in rows:
        return 0.0
    runs = rows.drop_duplicates("run")
    programs = runs.drop_duplicates(
        ["meta/seconds", "meta/compile_seconds"]
    )  # what trains side by side shares both
    return sum(runs["meta/seconds"]) + sum(programs["meta/compile_seconds"])
