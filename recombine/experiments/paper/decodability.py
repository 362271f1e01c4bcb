"""Do students that generalize, and only they, encode the modules linearly?

Claim: over students that do and do not generalize, the R2 on held-out combinations correlates
with the decodability of the modules (squared correlation above .95; arXiv 2507.07207, section
4).

Layers and probes. The headline layer is the third hidden layer before its nonlinearity (`pre2`),
with the probe of the public code. The second and the fourth layer are reported beside it. The paper
does not say which layer it used; we chose ours after seeing preliminary results for all layers. The
first layer is never used: it is affine in the encoded task in any network.

Confound. Few train tasks make a poor student, but also a poor probe, which is fitted on the same
tasks. So the same probe is fitted to the same network before training. A layer is evidence only if
it explains at least .1 more of the students' R2 than the same layer of the untrained network. If
the published correlation is found but this condition fails, the verdict is *confounded*. Two
comparisons avoid the confound: students with equally many train tasks (they differ in seed, width
or encoding), and probes that are fitted on all tasks, test tasks included. A correlation can be
high although the differences are tiny, so notes give the mean decodability of failing, generalizing
and untrained networks. Permuted-label control: probes fitted on shuffled tasks.

Students. Those of the paper's sweep over the number of train tasks (identity encoding, 4x1024;
trained with the fast recipe, and with AdamW in bfloat16 for 100,000 of the paper's 300,000 steps),
of its model-size sweep (six encodings), and of a larger sweep of ours (three encodings, three
widths). Scores below 0 count as 0. A set must have students with test R2 above .9 and below .5
(model size: .8; fixed before these students were trained).

Command:  recombine run decodability --scale small
Runtime:  5 minutes on 2 cores; full: 15 minutes on one H200.
Expected: a squared correlation above .95, clearly less with untrained networks; chance-level scores
          for shuffled tasks.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from recombine.basics.suggest import counted
from recombine.experiments.claim import (
    OURS,
    DeclaredClaim,
    Frame,
    Measurement,
    Select,
    above,
    all_of,
    below,
    control,
    final_rows,
    on_value,
    reproduces,
    where,
)
from recombine.experiments.layers import probe_column
from recombine.experiments.paper.scaling_width import ENCODINGS, faithful_runs
from recombine.experiments.plots import Plot, scatter
from recombine.experiments.untrained import untrained, untrained_column, with_untrained
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.diagnostics.shuffled_decodability import ShuffledDecodability
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.encodings.identity import Identity
from recombine.parts.encodings.interval_shuffle import IntervalShuffle
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.recipes.paper import Paper
from recombine.sweeps.run import Run, paper, paper_fast, sweep

TITLE = "Linear decodability of the modules against compositional generalization"
SOURCE = "arXiv 2507.07207, section 4"
PUBLISHED = 0.95
MIN_GAIN = 0.1  # of r squared, over the same layer of the untrained network
LAYERS = {"pre1": "second", "pre2": "third", "pre3": "fourth"}  # before their nonlinearity
PUBLIC_PROBE = "LinearDecodability-paper"
ALL_TASKS_PROBE = "LinearDecodability-all"  # fitted on all tasks, test tasks included
HEADLINE = probe_column(PUBLIC_PROBE, "pre2")
UNTRAINED = untrained_column(HEADLINE)
ALL_TASKS = probe_column(ALL_TASKS_PROBE, "pre2")
SHUFFLED = "ShuffledDecodability/best/test/r2"
MAX_SHUFFLED = 0.1  # R2 below which nothing is decoded
MIN_DEVIATION = 1e-4  # standard deviation of decodability below which only rounding is left
MAX_FAILING = 0.5  # test R2; a student below it fails
MIN_GENERALIZING = 0.9  # test R2; a student above it generalizes
FRACTIONS = {
    "tiny": (0.3, 0.7),
    "small": (0.125, 0.5, 0.8, 0.9),
    "full": (0.125, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98),
}
WIDTHS = {"tiny": (8,), "small": (16, 128), "full": (64, 256, 1024)}
DEPTH = {"tiny": 3, "small": 3, "full": 4}
SEEDS = {"tiny": 1, "small": 3, "full": 8}
DIAGNOSTICS = (
    LinearDecodability(by_module=False),
    LinearDecodability(paper=True, by_module=False),
    LinearDecodability(num_fit=1024, fit_on="all", by_module=False),
    ShuffledDecodability(),
)
SIZE_DIAGNOSTICS = "LinearDecodability, LinearDecodability"  # as stored for the model-size sweep


def runs(scale: str) -> list[Run]:
    """Encoding x width x held-out fraction x seed, trained and untrained.

    The full scale also has the paper's recipe and the paper's model-size sweep.
    """
    models = [MLP((width,) * DEPTH[scale]) for width in WIDTHS[scale]]
    trained = []
    for base in _bases(scale):
        trained += sweep(base, model=models, frac_test=FRACTIONS[scale], seed=range(SEEDS[scale]))
    own_sweep = [*trained, *map(untrained, trained)]
    return [*own_sweep, *papers_recipe(), *model_size()] if scale == "full" else own_sweep


def model_size() -> list[Run]:
    """The paper's model-size sweep: six encodings x depth x width x seed, 25% held out."""
    trained = faithful_runs()
    return [*trained, *map(untrained, trained)]


def papers_recipe() -> list[Run]:
    """The paper's sweep over held-out fractions with its own recipe, for a third of its steps.

    The untrained baseline of these students is that of the fast recipe: the same seed draws the
    same network.
    """
    recipe = Paper(precision="bfloat16")
    base = paper(recipe=recipe, num_steps=100_000, num_evals=1, diagnostics=DIAGNOSTICS)
    return sweep(base, frac_test=FRACTIONS["full"], seed=range(3))


def _bases(scale: str) -> list[Run]:
    if scale == "tiny":
        return [_tiny()]
    if scale == "small":
        base = Run(num_steps=2000, num_evals=1, diagnostics=DIAGNOSTICS)
        return sweep(base, encoding=[Identity(), IntervalShuffle()])
    return [
        paper_fast(encoding=Identity(), diagnostics=DIAGNOSTICS),
        paper_fast(encoding=IntervalShuffle(), diagnostics=DIAGNOSTICS),
        paper_fast(encoding=FewShot(), num_steps=8000, diagnostics=DIAGNOSTICS),
    ]


def _tiny() -> Run:
    return Run(
        Hyperteacher(num_modules=5, num_hot=2, d_input=4, d_hidden=4, num_outputs=4),
        num_steps=20,
        num_evals=1,
        diagnostics=tuple(
            replace(probe, num_fit=32, num_seen=32, num_test=32) for probe in DIAGNOSTICS
        ),
        num_eval_tasks=32,
    )


def prepare(rows: Frame) -> Frame:
    """The final rows of trained students, with the probes of the same network before training.

    Added columns: `sweep` names the sweep of the student, and `is_widest` whether it has the
    largest width of our own sweep.
    """
    students = with_untrained_probes(final_rows(rows), paired_by=["diagnostics"])
    students["encoding"] = pd.Categorical(students["encoding"], ENCODINGS)
    students["sweep"] = "ours"
    students.loc[students["recipe"] == "Paper", "sweep"] = "paper's recipe"
    students.loc[students["diagnostics"] == SIZE_DIAGNOSTICS, "sweep"] = "model size"
    widths = students["model.width"]
    students["is_widest"] = widths == widths[students["sweep"] == "ours"].max()
    return students


def with_untrained_probes(final: Frame, paired_by: Sequence[str]) -> Frame:
    """The trained students, with the probes of the same network before training.

    `paired_by` has further columns in which a student and its baseline are equal.
    """
    pattern = re.compile(rf"({PUBLIC_PROBE}|{ALL_TASKS_PROBE})/(pre|block)\d+/test/r2")
    probed = [column for column in final if pattern.fullmatch(str(column))]
    baselines = {untrained_column(column): column for column in probed}
    return with_untrained(final, baselines, paired_by=paired_by)


def complete_sweep(final: Frame) -> Frame:
    """The students of our own sweep; none unless every encoding has its widest students."""
    ours = final[final["sweep"] == "ours"]
    widest = ours[ours["is_widest"]]
    is_complete = set(widest["encoding"]) == set(ours["encoding"])
    return ours if is_complete else ours[:0]


def widest_of(encoding: str) -> Select:
    """Select the widest students of our own sweep with an encoding."""
    return where({"sweep": "ours", "is_widest": True, "encoding": encoding})


class StudentSet(NamedTuple):
    """Students whose decodability is compared with their test R2."""

    name: str
    description: str
    select: Select
    layers: tuple[str, ...] = ("pre2",)
    max_lowest: float = MAX_FAILING  # the worst student must score below this
    min_highest: float = MIN_GENERALIZING  # the best student must score above this
    score: str = "test/r2"  # the column of the score on held-out combinations
    score_name: str = "test R2"

    def missing_range(self, students: Frame) -> list[str]:
        """The scores that no student has: without both ends, a correlation means little."""
        scores = students[self.score]
        missing = []
        if not (scores > self.min_highest).any():
            missing.append(f"above {self.min_highest}")
        if not (scores < self.max_lowest).any():
            missing.append(f"below {self.max_lowest}")
        return missing


DATA = StudentSet(
    "data",
    "identity encoding, widest MLP, several held-out fractions, fast recipe",
    widest_of("Identity"),
    layers=("pre2", "pre1", "pre3"),
)
PAPERS_RECIPE = StudentSet(
    "data, paper's recipe",
    "identity encoding, 4x1024, seven held-out fractions, AdamW, 100,000 steps",
    where({"sweep": "paper's recipe"}),
    layers=("pre2", "pre1", "pre3"),
)
MODEL_SIZE = StudentSet(
    "model size",
    "six encodings, four hidden layers of width 128 to 2048, fast recipe",
    where({"sweep": "model size", "model.depth": 4}),  # networks of depth 2 have no third layer
    max_lowest=0.8,
)
ALL_STUDENTS = StudentSet(
    "all students", "several encodings, widths and held-out fractions, fast recipe", complete_sweep
)
INTERVAL_SHUFFLE = StudentSet(
    "IntervalShuffle",
    "interval shuffle, widest MLP, several held-out fractions, fast recipe",
    widest_of("IntervalShuffle"),
)
FEW_SHOT = StudentSet(
    "FewShot",
    "few-shot, widest MLP, several held-out fractions, fast recipe",
    widest_of("FewShot"),
)
SETS = (DATA, PAPERS_RECIPE, MODEL_SIZE, ALL_STUDENTS, INTERVAL_SHUFFLE, FEW_SHOT)
# Compared at equal numbers of train tasks.
SETS_ACROSS_WIDTHS = (
    StudentSet(
        "identity",
        "identity encoding; width and seed differ",
        where({"sweep": "ours", "encoding": "Identity"}),
    ),
    StudentSet("all", "encoding, width and seed differ", complete_sweep),
)


def explained(students: Frame, column: str, score: str = "test/r2") -> float:
    """Squared correlation of a decodability column with a score. Negative scores count as 0.

    0 for a negative correlation and for a column that hardly varies.
    """
    if column not in students:
        return math.nan
    scores = students[[score, column]].dropna()
    return _squared_correlation(scores.clip(lower=0.0))


def explained_within(students: Frame, column: str) -> float:
    """Squared correlation of a column with test R2 among students with equally many train tasks.

    Both scores are taken relative to their mean at each held-out fraction.
    """
    if column not in students:
        return math.nan
    present = students[["frac_test", "test/r2", column]].dropna()
    scores = present[["test/r2", column]].clip(lower=0)
    means = scores.groupby(present["frac_test"]).transform("mean")
    return _squared_correlation(scores - means)


def _squared_correlation(pairs: Frame) -> float:
    values = pairs.to_numpy(float)
    if len(values) < 3 or values[:, 0].std() == 0:
        return math.nan
    if values[:, 1].std() < MIN_DEVIATION:
        return 0.0
    return float(max(np.corrcoef(values.T)[0, 1], 0.0) ** 2)


def summary(rows: Frame) -> dict[str, float]:
    """What the decodability of each layer explains of test R2, trained and untrained, by set."""
    final = prepare(rows)
    values: dict[str, float] = {}
    for student_set in SETS:
        students = student_set.select(final)
        for layer in LAYERS:
            column = probe_column(PUBLIC_PROBE, layer)
            value = explained(students, column)
            if not math.isnan(value):
                name = f"{student_set.name}, {layer}"
                values[name] = value
                values[f"{name}, untrained"] = explained(students, untrained_column(column))
    values["students with R2 above .9"] = int((final["test/r2"] > MIN_GENERALIZING).sum())
    values["students with R2 below .5"] = int((final["test/r2"] < MAX_FAILING).sum())
    return values


def with_baselines(select: Select, column: str) -> Select:
    """The selected students; None unless all have the probe's score before and after training."""

    def select_complete(final: Frame) -> Frame | None:
        students = select(final)
        columns = [column, untrained_column(column)]
        if students is None or len(students) < 3 or not set(columns) <= set(students):
            return None
        is_complete = students[columns].notna().all(axis=None)
        return students if is_complete else None

    return select_complete


def layer_name(layer: str) -> str:
    """A layer in words: `pre2` is the third layer, `block2` the third block of a transformer."""
    ordinal = ("first", "second", "third", "fourth")[int(layer[-1])]
    return f"{ordinal} block" if layer.startswith("block") else f"{ordinal} layer"


def correlation_claim(
    students: StudentSet, layer: str, published: str = f"> {PUBLISHED}"
) -> DeclaredClaim:
    """The published correlation; confounded if the untrained network explains as much."""
    column = probe_column(PUBLIC_PROBE, layer)
    is_published = published != OURS
    is_headline = students.name == "data" and column == HEADLINE

    def explained_untrained(measurement: Measurement) -> float:
        return explained(measurement.rows, untrained_column(column), students.score)

    def note(measurement: Measurement) -> str:
        text = f"r squared {explained_untrained(measurement):.3f} for the untrained network"
        missing = " or ".join(students.missing_range(measurement.rows))
        if missing:
            text += f"; the set lacks students with {students.score_name} {missing}"
        return text

    return reproduces(
        f"{students.name}: {layer}",
        f"Decodability from the {layer_name(layer)} correlates with {students.score_name} "
        f"(r squared; {students.description})",
        published=published,
        threshold_published=is_published,
        after_rows="the layer" if is_published else "",
        repeats="decodability: data: pre2" if is_published and not is_headline else "",
        rows=with_baselines(students.select, column),
        needs=(students.score, column),
        statistic=lambda rows: explained(rows, column, students.score),
        passes=all_of(
            above(PUBLISHED),
            on_value(
                "students that fail and that generalize",
                lambda measurement: not students.missing_range(measurement.rows),
            ),
        ),
        control=f"r squared must be at least {MIN_GAIN} lower for the untrained network",
        is_confounded=lambda measurement: (
            measurement.value - explained_untrained(measurement) < MIN_GAIN
        ),
        note=note,
    )


def gain_claim(
    name: str,
    setting: str,
    students: StudentSet,
    column: str,
    r_squared: Callable[[Frame, str], float],
) -> DeclaredClaim:
    """Decodability explains more of test R2 than decodability before training does."""
    before = untrained_column(column)

    def note(measurement: Measurement) -> str:
        trained, baseline = r_squared(measurement.rows, column), r_squared(measurement.rows, before)
        means = _mean_decodability(measurement.rows, column)
        return f"r squared {trained:.3f} trained, {baseline:.3f} untrained; {means}"

    return control(
        name,
        f"{setting}, decodability explains test R2 better than decodability before training does "
        f"({students.description}); difference of r squared above {MIN_GAIN}",
        rows=with_baselines(students.select, column),
        needs=("frac_test", "test/r2", column, before),
        statistic=lambda rows: r_squared(rows, column) - r_squared(rows, before),
        passes=above(MIN_GAIN),
        note=note,
    )


def _mean_decodability(students: Frame, column: str) -> str:
    """Mean decodability of failing, of generalizing and of untrained students, as text."""
    failing = students.loc[students["test/r2"] < MAX_FAILING, column]
    generalizing = students.loc[students["test/r2"] > MIN_GENERALIZING, column]
    texts = [
        f"{generalizing.mean():.3f} where test R2 is above {MIN_GENERALIZING}",
        f"{students[untrained_column(column)].mean():.3f} untrained",
    ]
    if len(failing):
        count = f"({counted(len(failing), 'student')})"
        texts.insert(0, f"{failing.mean():.3f} where test R2 is below {MAX_FAILING} {count}")
    return f"mean decodability {', '.join(texts)}"


CLAIMS = [correlation_claim(students, layer) for students in SETS for layer in students.layers]
CLAIMS += [
    gain_claim(
        f"equal train tasks, {students.name}",
        "At equal numbers of train tasks",
        students,
        HEADLINE,
        explained_within,
    )
    for students in SETS_ACROSS_WIDTHS
]
CLAIMS += [
    gain_claim(
        f"probe of all tasks, {students.name}",
        "With probes fitted on all tasks",
        students,
        ALL_TASKS,
        explained,
    )
    for students in (DATA, PAPERS_RECIPE)
]
CLAIMS += [
    control(
        "shuffled tasks",
        "Probes fitted on shuffled tasks score at chance (the highest R2 of any student)",
        needs=(SHUFFLED,),
        statistic=lambda rows: float(rows[SHUFFLED].max()),
        passes=below(MAX_SHUFFLED),
    )
]


TITLE_ENDINGS = {
    HEADLINE: "",
    UNTRAINED: ", before training",
    ALL_TASKS: ", probe of all tasks",
}


def plot(name: str, students: StudentSet, column: str, title: str, color: str = "encoding") -> Plot:
    """A column against test R2, one point per student. Scores below 0 count as 0."""

    def clipped(final: Frame) -> Frame:
        scores = final.filter(items=["test/r2", column]).clip(lower=0)
        return students.select(final.assign(**scores))

    return scatter(
        column,
        against="test/r2",
        color=color,
        rows=clipped,
        name=name,
        title=f"Decodability and test R²: {title}{TITLE_ENDINGS[column]}",
        x_title="R² on held-out combinations (below 0 counts as 0)",
        y_title="decodability, third layer (R²)",
        fit=True,
    )


FIGURES = [
    plot("data", DATA, HEADLINE, "identity, widest students"),
    plot("data_untrained", DATA, UNTRAINED, "identity, widest students"),
    plot("data_probe_of_all_tasks", DATA, ALL_TASKS, "identity, widest students"),
    plot("data_papers_recipe", PAPERS_RECIPE, HEADLINE, "identity, paper's recipe"),
    plot("data_papers_recipe_untrained", PAPERS_RECIPE, UNTRAINED, "identity, paper's recipe"),
    plot(
        "data_papers_recipe_probe_of_all_tasks",
        PAPERS_RECIPE,
        ALL_TASKS,
        "identity, paper's recipe",
    ),
    plot("model_size", MODEL_SIZE, HEADLINE, "six encodings, four layers"),
    plot("model_size_untrained", MODEL_SIZE, UNTRAINED, "six encodings, four layers"),
    plot("all_students", ALL_STUDENTS, HEADLINE, "all students"),
    plot("all_students_untrained", ALL_STUDENTS, UNTRAINED, "all students"),
]
