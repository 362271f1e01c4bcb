"""Does the fast recipe train networks like those of the paper's recipe, or only equal scores?

Claim: the fast recipe reaches the test score of the paper's recipe, and in every hidden layer the
fraction of dead units, the effective rank and the decodability of the modules are close to those of
the paper's recipe.

Equal scores can hide different networks. With a high learning rate most units die, and what a probe
finds in such a network says more about the recipe than about the task. So each student is trained
with the paper's recipe (the reference) and with the fast one, and both are compared layer by layer.
Decodability is that of the public code's probe, before the nonlinearity. The first layer is left
out: it is an affine function of the encoded task in any network.

The fast recipe was chosen by scores on seen tasks and by unit activity, on seeds from 100. It is
judged on other seeds, and decodability was not looked at while choosing. Three references stop
early: the transformer after 20,000 steps, the preference grid after 150,000 of 3,000,000,
quickstart's student after 40,000. Control: the earlier fast recipes must exceed the limit for dead
units.

Command:  recombine run faithful_recipe --scale small
Runtime:  2 minutes on 2 cores; full: 25 minutes on one H200, most of it for the reference.
Expected: scores at least those of the reference; in each layer at most 4 points more dead units, at
          least 75% of the effective rank, decodability within .05; no loss of score with longer
          training.
"""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from recombine.basics import statistics
from recombine.experiments.claim import (
    OURS,
    DeclaredClaim,
    Frame,
    Interval,
    Measured,
    Measurement,
    Rule,
    Select,
    above,
    all_of,
    at_least,
    at_most,
    final_rows,
    hypothesis,
    on_value,
    where,
)
from recombine.experiments.layers import melt_layers, probe_column, probed_layers
from recombine.experiments.ledger import recipes_of
from recombine.experiments.plots import Plot, bars, curve
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.encodings.interval_shuffle import IntervalShuffle
from recombine.parts.encodings.invertible_nn import InvertibleNN
from recombine.parts.encodings.language import Language
from recombine.parts.encodings.orthogonal import Orthogonal
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.families.preference_grid import PreferenceGrid
from recombine.parts.models.mlp import MLP
from recombine.parts.models.transformer import Transformer
from recombine.parts.recipes.fast import EARLIER_DEFAULT, EARLIER_FAST, Fast
from recombine.parts.recipes.paper import Paper
from recombine.planning.bench.fidelity import (
    LARGE,
    MAX_DECODABILITY_GAP,
    MAX_MORE_DEAD,
    MAX_SECONDS,
    MIN_RANK,
    QUICKSTART,
)
from recombine.sweeps.run import Run, paper, paper_fast, sweep

TITLE = "The fast recipe trains networks like those of the paper's recipe"
SOURCE = OURS
ENCODINGS = (Orthogonal(), Language(), InvertibleNN(), IntervalShuffle(), FewShot())
STEPS = (5000, 10_000, 20_000, 40_000)  # of longer training
TRANSFORMER = "transformer"
PREFERENCE = "preference grid"
ENCODED = tuple(type(encoding).__name__ for encoding in ENCODINGS)
STUDENTS = (LARGE, *ENCODED, TRANSFORMER, PREFERENCE, QUICKSTART)
# Values of the column `trained by`.
REFERENCE = "paper's recipe"
FAST = "fast"
LONGER = "fast, longer"
EARLIER = "earlier fast"
DEFAULT = "earlier default"
PROBE = "LinearDecodability-paper"
USED_COLUMNS = (
    r"run|seed|num_steps|recipe(\..*)?|meta/(device|seconds)|activity/.*/(dead|rank)"
    rf"|{PROBE}/pre\d+/test/r2"
)
# Criteria fixed before the first result, with the limits of `bench.fidelity`.
MIN_R2 = 0.9967  # a measurement of the public code after 290,000 steps
MAX_FALL = 0.0005  # of test R2, from one number of steps to the next
NUM_DRAWS = 200  # of the bootstrap


def runs(scale: str) -> list[Run]:
    """Reference and fast students; at full scale also longer training and the earlier recipes."""
    if scale == "tiny":
        return sweep(_tiny(), recipe=[Paper(), Fast(), EARLIER_DEFAULT], seed=range(2))
    if scale == "small":
        return [*quickstart_reference(), *sweep(_quickstart(), seed=range(8))]
    return [*reference(), *fast(), *longer(), *earlier()]


def reference() -> list[Run]:
    """The paper's recipe. Transformer and preference grid use the tuning seeds, 100 and 101."""
    bfloat16 = Paper(precision="bfloat16")
    listed = sweep(paper(), seed=range(3))
    for encoding in ENCODINGS:
        listed += sweep(paper(encoding=encoding, recipe=bfloat16), seed=range(3))
    transformer = replace(_transformer(bfloat16, 20_000), num_tasks=128, num_points=16)
    preference = replace(_preference(Paper(1e-4, 0.001, "bfloat16"), 150_000), num_tasks=128)
    listed += sweep(transformer, seed=(100, 101))
    listed += sweep(preference, seed=(100, 101))
    return [*listed, *quickstart_reference()]


def quickstart_reference() -> list[Run]:
    """The widest student of `quickstart` by the paper's recipe."""
    return sweep(replace(_quickstart(), recipe=Paper(), num_steps=40_000), seed=range(3))


def fast() -> list[Run]:
    """The fast recipe, on seeds that tuning never used."""
    listed = sweep(paper_fast(), seed=range(12))
    for encoding in ENCODINGS:
        listed += sweep(paper_fast(encoding=encoding), seed=range(3))
    listed += sweep(_transformer(Fast(0.02, 0.02, vector_rate=0.2), 5000), seed=range(3))
    listed += sweep(_preference(Fast(0.02, 0.05, vector_rate=0.2), 10_000), seed=range(3))
    return [*listed, *sweep(_quickstart(), seed=range(8))]


def longer() -> list[Run]:
    """The large student with the fast recipe and more and more steps."""
    return sweep(paper_fast(diagnostics=()), num_steps=STEPS, seed=range(6))


def earlier() -> list[Run]:
    """The control: the recipe of the first tables, and the earlier default."""
    tables = paper_fast(recipe=EARLIER_FAST, num_steps=5000)
    default = paper(recipe=EARLIER_DEFAULT, num_steps=10_000, num_evals=1)
    return [*sweep(tables, seed=range(3)), *sweep(default, seed=range(3))]


def _quickstart() -> Run:
    probes = (LinearDecodability(), LinearDecodability(paper=True))
    return Run(diagnostics=probes, num_steps=1200, num_evals=1)


def _transformer(recipe: Paper | Fast, num_steps: int) -> Run:
    return paper_fast(model=Transformer(), recipe=recipe, num_steps=num_steps, diagnostics=())


def _preference(recipe: Paper | Fast, num_steps: int) -> Run:
    return Run(
        family=PreferenceGrid(num_features=16),
        model=MLP((1024, 1024)),
        recipe=recipe,
        diagnostics=(),
        num_steps=num_steps,
        num_evals=1,
        num_tasks=512,
        num_points=8,
        num_eval_points=8,
    )


def _tiny() -> Run:
    family = Hyperteacher(num_modules=5, num_hot=2, d_input=4, d_hidden=4, num_outputs=4)
    probes = (LinearDecodability(32, 32, 32, paper=True),)
    return Run(family, model=MLP((8, 8)), diagnostics=probes, num_steps=20, num_evals=1)


def prepare(rows: Frame) -> Frame:
    """The final rows, with columns `student`, `trained by`, `seen` and `test` (scores)."""
    final = final_rows(rows)
    used = [column for column in final if re.fullmatch(USED_COLUMNS, str(column))]
    return final[used].assign(
        student=final.apply(_student, axis=1),
        seen=_score(final, "seen"),
        test=_score(final, "test"),
        **{"trained by": final.apply(_trained_by, axis=1)},
    )


def _score(final: Frame, side: str) -> Any:
    scores = final.reindex(columns=[f"{side}/r2", f"{side}/accuracy"])
    return scores[f"{side}/r2"].fillna(scores[f"{side}/accuracy"])


def _student(row: Any) -> str:
    if row["model"] == "Transformer":
        return TRANSFORMER
    if row["family"] == "PreferenceGrid":
        return PREFERENCE
    if row["family.num_modules"] < 16:
        return QUICKSTART
    return LARGE if row["encoding"] == "Identity" else row["encoding"]


def _trained_by(row: Any) -> str:
    if row["recipe"] == "Paper":
        return REFERENCE
    if row["recipe.vector_rate"] == 1:
        return DEFAULT if row["recipe.learning_rate"] == EARLIER_DEFAULT.learning_rate else EARLIER
    return LONGER if _student(row) == LARGE and row["num_steps"] in STEPS else FAST


def activity_layers(frame: Frame, measure: str) -> dict[str, str]:
    """The layers of a measure of unit activity, by column. Layers that a run lacks are left out."""
    layers = {}
    for column in frame:
        match = re.fullmatch(rf"activity/(\D+\d+)/{measure}", str(column))
        if match and frame[column].notna().all():
            layers[column] = match[1]
    return dict(sorted(layers.items(), key=lambda item: (len(item[1]), item[1])))


def activity(frame: Frame, measure: str) -> Any:
    """The mean of a measure of unit activity, by layer."""
    layers = activity_layers(frame, measure)
    return frame[list(layers)].mean().rename(layers)


def more_dead(fast: Frame, reference: Frame) -> float:
    """The largest excess of dead units over the reference (a fraction of a layer's units)."""
    own, other = activity(fast, "dead"), activity(reference, "dead")
    return float((own - other).max()) if list(own.index) == list(other.index) else math.inf


def rank_ratio(fast: Frame, reference: Frame) -> float:
    """The smallest ratio of the effective rank to that of the reference, over all layers."""
    own, other = activity(fast, "rank"), activity(reference, "rank")
    return float((own / other).min()) if list(own.index) == list(other.index) else 0.0


def decodability(frame: Frame) -> Any:
    """Mean decodability on held-out combinations by layer, from the second hidden layer on."""
    layers = [layer for layer in activity_layers(frame, "dead").values() if layer != "hidden0"]
    columns = [probe_column(PROBE, layer.replace("hidden", "pre")) for layer in layers]
    return frame[columns].mean()


def decodability_gap(fast: Frame, reference: Frame) -> float:
    """The largest difference of decodability in a layer, in either direction."""
    return float((decodability(fast) - decodability(reference)).abs().max())


def seconds_on_h200(fast: Frame) -> float:
    """Seconds per run of the fast recipe; NaN if a run was on another device."""
    is_h200 = fast["meta/device"].str.contains("H200").all()
    return float(fast["meta/seconds"].mean()) if is_h200 else math.nan


def largest_fall(longer: Frame) -> float:
    """The largest loss of mean test R2 from one number of steps to the next."""
    means = longer.groupby("num_steps")["test"].mean().sort_index()
    return float(-means.diff().min())


def summary(rows: Frame) -> dict[str, float]:
    """The test score and the dead units of the worst layer, for each student and recipe."""
    values = {}
    for (student, recipe), group in prepare(rows).groupby(["student", "trained by"]):
        dead = activity(group, "dead")
        values[f"{student}, {recipe}: test score"] = float(group["test"].mean())
        values[f"{student}, {recipe}: dead units, worst layer"] = float(dead.max())
    return values


Comparison = Callable[[Frame, Frame], float]  # of the runs of a recipe with those of the reference


def of_both(student: str, recipe: str) -> Select:
    """The runs of a student by a recipe and by the reference; None unless both are there."""

    def select(final: Frame) -> Frame | None:
        both = {recipe, REFERENCE}
        selected = where({"student": student, "trained by": both})(final)
        return selected if set(selected["trained by"]) == both else None

    return select


def split(rows: Frame, recipe: str) -> tuple[Frame, Frame]:
    """The runs by a recipe and by the reference."""
    return rows[rows["trained by"] == recipe], rows[rows["trained by"] == REFERENCE]


def interval_over_both(first: Frame, second: Frame, compare: Comparison) -> Interval:
    """The 95% bootstrap interval of a comparison; runs of both groups are drawn independently."""
    groups = [  # sorted, so that the interval does not depend on the order of rows
        group.dropna(axis=1, how="all").sort_values("run") for group in (first, second)
    ]
    rng = np.random.default_rng(0)
    values = []
    for _ in range(NUM_DRAWS):
        draws = [group.iloc[rng.integers(len(group), size=len(group))] for group in groups]
        values.append(compare(*draws))
    low, high = np.quantile(values, statistics.LEVELS)
    return float(low), float(high)


def measure_both(first: Frame, second: Frame, compare: Comparison) -> Measured:
    """A comparison with its interval. The number of seeds is that of the smaller group.

    With too few seeds for a bootstrap it is the range over pairs of one run of either group.
    """
    value = compare(first, second)
    num_seeds = min(first["seed"].nunique(), second["seed"].nunique())
    if num_seeds >= statistics.MIN_BOOTSTRAP_SEEDS:
        interval = interval_over_both(first, second, compare)
        return Measured(value, interval, statistics.BOOTSTRAP, num_seeds)
    pairs = itertools.product(first.groupby("seed"), second.groupby("seed"))
    values = [compare(first_rows, second_rows) for (_, first_rows), (_, second_rows) in pairs]
    return Measured(value, (min(values), max(values)), statistics.RANGE_OVER_PAIRS, num_seeds)


def comparison_claim(
    name: str,
    statement: str,
    compare: Comparison,
    passes: Rule,
    student: str = LARGE,
    recipe: str = FAST,
    **options: Any,
) -> DeclaredClaim:
    """A claim about a student by a recipe and by the reference. `options` are those of a claim."""

    def measure(rows: Frame) -> Measured:
        return measure_both(*split(rows, recipe), compare)

    rows = of_both(student, recipe)
    return hypothesis(name, statement, passes=passes, rows=rows, measure=measure, **options)


def dead_units_claim(student: str) -> DeclaredClaim:
    """A student has few dead units, at a seen score no lower than that of the reference."""

    def seen_gain(measurement: Measurement) -> float:
        fast, reference = split(measurement.rows, FAST)
        return float(fast["seen"].mean() - reference["seen"].mean())

    def note(measurement: Measurement) -> str:
        fast, reference = split(measurement.rows, FAST)
        ratio = rank_ratio(fast, reference)
        return (
            f"score on seen tasks {seen_gain(measurement):+.4f}; smallest ratio of effective rank "
            f"{ratio:.2f}; reference: {recipes_of(reference)}, {len(reference)} seeds"
        )

    return comparison_claim(
        f"{student}: dead units",
        f"{student}: dead units exceed the paper's recipe by at most {MAX_MORE_DEAD} in any layer "
        "(largest excess)",
        more_dead,
        all_of(
            at_most(MAX_MORE_DEAD),
            on_value(
                "a seen score at least as high", lambda measurement: seen_gain(measurement) >= 0
            ),
        ),
        student,
        control="the score on seen tasks must be at least that of the paper's recipe",
        note=note,
    )


def control_claim(recipe: str, description: str) -> DeclaredClaim:
    """An earlier recipe exceeds the limit for dead units."""
    return comparison_claim(
        f"control: {recipe}",
        f"{description}: dead units exceed the paper's recipe by more than {MAX_MORE_DEAD} "
        "in some layer (largest excess)",
        more_dead,
        above(MAX_MORE_DEAD),
        recipe=recipe,
    )


def longer_runs(final: Frame) -> Frame | None:
    """The runs of longer training; None unless all numbers of steps are there."""
    runs = final[final["trained by"] == LONGER]
    return runs if set(runs["num_steps"]) == set(STEPS) else None


CLAIMS = [
    hypothesis(
        "score",
        f"The fast recipe reaches a mean test R2 of {MIN_R2}, the value measured with the public "
        "code (4x1024 MLP)",
        passes=at_least(MIN_R2),
        rows=of_both(LARGE, FAST),
        statistic=lambda rows: float(split(rows, FAST)[0]["test"].mean()),
    ),
    hypothesis(
        "seconds",
        f"A run takes at most {MAX_SECONDS} s on one H200, with twelve runs in one program, "
        "without compilation",
        passes=at_most(MAX_SECONDS),
        rows=of_both(LARGE, FAST),
        statistic=lambda rows: seconds_on_h200(split(rows, FAST)[0]),
    ),
    comparison_claim(
        "dead units",
        f"Dead units exceed the paper's recipe by at most {MAX_MORE_DEAD} in any layer "
        "(fraction, largest excess)",
        more_dead,
        at_most(MAX_MORE_DEAD),
    ),
    comparison_claim(
        "effective rank",
        f"The effective rank is at least {MIN_RANK} of the paper's recipe in every layer "
        "(smallest ratio)",
        rank_ratio,
        at_least(MIN_RANK),
    ),
    comparison_claim(
        "decodability",
        f"Decodability of layers 2 to 4 is within {MAX_DECODABILITY_GAP} of the paper's recipe "
        "(largest gap)",
        decodability_gap,
        at_most(MAX_DECODABILITY_GAP),
    ),
]
CLAIMS += map(dead_units_claim, STUDENTS[1:])
CLAIMS += [
    hypothesis(
        "longer training",
        f"Test R2 never falls by more than {MAX_FALL} from 5,000 to 40,000 steps "
        "(largest fall; negative: it rises)",
        rows=longer_runs,
        statistic=largest_fall,
        passes=at_most(MAX_FALL),
    ),
    control_claim(
        EARLIER, "Earlier recipe, Fast(learning_rate=0.05, weight_decay=0.02, vector_rate=1)"
    ),
    control_claim(
        DEFAULT, "Earlier default, Fast(learning_rate=0.04, weight_decay=0.05, vector_rate=1)"
    ),
]


def main_student(final: Frame) -> Frame:
    """The runs of the large student, or of another one if it is not there."""
    student = LARGE if (final["student"] == LARGE).any() else final["student"].iloc[0]
    runs = final[(final["student"] == student) & (final["trained by"] != LONGER)]
    order = [REFERENCE, FAST, EARLIER, DEFAULT]
    return runs.assign(**{"trained by": pd.Categorical(runs["trained by"], order)})


def layer_plot(name: str, title: str, columns_of: Callable[[Frame], dict[str, str]]) -> Plot:
    """A value by layer, one line per recipe. `columns_of` gives the layers by column."""

    def rows(final: Frame) -> Frame:
        runs = main_student(final)
        return melt_layers(runs, ["run", "student", "trained by"], columns_of(runs), "value")

    return curve(
        "value",
        against="layer",
        color="trained by",
        rows=rows,
        each="student",
        name=name,
        title=f"{title} by layer ({{}})",
        x_title="hidden layer",
        y_title=title,
    )


def worst_layers(final: Frame) -> Frame | None:
    """The dead units of the worst layer of every run; None if there is only one student."""
    runs = where({"trained by": {REFERENCE, FAST}})(final)
    if runs["student"].nunique() < 2:
        return None
    worst = runs.filter(regex=r"activity/.*/dead").max(axis=1)
    return runs.assign(worst=worst, student=pd.Categorical(runs["student"], STUDENTS))


FIGURES = [
    layer_plot("dead", "Dead units (fraction)", lambda runs: activity_layers(runs, "dead")),
    layer_plot("rank", "Effective rank", lambda runs: activity_layers(runs, "rank")),
    layer_plot("decodability", "Decodability (R²)", lambda runs: probed_layers(runs, PROBE)),
    curve(
        "test",
        against="num_steps",
        rows=where({"trained by": LONGER}),
        name="longer",
        title="Longer training by the fast recipe (4x1024 MLP)",
        x_title="steps",
        y_title="R² on held-out combinations",
        log_x=True,
        y_range=(0.99, 1.0),
    ),
    bars(
        "worst",
        against="student",
        color="trained by",
        rows=worst_layers,
        name="students",
        title="Dead units of the worst layer, all students",
        x_title="student",
        y_title="fraction of dead units",
    ),
]
