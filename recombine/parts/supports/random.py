"""A uniform train set, resampled until every module occurs and shared tasks connect all modules.

The paper's default support: everything else in a sweep is compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from recombine.parts.conditions import draw, mark, train_size
from recombine.parts.field_checks import check


@dataclass(frozen=True)
class Random:
    """A random connected train set; all other tasks are test."""

    guarantees: ClassVar[frozenset[str]] = frozenset({"compositional", "connected"})

    def __post_init__(self):
        check(self)

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test."""
        return mark(len(modules), draw(modules, train_size(len(modules), frac_test), rng))
