"""The non-compositional control: the last modules never occur in training, every test task needs one of them.

What a missing module does cannot be learned, so a perfect score means that something leaks.
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
    """Random train tasks without the last `num_missing` modules; the tasks with them are test."""

    num_missing: int = 1
    guarantees: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self):
        check(self, num_missing=1)

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test, 0 neither: the number of train tasks is that of `Random`."""
        num_modules = modules.shape[1]
        require(
            self.num_missing < num_modules,
            f"MissingModule.num_missing={self.num_missing} leaves none of {num_modules} modules: lower it",
        )
        missing = modules[:, num_modules - self.num_missing :].any(1)
        rest = rng.permutation(np.flatnonzero(~missing))
        return mark(
            len(modules), rest[: train_size(len(modules), frac_test)], np.flatnonzero(missing)
        )
