"""What the experiments on chains share: the family, the students and the columns by length."""

import re

from recombine.experiments.claim import Frame
from recombine.parts.encodings.language import Language
from recombine.parts.families.chain import Chain
from recombine.parts.models.executor import Executor
from recombine.parts.models.sequence_transformer import SequenceTransformer, Targets
from recombine.parts.recipes.fast import Fast
from recombine.parts.supports.held_out_lengths import HeldOutLengths
from recombine.sweeps.run import Run

FAMILIES = {
    "tiny": Chain(num_modules=3, max_length=3, size=4),
    "small": Chain(num_modules=4, max_length=6, size=6, max_per_length=200),
    "full": Chain(num_modules=8, max_length=10, size=16, max_per_length=2000),
}
TRAINED_LENGTH = {"tiny": 2, "small": 4, "full": 6}
WIDTH = {"tiny": 8, "small": 32, "full": 128}
SEEDS = {"tiny": 1, "small": 2, "full": 3}
STEPS = {"tiny": 4, "small": 400, "full": 8000}


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
        num_tasks=128 if is_full else 16,
        num_points=8,
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
