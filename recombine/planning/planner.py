"""How many train tasks a family needs, and how long the sweep takes, from scaling results that were measured.

`plan.json` holds the test scores of students trained on random and balanced supports of a hyperteacher, which score
alike (`support_conditions`); `benchmarks/plan.py` makes it of the committed tables. For each number of active modules
K, the tasks needed for a target are read off where the curve of scores crosses it; between and beyond the numbers of
modules that were measured, by the law n = a M^b fitted to them. The law's interval is its error at numbers of modules
left out of the fit; where M was measured, the interval is that over seeds, and reaches to what the law of all M says.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from recombine.basics import statistics
from recombine.basics.errors import InputError, require
from recombine.basics.statistics import crossings
from recombine.parts import khot
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.recipes.fast import EARLIER_FAST
from recombine.planning.estimate import estimate
from recombine.sweeps.run import paper, sweep

LEAST = 3  # numbers of modules that a law is fitted to: two make a line, one more tells how far off it is
DRAWN = 100_000  # tasks of a family that has too many to list: what a step costs depends on none of them
WIDTH = 1.96  # standard errors on either side: 95%


@functools.cache
def load() -> dict[str, Any]:
    """What was measured: a line of `modules`, `hot`, `seed`, `support/num_train`, `r2` for each run, and of what."""
    return json.loads(
        resources.files("recombine.planning").joinpath("plan.json").read_text(encoding="utf-8")
    )


def plan(
    num_modules: int,
    num_hot: int,
    target: float,
    kind: str,
    num_seeds: int = 3,
    measured: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The train tasks needed for a test R2 of `target`, with an interval and whether that is extrapolated; and the
    seconds that training at that number takes on a device of a kind."""
    require(num_modules >= 2, f"modules must be at least 2, got {num_modules}")
    require(
        1 <= num_hot <= num_modules,
        f"hot must be from 1 to the number of modules {num_modules}, got {num_hot}",
    )
    require(0 < target < 1, f"target is a test R2: choose it between 0 and 1, got {target}")
    require(num_seeds >= 1, f"seeds must be at least 1, got {num_seeds}")
    measured = measured or load()
    runs: Any = pd.DataFrame(measured["runs"], columns=measured["columns"])
    found = _of_nearest_hot(runs, num_modules, num_hot, target)
    total = khot.count(num_modules, num_hot)
    too_many = (
        [f"that is more than the {total:,} tasks that there are"] if found.needed > total else []
    )
    why = [*found.why, *too_many]
    return {
        "modules": num_modules,
        "hot": num_hot,
        "target": target,
        "tasks": total,
        "needed": math.ceil(found.needed),
        "interval": [math.floor(found.low), math.ceil(found.high)],
        "share": found.needed / total,
        "extrapolates": bool(why),
        "why": "; ".join(why),
        "student": measured["student"],
        **_cost(num_modules, num_hot, kind, num_seeds),
    }


class Never(InputError):
    """No number of train tasks that was tried is enough: no other K may answer instead."""


class Needed(NamedTuple):
    """A number of tasks, its interval, and what is extrapolated."""

    needed: float
    low: float
    high: float
    why: tuple[str, ...] = ()


def _of_nearest_hot(runs: Any, num_modules: int, num_hot: int, target: float) -> Needed:
    """The number for the nearest K that tells one; for another K than asked, wider by how much the next K's number
    differs, for each step of K between."""
    told: dict[int, Needed] = {}
    refused = InputError(
        f"no student that was measured tells how many tasks R2 {target} takes; choose another target"
    )
    for hot in sorted(map(int, runs["hot"].unique()), key=lambda k: (abs(k - num_hot), k)):
        try:
            told[hot] = _needed(runs[runs["hot"] == hot], num_modules, target)
        except Never:
            if hot == num_hot:
                raise
        except InputError as error:
            refused = error if hot == num_hot else refused
        if num_hot in told or len(told) == 2:
            break
    if not told:
        raise refused
    nearest, found = next(iter(told.items()))
    if nearest == num_hot:
        return found
    numbers = [math.log(one.needed) for one in told.values()]
    apart = abs(numbers[0] - numbers[1]) if len(numbers) == 2 else math.log(2)
    factor = math.exp(apart * abs(num_hot - nearest))
    lacking = "tells no law" if num_hot in set(runs["hot"]) else "was not measured"
    why = (*found.why, f"K={num_hot} {lacking}: the law is that of K={nearest}")
    return Needed(found.needed, found.low / factor, found.high * factor, why)


def _needed(runs: Any, num_modules: int, target: float) -> Needed:
    """The number for one K: as measured at these modules, or by the law of the others."""
    cells = crossings(runs, ["hot", "modules", "seed"], "r2", target)
    crossed = cells.assign(fine=cells["state"] == "crossed").groupby("modules")["fine"].all()
    sizes = [int(m) for m in crossed.index[crossed]]
    states = cells["state"]
    hot, best = (
        int(cells["hot"].iloc[0]),
        runs.groupby(["modules", "support/num_train"])["r2"].mean().max(),
    )
    cells = cells[cells["modules"].isin(sizes)]
    logarithm = error = None
    if len(sizes) >= LEAST:
        slope, height = _fit(cells)
        logarithm, error = slope * math.log(num_modules) + height, WIDTH * _error(cells)
    if num_modules in sizes:
        of_seeds = np.log(cells.loc[cells["modules"] == num_modules, "needed"].to_numpy())
        ends = [*statistics.interval(of_seeds), *([] if logarithm is None else [logarithm])]
        return Needed(math.exp(of_seeds.mean()), math.exp(min(ends)), math.exp(max(ends)))
    if logarithm is None or error is None:
        raise (Never if (states == "never").any() else InputError)(
            f"R2 {target} was reached, and fewer tasks fell short of it, at {len(sizes)} numbers of modules only with "
            f"K={hot}: no law can be fitted; the best score there is {best:.3f}, choose another target"
        )
    outside = not min(sizes) < num_modules < max(sizes)
    why = (
        (f"M={num_modules} is outside the measured {min(sizes)} to {max(sizes)}",)
        if outside
        else ()
    )
    needed, low, high = (math.exp(logarithm + shift) for shift in (0, -error, error))
    return Needed(needed, low, high, why)


def _fit(cells: Any) -> tuple[float, float]:
    slope, height = np.polyfit(np.log(cells["modules"].astype(float)), np.log(cells["needed"]), 1)
    return float(slope), float(height)


def _error(cells: Any) -> float:
    """The RMS error of log n at each number of modules, by a law fitted to the others."""
    missed = []
    for size in cells["modules"].unique():
        out = cells["modules"] == size
        slope, height = _fit(cells[~out])
        missed.append(np.log(cells["needed"][out]) - slope * math.log(size) - height)
    return float(np.sqrt(np.mean(np.concatenate(missed) ** 2)))


def _cost(num_modules: int, num_hot: int, kind: str, num_seeds: int) -> dict[str, Any]:
    """What training that student costs; it does not depend on the number of train tasks."""
    too_many = khot.count(num_modules, num_hot) > khot.MAX_LISTED
    base = paper(
        recipe=EARLIER_FAST,
        num_tasks=512,
        num_points=4,
        num_steps=5000,
        num_evals=1,
        diagnostics=(),
        family=Hyperteacher(num_modules, num_hot, max_tasks=DRAWN if too_many else 0),
    )
    found = estimate(sweep(base, seed=range(num_seeds)), kind)
    return {"device": kind, "seeds": num_seeds, "seconds": found["seconds"]}
