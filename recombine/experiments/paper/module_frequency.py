"""How rare may a module be in training, and do frequent ones do harm?

Claim: a few modules that occur seldom in training degrade generalisation, a few that occur often do not: what matters
is that none is under-represented, not balance as such (arXiv 2507.07207, section 3).

Rare: two modules occur in n train tasks each, n from 1 on, beside all tasks without them; every test task holds one of
them. Frequent: every train task holds one of a few popular modules (but for 5% fillers), test tasks mostly none. Each
is compared with balanced supports of equal size. Scores are also given by module, against how often it was trained.

Command:  recombine run module_frequency --scale small
Runtime:  2 minutes on 2 cores; full: 3.3 minutes on an H200 that another sweep shared.
Expected: a clear drop at n = 1 that closes as n grows; none for popular modules.
Measured: full (2026-11-16, M=16, 4x1024, 3 seeds): two modules in 1, 2, 4, 8, 16 and 32 train tasks each: .86, .92,
          .95, .968, .987 and .993, where balanced supports of equal size have .997. Two, four and eight popular
          modules: .992, .996 and .997, balanced .996, .997 and .997: with two a drop of .003, more than seeds differ,
          but 40 times less than with two rare ones. small (2026-11-15, M=8, 3 seeds): two modules in 1, 2, 4 and 8
          train tasks each: .48, .65, .77 and .87, where balanced supports have .96. Two and four popular modules: .92
          and .95, balanced .94 and .96.
"""

import math
import re
from typing import Any

import pandas as pd

from recombine.basics.statistics import over_seeds
from recombine.experiments import claim as ledger
from recombine.parts import khot
from recombine.parts.diagnostics.module_scores import ModuleScores
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.protocols import Support
from recombine.parts.recipes.fast import EARLIER_FAST
from recombine.parts.supports.balanced import Balanced
from recombine.parts.supports.popular import Popular
from recombine.parts.supports.unpopular import Unpopular
from recombine.reporting import figure
from recombine.sweeps.run import Run, paper, put, sweep

TITLE = "Rare modules hurt, frequent ones do not"
SOURCE = "arXiv 2507.07207, section 3"
SEEDS = {"tiny": 1, "small": 3, "full": 3}
RARE = {
    "tiny": (1, 2),
    "small": (1, 2, 4, 8),
    "full": (1, 2, 4, 8, 16, 32),
}  # train tasks of each rare module
POPULAR = {"tiny": (2,), "small": (2, 4), "full": (2, 4, 8)}
NUM_RARE = 2
DROP = 0.05  # in R2
FAIR = "against balanced supports of equal size"
LEARNT = 0.5  # R2 of balanced supports: R2 has no lower bound, so between two that fail any drop is possible


def _base(scale: str) -> Run:
    probe = (ModuleScores(),)
    if scale == "full":
        sizes: dict[str, Any] = {
            "num_tasks": 512,
            "num_points": 4,
            "num_steps": 5000,
            "num_evals": 1,
        }
        return paper(recipe=EARLIER_FAST, diagnostics=probe, **sizes)
    run = Run(num_steps=2000, num_evals=1, diagnostics=probe)
    tiny = {
        "num_steps": 20,
        "model": MLP((8,)),
        "num_eval_tasks": 64,
        "family": Hyperteacher(num_modules=6),
    }
    return run if scale == "small" else put(run, tiny)


def runs(scale: str) -> list[Run]:
    """Rare and popular modules, and balanced supports of the same numbers of train tasks."""
    base, seeds = _base(scale), range(SEEDS[scale])
    num_modules, num_hot = base.family.num_modules, 3
    total, plain = khot.count(num_modules, num_hot), khot.count(num_modules - NUM_RARE, num_hot)
    cells: list[tuple[Support, int]] = [
        (Unpopular(NUM_RARE, n), plain + NUM_RARE * n) for n in RARE[scale]
    ]
    for num_popular in POPULAR[scale]:
        core = total - khot.count(num_modules - num_popular, num_hot)
        filler = Popular().frac_filler
        cells.append((Popular(num_popular), core + round(core * filler / (1 - filler))))
    # Asked for more train tasks than there are of a kind, these supports take all of them.
    unbalanced = [
        run
        for support, _ in cells
        for run in sweep(base, support=[support], frac_test=[0.05], seed=seeds)
    ]
    sizes = {num_train: 1 - num_train / total for _, num_train in cells}
    return unbalanced + sweep(base, support=[Balanced()], frac_test=sizes.values(), seed=seeds)


def _last(rows) -> Any:
    last = ledger.last(rows)
    for name in ("support.num_tasks", "support.num_popular"):
        last[name] = last.get(name, math.nan)
    return last


def _fair(last, num_train: float):
    """The balanced runs with as many train tasks."""
    return last[(last["support"] == "Balanced") & (last["support/num_train"] == num_train)]


def drop(last, support: str, field: str, value: int) -> float:
    """How far an unbalanced support stays behind a balanced one of equal size, in R2 on unseen tasks."""
    found = last[(last["support"] == support) & (last[field] == value)]
    if found.empty:
        return math.nan
    return float(
        _fair(last, found["support/num_train"].mean())["test/r2"].mean() - found["test/r2"].mean()
    )


def summary(rows) -> dict[str, float]:
    """Mean R2 on unseen tasks of every support, with its number of train tasks."""
    last = _last(rows)
    found = {}
    for kind, field, told in (
        ("Unpopular", "support.num_tasks", "rare modules in {:.0f} tasks each"),
        ("Popular", "support.num_popular", "{:.0f} popular modules"),
        ("Balanced", "support/num_train", "balanced, {:.0f} train tasks"),
    ):
        for value, cell in last[last["support"] == kind].groupby(field):
            found[told.format(value)] = float(cell["test/r2"].mean())
    return found


def figures(rows) -> dict:
    """R2 by how often rare modules are trained, by the number of popular modules, and module by module (the mean of a
    run's modules that are trained equally often)."""
    last = _last(rows)
    rare = last[last["support"] == "Unpopular"].assign(support_="rare modules")
    popular = last[last["support"] == "Popular"].assign(support_="popular modules")
    modules: Any = by_module(last)
    return {
        "rare": figure.lines(
            _beside(last, rare, "support.num_tasks"),
            "support.num_tasks",
            "test/r2",
            by="support_",
            title="Two rare modules: R² on unseen combinations that hold them",
            x_title="train tasks with each rare module",
            y_title="R² on unseen combinations",
            log_x=True,
            y_range=_close(_beside(last, rare, "support.num_tasks")["test/r2"]),
        ),
        "popular": figure.lines(
            _beside(last, popular, "support.num_popular"),
            "support.num_popular",
            "test/r2",
            by="support_",
            title="Popular modules in nearly every train task: R² on unseen combinations",
            x_title="popular modules",
            y_title="R² on unseen combinations",
            log_x=True,  # which names the numbers that are there and no others
            y_range=_close(_beside(last, popular, "support.num_popular")["test/r2"]),
        ),
        "modules": figure.scatter(
            modules.groupby(["support", "run", "share"])["test r2"].mean().reset_index(),
            "share",
            "test r2",
            by="support",
            title="How often a module is trained, and R² on unseen combinations with it",
            x_title="share of the train tasks that hold the module",
            y_title="R² on unseen combinations with it",
            names={"Unpopular": "Unpopular (all unseen combinations hold a rare module)"},
        ),
    }


def _close(scores) -> tuple[float, float]:
    """An axis around these scores: on one from 0 to 1 lines that are close would be one."""
    low, high = scores.min(), scores.max()
    room = 0.1 * (high - low) + 0.002
    return float(low - room), float(high + room)


def _beside(last, unbalanced, field: str) -> pd.DataFrame:
    """Unbalanced runs, and at every value of the field the balanced ones with as many train tasks."""
    even = [
        _fair(last, cell["support/num_train"].mean()).assign(
            **{field: value}, support_="balanced, as many train tasks"
        )
        for value, cell in unbalanced.groupby(field)
    ]
    return pd.concat([unbalanced, *even], ignore_index=True)


def by_module(last: pd.DataFrame) -> pd.DataFrame:
    """One line per run and module: how often it was trained, and how unseen tasks with it are done."""
    modules = [
        m[1]
        for name in last
        if (m := re.fullmatch(r"ModuleScores/test/module=(\d+)/r2", str(name)))
    ]
    lines = [
        last[["run", "support"]].assign(
            share=last[f"ModuleScores/train/module={m}/share"],
            **{"test r2": last[f"ModuleScores/test/module={m}/r2"]},
        )
        for m in modules
    ]
    return pd.concat(lines, ignore_index=True).dropna()


def claims(rows) -> list:
    """Rare modules degrade, more of their tasks help, popular modules do no harm."""
    kept = [
        "seed",
        "support",
        "support.num_tasks",
        "support.num_popular",
        "support/num_train",
        "test/r2",
    ]
    last = None if rows is None else _last(rows)[[*kept, "family.num_modules"]]
    scale = "full" if last is None or last["family.num_modules"].max() > 8 else "small"
    rare, popular = RARE[scale], POPULAR[scale]

    def fewest(frame) -> float:
        return drop(frame, "Unpopular", "support.num_tasks", rare[0])

    def closing(frame) -> float:
        return fewest(frame) - drop(frame, "Unpopular", "support.num_tasks", rare[-1])

    told = f"Two modules in one train task each degrade generalisation (drop in R2 on unseen tasks, {FAIR})"
    made = [_claim(last, fewest, "rare modules", told, "degrades", clear=True)]
    told = f"{rare[-1]} train tasks with each of them instead of one make that drop smaller (by how much)"
    made.append(
        _claim(
            last,
            closing,
            "more of their tasks",
            told,
            "under-representation is the cause",
            clear=True,
        )
    )
    for num in popular:
        name = f"{num} popular modules"
        told = f"{name} in nearly every train task do no harm (drop in R2 on unseen tasks, {FAIR}, at most {DROP})"
        made.append(_claim(last, _of_popular(num), name, told, "no degradation", clear=False))
    return made


def _of_popular(num: int):
    return lambda frame: drop(frame, "Popular", "support.num_popular", num)


def _claim(last, measure, name: str, statement: str, published: str, clear: bool) -> ledger.Claim:
    """Whether a drop is clear (its whole interval above DROP), or none (its whole interval below)."""
    measured = interval = holds = None
    if last is not None and not math.isnan(measure(last)):
        measured, interval = measure(last), over_seeds(last, measure)
        learnt = bool((last.loc[last["support"] == "Balanced", "test/r2"] > LEARNT).all())
        holds = learnt and (interval[0] > DROP if clear else interval[1] <= DROP)
    return ledger.Claim(
        name=name,
        statement=statement,
        source=SOURCE,
        published=published,
        measured=measured,
        holds=holds,
        interval=interval,
        control=f"balanced supports score above {LEARNT}",
    )
