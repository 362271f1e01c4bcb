"""More train tasks generalize better: eight seeds, and a comparison of three recipes.

Claim: test R2 grows monotonically with the number of train tasks (arXiv 2507.07207, section 3, the
data sweep). Experiment `scaling_data` has all numbers of modules M and of active modules K, with
three seeds. Here the family with M = 16 and K = 3 is trained with eight seeds of the faithful fast
recipe. Two other recipes have three seeds. The students are those of experiments `decodability`
and `scaling_data`, scored with the probe of the public code.

Two comparisons of our own ask whether the recipe matters. The same held-out fractions are trained
with the earlier fast recipe, which the first tables of `scaling_data` and `scaling_law` have, and
with the paper's recipe in bfloat16 for 100,000 of its 300,000 steps. Two recipes agree if no mean
R2 differs by more than `MAX_DIFFERENCE` at any held-out fraction, over the seeds that both have.
The threshold was fixed before the rows of the faithful recipe were seen. If the earlier recipe does
not agree, its tables have to be trained again, by the faithful recipe.

Command:  recombine run data_slice --scale small
Runtime:  2 minutes on 2 free cores; full: 8 minutes on an H200, none beside the tables of
          `decodability` and `scaling_data`, which have the same runs.
Expected: R2 grows with train tasks and never falls; the recipes agree.
"""

from dataclasses import replace

from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    Measurement,
    at_most,
    final_rows,
    hypothesis,
)
from recombine.experiments.paper import decodability, scaling_data
from recombine.experiments.plots import curve
from recombine.experiments.trend import Grows, NeverFalls, Trend, trends
from recombine.parts.encodings.identity import Identity
from recombine.parts.recipes.fast import EARLIER_DEFAULT
from recombine.sweeps.run import Run, paper_fast, sweep

TITLE = "More train tasks generalize better: eight seeds, and a comparison of three recipes"
SOURCE = "arXiv 2507.07207, section 3"
SCORE = "test/r2"
FAITHFUL = "the faithful fast recipe"
EARLIER = "the earlier fast recipe"
PAPER = "the paper's recipe"
FRACTIONS = decodability.FRACTIONS
SEEDS = {"tiny": 1, "small": 3, "full": 8}
MAX_DIFFERENCE = 0.01  # of the mean R2 of two recipes, at any held-out fraction


def runs(scale: str) -> list[Run]:
    """Held-out fraction x seed: the faithful recipe, the earlier one and, at full scale, the
    paper's.
    """
    base = faithful_run(scale)
    faithful = sweep(base, frac_test=FRACTIONS[scale], seed=range(SEEDS[scale]))
    if scale != "full":
        return [*faithful, *(replace(run, recipe=EARLIER_DEFAULT) for run in faithful)]
    return [*faithful, *earlier_runs(), *decodability.papers_recipe()]


def faithful_run(scale: str) -> Run:
    """A student of the faithful recipe."""
    if scale == "full":
        return paper_fast(encoding=Identity(), diagnostics=decodability.DIAGNOSTICS)
    if scale == "small":
        return Run(num_steps=2000, num_evals=1, diagnostics=decodability.DIAGNOSTICS)
    return replace(scaling_data.BASES["tiny"], family=scaling_data.grid("tiny")[0].family)


def earlier_runs() -> list[Run]:
    """The runs of the first table of `scaling_data` with the same family and held-out fractions."""
    family = faithful_run("full").family
    return [
        run
        for run in scaling_data.earlier_runs()
        if run.family == family and run.frac_test in FRACTIONS["full"]
    ]


def recipe_names(final: Frame) -> list[str]:
    """The recipe of every row in words. Rows of the earlier one can lack `recipe.vector_rate`."""
    vector_rates = final["recipe.vector_rate"].fillna(EARLIER_DEFAULT.vector_rate)
    names = []
    for recipe, vector_rate in zip(final["recipe"], vector_rates, strict=True):
        is_faithful = vector_rate < EARLIER_DEFAULT.vector_rate
        fast_name = FAITHFUL if is_faithful else EARLIER
        names.append(PAPER if recipe == "Paper" else fast_name)
    return names


def prepare(rows: Frame) -> Frame:
    """The final rows; `trained with` names the recipe."""
    final = final_rows(rows)
    final["trained with"] = recipe_names(final)
    return final


def trend_of_faithful(final: Frame) -> list[Trend]:
    """The trend of the faithful recipe along its train tasks; empty if a run is missing."""
    faithful = final[final["trained with"] == FAITHFUL]
    sizes = sorted(faithful["num_train"].unique())
    lists_all = len(sizes) in {len(fractions) for fractions in FRACTIONS.values()}
    if not lists_all:
        return []
    return list(trends(faithful, "trained with", "num_train", SCORE, [{FAITHFUL: sizes}]).values())


def differences(rows: Frame) -> Frame:
    """The mean R2 of the faithful recipe minus that of the other one, by held-out fraction."""
    means = rows.groupby(["trained with", "frac_test"])[SCORE].mean().unstack("trained with")
    other = next(name for name in means if name != FAITHFUL)
    return means[FAITHFUL] - means[other]


def largest_difference(rows: Frame) -> float:
    """The largest absolute difference of mean R2 at any held-out fraction."""
    return float(differences(rows).abs().max())


def shared_rows(final: Frame, other: str) -> Frame | None:
    """The rows of the faithful recipe and another one, for the seeds and fractions of both."""
    other_rows = final[final["trained with"] == other]
    faithful = final[final["trained with"] == FAITHFUL]
    cells = set(zip(other_rows["frac_test"], other_rows["seed"], strict=True))
    pairs = zip(faithful["frac_test"], faithful["seed"], strict=True)
    is_shared = [pair in cells for pair in pairs]
    if not cells or sum(is_shared) != len(cells):
        return None
    return final[final.index.isin([*other_rows.index, *faithful.index[is_shared]])]


def fractions_disagree(measurement: Measurement) -> bool:
    """The control: between held-out fractions, mean R2 differs by more than recipes may."""
    means = measurement.rows.groupby("frac_test")[SCORE].mean()
    return bool(means.max() - means.min() > MAX_DIFFERENCE)


def difference_note(measurement: Measurement) -> str:
    """The differences at every held-out fraction, as text."""
    values = differences(measurement.rows).items()
    return "faithful minus other, by held-out fraction " + ", ".join(
        f"{fraction:g}: {value:+.3f}" for fraction, value in values
    )


def agreement_claim(name: str, other: str) -> DeclaredClaim:
    """The faithful recipe and another one have the same test R2 at every held-out fraction."""
    return hypothesis(
        name,
        f"The faithful fast recipe and {other} have the same mean test R2 "
        "at every held-out fraction (largest absolute difference)",
        source="ours",
        rows=lambda final: shared_rows(final, other),
        statistic=largest_difference,
        passes=at_most(MAX_DIFFERENCE),
        control="held-out fractions must differ by more",
        control_fails=fractions_disagree,
        note=difference_note,
    )


def summary(rows: Frame) -> dict[str, float]:
    """Mean test R2 by recipe and held-out fraction."""
    means = prepare(rows).groupby(["trained with", "frac_test"])[SCORE].mean()
    return {
        f"{recipe.removeprefix('the ')}, {fraction:.1%} held out": float(score)
        for (recipe, fraction), score in means.items()
    }


CLAIMS = [
    Grows(
        "tasks",
        "Test R2 grows with the number of train tasks (M = 16, K = 3; gain from the fewest to the "
        "most)",
        trends=trend_of_faithful,
    ),
    NeverFalls("Test R2 never falls as tasks are added", trends=trend_of_faithful),
    agreement_claim("agrees with the earlier recipe", EARLIER),
    agreement_claim("agrees with the paper's recipe", PAPER),
]
FIGURES = [
    curve(
        SCORE,
        against="num_train",
        color="trained with",
        name="recipes",
        title="Generalization by number of train tasks, three recipes (M = 16, K = 3)",
        log_x=True,
    ),
    curve(
        decodability.HEADLINE,
        against="num_train",
        rows=lambda final: final[final["trained with"] == FAITHFUL],
        name="decodability",
        title="Decodability of the modules by the number of train tasks (third layer)",
        y_title="R², public probe, held-out combinations",
        log_x=True,
    ),
]
