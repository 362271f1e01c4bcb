"""New sequences of known parts: every feature of a view is trained, but not every sequence.

With the view `neighbors`, each pair of modules that follow each other occurs in some train task;
with `positions`, each module at each place. So only whole sequences are new in test tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from recombine.basics.errors import require
from recombine.parts.conditions import draw, mark, train_size
from recombine.parts.field_checks import check


@dataclass(frozen=True)
class HeldOutSequences:
    """A random train set that has every feature of the view; all other tasks are test."""

    view: Literal["modules", "neighbors", "positions"] = "positions"
    guarantees: ClassVar[frozenset[str]] = frozenset({"compositional"})

    def __post_init__(self):
        check(self)

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test. `modules` are the 0/1 rows of the view."""
        num_tasks = len(modules)
        num_train = train_size(num_tasks, frac_test)
        occurring = modules[:, modules.any(axis=0)]
        # The rarest features need tasks of their own.
        most = int(occurring.sum(axis=1).max())
        require(
            num_train * most >= occurring.shape[1],
            f"{num_train} train tasks cannot have all {occurring.shape[1]} {self.view}: lower "
            "frac_test, or use a view with fewer features",
        )
        remedy = "lower frac_test, or use a view with fewer features"
        return mark(num_tasks, draw(occurring, num_train, rng, remedy, linked=False))
