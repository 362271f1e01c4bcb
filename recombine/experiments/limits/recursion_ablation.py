"""Which parts of a recursive network matter? Each is changed alone.

Claim: the source reports that cycles and updates help (T = 3 with n = 6: 87.4%; T = 2 with n = 2:
73.7%), that two networks (82.4%), a gradient through one update (56.5%), attention in place of a
mixing network (74.7%) and no running average (79.9%) are worse (TRM, arXiv 2510.04871). It varies T
and n together. Here the cycles T, the updates n and the supervision steps S vary one at a time, and
the other options each against the standard student. All arms have equal optimizer steps, so a
larger T or n also costs more compute; the figure shows the compute.

Command:  recombine run recursion_ablation --scale small
Runtime:  meant for minutes on 2 cores; full: meant for a quarter of an hour on one H200.
Expected: more supervision steps help more than more cycles or updates.
"""

from dataclasses import replace
from typing import Any

from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    above,
    at_least,
    control,
    difference,
    hypothesis,
    mean_of,
    reproduces,
    where,
)
from recombine.experiments.limits import _recursion
from recombine.experiments.plots import bars, scatter
from recombine.parts.models.recursive import Recursive
from recombine.sweeps.run import Run, sweep

TITLE = "Cycles, updates or supervision steps: what makes recursion work?"
SOURCE = "TRM (arXiv 2510.04871), table 1"
SCORE = "test/accuracy"
STANDARD = "standard"
MIN_GAIN = 0.05
MIN_SEEN = 0.5
# Small values of T, n and S, each below the standard one.
FEWER = {"tiny": (1,), "small": (1,), "full": (1, 2)}
NO_AVERAGE = "no running average"
OPTIONS: dict[str, dict[str, Any]] = {
    "gradient through all cycles": {"gradient": "all"},
    "two networks": {"networks": "two"},
    "attention": {"mixing": "attention"},
    "no halting": {"halting": False},
}


def students(scale: str) -> dict[str, Recursive]:
    """The students by name: the standard one, fewer T, n and S, and the other options."""
    model = _recursion.STUDENTS[scale]
    named = {STANDARD: model}
    for field, letter in (("num_cycles", "T"), ("num_updates", "n"), ("num_steps", "S")):
        for value in FEWER[scale]:
            if value < getattr(model, field):
                named[f"{letter} = {value}"] = replace(model, **{field: value})
    for name, changes in OPTIONS.items():
        named[name] = replace(model, **changes)
    return named


def runs(scale: str) -> list[Run]:
    """Every student x seed, and the standard one without the running average."""
    base = replace(_recursion.base(scale), num_evals=1, diagnostics=())
    seeds = _recursion.SEEDS[scale]
    recipe = replace(_recursion.RECIPES[scale], ema=0.0)
    return [
        *sweep(base, model=list(students(scale).values()), seed=seeds),
        *sweep(replace(base, recipe=recipe), seed=seeds),
    ]


def prepare(rows: Frame) -> Frame:
    """The final rows, with their compute and the name of what was changed."""
    rows = _recursion.with_compute(rows)
    final = rows[rows["is_final"]].copy()
    largest = {name: final[f"model.{name}"].max() for name in ("num_cycles", "num_updates")}
    largest["num_steps"] = final["model.num_steps"].max()
    final["change"] = [_change(row, largest) for _, row in final.iterrows()]
    return final


def _change(row: Any, largest: dict[str, int]) -> str:
    """What differs between a row's student and the standard one."""
    if row["recipe.ema"] == 0:
        return NO_AVERAGE
    for field, letter in (("num_cycles", "T"), ("num_updates", "n"), ("num_steps", "S")):
        value = int(row[f"model.{field}"])
        if value < largest[field]:
            return f"{letter} = {value}"
    for name, changes in OPTIONS.items():
        ((field, value),) = changes.items()
        if row[f"model.{field}"] == value:
            return name
    return STANDARD


def _gain(name: str, statement: str, change: str, published: str = "") -> DeclaredClaim:
    """The standard student solves more test puzzles than a changed one."""
    options: dict[str, Any] = {
        "rows": where({"change": [STANDARD, change]}),
        "needs": (SCORE, "change"),
        "statistic": difference(SCORE, "change", STANDARD, change),
        "passes": above(MIN_GAIN),
        "control": CONTROL,
    }
    text = f"{statement} (difference in accuracy on test puzzles)"
    if published:
        return reproduces(name, text, published=published, **options)
    return hypothesis(name, text, **options)


CONTROL = "each change alone, with equal optimizer steps; the compute is shown"
CLAIMS = [
    _gain("cycles", "The standard number of cycles T is better than one", "T = 1"),
    _gain("updates", "The standard number of updates n is better than one", "n = 1"),
    _gain("supervision steps", "Up to S supervision steps are better than one", "S = 1"),
    _gain("two networks", "One network is better than two", "two networks", "87.4% against 82.4%"),
    _gain("attention", "Mixing networks are better than attention", "attention", "87.4% to 74.7%"),
    _gain("running average", "A running average is better than none", NO_AVERAGE, "87.4% to 79.9%"),
    _gain(
        "gradient",
        "A gradient through the last cycle is better than through all",
        "gradient through all cycles",
    ),
    control(
        "trained enough",
        "The standard student solves at least half of the train puzzles (accuracy)",
        rows=where({"change": STANDARD}),
        needs=("seen/accuracy",),
        statistic=mean_of("seen/accuracy"),
        passes=at_least(MIN_SEEN),
    ),
]
FIGURES = [
    bars(
        SCORE,
        against="change",
        name="change",
        title="Solved test puzzles, with one part of the student changed",
        x_title="what is changed",
        y_title="test puzzles solved",
    ),
    scatter(
        SCORE,
        against="passes",
        color="change",
        name="compute",
        title="Solved test puzzles by training compute",
        x_title="passes of a sample through a layer in training",
        y_title="test puzzles solved",
    ),
]
