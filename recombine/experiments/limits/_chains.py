"""What the experiments on chains share: the family, the students and the columns by length."""

import math
import re
from collections.abc import Mapping
from typing import Any

from recombine.experiments.claim import Frame, where
from recombine.parts.encodings.language import Language
from recombine.parts.families.chain import Chain
from recombine.parts.models.executor import Executor
from recombine.parts.models.sequence_transformer import SequenceTransformer, Targets
from recombine.parts.recipes.fast import Fast
from recombine.parts.supports.held_out_lengths import HeldOutLengths
from recombine.sweeps.run import Run

FAMILIES = {
    "tiny": Chain(num_modules=3, max_length=3, size=4),
    "small": Chain(num_modules=4, max_length=5, size=5, max_per_length=200),
    "full": Chain(num_modules=8, max_length=10, size=16, max_per_length=2000),
}
TRAINED_LENGTH = {"tiny": 2, "small": 3, "full": 6}
LEARNED = 0.9  # accuracy at which a student counts as having learned its train chains
WIDTH = {"tiny": 8, "small": 16, "full": 128}
SEEDS = {"tiny": 1, "small": 3, "full": 3}
STEPS = {"tiny": 4, "small": 800, "full": 8000}


def base(scale: str) -> Run:
    """The run that all students share: chains up to the trained length, a quarter held out."""
    is_full = scale == "full"
    return Run(
        family=FAMILIES[scale],
        support=HeldOutLengths(TRAINED_LENGTH[scale]),
        encoding=Language(),
        model=student(scale),
        recipe=Fast(0.01, 0.05, vector_rate=0.2),
        diagnostics=(),
        num_steps=STEPS[scale],
        num_evals=1,
        num_tasks=128 if is_full else 32,
        num_points=8 if is_full else 4,
        num_eval_tasks=1024 if is_full else 64,
    )


def student(scale: str, targets: Targets = "answer", width: int = 0) -> SequenceTransformer:
    """A transformer of two blocks over the words of a chain."""
    width = width or WIDTH[scale]
    num_heads = max(1, width // 32)
    return SequenceTransformer(2, width, num_heads, 4 * width, targets=targets)


def executor(scale: str) -> Executor:
    """The learned executor of single steps."""
    return Executor((WIDTH[scale],) * 2)


def mean_where(frame: Frame, conditions: Mapping[str, Any], column: str) -> float:
    """The mean of a column over the rows with these values; NaN if there are no such rows.

    A comparison with NaN is false, so a control that was not trained does not count as failed.
    """
    if column not in frame or not set(conditions) <= set(frame):
        return math.nan
    return float(where(conditions)(frame)[column].mean())


def accuracy_by_length(final: Frame, side: str = "test") -> Frame:
    """One row per run and length of the chain: columns `length` and `accuracy`."""
    pattern = re.compile(rf"{side}/length=(\d+)/accuracy")
    columns = {}
    for name in final.columns:
        match = pattern.fullmatch(name)
        if match:
            columns[name] = int(match[1])
    others = [name for name in final.columns if name not in columns]
    long = final.melt(others, list(columns), "length", "accuracy")
    return long.assign(length=long["length"].map(columns)).dropna(subset=["accuracy"])
