"""Does generalization win over memorization as the number of modules grows?

Claim: the solution that generalizes wins because it is simpler: its complexity grows linearly with
the number of modules M, while that of memorizing grows with the number of tasks, as M^K (arXiv
2507.07207, section 3 and theorem 3.1).

Students of growing width learn half of the tasks of growing families with K = 3. We measure three
widths: where seen tasks are fitted (R2 of TARGET), where held-out tasks are (students between these
two widths only memorize), and where seen tasks of the family `Unrelated` are fitted. There no two
combinations have anything in common, so students can only memorize, and the test score must fail at
any width. All students train for the same number of steps, so "fitted" means within these steps.
Families with more modules also have more train tasks; this experiment does not separate the two.

Command:  recombine run memorisation --scale small
Runtime:  11 minutes on 2 busy cores; full: 3 minutes on an H200 shared with another sweep.
Expected: the parameters needed grow with the number of unrelated tasks, and hardly with the number
          of the hyperteacher's; students that only memorize become rarer as M grows.
"""

import math
from typing import Any

import numpy as np
import pandas as pd

from recombine.basics import statistics
from recombine.experiments.claim import (
    Frame,
    Select,
    above,
    at_most,
    below,
    complete_seeds,
    final_rows,
    hypothesis,
    reproduces,
    where,
)
from recombine.experiments.plots import curve
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.families.unrelated import Unrelated
from recombine.parts.models.mlp import MLP
from recombine.parts.recipes.fast import Fast
from recombine.sweeps.run import Run, replace_fields, sweep

TITLE = "Generalizing or memorizing: the width each of them needs"
SOURCE = "arXiv 2507.07207, section 3 and theorem 3.1"
PUBLISHED = "linear in M against exponential"
TARGET = 0.9  # R2 that counts as fitted, and as generalized
MODULES = {"tiny": (3, 4), "small": (4, 6, 8), "full": (4, 8, 12, 16, 24)}
WIDTHS = {  # memorizing needs more, in larger steps: each width and number of modules is a program
    Hyperteacher: {"tiny": (8,), "small": (32, 64, 128, 256), "full": (16, 32, 64, 128, 256, 512)},
    Unrelated: {"tiny": (8,), "small": (32, 64, 128, 256), "full": (16, 64, 256, 1024)},
}
SEEDS = {"tiny": 1, "small": 3, "full": 3}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"num_steps": 20, "num_tasks": 8, "num_eval_tasks": 32},
    "small": {"num_steps": 1000},
    "full": {
        "num_steps": 8000,
        "num_tasks": 512,
        "num_points": 4,
        "num_eval_tasks": 1024,
        "recipe": Fast(),
    },
}
CURVES = (("Hyperteacher", "seen"), ("Hyperteacher", "test"), ("Unrelated", "seen"))
VERBS = {"seen": "fit", "test": "generalise"}  # in the keys of the summary


def runs(scale: str) -> list[Run]:
    """Family x number of modules x width x seed."""
    base = replace_fields(Run(diagnostics=(), num_evals=1, frac_test=0.5), SIZES[scale])
    listed = []
    for family, widths in WIDTHS.items():
        listed += sweep(
            base,
            family=[family(num_modules=num_modules) for num_modules in MODULES[scale]],
            model=[MLP((width,) * 3) for width in widths[scale]],
            seed=range(SEEDS[scale]),
        )
    return listed


def prepare(rows: Frame) -> Frame:
    """The final rows, with M and the gap between seen and held-out tasks."""
    final = final_rows(rows)
    final["M"] = final["family.num_modules"]
    final["gap"] = final["seen/r2"] - final["test/r2"]
    return final


def widths_needed(final: Frame, family: str, side: str) -> Frame:
    """The width at which a score reaches TARGET; a series by number of train tasks and modules."""
    of_family = final[final["family"] == family]
    scores = of_family.groupby(["num_train", "M", "model.width"])[f"{side}/r2"].mean()
    needed = {}
    for key, curve_scores in scores.groupby(level=[0, 1]):
        widths = curve_scores.index.get_level_values("model.width")
        # Where the curve crosses the target, computed as a number of tasks is elsewhere.
        needed[key] = statistics.tasks_needed(widths, curve_scores, TARGET)
    index = pd.MultiIndex.from_tuples(list(needed), names=["num_train", "M"])
    return pd.Series(list(needed.values()), index, dtype=float)


def num_parameters(width: Any, num_modules: Any) -> Any:
    """Weights and biases of three hidden layers: a code of M numbers, 16 inputs and 16 outputs."""
    return (num_modules + 17) * width + 2 * (width + 1) * width + (width + 1) * 16


def exponent(final: Frame, family: str) -> float:
    """The exponent with which the parameters that fit seen tasks grow with their number.

    It is fitted by least squares of logarithms. An unknown width never favors the claim:
    - Unrelated tasks that no student fits: the fewest of them count with the widest student that
      was trained on them, which is too narrow; more tasks do not count.
    - Tasks of the hyperteacher that the narrowest student fits do not count; tasks that no student
      fits make the exponent NaN.
    """
    widths = widths_needed(final, family, "seen")
    num_modules = widths.index.get_level_values("M")
    trained = final[final["family"] == family].groupby("M")["model.width"]
    if family == "Unrelated":
        is_unfitted = np.isinf(widths)
        widths = widths.mask(is_unfitted, trained.max()[num_modules].to_numpy())
        widths = widths[~is_unfitted | (is_unfitted.cumsum() == 1)]
    else:
        widths = widths[widths > trained.min()[num_modules].to_numpy()]
    if len(widths) < 2 or np.isinf(widths).any():
        return math.nan
    parameters = num_parameters(widths, widths.index.get_level_values("M"))
    num_tasks = widths.index.get_level_values("num_train")
    return float(np.polyfit(np.log(num_tasks), np.log(parameters), 1)[0])


def exponent_difference(final: Frame) -> float:
    """The exponent of unrelated tasks minus that of the hyperteacher's."""
    return exponent(final, "Unrelated") - exponent(final, "Hyperteacher")


def windows(final: Frame) -> list[float]:
    """The width to generalize over the width to fit, from the fewest modules to the most.

    Infinity if no width generalizes, NaN if no width fits.
    """
    to_fit = widths_needed(final, "Hyperteacher", "seen")
    to_generalize = widths_needed(final, "Hyperteacher", "test")
    return (to_generalize / to_fit).mask(np.isinf(to_fit)).tolist()


def window_ratio(final: Frame) -> float:
    """The window with the most modules over that with the fewest for which a width generalizes.

    0 if a width generalizes only with the most modules.
    """
    *fewer, most = windows(final)
    fewest = next((window for window in fewer if not math.isinf(window)), math.inf)
    return math.inf if math.isinf(most) else most / fewest


def gap_change(final: Frame) -> float:
    """The largest gap of any width, with the most modules minus with the fewest.

    NaN unless some width fits with every number of modules: without a fit there is no gap either.
    """
    if np.isinf(widths_needed(final, "Hyperteacher", "seen")).any():
        return math.nan
    of_family = final[final["family"] == "Hyperteacher"]
    gaps = of_family.groupby(["M", "model.width"])["gap"].mean().groupby("M").max()
    return float(gaps.iloc[-1] - gaps.iloc[0])


def highest_unrelated_score(final: Frame) -> float:
    """The highest test R2 of any student of unrelated tasks."""
    of_family = final[final["family"] == "Unrelated"]
    return float(of_family.groupby(["M", "model.width"])["test/r2"].mean().max())


def summary(rows: Frame) -> dict[str, float]:
    """Widths needed to fit and to generalize, and the exponents."""
    final = prepare(rows)
    values = {}
    for family, side in CURVES:
        for (_, num_modules), width in widths_needed(final, family, side).items():
            values[f"{family}, M={num_modules}: width to {VERBS[side]}"] = width
    for family in ("Hyperteacher", "Unrelated"):
        values[f"{family}: exponent"] = exponent(final, family)
    return values


def parameters_needed(final: Frame) -> Frame:
    """The parameters needed for TARGET, one row per seed, curve and number of tasks."""
    frames = []
    for _, of_seed in final.groupby("seed"):
        for family, side in CURVES:
            frame = widths_needed(of_seed, family, side).reset_index(name="width")
            frame["log parameters"] = np.log10(num_parameters(frame["width"], frame["M"]))
            frames.append(frame.assign(student=f"{family}, {side} tasks"))
    return pd.concat(frames)


def both_scores(final: Frame) -> Frame:
    """Seen and test scores in one column, for the most modules."""
    most = final[final["M"] == final["M"].max()]
    columns = ["family", "model.width", "run", "M"]
    scores = most.melt(columns, ["seen/r2", "test/r2"], "side", "r2")
    scores["student"] = scores["family"] + ", " + scores["side"].str.removesuffix("/r2") + " tasks"
    return scores


def several_sizes(*families: str) -> Select:
    """Select the seeds with the most runs, if each of these families has several M."""

    def select(final: Frame) -> Frame | None:
        complete = complete_seeds(final)
        num_sizes = complete.groupby("family")["M"].nunique()
        has_all = all(num_sizes.get(family, 0) > 1 for family in families)
        return complete if has_all else None

    return select


CLAIMS = [
    hypothesis(
        "control",
        "Tasks without common parts are not generalized at any width (highest test R2)",
        rows=several_sizes("Unrelated"),
        statistic=highest_unrelated_score,
        passes=at_most(0),
    ),
    reproduces(
        "parameters",
        "The parameters needed to fit grow faster with the number of tasks if tasks have no common "
        "parts (difference of the exponents)",
        published=PUBLISHED,
        rows=several_sizes("Hyperteacher", "Unrelated"),
        statistic=exponent_difference,
        passes=above(0),
        control="tasks without common parts must not be generalized",
        control_fails=lambda measurement: highest_unrelated_score(measurement.rows) <= 0,
    ),
    reproduces(
        "window",
        "The width to generalize over the width to fit does not grow with M (most modules over the "
        "fewest for which a width generalizes)",
        published=PUBLISHED,
        repeats="memorisation: parameters",
        rows=several_sizes("Hyperteacher"),
        statistic=window_ratio,
        passes=at_most(1),
    ),
    reproduces(
        "gap",
        "The largest gap between seen and held-out tasks, of any width, shrinks with M (R2, most "
        "minus fewest modules)",
        published=PUBLISHED,
        repeats="memorisation: parameters",
        rows=several_sizes("Hyperteacher"),
        statistic=gap_change,
        passes=below(0),
        control="some width must fit for every M",
    ),
]
FIGURES = [
    curve(
        "log parameters",
        against="num_train",
        color="student",
        rows=parameters_needed,
        name="growth",
        title=f"Parameters needed to reach R² {TARGET}, by the number of train tasks",
        x_title="train tasks (half of all)",
        y_title="parameters needed (log10)",
        log_x=True,
    ),
    curve(
        "r2",
        against="model.width",
        color="student",
        rows=both_scores,
        each="M",  # a single value: it is named in the title
        name="scores",
        title="Fitting and generalizing by width, M = {}",
        y_title="R²",
        log_x=True,
    ),
    curve(
        "gap",
        against="model.width",
        color="M",
        rows=where({"family": "Hyperteacher"}),
        name="gap",
        title="Memorized only: the gap of students of the hyperteacher, by width",
        y_title="R², train minus held-out tasks",
        log_x=True,
    ),
]
