"""A few modules occur in only one train task each (or in `num_tasks`), all others often.

The support is still compositional and connected, but barely. It tests how rare a module may be.
Source: arXiv 2507.07207, section 3.
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
    """`num_unpopular` random modules are in `num_tasks` train tasks each; other tasks are test."""

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
        rare = order[: self.num_unpopular]
        common = order[self.num_unpopular :]
        num_rare = modules[:, rare].sum(1)
        is_link = (num_rare == 1) & modules[:, common].any(1)  # links a rare module to common ones
        links = [
            self._draw_links(np.flatnonzero(is_link & (modules[:, module] > 0)), rng)
            for module in rare
        ]
        plain = np.flatnonzero(num_rare == 0)
        num_plain = train_size(num_tasks, frac_test) - self.num_unpopular * self.num_tasks
        remedy = "lower frac_test, num_unpopular or num_tasks, or raise num_hot"
        chosen = draw(modules[plain][:, common], min(num_plain, len(plain)), rng, remedy)
        return mark(num_tasks, np.concatenate([*links, plain[chosen]]))

    def _draw_links(self, tasks: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        require(
            len(tasks) >= self.num_tasks,
            f"only {len(tasks)} tasks link an unpopular module to popular ones, but "
            f"Unpopular.num_tasks={self.num_tasks}: lower it, or raise num_hot",
        )
        return rng.permutation(tasks)[: self.num_tasks]
