"""Which train sets are enough? Supports that are compositional, connected and spanned, or not.

Claim: generalization degrades if a module is absent from training, or if two groups of modules are
never mixed (arXiv 2507.07207, section 3, the sweep of six supports).

Every support that violates a condition is compared with random and balanced supports of equal size.
Disconnected groups are tested in two forms: as published (25% held out leaves groups of 1 and 15 of
16 modules), and as two halves. In both forms, and for absent modules, all test tasks contain the
absent module or mix the groups, so test tasks differ in kind from those of random supports.

The third condition, spanned, is ours. Of the pairs of 16 modules, the 64 that link the left half to
the right half are connected and balanced. But with all-ones weights, adding +D to all left modules
and -D to all right modules changes none of them. Replacing 4 pairs by 4 pairs within a half removes
this ambiguity; drawn weights remove it, too. The test tasks are the same 52 pairs within a half.

Decodability. The paper's correlation (squared, above .95; section 4) is judged on the students of
this sweep, too, with the layers, the probes, the untrained control and the rule of experiment
`decodability`. All supports of the published sweep have equally many train tasks. But if a module
is absent from the train tasks, the probe never sees it either, so a second probe is fitted on all
tasks. The pairs have no probes.

Command:  recombine run support_conditions --scale small
Runtime:  9 minutes on 2 cores shared with other work; full: 104 students of 4x1024 and 72 untrained
          networks on a GPU.
Expected: large drops for absent modules and unmixed halves; none for balanced supports; a drop for
          unspanned pairs with all-ones weights only; a squared correlation above .95.
"""

import itertools
import math
from dataclasses import replace
from typing import Any

import pandas as pd

from recombine.experiments.claim import (
    OURS,
    DeclaredClaim,
    Frame,
    Measurement,
    Statistic,
    above,
    all_of,
    difference,
    final_rows,
    on_value,
    reproduces,
    where,
    within,
)
from recombine.experiments.paper.decodability import (
    ALL_TASKS,
    HEADLINE,
    UNTRAINED,
    StudentSet,
    correlation_claim,
    explained,
    gain_claim,
    plot,
    with_untrained_probes,
)
from recombine.experiments.plots import bars
from recombine.experiments.untrained import untrained, untrained_column
from recombine.parts import khot
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.models.mlp import MLP
from recombine.parts.supports.balanced import Balanced
from recombine.parts.supports.disconnected import Disconnected
from recombine.parts.supports.listed import Combinations, Listed
from recombine.parts.supports.missing_module import MissingModule
from recombine.parts.supports.popular import Popular
from recombine.parts.supports.random import Random
from recombine.parts.supports.unpopular import Unpopular
from recombine.sweeps.run import Run, paper_fast, replace_fields, sweep

TITLE = "Which train sets are enough: compositional, connected, spanned"
SOURCE = "arXiv 2507.07207, section 3"
SEEDS = {"tiny": 1, "small": 3, "full": 8}
LARGE_DROP = 0.2  # a larger drop in R2 counts as large
NO_DROP = 0.05  # a smaller difference in R2 counts as none
MIN_BASELINE_R2 = 0.5  # R2 has no lower bound: below a baseline that fails, any drop is possible
PROBES = (
    LinearDecodability(paper=True, by_module=False),
    LinearDecodability(num_fit=1024, fit_on="all", by_module=False),
)
NAMES = {
    "Random": "random",
    "Balanced": "balanced",
    "Popular": "popular",
    "Unpopular": "unpopular",
    "Disconnected": "unmixed, as published",
    "MissingModule": "module missing",
}
ORDER = (
    *NAMES.values(),
    *("random, fewer", "balanced, fewer", "unmixed halves", "spanned", "unspanned"),
)


def base_run(scale: str) -> Run:
    """The run that this experiment and two others about supports vary: up to 3 active modules."""
    run = Run(num_steps=2000, num_evals=1, diagnostics=())
    if scale == "small":
        return run
    if scale == "tiny":
        changes = {"family.num_modules": 6, "model": MLP((8,)), "num_eval_tasks": 64}
        return replace_fields(run, changes | {"num_steps": 20})
    return paper_fast(num_evals=1, diagnostics=())


def runs(scale: str) -> list[Run]:
    """All supports at 25% held out, three at the size of unmixed halves, and two sets of pairs.

    The students with up to three active modules have probes and untrained baselines.
    """
    base = base_run(scale)
    seeds = range(SEEDS[scale])
    pairs = sweep(
        replace_fields(base, {"family.num_hot": 2}),
        family__weights=["khot", "discrete"],
        support=pair_supports(base.family.num_modules),
        seed=seeds,
    )
    probed = probed_students(scale)
    return [*probed, *map(untrained, probed), *pairs]


def probed_students(scale: str) -> list[Run]:
    """The students with up to three active modules: two sizes of the train set x support x seed."""
    base = replace(base_run(scale), diagnostics=probes(scale))
    if scale == "tiny":
        base = replace(base, model=MLP((8,) * 3))  # the headline layer is the third
    seeds = range(SEEDS[scale])
    num_modules = base.family.num_modules
    halves = (num_modules // 2, num_modules - num_modules // 2)
    total = khot.count_rows(num_modules, 3)
    num_without_a_module = khot.count_rows(num_modules - 1, 3)
    num_within_halves = sum(khot.count_rows(half, 3) for half in halves)
    supports = (Random(), Balanced(), Popular(), Unpopular(), Disconnected(), MissingModule())
    fewer_tasks = (Random(), Balanced(), Disconnected(sizes=halves))
    frac_test = max(0.25, 1 - num_without_a_module / total)
    fewer_frac_test = 1 - num_within_halves / total
    return [
        *sweep(base, support=supports, frac_test=[frac_test], seed=seeds),
        *sweep(base, support=fewer_tasks, frac_test=[fewer_frac_test], seed=seeds),
    ]


def probes(scale: str) -> tuple[LinearDecodability, ...]:
    """The public probe, and one that is fitted on all tasks; with few tasks at tiny scale."""
    if scale != "tiny":
        return PROBES
    return tuple(replace(probe, num_fit=32, num_seen=32, num_test=32) for probe in PROBES)


def pair_supports(num_modules: int) -> list[Listed]:
    """All pairs across two halves (unspanned), and with a few replaced by pairs within a half.

    Both have the same test pairs.
    """
    half = num_modules // 2
    halves = (range(half), range(half, num_modules))
    across = list(itertools.product(*halves))
    num_replaced = 2 if half >= 4 else 1  # per half
    added: Combinations = tuple(
        (first + 2 * i, first + 2 * i + 1) for first in (0, half) for i in range(num_replaced)
    )
    removed = [(i, half + i) for i in range(2 * num_replaced)]
    within_halves = [pair for side in halves for pair in itertools.combinations(side, 2)]
    test = tuple(pair for pair in within_halves if pair not in added)
    remaining = [pair for pair in across if pair not in removed]
    return [Listed(tuple(across), test), Listed((*remaining, *added), test)]


def prepare(rows: Frame) -> Frame:
    """The final rows of trained students, with the probes of the same network before training.

    Added columns: `law` is the weight law, and `trained on` names the support, in a fixed order.
    """
    final = final_rows(rows)
    final["law"] = final["family.weights"]
    final["trained on"] = [support_name(row) for row in final.to_dict("records")]
    students = with_untrained_probes(final, paired_by=["trained on", "law"])
    present = set(students["trained on"])
    order = [name for name in ORDER if name in present]
    students["trained on"] = pd.Categorical(students["trained on"], order)
    return students


def support_name(row: dict[str, Any]) -> str:
    """The name of a row's support, with its size where it was trained on fewer tasks."""
    if row["support"] == "Listed":
        return "spanned" if row["support/spanned"] else "unspanned"
    if row["frac_test"] < 0.5:
        return NAMES[row["support"]]
    if row["support"] == "Disconnected":
        return "unmixed halves"
    return NAMES[row["support"]] + ", fewer"


def published_sweep(final: Frame) -> Frame:
    """The students of the six supports at 25% held out."""
    return final[(final["support"] != "Listed") & (final["frac_test"] < 0.5)]


SIX_SUPPORTS = StudentSet(
    "six supports",
    "identity encoding, six supports at 25% held out, fast recipe",
    published_sweep,
    layers=("pre2", "pre1", "pre3"),
)
ALL_SUPPORTS = StudentSet(
    "all supports",
    "the same, and three supports at the size of unmixed halves",
    lambda final: final[final["support"] != "Listed"],
)


def summary(rows: Frame) -> dict[str, float]:
    """Mean R2 on held-out tasks for every support (for pairs, by weight law), and what the
    decodability of the third layer explains of it.
    """
    final = prepare(rows)
    by_support = final.groupby(["family.num_hot", "law", "trained on"], observed=True)
    values = {
        f"{name} ({law})" if num_hot == 2 else str(name): float(value)
        for (num_hot, law, name), value in by_support["test/r2"].mean().items()
    }
    for students in (SIX_SUPPORTS, ALL_SUPPORTS):
        for name, column in (("", HEADLINE), (", probe of all tasks", ALL_TASKS)):
            value = explained(students.select(final), column)
            if not math.isnan(value):
                before = explained(students.select(final), untrained_column(column))
                values[f"r squared, {students.name}{name}"] = value
                values[f"r squared, {students.name}{name}, untrained"] = before
    return values


def drop(baseline: str, support: str) -> Statistic:
    """The mean R2 of the baseline minus that of a support."""
    return difference("test/r2", "trained on", baseline, support)


def _claim(
    name: str,
    change: str,
    baseline: str,
    support: str,
    *,
    is_large: bool,
    law: str | None = None,
    published: str = OURS,
    source: str = "",
    repeats: str = "",
) -> DeclaredClaim:
    def baseline_learns(measurement: Measurement) -> bool:
        is_baseline = measurement.rows["trained on"] == baseline
        return measurement.rows.loc[is_baseline, "test/r2"].mean() > MIN_BASELINE_R2

    rule = above(LARGE_DROP) if is_large else within(-NO_DROP, NO_DROP)
    expected = f"a drop above {LARGE_DROP}" if is_large else f"no drop (within {NO_DROP})"
    compared_with = f"{baseline.removesuffix(', fewer')} supports"
    return reproduces(
        name,
        f"{change}: {expected} in R2 on held-out tasks, against {compared_with} of equal size",
        published=published,
        source=source,
        repeats=repeats,
        rows=None if law is None else where({"law": law}),
        needs=("trained on", "test/r2"),
        statistic=drop(baseline, support),
        passes=all_of(rule, on_value(f"{baseline} above {MIN_BASELINE_R2}", baseline_learns)),
        control=f"{compared_with} score above {MIN_BASELINE_R2}",
    )


def _published(name: str, change: str, baseline: str, repeats: str = "") -> DeclaredClaim:
    published = "significant degradation"
    return _claim(name, change, baseline, name, is_large=True, published=published, repeats=repeats)


def _control(name: str, change: str, baseline: str) -> DeclaredClaim:
    return _claim(name, change, baseline, name, is_large=False, source="control")


def _unspanned(name: str, weights: str, law: str, is_large: bool) -> DeclaredClaim:
    change = f"Unspanned pairs, {weights} weights"
    return _claim(name, change, "spanned", "unspanned", is_large=is_large, law=law, source="ours")


CLAIMS = [
    _published("module missing", "A module is absent from training", "random"),
    _published("unmixed, as published", "A group of modules is never mixed with others", "random"),
    _published(
        "unmixed halves",
        "Two halves of the modules are never mixed",
        "random, fewer",
        repeats="support_conditions: unmixed, as published",
    ),
    _control("balanced", "Balanced instead of random", "random"),
    _control("balanced, fewer", "Balanced instead of random, fewer tasks", "random, fewer"),
    _unspanned("unspanned, all ones", "all-ones", "khot", is_large=True),
    _unspanned("unspanned, drawn", "drawn", "discrete", is_large=False),
    *(
        correlation_claim(students, layer)
        for students in (SIX_SUPPORTS, ALL_SUPPORTS)
        for layer in students.layers
    ),
    gain_claim(
        "probe of all tasks, six supports",
        "With probes fitted on all tasks",
        SIX_SUPPORTS,
        ALL_TASKS,
        explained,
    ),
]
FIGURES = [
    bars(
        "test/r2",
        against="trained on",
        rows=lambda final: final[final["support"] != "Listed"],
        name="supports",
        title="Held-out combinations by training support; the last three have fewer tasks",
    ),
    bars(
        "test/r2",
        against="trained on",
        color="law",
        rows=where({"support": "Listed"}),
        name="spanned",
        title="Connected pairs that span the test pairs, and pairs that do not",
        names={"khot": "all-ones weights", "discrete": "drawn weights"},
    ),
    plot(
        "decodability", SIX_SUPPORTS, HEADLINE, "six supports at 25% held out", color="trained on"
    ),
    plot(
        "decodability_untrained",
        SIX_SUPPORTS,
        UNTRAINED,
        "six supports at 25% held out",
        color="trained on",
    ),
    plot(
        "decodability_probe_of_all_tasks",
        SIX_SUPPORTS,
        ALL_TASKS,
        "six supports at 25% held out",
        color="trained on",
    ),
]
