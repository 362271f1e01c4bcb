"""Every train task contains a popular module, except for a small fraction of filler tasks.

Most modules are then rare in training and occur with the same few partners, but the support is
still compositional and connected. Source: arXiv 2507.07207, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from recombine.basics.errors import require
from recombine.parts.conditions import draw, mark, train_size
from recombine.parts.field_checks import check


@dataclass(frozen=True)
class Popular:
    """Train tasks contain one of `num_popular` random modules; all other tasks are test.

    A fraction `frac_filler` of the train tasks has no popular module.
    """

    num_popular: int = 4
    frac_filler: float = 0.05
    guarantees: ClassVar[frozenset[str]] = frozenset({"compositional", "connected"})

    def __post_init__(self):
        check(self, num_popular=1, frac_filler=0)
        require(
            self.frac_filler < 1, f"Popular.frac_filler must be below 1, got {self.frac_filler}"
        )

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test."""
        num_tasks, num_modules = modules.shape
        require(
            self.num_popular < num_modules,
            f"Popular.num_popular={self.num_popular} must be below the number of modules, "
            f"{num_modules}",
        )
        popular_modules = rng.permutation(num_modules)[: self.num_popular]
        has_popular = modules[:, popular_modules].any(1)
        core = np.flatnonzero(has_popular)
        filler = rng.permutation(np.flatnonzero(~has_popular))
        num_train = train_size(num_tasks, frac_test)
        num_filler = min(round(self.frac_filler * num_train), len(filler))
        num_core = num_train - num_filler
        if num_core > len(core):
            num_core = len(core)
            filler_ratio = num_core * self.frac_filler / (1 - self.frac_filler)
            num_filler = min(round(filler_ratio), len(filler))
        # The tasks with popular modules connect all modules, without the help of fillers.
        remedy = "lower frac_test or frac_filler, or raise num_popular or num_hot"
        chosen = core[draw(modules[core], num_core, rng, remedy)]
        return mark(num_tasks, np.concatenate([chosen, filler[:num_filler]]))
