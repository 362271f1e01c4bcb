"""Does the solution that generalises win over the one that memorises as the number of modules grows?

Claim: the solution that generalises wins, being simpler: its complexity grows linearly with the number of modules M,
that of memorising every task with their number, as M^K (arXiv 2507.07207, section 3 and theorem 3.1).

Students of growing width learn half of the tasks of growing families, K = 3. Three widths are read off: where seen
tasks are fitted (R2 .9), where unseen ones are (between the two is a window of students that only memorise), and where
seen tasks are fitted if no two combinations have anything in common (`Unrelated`), so that one can only memorise. There
the test score must fail at any width. All have the same number of steps: "fits" means within these. Half of the tasks
are more tasks where there are more modules; the two are not told apart here.

Command:  recombine run memorisation --scale small
Runtime:  11 minutes on 2 busy cores; full: 3 minutes on an H200 that another sweep shared.
Expected: with unrelated tasks the parameters needed grow with the number of tasks, with the hyperteacher's hardly; the
          window closes as M grows.
Measured: full (2026-11-15, M from 4 to 24, 3 seeds): parameters needed to fit grow with the number of tasks to the
          power of 1.14 at least for unrelated tasks (1.32 without M=24, which no width fits), of .58 for the
          hyperteacher's. With 4 modules no width generalises; with 8, 12, 16 and 24 it takes 1.44, 1.22, 1.10 and 1.09
          times the width that it takes to fit (from 8 to 24 modules .76 times, .72 to .83). The largest gap falls from
          .68 to .018; no student of unrelated tasks is above -1.5 on unseen ones. small (2026-11-16, 3 seeds):
          parameters needed to fit grow with the number of tasks to the power of 1.35 at least for unrelated tasks, of
          .68 for the hyperteacher's; to generalise takes 6.9, 2.2 and 1.5 times the width that it takes to fit with 4,
          6 and 8 modules, and the largest gap falls from .47 to .10; no student of unrelated tasks is above -2.4 on
          unseen ones.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from recombine.basics import statistics
from recombine.experiments import claim as ledger
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.families.unrelated import Unrelated
from recombine.parts.models.mlp import MLP
from recombine.parts.recipes.fast import EARLIER_FAST
from recombine.reporting import figure
from recombine.sweeps.run import Run, sweep

TITLE = "Generalising or memorising: the width that it takes"
TARGET = 0.9  # R2 that counts as fitted, and as generalised
MODULES = {"tiny": (3, 4), "small": (4, 6, 8), "full": (4, 8, 12, 16, 24)}
WIDTHS = {  # memorising takes more, in larger steps: every width of every number of modules is a program
    Hyperteacher: {"tiny": (8,), "small": (32, 64, 128, 256), "full": (16, 32, 64, 128, 256, 512)},
    Unrelated: {"tiny": (8,), "small": (32, 64, 128, 256), "full": (16, 64, 256, 1024)},
}
SEEDS = {"tiny": 1, "small": 3, "full": 3}
SOURCE = "arXiv 2507.07207, section 3 and theorem 3.1"


def runs(scale: str) -> list[Run]:
    """Family x number of modules x width x seed."""
    sizes: dict[str, Any] = {
        "tiny": {"num_steps": 20, "num_tasks": 8, "num_eval_tasks": 32},
        "small": {"num_steps": 1000},
        "full": {
            **{"num_steps": 5000, "num_tasks": 512, "num_points": 4, "num_eval_tasks": 1024},
            "recipe": EARLIER_FAST,  # by seen scores of the hyperteacher
        },
    }[scale]
    return [
        run
        for kind, widths in WIDTHS.items()
        for run in sweep(
            Run(diagnostics=(), num_evals=1, frac_test=0.5, **sizes),
            family=[kind(num_modules=num_modules) for num_modules in MODULES[scale]],
            model=[MLP((width,) * 3) for width in widths[scale]],
            seed=range(SEEDS[scale]),
        )
    ]


def _last(rows):
    last = ledger.last(rows)
    last["width"] = last["model.widths"].str.split("x").str[0].astype(int)
    last["M"] = last["family.num_modules"]
    last["gap"] = last["seen/r2"] - last["test/r2"]
    return last


def needed(rows, family: str, side: str) -> dict[tuple[int, int], float]:
    """The width at which a score reaches TARGET, by the number of train tasks and of modules."""
    last = _last(rows)
    cells = (
        last[last["family"] == family]
        .groupby(["support/num_train", "M", "width"])[f"{side}/r2"]
        .mean()
    )
    return {
        (tasks, num_modules): statistics.needed(
            scores.index.get_level_values("width"), scores, TARGET
        )
        for (tasks, num_modules), scores in cells.groupby(level=[0, 1])
    }


def num_parameters(width: float, num_modules: int) -> float:
    """Weights and biases of three hidden layers, on a code of M numbers and 16 inputs, with 16 outputs."""
    return (num_modules + 17) * width + 2 * (width + 1) * width + (width + 1) * 16


def power(rows, family: str) -> float:
    """The exponent with which the parameters that fit seen tasks grow with their number: least squares of logarithms.

    What is not known never speaks for the claim: the fewest unrelated tasks that no student fits count with the widest
    that was trained on them, which is too few, and more of them not at all; the hyperteacher's that the narrowest fits
    already do not count, and one that none fits leaves no exponent.
    """
    last, widths = _last(rows), needed(rows, family, "seen")
    trained = last[last["family"] == family].groupby("M")["width"]
    narrowest, widest = trained.min(), trained.max()
    if family == "Unrelated":
        never = [cell for cell, width in widths.items() if math.isinf(width)]
        widths |= {cell: float(widest[cell[1]]) for cell in never[:1]}
        widths = {cell: width for cell, width in widths.items() if cell not in never[1:]}
    else:
        widths = {cell: width for cell, width in widths.items() if width > narrowest[cell[1]]}
    if len(widths) < 2 or math.inf in widths.values():
        return math.nan
    parameters = [num_parameters(width, num_modules) for (_, num_modules), width in widths.items()]
    return float(np.polyfit(np.log([tasks for tasks, _ in widths]), np.log(parameters), 1)[0])


def advantage(rows) -> float:
    """By how much the exponent of unrelated tasks is larger than that of the hyperteacher's."""
    return power(rows, "Unrelated") - power(rows, "Hyperteacher")


def window(rows) -> dict[int, float]:
    """How many times as wide a student must be to generalise as to fit, by the number of modules; infinity where none
    generalises, NaN where none even fits."""
    fits, generalises = (needed(rows, "Hyperteacher", side) for side in ("seen", "test"))
    return {
        m: math.nan if math.isinf(width) else generalises[n, m] / width
        for (n, m), width in fits.items()
    }


def closing(rows) -> float:
    """The window with the most modules over that with the fewest with which some width generalises; 0 if none does but
    with the most."""
    *fewer, most = window(rows).values()
    fewest = next((one for one in fewer if not math.isinf(one)), math.inf)
    return math.inf if math.isinf(most) else most / fewest


def memorised(rows) -> float:
    """The gap between seen and unseen tasks, at the width where it is largest: the most modules' minus the fewest's."""
    last = _last(rows)
    gaps = (
        last[last["family"] == "Hyperteacher"]
        .groupby(["M", "width"])["gap"]
        .mean()
        .groupby("M")
        .max()
    )
    # Who does not fit has no gap either: that would be no merit.
    fitted = not any(map(math.isinf, needed(rows, "Hyperteacher", "seen").values()))
    return float(gaps.iloc[-1] - gaps.iloc[0]) if fitted else math.nan


def luck(rows) -> float:
    """The highest test R2 of any student of unrelated tasks."""
    last = _last(rows)
    return float(
        last[last["family"] == "Unrelated"].groupby(["M", "width"])["test/r2"].mean().max()
    )


def summary(rows) -> dict[str, float]:
    """Widths needed to fit and to generalise, and the exponents."""
    found = {}
    for family, side, verb in (
        ("Hyperteacher", "seen", "fit"),
        ("Hyperteacher", "test", "generalise"),
        ("Unrelated", "seen", "fit"),
    ):
        for (_, num_modules), width in needed(rows, family, side).items():
            found[f"{family}, M={num_modules}: width to {verb}"] = width
    return found | {
        f"{family}: exponent": power(rows, family) for family in ("Hyperteacher", "Unrelated")
    }


def figures(rows) -> dict:
    """Parameters needed by the number of tasks; scores by width with the most modules; the gap by width."""
    last = _last(rows)
    most = last[last["M"] == last["M"].max()]
    scores = most.melt(["family", "width", "run"], ["seen/r2", "test/r2"], "side", "r2")
    scores["tasks"] = scores["family"] + scores["side"].map(
        {"seen/r2": ", train tasks", "test/r2": ", unseen tasks"}
    )
    return {
        "growth": figure.lines(
            _growth(last),
            "tasks",
            "log parameters",
            by="student",
            title=f"Parameters that it takes to reach R² {TARGET}, by the number of train tasks",
            x_title="train tasks (half of all)",
            y_title="parameters needed (log10)",
            log_x=True,
        ),
        "scores": figure.lines(
            scores,
            "width",
            "r2",
            by="tasks",
            title=f"Fitting and generalising by width, M = {last['M'].max()}",
            x_title="width of the three hidden layers",
            y_title="R²",
            log_x=True,
        ),
        "gap": figure.lines(
            last[last["family"] == "Hyperteacher"],
            "width",
            "gap",
            by="M",
            title="What a student of the hyperteacher only memorises, by width",
            x_title="width of the three hidden layers",
            y_title="R², train tasks minus unseen ones",
            log_x=True,
        ),
    }


def _growth(last) -> pd.DataFrame:
    """Parameters needed, for each seed by itself."""
    names = {
        ("Hyperteacher", "seen"): "hyperteacher, to fit",
        ("Hyperteacher", "test"): "hyperteacher, to generalise",
        ("Unrelated", "seen"): "unrelated tasks, to fit",
    }
    made = [
        {
            "student": name,
            "tasks": tasks,
            "log parameters": math.log10(num_parameters(width, num_modules)),
        }
        for _, of_seed in last.groupby("seed")
        for (family, side), name in names.items()
        for (tasks, num_modules), width in needed(of_seed, family, side).items()
    ]
    return pd.DataFrame(made, columns=["student", "tasks", "log parameters"])


def claims(rows) -> list:
    """Unrelated tasks can only be memorised; that takes more and more; and the window between the two closes."""
    if rows is not None:
        trained = rows.groupby("seed")[
            "run"
        ].nunique()  # in a sweep that is half done, only seeds that are the furthest
        rows = rows[rows["seed"].isin(trained.index[trained == trained.max()])]
    kinds = {} if rows is None else _last(rows).groupby("family")["M"].nunique()
    composed, apart = (
        rows if kinds.get(kind, 0) > 1 else None for kind in ("Hyperteacher", "Unrelated")
    )
    return [
        _claim(
            *("control", apart, luck, lambda low, high: high <= 0),
            "Tasks without common parts are not generalised at any width (highest test R2)",
            published=ledger.OURS,
        ),
        _claim(
            *("parameters", None if composed is None else apart, advantage),
            lambda low, high: low > 0 and luck(apart) <= 0,
            "Parameters needed to fit grow faster with the number of tasks where these have no common parts "
            "(difference of the exponents)",
            control="tasks without common parts must not be generalised",
        ),
        _claim(
            *("window", composed, closing, lambda low, high: high <= 1),
            "The width to generalise over the width to fit does not grow with M (most modules over the fewest with "
            "which any width generalises)",
        ),
        _claim(
            *("gap", composed, memorised, lambda low, high: high < 0),
            "The largest gap between seen and unseen tasks, of any width, shrinks with M (R2, most minus fewest M)",
            control="with every M some width must fit",
        ),
    ]


def _claim(
    name: str,
    rows,
    statistic: statistics.Statistic,
    passes: Callable[[float, float], bool],
    statement: str,
    published: str = "linear in M against exponential",
    control: str = "",
) -> ledger.Claim:
    return ledger.judged(
        rows,
        statistic,
        passes,
        name=name,
        statement=statement,
        source=SOURCE,
        published=published,
        control=control,
    )
