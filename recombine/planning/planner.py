"""Estimate how many train tasks a target score needs, and how long training takes.

`plan.json` holds the test scores of students that were trained on random and balanced supports of a
hyperteacher (`benchmarks/plan.py` makes it from the committed tables). For K active modules of M,
the number n of tasks is where the curve of scores crosses the target. The answer has a basis:

measured      The curve of this M and K crosses the target. The interval is the one over seeds,
              extended to the prediction of the scaling law.
interpolated  M lies between measured numbers of modules: the law n = a M^b is fitted to them.
extrapolated  M lies outside, or the law of another K is used, or the curve of this M and K does not
              cross the target within the measured numbers of tasks.

The interval of the law is that of a regression: it grows with the distance from the measured M. Its
error is the one at numbers of modules that were left out of the fit. It grows by a further factor
for each step of K. No estimate contradicts a measured score: it lies above every measured number of
tasks whose score is below the target, unless a larger one is below it, too.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from recombine.basics import statistics
from recombine.basics.errors import InputError, require
from recombine.basics.statistics import crossings
from recombine.parts import khot
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.planning.estimate import estimate
from recombine.sweeps.run import paper_fast, sweep

Basis = Literal["measured", "interpolated", "extrapolated"]

MIN_SIZES_FOR_LAW = 3  # numbers of modules: a line through two has no error to measure
MAX_SEEDS = 10_000  # the time is proportional to the number of seeds
NUM_SAMPLED_TASKS = 4_096  # of a family with too many tasks to list; the cost is the same
ROUNDING_ERROR = 1e-6  # in a number of tasks, which is rounded up
NORMAL_95 = 1.96  # standard errors on either side of a 95% interval
MAX_LOG_FACTOR = 300.0  # of the interval: a larger one overflows, and says no more
UNKNOWN_FACTOR = 2.0  # by which n may change per step of K, if only one K was measured


@functools.cache
def load() -> dict[str, Any]:
    """The measured scores: `columns` names the values of each entry of `runs`.

    `student` describes the students, `num_steps` is their number of steps.
    """
    file = resources.files("recombine.planning").joinpath("plan.json")
    return json.loads(file.read_text(encoding="utf-8"))


def plan(
    num_modules: int,
    num_hot: int,
    target: float,
    kind: str,
    num_seeds: int = 3,
    measured: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Estimate the train tasks for a test R2 of `target`, and the seconds of training.

    The result has an interval, its basis, and why it is extrapolated. `kind` is the device.
    """
    family = _checked_family(num_modules, num_hot, target, num_seeds)
    measured = measured or load()
    runs: Any = pd.DataFrame(measured["runs"], columns=measured["columns"])
    total = khot.count_rows(num_modules, num_hot)
    needed = _estimate(runs, num_modules, num_hot, target, total)
    caveats = list(needed.caveats)
    if needed.number > total:
        caveats.append(f"that is more than all {total:,} tasks")
    low = max(1, math.floor(needed.low))
    high = math.ceil(max(needed.number, min(needed.high, total)) - ROUNDING_ERROR)
    return {
        "modules": num_modules,
        "hot": num_hot,
        "target": target,
        "tasks": total,
        "needed": math.ceil(needed.number - ROUNDING_ERROR),
        "interval": [low, high],
        "basis": needed.basis,
        "share": needed.number / total,
        "extrapolates": needed.basis == "extrapolated" or bool(caveats),
        "why": "; ".join(caveats),
        "student": measured["student"],
        "device": kind,
        "seeds": num_seeds,
        "seconds": _training_seconds(family, kind, num_seeds, measured["num_steps"]),
    }


def _checked_family(num_modules: int, num_hot: int, target: float, num_seeds: int) -> Hyperteacher:
    """The family to plan for. Raises an `InputError` if a number is impossible or too large."""
    require(num_modules >= 2, f"--modules must be at least 2, got {num_modules}")
    require(
        num_modules <= khot.MAX_MODULES,
        f"--modules must be at most {khot.MAX_MODULES:,}, got {num_modules}",
    )
    require(
        1 <= num_hot <= num_modules,
        f"--max-active must be from 1 to the number of modules, {num_modules}; got {num_hot}",
    )
    require(0 < target < 1, f"--target is a test R2 and must be between 0 and 1, got {target}")
    require(
        1 <= num_seeds <= MAX_SEEDS, f"--seeds must be from 1 to {MAX_SEEDS:,}, got {num_seeds}"
    )
    sampled = Hyperteacher(num_modules, num_hot, max_tasks=NUM_SAMPLED_TASKS)
    can_list = khot.count_rows(num_modules, num_hot) <= khot.MAX_LISTED
    return Hyperteacher(num_modules, num_hot) if can_list else sampled


class TargetNotReached(InputError):
    """No measured number of train tasks reaches the target. No estimate of another K is used."""


class Needed(NamedTuple):
    """A number of train tasks, its interval, what it is based on, and what is uncertain."""

    number: float
    low: float
    high: float
    basis: Basis
    caveats: tuple[str, ...] = ()


def _estimate(runs: Any, num_modules: int, num_hot: int, target: float, num_tasks: int) -> Needed:
    """The measured number of tasks; else that of a law, within the bounds of measured scores."""
    own = runs[(runs["modules"] == num_modules) & (runs["hot"] == num_hot)]
    cells = crossings(own, ["seed"], "r2", target)
    if len(own) and (cells["state"] == "crossed").all():
        law = _law_or_none(runs[runs["hot"] == num_hot], num_modules, target)
        return _within_bounds(_measured(cells, law), own, target, num_tasks)
    try:
        predicted = _from_nearest_hot(runs, num_modules, num_hot, target)
    except InputError:
        if not len(own) or _bounds(own, target).state == "never":
            raise
        predicted = _bounds(own, target).as_needed()
    return _within_bounds(predicted, own, target, num_tasks) if len(own) else predicted


class Bounds(NamedTuple):
    """What the mean scores of one M and K say about the number of tasks that a target needs."""

    too_few: float  # the most tasks with a score below the target; 0 if there are none
    enough: float  # the fewest tasks from which on no score is below it; infinity if there are none
    fewest: float  # of all measured numbers of tasks
    best: float  # the best score

    @property
    def state(self) -> str:
        """Whether the scores cross the target, never reach it, or do so at once."""
        if math.isinf(self.enough):
            return "never"
        return "crossed" if self.too_few else "at once"

    def as_needed(self) -> Needed:
        """An estimate from the bounds alone."""
        low = self.too_few or 1.0
        return Needed(self.enough, low, self.enough, "extrapolated")


def _bounds(own: Any, target: float) -> Bounds:
    """The bounds from the numbers of tasks that were measured with every seed."""
    by_size = own.groupby("support/num_train")["r2"].agg(["mean", "count"])
    with_every_seed = by_size[by_size["count"] == own["seed"].nunique()]
    scores = with_every_seed["mean"] if len(with_every_seed) else by_size["mean"][:0]
    below = [float(size) for size in scores.index[scores < target]]
    too_few = max(below, default=0.0)
    enough = [float(size) for size in scores.index if size > too_few]
    fewest = float(scores.index.min()) if len(scores) else math.inf
    best = float(scores.max()) if len(scores) else math.nan
    return Bounds(too_few, min(enough, default=math.inf), fewest, best)


def _within_bounds(needed: Needed, own: Any, target: float, num_tasks: int) -> Needed:
    """Move an estimate to where the measured scores of the same M and K allow it."""
    bounds = _bounds(own, target)
    number = min(max(needed.number, bounds.too_few + 1), bounds.enough)
    low = min(max(needed.low, min(bounds.too_few, number)), number)
    high = max(needed.high, number)
    basis = needed.basis
    caveats = needed.caveats
    if bounds.state == "crossed" and basis != "measured":
        # The mean of all seeds crosses the target, but not the curve of every single seed.
        basis = "measured"
        caveats = ("not every seed crosses the target within the measured numbers of tasks",)
    elif bounds.state == "never" and bounds.too_few:
        basis = "extrapolated"
        caveats = (*caveats, f"{bounds.too_few:,.0f} tasks reach only R2 {bounds.best:.3f}")
        if needed.number <= bounds.too_few:  # the law fails here, so it gives no upper end
            high = max(float(num_tasks), number)
    elif bounds.state == "at once" and not math.isinf(bounds.fewest):
        high = min(high, bounds.fewest)
        caveats = (*caveats, f"{bounds.fewest:,.0f} tasks, the fewest measured, already reach it")
    return Needed(number, low, high, basis, caveats)


def _from_nearest_hot(runs: Any, num_modules: int, num_hot: int, target: float) -> Needed:
    """The estimate by the law of the nearest K that has one.

    For another K than `num_hot`, the interval is wider: by the factor between the two nearest K,
    or by the error of the law if that is larger, for each step of K.
    """
    estimates: dict[int, Needed] = {}
    problem = InputError(
        f"the measured scores do not show how many tasks R2 {target} needs: choose another target"
    )
    measured_hot = set(map(int, runs["hot"].unique()))
    for hot in sorted(measured_hot, key=lambda hot: (abs(hot - num_hot), hot)):
        try:
            estimates[hot] = _by_law(runs[runs["hot"] == hot], num_modules, target)
        except TargetNotReached:
            if hot == num_hot:
                raise
        except InputError as error:
            if hot == num_hot:
                problem = error
        if num_hot in estimates or len(estimates) == 2:
            break
    if not estimates:
        raise problem
    nearest, needed = next(iter(estimates.items()))
    if nearest == num_hot:
        return needed
    log_numbers = [math.log(estimate.number) for estimate in estimates.values()]
    log_factor = math.log(UNKNOWN_FACTOR)
    if len(log_numbers) == 2:
        log_error = math.log(needed.high / needed.number)
        log_factor = max(abs(log_numbers[0] - log_numbers[1]), log_error)
    factor = math.exp(min(log_factor * abs(num_hot - nearest), MAX_LOG_FACTOR))
    problem_text = "has no scaling law" if num_hot in measured_hot else "was not measured"
    caveat = f"K={num_hot} {problem_text}, so the law of K={nearest} is used"
    return Needed(
        number=needed.number,
        low=needed.low / factor,
        high=needed.high * factor,
        basis="extrapolated",
        caveats=(*needed.caveats, caveat),
    )


def _crossed_cells(runs: Any, target: float) -> Any:
    """The tasks needed by each M and seed of one K, where the curves of all seeds cross."""
    cells = crossings(runs, ["hot", "modules", "seed"], "r2", target)
    crossed = cells.assign(ok=cells["state"] == "crossed").groupby("modules")["ok"].transform("all")
    return cells[crossed]


def _by_law(runs: Any, num_modules: int, target: float) -> Needed:
    """The estimate by the scaling law of one K."""
    cells = _crossed_cells(runs, target)
    sizes = sorted(map(int, cells["modules"].unique()))
    if len(sizes) < MIN_SIZES_FOR_LAW:
        best = runs.groupby(["modules", "support/num_train"])["r2"].mean().max()
        message = (
            f"cannot fit a scaling law for R2 {target} with K={int(runs['hot'].iloc[0])}: "
            f"the scores cross it at {len(sizes)} numbers of modules and {MIN_SIZES_FOR_LAW} are "
            f"needed; the best score there is {best:.3f}, choose another target"
        )
        states = crossings(runs, ["hot", "modules", "seed"], "r2", target)["state"]
        raise TargetNotReached(message) if (states == "never").any() else InputError(message)
    slope, offset = _fit_law(cells)
    law = slope * math.log(num_modules) + offset
    error = NORMAL_95 * _law_error(cells) * _distance_factor(sizes, num_modules)
    basis: Basis = "interpolated"
    caveats = ()
    if not min(sizes) <= num_modules <= max(sizes):
        basis = "extrapolated"
        caveats = (f"M={num_modules} is outside the measured {min(sizes)} to {max(sizes)}",)
    return Needed(math.exp(law), math.exp(law - error), math.exp(law + error), basis, caveats)


def _law_or_none(runs: Any, num_modules: int, target: float) -> float | None:
    """The log of the tasks needed by the scaling law of one K; None if it has none."""
    cells = _crossed_cells(runs, target)
    if cells["modules"].nunique() < MIN_SIZES_FOR_LAW:
        return None
    slope, offset = _fit_law(cells)
    return slope * math.log(num_modules) + offset


def _measured(cells: Any, law: float | None) -> Needed:
    """The mean over seeds of one M and K; `law` is log n by the scaling law."""
    log_numbers = np.log(cells["needed"].to_numpy())
    ends = list(statistics.mean_interval(log_numbers))
    if law is not None:
        ends.append(law)
    low, high = math.exp(min(ends)), math.exp(max(ends))
    return Needed(math.exp(log_numbers.mean()), low, high, "measured")


def _fit_law(cells: Any) -> tuple[float, float]:
    """The slope b and the offset log a of log n = b log M + log a."""
    log_modules = np.log(cells["modules"].astype(float))
    slope, offset = np.polyfit(log_modules, np.log(cells["needed"]), 1)
    return float(slope), float(offset)


def _law_error(cells: Any) -> float:
    """The RMS error of log n at each number of modules, by a law fitted to the others."""
    errors = []
    for size in cells["modules"].unique():
        left_out = cells["modules"] == size
        slope, offset = _fit_law(cells[~left_out])
        errors.append(np.log(cells["needed"][left_out]) - slope * math.log(size) - offset)
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))


def _distance_factor(sizes: Sequence[int], num_modules: int) -> float:
    """How the error of a regression grows with the distance from the points of its fit.

    The error at a new point has the variance 1 + 1/n + d^2 / sum(d_i^2) times that of the noise,
    where d is the distance of log M from the mean of the n fitted ones.
    """
    log_sizes = np.log(sizes)
    distances = log_sizes - log_sizes.mean()
    distance = math.log(num_modules) - float(log_sizes.mean())
    return math.sqrt(1 + 1 / len(sizes) + distance**2 / float(distances @ distances))


def _training_seconds(family: Hyperteacher, kind: str, num_seeds: int, num_steps: int) -> float:
    """The seconds of training the measured student; the number of train tasks does not matter.

    Nor do the rates of its recipe.
    """
    base = paper_fast(num_steps=num_steps, diagnostics=(), family=family)
    return estimate(sweep(base, seed=range(num_seeds)), kind)["seconds"]
