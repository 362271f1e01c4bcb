"""How much data do two hops need, and do more parameters replace data?

Claim: the data that a transformer needs to compose two hops grows at least quadratically with the
number of tokens, and 20 times the parameters do not help (Chang et al. 2025, arXiv 2505.20278).

An instance is t = f2(f1(x1, x2), x3) with random functions f1 and f2 of pairs of S tokens
(`TwoHop` with S symbols and S relations). There are S^3 instances; a share of them is trained, in
which every token occurs at every position. The data needed is the number of train instances at
which accuracy on held-out ones crosses a target. S, the share, and the student's width vary.

Two trivial baselines grow with S by themselves. Whoever answers an instance must have seen both of
its lookups in other instances: f1 and f2 have S^2 entries each, so this alone grows with exponent
2. A fixed share of all instances grows with exponent 3. If the first baseline already needs half of
the student's data, it explains the growth and the claim is confounded. A learned executor of single
lookups, trained on true intermediate values, is the control that must need less data.

Command:  recombine run coverage_principle --scale small
Runtime:  2.3 minutes of CPU time; full: not measured (estimate: 10 minutes on one H200).
Expected: an exponent between 2 and 3, and the same data for the larger student.
"""

import functools
import math
from dataclasses import replace

import numpy as np

from recombine.basics import statistics
from recombine.basics.random_streams import generator
from recombine.experiments.claim import (
    Frame,
    Measurement,
    Statistic,
    above,
    at_least,
    at_most,
    below,
    control,
    final_rows,
    hypothesis,
    reproduces,
)
from recombine.experiments.limits import _chains
from recombine.experiments.plots import curve
from recombine.parts.families.two_hop import TwoHop
from recombine.parts.models.executor import Executor
from recombine.parts.models.sequence_transformer import SequenceTransformer
from recombine.parts.protocols import Model
from recombine.parts.supports.held_out_sequences import HeldOutSequences
from recombine.sweeps.run import Run, sweep

TITLE = "Two hops: data needed by the number of symbols"
SOURCE = "Chang et al. 2025 (arXiv 2505.20278)"
TARGET = 0.9  # accuracy on held-out instances
MIN_EXPONENT = 1.75  # a fit to few sizes that is this high is read as quadratic growth
FIXED_SHARE = 3  # the exponent with which a fixed share of all instances grows
MIN_RATIO = 0.8  # of the data that the larger student needs: less would mean that parameters help
MAX_BASELINE = 0.5  # of the student's data, from which on a trivial baseline explains it
NUM_SYMBOLS = {"tiny": (3, 4), "small": (5, 7, 10), "full": (12, 18, 27, 40)}
# The larger student is trained with the most symbols only: it costs 20 times as much.
HELD_OUT = {
    "tiny": (0.4,),
    "small": (0.2, 0.5, 0.8),
    "full": (0.1, 0.3, 0.5, 0.7, 0.8, 0.9),
}
WIDTHS = {"tiny": (8, 16), "small": (16, 72), "full": (32, 144)}  # about 20 times the parameters
SEEDS = {"tiny": 1, "small": 3, "full": 3}
STEPS = {"tiny": 4, "small": 900, "full": 12_000}
NUM_DRAWS = 5  # of train sets, for the baseline
SMALLER = "smaller student"
LARGER = "student with 20 times the parameters"
EXECUTOR = "executor"
SEEN_LOOKUPS = "every lookup seen once"


def runs(scale: str) -> list[Run]:
    """Symbols x held-out fraction x seed, of the smaller student and the executor; the larger
    student with the most symbols.
    """
    sizes = NUM_SYMBOLS[scale]
    smaller, larger = (SequenceTransformer(2, width, 2, 4 * width) for width in WIDTHS[scale])
    executor = Executor((2 * WIDTHS[scale][0],) * 2)
    listed = []
    for num_symbols in sizes:
        models: list[Model] = [smaller, executor]
        if num_symbols == max(sizes):
            models.append(larger)
        base = _base(scale, num_symbols)
        seeds = range(SEEDS[scale])
        listed += sweep(base, model=models, frac_test=HELD_OUT[scale], seed=seeds)
    return listed


def _base(scale: str, num_symbols: int) -> Run:
    is_full = scale == "full"
    return replace(
        _chains.base(scale),
        family=TwoHop(num_symbols, num_symbols),
        support=HeldOutSequences("positions"),
        num_steps=STEPS[scale],
        num_tasks=512 if is_full else 64,
        num_points=1,
        num_eval_tasks=2048 if is_full else 128,
        num_eval_points=1,
    )


def prepare(rows: Frame) -> Frame:
    """The final rows, with the number of symbols S and the student in words."""
    final = final_rows(rows).copy()
    final["S"] = final["family.num_symbols"]
    width = final.get("model.d_model")
    is_larger = width == width.max()
    final["student"] = is_larger.map({True: LARGER, False: SMALLER})
    final["student"] = final["student"].mask(final["model"] == "Executor", EXECUTOR)
    return final


@functools.lru_cache(maxsize=256)
def share_of_seen_lookups(num_symbols: int, num_train: int) -> float:
    """The share of held-out instances of which train instances have both lookups.

    Nobody can answer the others but by chance. The mean over random train sets.
    """
    family = TwoHop(num_symbols, num_symbols)
    rows = family.tasks().astype(int) - 1
    bridge = _bridges(family)
    first = rows[:, 0] * num_symbols + rows[:, 1]
    second = bridge * num_symbols + rows[:, 2]
    shares = []
    for draw in range(NUM_DRAWS):
        order = generator(draw, "train instances").permutation(len(rows))
        train, test = order[:num_train], order[num_train:]
        is_seen = np.isin(first[test], first[train]) & np.isin(second[test], second[train])
        shares.append(is_seen.mean())
    return float(np.mean(shares))


def _bridges(family: TwoHop) -> np.ndarray:
    """The value of the first hop for every row of the table."""
    x1, x2, _ = family.tasks().astype(int).T - 1
    return family.first_map()[x2, x1]


def tasks_needed(final: Frame, student: str) -> dict[int, float]:
    """The train instances that a student needs for each S; infinite if the target is not reached.

    For the baseline `SEEN_LOOKUPS`, those at which the share of seen lookups reaches the target.
    """
    is_baseline = student == SEEN_LOOKUPS
    own = final[final["student"] == (SMALLER if is_baseline else student)]
    needed = {}
    for num_symbols, group in own.groupby("S"):
        size = int(num_symbols)
        scores = group.groupby("num_train")["test/accuracy"].mean()
        if is_baseline:
            counts = np.unique(np.geomspace(size**2, size**3 - 1, 25).round().astype(int))
            shares = [share_of_seen_lookups(size, int(count)) for count in counts]
            needed[size] = statistics.tasks_needed(counts, shares, TARGET)
        else:
            needed[size] = statistics.tasks_needed(scores.index, scores, TARGET)
    return needed


def exponent(student: str) -> Statistic:
    """The slope of the logarithm of the data needed by that of S; NaN if a size is missing."""

    def statistic(final: Frame) -> float:
        needed = tasks_needed(final, student)
        values = np.array(list(needed.values()), float)
        if len(values) < 2 or not np.isfinite(values).all():
            return math.nan
        return float(np.polyfit(np.log(list(needed)), np.log(values), 1)[0])

    return statistic


def data_ratio(student: str, other: str) -> Statistic:
    """The data that a student needs, relative to another; the geometric mean over S.

    Infinite if only the student does not reach the target, 0 if only the other does not. NaN if
    there is an S for which neither does.
    """

    def statistic(final: Frame) -> float:
        of_student = tasks_needed(final, student)
        of_other = tasks_needed(final, other)
        sizes = [size for size in of_student if size in of_other]
        if not sizes or any(
            math.isinf(of_student[size]) and math.isinf(of_other[size]) for size in sizes
        ):
            return math.nan
        ratios = [of_student[size] / of_other[size] for size in sizes]
        return math.prod(ratio ** (1 / len(sizes)) for ratio in ratios)

    return statistic


def executor_needs_less(measurement: Measurement) -> bool:
    """Whether the executor of single lookups needs less data than the smaller student."""
    return data_ratio(EXECUTOR, SMALLER)(measurement.all_rows) <= MIN_RATIO


def counting_needs_less(measurement: Measurement) -> bool:
    """Whether seeing every lookup once takes less than half of the student's data."""
    return data_ratio(SEEN_LOOKUPS, SMALLER)(measurement.all_rows) < MAX_BASELINE


def baselines_in_words(measurement: Measurement) -> str:
    """The exponents of the trivial baselines."""
    of_lookups = exponent(SEEN_LOOKUPS)(measurement.all_rows)
    return (
        f"to see every lookup once: exponent {of_lookups:.2f}; "
        f"a fixed share of all instances: {FIXED_SHARE}"
    )


NEEDS = ("S", "student", "num_train", "test/accuracy")
CLAIMS = [
    reproduces(
        "quadratic",
        f"The data needed for accuracy {TARGET} on held-out instances grows at least quadratically "
        "with the number of symbols (exponent)",
        published="at least quadratic",
        needs=NEEDS,
        statistic=exponent(SMALLER),
        passes=above(MIN_EXPONENT),
        control="to see every lookup once must take less than half of the student's data",
        control_fails=counting_needs_less,
        note=baselines_in_words,
    ),
    hypothesis(
        "less than a share",
        "The data needed grows more slowly than a fixed share of all instances (exponent)",
        needs=NEEDS,
        statistic=exponent(SMALLER),
        passes=below(FIXED_SHARE - 0.25),
        control="the executor must need less data",
        control_fails=executor_needs_less,
    ),
    reproduces(
        "parameters",
        "About 20 times the parameters do not lower the data needed (ratio)",
        published="20 times the parameters do not help",
        needs=NEEDS,
        statistic=data_ratio(LARGER, SMALLER),
        passes=at_least(MIN_RATIO),
        control="the executor must need less data, so less data can be enough",
        control_fails=executor_needs_less,
    ),
    control(
        EXECUTOR,
        "The executor of single lookups needs less data than the student (ratio; 0 if the student "
        "never reaches the target)",
        needs=NEEDS,
        statistic=data_ratio(EXECUTOR, SMALLER),
        passes=at_most(MIN_RATIO),
    ),
    control(
        "learned",
        "The students answer their train instances (accuracy)",
        needs=("seen/accuracy",),
        statistic=lambda final: float(final["seen/accuracy"].mean()),
        passes=at_least(0.95),
    ),
]
FIGURES = [
    curve(
        "test/accuracy",
        against="num_train",
        color="student",
        each="S",
        name="{}-symbols",
        title="Accuracy on held-out instances of {} symbols",
        log_x=True,
        x_title="train instances",
        y_title="accuracy on held-out instances",
    )
]
