"""How much data do two hops need, and do more parameters replace data?

Claim: the data that a transformer needs to compose two hops grows at least quadratically with the
number of tokens, and 20 times the parameters do not help (Chang et al. 2025, arXiv 2505.20278).

Tasks are chains of one and two discrete modules. A fraction of them is trained, and every module
occurs in it. The number of modules M varies, and for each the fraction that is held out. The data
that is needed is the number of train chains at which accuracy on held-out pairs crosses a target.
The control is a learned executor of single steps: it needs every module, but not every pair.

Command:  recombine run coverage_principle --scale small
Runtime:  meant for minutes on 2 cores; full: meant for a quarter of 40 minutes on one H200.
Expected: an exponent near 2, and the same data for the larger student.
"""

import math
from dataclasses import replace

import numpy as np

from recombine.basics import statistics
from recombine.experiments.claim import (
    Frame,
    Statistic,
    above,
    at_least,
    control,
    final_rows,
    mean_of,
    reproduces,
    where,
)
from recombine.experiments.limits import _chains
from recombine.experiments.plots import curve
from recombine.parts.families.chain import Chain
from recombine.parts.models.sequence_transformer import SequenceTransformer
from recombine.parts.supports.held_out_sequences import HeldOutSequences
from recombine.sweeps.run import Run, sweep

TITLE = "Two hops: how the data needed grows with the number of modules"
SOURCE = "Chang et al. 2025 (arXiv 2505.20278)"
TARGET = 0.9  # accuracy on held-out pairs
MIN_EXPONENT = 1.75  # a fit to few sizes that is this high counts as quadratic growth
MIN_RATIO = 0.8  # of the data that the larger student needs: less would mean that parameters help
NUM_MODULES = {"tiny": (3, 4), "small": (6, 12), "full": (8, 16, 32)}
FRACTIONS = {"tiny": (0.3,), "small": (0.2, 0.6), "full": (0.1, 0.2, 0.35, 0.5, 0.7, 0.85)}
WIDTHS = {"tiny": (8, 16), "small": (16, 72), "full": (32, 144)}  # about 20 times the parameters
SEEDS = {"tiny": 1, "small": 2, "full": 3}


def runs(scale: str) -> list[Run]:
    """Modules x held-out fraction x width x seed; the executor with the fewest pairs."""
    size = {"tiny": 4, "small": 6, "full": 16}[scale]
    listed = []
    for num_modules in NUM_MODULES[scale]:
        family = Chain(num_modules=num_modules, max_length=2, size=size, max_per_length=2000)
        base = replace(_chains.base(scale), family=family, support=HeldOutSequences("modules"))
        models = [SequenceTransformer(2, width, 2, 4 * width) for width in WIDTHS[scale]]
        seeds = range(SEEDS[scale])
        listed += sweep(base, model=models, frac_test=FRACTIONS[scale], seed=seeds)
        most = [max(FRACTIONS[scale])]
        executor = [_chains.executor(scale)]
        listed += sweep(base, model=executor, frac_test=most, seed=seeds)
    return listed


def prepare(rows: Frame) -> Frame:
    """The final rows, with M, the accuracy on held-out pairs, and the size of the student."""
    final = final_rows(rows).copy()
    final["M"] = final["family.num_modules"]
    final["pairs"] = final["test/length=2/accuracy"]
    width = final.get("model.d_model")
    is_larger = width == width.max()
    final["student"] = is_larger.map({True: "larger student", False: "smaller student"})
    final["student"] = final["student"].mask(final["model"] == "Executor", "executor")
    return final


def tasks_needed(final: Frame, student: str) -> dict[int, float]:
    """The train chains that a student needs for each M; NaN where the target is not reached."""
    own = final[final["student"] == student]
    needed = {}
    for num_modules, group in own.groupby("M"):
        scores = group.groupby("num_train")["pairs"].mean()
        needed[int(num_modules)] = statistics.tasks_needed(scores.index, scores, TARGET)
    return needed


def exponent(student: str) -> Statistic:
    """The slope of the logarithm of the data needed by that of M; NaN if a size is missing."""

    def statistic(final: Frame) -> float:
        needed = tasks_needed(final, student)
        values = np.array(list(needed.values()), float)
        if len(values) < 2 or not np.isfinite(values).all():
            return math.nan
        return float(np.polyfit(np.log(list(needed)), np.log(values), 1)[0])

    return statistic


def data_ratio(final: Frame) -> float:
    """The data that the larger student needs, as a fraction of that of the smaller; mean over M."""
    smaller = tasks_needed(final, "smaller student")
    larger = tasks_needed(final, "larger student")
    ratios = [larger[size] / smaller[size] for size in larger if size in smaller]
    is_known = len(ratios) > 0 and bool(np.isfinite(ratios).all())
    return float(np.mean(ratios)) if is_known else math.nan


NEEDS = ("M", "student", "num_train", "pairs")
CONTROL = "the executor of single steps must need no more than a few pairs"
CLAIMS = [
    reproduces(
        "quadratic",
        f"The data needed for accuracy {TARGET} on held-out pairs grows at least quadratically "
        "with the number of modules (exponent)",
        published="at least quadratic",
        needs=NEEDS,
        statistic=exponent("smaller student"),
        passes=above(MIN_EXPONENT),
        control=CONTROL,
    ),
    reproduces(
        "parameters",
        "About 20 times the parameters do not lower the data needed (ratio)",
        published="20 times the parameters do not help",
        needs=NEEDS,
        statistic=data_ratio,
        passes=at_least(MIN_RATIO),
        control=CONTROL,
    ),
    control(
        "executor",
        "The executor answers held-out pairs, with the fewest train pairs (accuracy)",
        rows=where({"model": "Executor"}),
        needs=("pairs",),
        statistic=mean_of("pairs"),
        passes=at_least(0.9),
    ),
]
FIGURES = [
    curve(
        "pairs",
        against="num_train",
        color="student",
        each="M",
        name="{}-modules",
        title="Accuracy on held-out pairs of {} modules",
        log_x=True,
        y_title="accuracy on held-out pairs",
    )
]
