"""The number of train tasks follows a law in the number of modules M, while the table grows exponentially.

linear: round(factor M), 8 M in the public code. quadratic: round(factor M^2), where the public factor is 1.
The question is how many tasks are enough as modules are added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from recombine.basics.errors import require
from recombine.parts.conditions import connected, draw, mark, train_size
from recombine.parts.field_checks import check

MAX_FACTOR = 1e9  # no table has so many tasks
TRIES = 20  # draws of the test tasks, until the others connect all modules


@dataclass(frozen=True)
class Growing:
    """A connected train set of a size given by a law; a fraction `frac_test` is test, the rest unused."""

    law: Literal["linear", "quadratic"] = "linear"
    factor: float | None = (
        None  # None: the public code's, 8 for the linear law and 1 for the quadratic one
    )
    guarantees: ClassVar[frozenset[str]] = frozenset({"compositional", "connected"})

    def __post_init__(self):
        check(self)
        require(
            self.factor is None or 0 < self.factor < MAX_FACTOR,
            f"Growing.factor must be positive and below {MAX_FACTOR:g}, got {self.factor}",
        )

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test, 0 neither."""
        num_tasks, num_modules = modules.shape
        factor, power = (8, 1) if self.law == "linear" else (1, 2)
        num_train = round((self.factor or factor) * num_modules**power)
        num_left = train_size(num_tasks, frac_test)
        require(
            num_train <= num_left,
            f"the {self.law} law wants {num_train} train tasks, frac_test={frac_test} leaves {num_left} of "
            f"{num_tasks}: lower factor or frac_test, or raise num_hot",
        )
        # Test tasks are drawn first, so that runs which differ in the law alone share them.
        order = rng.permutation(num_tasks)
        for _ in range(TRIES):
            if connected(modules[order[:num_left]]):
                break
            order = rng.permutation(num_tasks)
        left, test = order[:num_left], order[num_left:]
        train = draw(modules[left], num_train, rng, "raise factor or num_hot, or lower frac_test")
        return mark(num_tasks, left[train], test)
