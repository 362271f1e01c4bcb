"""A train set whose size grows slowly with the number of modules M.

linear: round(factor M) train tasks, with factor 8 in the public code. quadratic: round(factor M^2),
with factor 1. The number of all tasks grows much faster, as M^K. The question is how many train
tasks are enough as modules are added. Source: arXiv 2507.07207, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from recombine.basics.errors import require
from recombine.parts.conditions import connected, draw, mark, train_size
from recombine.parts.field_checks import check

MAX_FACTOR = 1e9  # no table has so many tasks
MAX_DRAWS = 20  # draws of the test tasks, until the others connect all modules


@dataclass(frozen=True)
class Growing:
    """A connected train set of fixed size; the fraction `frac_test` is test, the rest unused.

    `law` is how the size depends on the number of modules. `factor=None` is the factor of the
    public code: 8 for the linear law and 1 for the quadratic one.
    """

    law: Literal["linear", "quadratic"] = "linear"
    factor: float | None = None
    guarantees: ClassVar[frozenset[str]] = frozenset({"compositional", "connected"})

    def __post_init__(self):
        check(self)
        require(
            self.factor is None or 0 < self.factor < MAX_FACTOR,
            f"Growing.factor must be positive and below {MAX_FACTOR:g}, got {self.factor}",
        )

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test, 0 unused."""
        num_tasks, num_modules = modules.shape
        public_factor, power = (8, 1) if self.law == "linear" else (1, 2)
        num_train = round((self.factor or public_factor) * num_modules**power)
        num_left = train_size(num_tasks, frac_test)
        require(
            num_train <= num_left,
            f"the {self.law} law needs {num_train} train tasks, but frac_test={frac_test} leaves "
            f"{num_left} of {num_tasks}: lower factor or frac_test, or raise num_hot",
        )
        # Test tasks are drawn first, so that runs that only differ in the law share them.
        order = rng.permutation(num_tasks)
        for _ in range(MAX_DRAWS):
            if connected(modules[order[:num_left]]):
                break
            order = rng.permutation(num_tasks)
        left = order[:num_left]
        test = order[num_left:]
        train = draw(modules[left], num_train, rng, "raise factor or num_hot, or lower frac_test")
        return mark(num_tasks, left[train], test)
