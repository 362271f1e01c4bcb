"""Do students generalize if and only if their representations are sums of one vector per module?

Claim: generalization requires representations that decompose into one vector per module (factors),
additive and orthogonal, and the diversity of combinations drives it, not the number of samples
(arXiv 2507.07102, 2602.24264).

The students are those of `decodability`: encodings x widths x numbers of train tasks, trained and
untrained. The deepest hidden layer of each is decomposed on train tasks (`Factorization`). The R2
of this sum of factors on held-out tasks is compared with the student's own R2 there by rank
correlation: over all students, and over students of one encoding and width, which differ only in
their train tasks. Linear decodability is measured in the same way. There are two controls. Factors
fitted to shuffled tasks must explain nothing. The untrained baseline of a student, with factors
fitted on the same tasks, must predict the student's score less well. For diversity, all students
have the same number of samples. For volume, the widest student with the identity encoding is
trained again with four times the points of every task in a batch.

Command:  recombine run linear_factors --scale small
Runtime:  3.5 minutes on 2 busy cores; full: 6 minutes on one H200, by the cost model.
Expected: rank correlation of at least .8; about 0 with shuffled tasks; more combinations help, more
          samples add less than .05.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from recombine.basics.statistics import rank_correlation
from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    Measurement,
    Select,
    above,
    at_least,
    below,
    control,
    final_rows,
    hypothesis,
    reproduces,
)
from recombine.experiments.layers import probed_layers
from recombine.experiments.paper import decodability
from recombine.experiments.plots import curve, scatter
from recombine.experiments.untrained import untrained, with_untrained
from recombine.parts.diagnostics.factorization import Factorization
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.encodings.identity import Identity
from recombine.parts.encodings.interval_shuffle import IntervalShuffle
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.sweeps.run import Run, paper_fast, replace_fields, sweep

TITLE = "Linear factors against compositional generalization"
SOURCE = "arXiv 2602.24264"
MIN_CORRELATION = 0.8
MAX_GAIN = 0.05  # R2; the bound on what more samples add, and the margin of a tie
MAX_SHUFFLED_R2 = 0.1
WIDTHS = decodability.WIDTHS
DEPTHS = {"tiny": 2, "small": 3, "full": 4}
SEEDS = {"tiny": 1, "small": 3, "full": 3}
ENCODINGS = {
    "tiny": [Identity()],
    "small": [Identity(), IntervalShuffle()],
    "full": [Identity(), IntervalShuffle()],
}
TIMES = 4  # the factor by which the points of each task grow
PROBES = {
    "raw": "Factorization/deepest/test/r2",
    "whitened": "Factorization/deepest/test/whitened_r2",
    "decodability": "LinearDecodability/deepest/test/r2",
    "untrained twin": "twin/deepest/test/r2",  # the untrained baseline's R2
}
SHUFFLED = "Factorization/deepest/test/shuffled_r2"
COSINE = "Factorization/deepest/cos_across"


def runs(scale: str) -> list[Run]:
    """Encoding x width x held-out fraction x seed, trained and untrained; also more samples."""
    fractions = decodability.FRACTIONS[scale]
    seeds = range(SEEDS[scale])
    sizes = [(width,) * DEPTHS[scale] for width in WIDTHS[scale]]
    trained = sweep(
        _base(scale),
        encoding=ENCODINGS[scale],
        model__widths=sizes,
        frac_test=fractions,
        seed=seeds,
    )
    more_points = TIMES * trained[0].num_points
    changes = {"model.widths": sizes[-1], "num_points": more_points, "diagnostics": ()}
    more_samples = replace_fields(trained[0], changes)
    return [
        *trained,
        *map(untrained, trained),
        *sweep(more_samples, frac_test=fractions[1::2], seed=seeds),
    ]


def _base(scale: str) -> Run:
    probes = (LinearDecodability(), Factorization())
    if scale == "full":
        return paper_fast(diagnostics=probes)
    if scale == "small":
        return Run(num_evals=1, diagnostics=probes)
    probes = (LinearDecodability(32, 32, 32), Factorization(32, 32, 32))
    family = Hyperteacher(num_modules=5, num_hot=2, d_input=4, d_hidden=4, num_outputs=4)
    return Run(family, num_steps=20, num_evals=1, diagnostics=probes, num_eval_tasks=32)


def prepare(rows: Frame) -> Frame:
    """The trained students, with the score of the untrained baseline, a name and their samples."""
    students = with_untrained(final_rows(rows), {PROBES["untrained twin"]: PROBES["raw"]})
    students["student"] = students["encoding"] + ", width " + students["model.width"].astype(str)
    students["samples"] = students["num_points"] // students["num_points"].min()
    return students


def usual_samples(students: Frame) -> Frame:
    """The students with the usual number of samples."""
    return students[students["samples"] == 1]


def comparable_samples(students: Frame) -> Frame:
    """The students with more samples, and those that differ from them in the samples only."""
    more = students[students["samples"] > 1]
    same_student = students["student"].isin(more["student"])
    return students[same_student & students["frac_test"].isin(more["frac_test"])]


def rank(students: Frame, column: str) -> float:
    """The rank correlation of a column with R2 on held-out tasks, over all students.

    NaN if there are fewer than 3 students or one of the two is constant.
    """
    pairs = students.reindex(columns=["test/r2", column]).dropna()
    return math.nan if len(pairs) < 3 else rank_correlation(pairs["test/r2"], pairs[column])


def rank_within(students: Frame, column: str) -> float:
    """The mean of the rank correlations over the students of each encoding and width."""
    return float(np.mean([rank(group, column) for _, group in students.groupby("student")]))


def gain_by_combinations(students: Frame) -> float:
    """R2 with the most minus R2 with the fewest combinations: mean over encodings and widths."""
    usual = usual_samples(students)
    means = usual.groupby(["student", "frac_test"])["test/r2"].mean().unstack()
    return float((means.iloc[:, 0] - means.iloc[:, -1]).mean()) if len(means.T) > 1 else math.nan


def gain_by_samples(students: Frame) -> float:
    """The most that more samples add to R2, over numbers of combinations."""
    comparable = comparable_samples(students)
    more = comparable[comparable["samples"] > 1]
    usual = usual_samples(comparable)
    if len(more) == 0 or len(more) != len(usual):
        return math.nan
    gains = (
        more.groupby("frac_test")["test/r2"].mean() - usual.groupby("frac_test")["test/r2"].mean()
    )
    return float(gains.max())


def summary(rows: Frame) -> dict[str, float]:
    """The rank correlation of each probe and layer, and the gains by combinations and samples."""
    all_students = prepare(rows)
    students = usual_samples(all_students)
    values = {}
    for name, column in PROBES.items():
        values[f"rank correlation, {name}"] = rank(students, column)
    for name, column in PROBES.items():
        values[f"rank correlation, {name}, alike"] = rank_within(students, column)
    for layer in probed_layers(students, "Factorization").values():
        values[f"rank correlation, {layer}"] = rank(students, f"Factorization/{layer}/test/r2")
    values["most that shuffled tasks explain"] = float(students[SHUFFLED].max())
    best = students[students["test/r2"] > 0.9]
    values["|cos| across modules, students above .9"] = float(best[COSINE].mean())
    values["added by combinations"] = gain_by_combinations(all_students)
    values["added by samples"] = gain_by_samples(all_students)
    return values


def some_generalize_and_some_fail(measurement: Measurement) -> bool:
    """Whether a correlation can show anything: there are good and bad students."""
    scores = measurement.rows["test/r2"]
    return bool((scores > 0.9).any() and (scores < 0.5).any())


SETS: dict[str, tuple[str, Callable[[Frame, str], float]]] = {  # by the end of the claim's name
    "": ("all students", rank),
    ", alike": ("students of one encoding and width", rank_within),
}


def _correlates(probe: str, label: str, suffix: str = "", source: str = "") -> DeclaredClaim:
    students, correlation = SETS[suffix]
    return reproduces(
        probe + suffix,
        f"The {label} correlates with R2 on held-out tasks (rank correlation, deepest hidden "
        f"layer, {students})",
        source=source,
        published="> 0.95 (r squared)" if source else "networks with linear factors generalize",
        repeats="decodability: data: pre2" if source else "",
        rows=usual_samples,
        needs=("student", "test/r2", PROBES[probe]),
        statistic=lambda rows: correlation(rows, PROBES[probe]),
        passes=at_least(MIN_CORRELATION),
        control="students that do and that do not generalize are both there",
        control_fails=some_generalize_and_some_fail,
    )


def _as_good_as_decodability(suffix: str) -> DeclaredClaim:
    students, correlation = SETS[suffix]
    factors = PROBES["raw"]
    decoded = PROBES["decodability"]
    return hypothesis(
        f"as good as decodability{suffix}",
        "The R2 of the sum of factors predicts generalization as well as decodability does, within "
        f"{MAX_GAIN} (difference of rank correlations, {students})",
        source="ours",
        rows=usual_samples,
        needs=("student", "test/r2", factors, decoded),
        statistic=lambda rows: correlation(rows, factors) - correlation(rows, decoded),
        passes=above(-MAX_GAIN),
    )


CLAIMS = [
    _correlates("raw", "R2 of the sum of factors"),
    _correlates("whitened", "R2 of the sum of factors, with all directions weighted equally,"),
    _correlates("decodability", "linear decodability", source="arXiv 2507.07207, section 4"),
    _correlates("raw", "R2 of the sum of factors", ", alike"),
    *map(_as_good_as_decodability, SETS),
    reproduces(
        "orthogonal",
        "Students that generalize better have more orthogonal factors (rank correlation of mean "
        "|cos| and R2 on held-out tasks, students of one encoding and width)",
        published="orthogonal factors are required",
        rows=usual_samples,
        needs=("student", "test/r2", COSINE),
        statistic=lambda rows: rank_within(rows, COSINE),
        passes=below(0),
    ),
    control(
        "shuffled tasks",
        "Factors fitted to shuffled tasks explain nothing (the highest R2 of any student)",
        rows=usual_samples,
        needs=(SHUFFLED,),
        statistic=lambda rows: float(rows[SHUFFLED].max()),
        passes=below(MAX_SHUFFLED_R2),
    ),
    control(
        "untrained twin",
        "A student's own sum of factors predicts its score better than that of its untrained "
        "baseline (difference of rank correlations)",
        rows=usual_samples,
        needs=("test/r2", PROBES["raw"], PROBES["untrained twin"]),
        statistic=lambda rows: rank(rows, PROBES["raw"]) - rank(rows, PROBES["untrained twin"]),
        passes=above(MAX_GAIN),
    ),
    reproduces(
        "diversity",
        "More combinations help at an equal number of samples (gain in R2 from fewest to most)",
        published="more combinations help",
        needs=("student", "samples", "frac_test", "test/r2"),
        statistic=gain_by_combinations,
        passes=above(MAX_GAIN),
    ),
    reproduces(
        "volume",
        f"{TIMES} times the samples of the same combinations add little (largest gain in R2)",
        published="more samples add little",
        needs=("student", "samples", "frac_test", "test/r2"),
        statistic=gain_by_samples,
        passes=below(MAX_GAIN),
        control="more combinations must add more",
        control_fails=lambda measurement: (
            measurement.high < gain_by_combinations(measurement.all_rows)
        ),
    ),
]


def _with_values(column: str) -> Select:
    """The students with the usual samples that have a value in this column."""

    def select(students: Frame) -> Any:
        usual = usual_samples(students)
        return usual[usual[column].notna()] if column in usual else None

    return select


def _probe_figure(name: str, column: str, title: str, y_title: str):
    return scatter(
        column,
        against="test/r2",
        color="student",
        rows=_with_values(column),
        name=name,
        title=title,
        y_title=y_title,
    )


def by_samples(students: Frame) -> Frame:
    """The students that differ in their samples only, with the number of samples in words."""
    labels = {1: "usual samples", TIMES: f"{TIMES} times the samples"}
    comparable = comparable_samples(students)
    return comparable.assign(samples=comparable["samples"].map(labels))


FIGURES = [
    _probe_figure(
        "raw", PROBES["raw"], "Sums of factors against generalization", "R² of the sum of factors"
    ),
    _probe_figure(
        "whitened",
        PROBES["whitened"],
        "Sums of factors, whitened, against generalization",
        "R² of the sum, whitened",
    ),
    _probe_figure(
        "decodability",
        PROBES["decodability"],
        "Linear decodability against generalization",
        "decodability (R²)",
    ),
    _probe_figure(
        "untrained",
        PROBES["untrained twin"],
        "Sums of factors of untrained baselines",
        "R² of the sum, untrained baseline",
    ),
    _probe_figure(
        "orthogonal",
        COSINE,
        "How parallel the factors of different modules are",
        "mean |cos| between modules",
    ),
    curve(
        "test/r2",
        against="num_train",
        color="samples",
        rows=by_samples,
        name="volume",
        title="More combinations and more samples",
        x_title="combinations trained on",
        log_x=True,
    ),
]
