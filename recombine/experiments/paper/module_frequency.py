"""How rare may a module be in training, and do frequent modules do harm?

Claim: a few modules that are rare in training degrade generalization, a few that are frequent do
not. What matters is that no module is under-represented, not that all are balanced (arXiv
2507.07207, section 3).

Rare: two modules are in n train tasks each, from n = 1, beside all tasks without them; every test
task contains one of them. Frequent: every train task contains one of a few popular modules (except
5% of other tasks), and most test tasks contain none. Both are compared with balanced supports of
equal size. A figure shows the score of every module against its frequency in training.

Command:  recombine run module_frequency --scale small
Runtime:  2 minutes on 2 cores; full: 3.3 minutes on an H200 shared with another sweep.
Expected: a clear drop at n = 1 that closes as n grows; no drop for popular modules.
"""

import math
import re
from typing import Any

import pandas as pd

from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    Measurement,
    above,
    all_of,
    at_most,
    final_rows,
    on_value,
    reproduces,
)
from recombine.experiments.paper.support_conditions import MIN_BASELINE_R2, base_run
from recombine.experiments.plots import curve, scatter
from recombine.parts import khot
from recombine.parts.diagnostics.module_scores import ModuleScores
from recombine.parts.protocols import Support
from recombine.parts.supports.balanced import Balanced
from recombine.parts.supports.popular import Popular
from recombine.parts.supports.unpopular import Unpopular
from recombine.sweeps.run import Run, replace_fields, sweep

TITLE = "Rare modules hurt, frequent ones do not"
SOURCE = "arXiv 2507.07207, section 3"
SEEDS = {"tiny": 1, "small": 3, "full": 8}
# Train tasks of each rare module.
RARE = {"tiny": (1, 2), "small": (1, 2, 4, 8), "full": (1, 2, 4, 8, 16, 32)}
POPULAR = {"tiny": (2,), "small": (2, 4), "full": (2, 4, 8)}  # numbers of popular modules
NUM_RARE = 2
CLEAR_DROP = 0.05  # a larger drop in R2 is clear, a smaller one counts as none
FIELDS = {"Unpopular": "support.num_tasks", "Popular": "support.num_popular"}


def runs(scale: str) -> list[Run]:
    """Rare and popular modules, and balanced supports with the same numbers of train tasks."""
    base = replace_fields(base_run(scale), {"diagnostics": (ModuleScores(),)})
    seeds = range(SEEDS[scale])
    num_modules = base.family.num_modules
    total = khot.count_rows(num_modules, 3)
    num_without_rare = khot.count_rows(num_modules - NUM_RARE, 3)
    num_train: dict[Support, int] = {}
    for num_tasks in RARE[scale]:
        num_train[Unpopular(NUM_RARE, num_tasks)] = num_without_rare + NUM_RARE * num_tasks
    for num_popular in POPULAR[scale]:
        support = Popular(num_popular)
        num_with_popular = total - khot.count_rows(num_modules - num_popular, 3)
        fillers_per_task = support.frac_filler / (1 - support.frac_filler)
        num_train[support] = num_with_popular + round(num_with_popular * fillers_per_task)
    # A support that is asked for more train tasks than it has takes all of them.
    unbalanced = sweep(base, support=num_train, frac_test=[0.05], seed=seeds)
    fractions = [1 - number / total for number in dict.fromkeys(num_train.values())]
    return unbalanced + sweep(base, support=[Balanced()], frac_test=fractions, seed=seeds)


def prepare(rows: Frame) -> Frame:
    """The final rows; the fields of both supports are NaN where they are missing."""
    final = final_rows(rows)
    for field in FIELDS.values():
        final[field] = final.get(field, math.nan)
    return final


def balanced_of_size(final: Frame, num_train: float) -> Frame:
    """The balanced runs with this number of train tasks."""
    return final[(final["support"] == "Balanced") & (final["support/num_train"] == num_train)]


def drop(final: Frame, support: str, value: int) -> float:
    """The mean R2 of balanced supports of equal size minus that of an unbalanced support.

    `value` is its number of tasks with each rare module, or its number of popular modules.
    """
    unbalanced = final[(final["support"] == support) & (final[FIELDS[support]] == value)]
    if unbalanced.empty:
        return math.nan
    balanced = balanced_of_size(final, unbalanced["support/num_train"].mean())
    return float(balanced["test/r2"].mean() - unbalanced["test/r2"].mean())


def drop_closed(final: Frame) -> float:
    """The drop with one train task of each rare module, minus that with the most of this scale."""
    scale = "full" if final["family.num_modules"].max() > 8 else "small"
    most = RARE[scale][-1]
    return drop(final, "Unpopular", 1) - drop(final, "Unpopular", most)


def summary(rows: Frame) -> dict[str, float]:
    """Mean R2 on held-out tasks of every support."""
    final = prepare(rows)
    values = {}
    for support, field, name in (
        ("Unpopular", "support.num_tasks", "rare modules in {:.0f} tasks each"),
        ("Popular", "support.num_popular", "{:.0f} popular modules"),
        ("Balanced", "support/num_train", "balanced, {:.0f} train tasks"),
    ):
        means = final[final["support"] == support].groupby(field)["test/r2"].mean()
        values |= {name.format(value): float(mean) for value, mean in means.items()}
    return values


def beside_balanced(final: Frame, support: str, name: str) -> Frame:
    """The runs of an unbalanced support, and balanced runs of equal size at each value of it."""
    field = FIELDS[support]
    unbalanced = final[final["support"] == support].assign(**{"trained on": name})
    frames = [unbalanced]
    for value, group in unbalanced.groupby(field):
        balanced = balanced_of_size(final, group["support/num_train"].mean())
        columns = {field: value, "trained on": "balanced, equal number of train tasks"}
        frames.append(balanced.assign(**columns))
    return pd.concat(frames, ignore_index=True)


def zoom(drawn: Any, rows: Frame) -> None:
    """Fit the axis of R2 to the scores: between 0 and 1 the lines would not be distinguishable."""
    low = rows["test/r2"].min()
    high = rows["test/r2"].max()
    margin = 0.1 * (high - low) + 0.002
    drawn.update_yaxes(range=[low - margin, high + margin])


def by_module(final: Frame) -> Frame:
    """One row per run and module: its share of train tasks, and R2 on held-out tasks with it."""
    pattern = r"ModuleScores/test/module=(\d+)/r2"
    modules = [match[1] for column in final if (match := re.fullmatch(pattern, column))]
    frames = []
    for module in modules:
        share = final[f"ModuleScores/train/module={module}/share"]
        score = final[f"ModuleScores/test/module={module}/r2"]
        frames.append(final[["run", "support"]].assign(share=share, **{"test r2": score}))
    return pd.concat(frames, ignore_index=True).dropna()


def by_frequency(final: Frame) -> Frame:
    """The means of `by_module` over the modules of a run that are trained equally often."""
    means = by_module(final).groupby(["support", "run", "share"])["test r2"].mean()
    return means.reset_index()


def baseline_learns(measurement: Measurement) -> bool:
    """Whether every balanced run scores above `MIN_BASELINE_R2`."""
    is_balanced = measurement.rows["support"] == "Balanced"
    return bool((measurement.rows.loc[is_balanced, "test/r2"] > MIN_BASELINE_R2).all())


BASELINE = on_value(f"balanced supports above {MIN_BASELINE_R2}", baseline_learns)


def _claim(name: str, statement: str, support: str, **options: Any) -> DeclaredClaim:
    return reproduces(
        name,
        statement,
        needs=("support", FIELDS[support], "support/num_train", "family.num_modules", "test/r2"),
        control=f"balanced supports score above {MIN_BASELINE_R2}",
        **options,
    )


def _popular(num_popular: int) -> DeclaredClaim:
    return _claim(
        f"{num_popular} popular modules",
        f"{num_popular} popular modules in nearly every train task do no harm (drop in R2 on "
        f"held-out tasks, against balanced supports of equal size: at most {CLEAR_DROP})",
        "Popular",
        published="no degradation",
        repeats="" if num_popular == 2 else "module_frequency: 2 popular modules",
        statistic=lambda final: drop(final, "Popular", num_popular),
        passes=all_of(at_most(CLEAR_DROP), BASELINE),
    )


CLAIMS = [
    _claim(
        "rare modules",
        "Two modules in one train task each degrade generalization (drop in R2 on held-out tasks, "
        "against balanced supports of equal size)",
        "Unpopular",
        published="degrades",
        statistic=lambda final: drop(final, "Unpopular", 1),
        passes=all_of(above(CLEAR_DROP), BASELINE),
    ),
    _claim(
        "more of their tasks",
        f"That drop is smaller with {RARE['full'][-1]} train tasks of each rare module "
        f"({RARE['small'][-1]} at small scale) instead of one (difference of the drops)",
        "Unpopular",
        published="under-representation is the cause",
        statistic=drop_closed,
        passes=all_of(above(CLEAR_DROP), BASELINE),
    ),
    *(_popular(num_popular) for num_popular in POPULAR["full"]),
]
FIGURES = [
    curve(
        "test/r2",
        against="support.num_tasks",
        color="trained on",
        rows=lambda final: beside_balanced(final, "Unpopular", "rare modules"),
        name="rare",
        title="Two rare modules: R² on held-out combinations that contain them",
        x_title="train tasks with each rare module",
        log_x=True,
        finish=zoom,
    ),
    curve(
        "test/r2",
        against="support.num_popular",
        color="trained on",
        rows=lambda final: beside_balanced(final, "Popular", "popular modules"),
        name="popular",
        title="Popular modules in nearly every train task: R² on held-out combinations",
        x_title="popular modules",
        log_x=True,  # labels exactly the numbers that were trained
        finish=zoom,
    ),
    scatter(
        "test r2",
        against="share",
        color="support",
        rows=by_frequency,
        name="modules",
        title="Frequency of a module in training, and R² on held-out combinations with it",
        x_title="share of the train tasks that contain the module",
        y_title="R² on held-out combinations with it",
        names={"Unpopular": "Unpopular (all held-out combinations contain a rare module)"},
    ),
]
