"""The control without compositional support: the last modules never occur in training.

Every test task contains one of them. The effect of a missing module cannot be learned, so a perfect
score would reveal a leak. Source: arXiv 2507.07207, section 3 (non-compositional support).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from recombine.basics.errors import require
from recombine.parts.conditions import mark, train_size
from recombine.parts.field_checks import check


@dataclass(frozen=True)
class MissingModule:
    """Random train tasks without the last `num_missing` modules; all tasks with them are test."""

    num_missing: int = 1
    guarantees: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self):
        check(self, num_missing=1)

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test, 0 unused.

        There are as many train tasks as with `Random`, if the table has so many.
        """
        num_tasks, num_modules = modules.shape
        require(
            self.num_missing < num_modules,
            f"MissingModule.num_missing={self.num_missing} leaves none of {num_modules} modules: "
            "lower it",
        )
        has_missing = modules[:, num_modules - self.num_missing :].any(1)
        candidates = rng.permutation(np.flatnonzero(~has_missing))
        train = candidates[: train_size(num_tasks, frac_test)]
        return mark(num_tasks, train, np.flatnonzero(has_missing))
