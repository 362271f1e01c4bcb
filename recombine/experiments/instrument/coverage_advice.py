"""Does the advice of `recombine coverage` beat random additions to a train set?

Claim: if a train set lacks something, the combinations that `recombine coverage` suggests improve
test R2 more than equally many random ones. If it lacks nothing, they make no difference. (Ours; the
conditions are those of arXiv 2507.07207, section 3.)

| lack | the train set |
|---|---|
| rare | has two modules in one train task each |
| unmixed | has a third of the modules only alone, never with others |
| confounded | has three pairs of modules only together: a task contains both or none |
| unspanned | has only pairs that link two sides, none within a side; drawn or all-ones weights |
| balanced | lacks nothing: the control |

A quarter of the combinations are test tasks. They are drawn first, and neither the advice nor the
random choice may use them. As many combinations are added as are needed to connect and span, or
else a few. Random ones are drawn from all that the advice could choose from, several times per
seed.

Command:  recombine run coverage_advice --scale small
Runtime:  4 minutes on 2 busy cores; full: 4.2 minutes on one H200.
Expected: a higher R2 on the same test tasks with suggested combinations than with random ones; no
          difference (within .02) if the train set is balanced.
"""

import ast
import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from recombine.basics.random_streams import generator
from recombine.coverage import Coverage
from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    Measurement,
    above,
    final_rows,
    hypothesis,
    within,
)
from recombine.experiments.plots import bars
from recombine.parts.conditions import draw
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.supports.balanced import Balanced
from recombine.parts.supports.listed import Combinations, Listed
from recombine.sweeps.run import Run, describe, paper_fast, replace_fields

TITLE = "What to add to a train set: suggested against random combinations"
SOURCE = "ours"
LACKS = {  # what a train set lacks, as the statement of a claim says it
    "rare": "has two modules in one task each",
    "unmixed": "has a third of the modules only alone",
    "confounded": "has three pairs of modules only together",
    "unspanned": "has only pairs that link two sides",
    "unspanned, all ones": "has only pairs that link two sides, with all-ones weights",
    "balanced": "lacks nothing",
}
FAMILY = {
    "unspanned": {"family.num_hot": 2},
    "unspanned, all ones": {"family.num_hot": 2, "family.weights": "khot"},
}
ARMS = ("nothing", "random", "suggested")
FRAC_TEST = 0.25
NUM_RARE = 2  # modules in one train task each
NUM_CONFOUNDED_PAIRS = 3
SEEDS = {"tiny": 1, "small": 3, "full": 5}
NUM_RANDOM = {"tiny": 1, "small": 2, "full": 3}  # random choices per seed
NUM_ADDED = {"tiny": 2, "small": 4, "full": 6}  # if none are needed to connect and span
TASKS_PER_MODULE = 8  # train tasks: the linear growth of the public code
MAX_CONTROL_GAIN = 0.02  # a difference in R2 that counts as none
MIN_R2 = 0.5  # with suggested combinations: differences between failing students mean nothing

Combination = tuple[int, ...]


class Cell(NamedTuple):
    """A run, what its train set lacks, and what was added to it."""

    lack: str
    arm: str
    run: Run


def _base(scale: str) -> Run:
    if scale == "full":
        return paper_fast(diagnostics=())
    run = Run(Hyperteacher(num_modules=12), num_steps=1000, num_evals=1, diagnostics=())
    tiny = {"num_steps": 20, "model": MLP((8,)), "num_eval_tasks": 64, "family.num_modules": 8}
    return run if scale == "small" else replace_fields(run, tiny)


def runs(scale: str) -> list[Run]:
    """Lack x seed x what is added; each seed has its own train and test tasks."""
    return [cell.run for cell in plan(scale)]


@functools.cache
def plan(scale: str) -> list[Cell]:
    """All runs with their labels."""
    cells = []
    for lack, seed in itertools.product(LACKS, range(SEEDS[scale])):
        run = replace_fields(_base(scale), {"seed": seed} | FAMILY.get(lack, {}))
        train, test = tasks(lack, run.family.num_modules, seed)
        advised, available = suggested(train, test, NUM_ADDED[scale])
        train_sets: list[tuple[str, Combinations]] = [
            ("nothing", train),
            ("suggested", (*train, *advised)),
        ]
        order = generator(seed, f"random, {lack}").permutation(len(available))
        for number in range(NUM_RANDOM[scale]):
            indices = order[number * len(advised) : (number + 1) * len(advised)]
            chosen = tuple(available[index] for index in indices)
            # Added in front: if the random choice equals the advice, it is still another run.
            train_sets.append(("random", (*chosen, *train)))
        for arm, combinations in train_sets:
            support = Listed(combinations, test)
            cells.append(Cell(lack, arm, replace_fields(run, {"support": support})))
    return cells


def suggested(
    train: Combinations, test: Combinations, num_added: int
) -> tuple[Combinations, list[Combination]]:
    """The combinations that the advice adds to a train set, and all that it could choose from."""
    coverage = Coverage(_as_table(train), ["modules"], held_out=_as_table(test))
    num_needed = coverage.suggest(0).goals[1].needed
    suggestions = coverage.suggest(num_needed or num_added).suggestions
    codes = [suggestion.code for suggestion in suggestions]
    chosen = tuple(tuple(sorted(code[code >= 0].tolist())) for code in codes)
    sizes = sorted({len(combination) for combination in train})
    taken = {*train, *test}
    available = [c for c in _combinations(coverage.space.num_modules, sizes) if c not in taken]
    return chosen, available


def _as_table(combinations: Combinations) -> pd.DataFrame:
    return pd.DataFrame({"modules": [";".join(map(str, modules)) for modules in combinations]})


def _combinations(num_modules: int, sizes: Iterable[int]) -> list[Combination]:
    modules = range(num_modules)
    return [c for size in sizes for c in itertools.combinations(modules, size)]


def tasks(lack: str, num_modules: int, seed: int) -> tuple[Combinations, Combinations]:
    """Train tasks that lack something, and test tasks.

    Test tasks are drawn first, from all combinations of more than one module.
    """
    lack = lack.removesuffix(", all ones")  # the tasks are the same
    rng = generator(seed, f"lack, {lack}")
    every = _combinations(num_modules, (2,) if lack == "unspanned" else (1, 2, 3))
    mixed = [combination for combination in every if len(combination) > 1]
    test = _draw(mixed, round(FRAC_TEST * len(every)), rng)
    available = [combination for combination in every if combination not in set(test)]
    modules = rng.permutation(num_modules).tolist()
    return TRAIN_SETS[lack](available, modules, rng), test


def _balanced_tasks(
    available: list[Combination], modules: list[int], rng: np.random.Generator
) -> Combinations:
    frac_test = max(0.4, 1 - TASKS_PER_MODULE * len(modules) / len(available))
    rows = _module_rows(available, len(modules))
    return _select(available, np.flatnonzero(Balanced().parts(rows, rng, frac_test) == 1))


def _unspanned_tasks(
    available: list[Combination], modules: list[int], rng: np.random.Generator
) -> Combinations:
    left = set(modules[: len(modules) // 2])
    across = [pair for pair in available if len(left & set(pair)) == 1]
    num_train = max(len(modules), len(across) // 2)
    return _select(across, draw(_module_rows(across, len(modules)), num_train, rng))


def _confounded_tasks(
    available: list[Combination], modules: list[int], rng: np.random.Generator
) -> Combinations:
    pairs = [set(modules[2 * i : 2 * i + 2]) for i in range(NUM_CONFOUNDED_PAIRS)]
    together = [c for c in available if all(len(pair & set(c)) != 1 for pair in pairs)]
    num_train = min(TASKS_PER_MODULE * len(modules), len(together) * 3 // 4)
    return _draw(together, num_train, rng)


def _rare_tasks(
    available: list[Combination], modules: list[int], rng: np.random.Generator
) -> Combinations:
    rare = set(modules[:NUM_RARE])
    others = _without(rare, available, len(modules), rng)
    own = []
    for module in sorted(rare):
        mixed = [c for c in available if len(c) > 1 and rare & set(c) == {module}]
        own += _draw(mixed, 1, rng)
    return (*own, *others)


def _unmixed_tasks(
    available: list[Combination], modules: list[int], rng: np.random.Generator
) -> Combinations:
    alone = set(modules[: len(modules) // 3])
    others = _without(alone, available, len(modules), rng)
    return (*((module,) for module in sorted(alone)), *others)


TRAIN_SETS: dict[str, Callable[[list[Combination], list[int], np.random.Generator], Combinations]]
TRAIN_SETS = {
    "rare": _rare_tasks,
    "unmixed": _unmixed_tasks,
    "confounded": _confounded_tasks,
    "unspanned": _unspanned_tasks,
    "balanced": _balanced_tasks,
}


def _without(
    modules: set[int], available: list[Combination], num_modules: int, rng: np.random.Generator
) -> Combinations:
    """Train tasks that contain none of these modules."""
    others = [combination for combination in available if not modules & set(combination)]
    return _draw(others, min(TASKS_PER_MODULE * num_modules, len(others) * 2 // 3), rng)


def _draw(combinations: list[Combination], num: int, rng: np.random.Generator) -> Combinations:
    return _select(combinations, rng.choice(len(combinations), num, replace=False))


def _select(combinations: list[Combination], indices: Iterable[int]) -> Combinations:
    return tuple(combinations[index] for index in sorted(indices))


def _module_rows(combinations: list[Combination], num_modules: int) -> np.ndarray:
    modules = range(num_modules)
    return np.array([[module in c for module in modules] for c in combinations], np.int8)


def prepare(rows: Frame) -> Frame:
    """The final rows, with what the train set lacks (`lack`) and what was added (`arm`)."""
    labels = {_key(describe(cell.run)): cell for scale in SEEDS for cell in plan(scale)}
    final = final_rows(rows)
    cells = [labels.get(_key(row)) for row in final.to_dict("records")]
    lacks = [cell.lack if cell else None for cell in cells]
    arms = [cell.arm if cell else None for cell in cells]
    final["lack"] = pd.Categorical(lacks, list(LACKS))
    final["arm"] = pd.Categorical(arms, ARMS)
    return final.loc[final["lack"].notna(), ["run", "seed", "lack", "arm", "test/r2"]]


def _key(row: dict[str, Any]) -> tuple[Combination, frozenset[Combination], str]:
    """What identifies a cell, whatever its seed, student and number of steps.

    Suggestions that gain equally much may be in any order. Random additions
    come first, so the first combination distinguishes them from the advice.
    """
    combinations = ast.literal_eval(str(row["support.combinations"]))
    return combinations[0], frozenset(combinations), row["family.weights"]


def summary(rows: Frame) -> dict[str, float]:
    """Mean R2 on test tasks, by what was lacking and what was added."""
    means = prepare(rows).groupby(["lack", "arm"], observed=True)["test/r2"].mean()
    return {f"{lack}, {arm} added": float(mean) for (lack, arm), mean in means.items()}


def gain(final: Frame, lack: str) -> float:
    """Mean test R2 with suggested combinations, minus that with random ones.

    NaN if a seed has only one of them.
    """
    own = final[final["lack"] == lack]
    advised, random = own[own["arm"] == "suggested"], own[own["arm"] == "random"]
    if set(advised["seed"]) != set(random["seed"]):
        return float("nan")
    return float(advised["test/r2"].mean() - random["test/r2"].mean())


def _has_control(final: Frame) -> Frame | None:
    """All rows, if the balanced train sets are among them."""
    return None if np.isnan(gain(final, "balanced")) else final


def _control_fails(measurement: Measurement, lack: str) -> bool:
    """Whether students learn with the advice, and it makes no difference on balanced train sets."""
    final = measurement.rows
    is_advised = (final["lack"] == lack) & (final["arm"] == "suggested")
    mean_r2 = final.loc[is_advised, "test/r2"].mean()
    return mean_r2 > MIN_R2 and abs(gain(final, "balanced")) <= MAX_CONTROL_GAIN


def _claim(lack: str) -> DeclaredClaim:
    is_control = lack == "balanced"
    if is_control:
        effect, margin = "improve R2 as much as", f", within {MAX_CONTROL_GAIN}"
    else:
        effect, margin = "improve R2 more than", ""
    return hypothesis(
        "control: balanced" if is_control else lack,
        f"If a train set {LACKS[lack]}, suggested combinations {effect} equally many random ones "
        f"(difference in R2 on the same test tasks{margin})",
        statistic=lambda final: gain(final, lack),
        passes=within(-MAX_CONTROL_GAIN, MAX_CONTROL_GAIN) if is_control else above(0),
        rows=_has_control,
        control="a balanced train set, where advice must make no difference",
        after_rows="the claim" if lack == "confounded" else "",
        control_fails=lambda measurement: _control_fails(measurement, lack),
    )


CLAIMS = [_claim(lack) for lack in LACKS]
FIGURES = [
    bars(
        "test/r2",
        against="lack",
        color="arm",
        name="added",
        title="R² on the same held-out combinations, by what was added to the train set",
        x_title="what the train set lacks (balanced: nothing)",
    )
]
