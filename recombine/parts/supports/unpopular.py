"""A few modules occur in just one train task each (or `num_tasks`), beside modules that are seen everywhere.

Compositional and connected still hold, by the thinnest of threads: how rare may a module be?
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from recombine.basics.errors import require
from recombine.parts.conditions import draw, mark, train_size
from recombine.parts.field_checks import check


@dataclass(frozen=True)
class Unpopular:
    """`num_unpopular` random modules in exactly `num_tasks` train tasks each; all other tasks are test."""

    num_unpopular: int = 2
    num_tasks: int = 1
    guarantees: ClassVar[frozenset[str]] = frozenset({"compositional", "connected"})

    def __post_init__(self):
        check(self, num_unpopular=1, num_tasks=1)

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test."""
        num_tasks, num_modules = modules.shape
        require(
            self.num_unpopular < num_modules,
            f"Unpopular.num_unpopular={self.num_unpopular} must be below num_modules={num_modules}",
        )
        order = rng.permutation(num_modules)
        rare, common = order[: self.num_unpopular], order[self.num_unpopular :]
        num_rare = modules[:, rare].sum(1)
        thread = (num_rare == 1) & modules[:, common].any(1)
        chosen = [
            self._threads(np.flatnonzero(thread & (modules[:, module] > 0)), rng) for module in rare
        ]
        plain = np.flatnonzero(num_rare == 0)
        num_plain = train_size(num_tasks, frac_test) - self.num_unpopular * self.num_tasks
        remedy = "lower frac_test, num_unpopular or num_tasks, or raise num_hot"
        rest = draw(modules[plain][:, common], min(num_plain, len(plain)), rng, remedy)
        return mark(num_tasks, np.concatenate([*chosen, plain[rest]]))

    def _threads(self, tasks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        require(
            len(tasks) >= self.num_tasks,
            f"only {len(tasks)} tasks join an unpopular module to popular ones, Unpopular.num_tasks="
            f"{self.num_tasks} wanted: lower it, or raise num_hot",
        )
        return rng.permutation(tasks)[: self.num_tasks]
