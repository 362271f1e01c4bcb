"""Short tasks are trained, long ones are held out: does what was learned extend to more steps?

A fraction of the short tasks is held out too, so that the same test shows how well new sequences of
a trained length are answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from recombine.basics.errors import require
from recombine.parts.conditions import mark
from recombine.parts.field_checks import check


@dataclass(frozen=True)
class HeldOutLengths:
    """Train tasks have at most `longest` steps.

    Test tasks are all longer tasks, and the fraction `frac_test` of the others. The shortest
    tasks are always trained.
    """

    longest: int = 3
    view: ClassVar[str] = "lengths"
    guarantees: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self):
        check(self, longest=1)

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test. `modules` are the 0/1 rows of lengths."""
        num_tasks, width = modules.shape
        length = width - (modules[:, ::-1] > 0).argmax(axis=1)
        is_short = length <= self.longest
        require(
            bool(is_short.any() and not is_short.all()),
            f"HeldOutLengths.longest={self.longest} holds out no task or all: the table has tasks "
            f"of length {length.min()} to {length.max()}",
        )
        candidates = rng.permutation(np.flatnonzero(is_short & (length > length.min())))
        held_out = candidates[: round(frac_test * np.count_nonzero(is_short))]
        is_train = is_short.copy()
        is_train[held_out] = False
        return mark(num_tasks, is_train)
