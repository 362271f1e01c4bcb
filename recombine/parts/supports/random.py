"""A uniformly random train set that connects all modules, the default support of the paper.

Sets are drawn until every module occurs and shared tasks connect all modules. Source: arXiv
2507.07207, section 3.
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
        num_tasks = len(modules)
        train = draw(modules, train_size(num_tasks, frac_test), rng)
        return mark(num_tasks, train)
