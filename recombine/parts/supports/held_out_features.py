"""Features of a view that never occur in training: neighbors, positions, or classes of solutions.

All modules occur, and so do all other features, but no train task has the held-out ones. A student
that only knows how often it saw two modules side by side, or a module at a place, cannot answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from recombine.basics.errors import InputError
from recombine.parts.conditions import mark
from recombine.parts.field_checks import check


@dataclass(frozen=True)
class HeldOutFeatures:
    """All tasks with one of the held-out features are test; all others are train.

    `view` names the view: `"neighbors"` are pairs of modules that follow each other, `"positions"`
    are modules at a place, `"solutions"` are the classes of solutions of puzzles. Features are
    drawn while at most the fraction `frac_test` of the tasks has one of them; there is one at
    least.
    """

    view: Literal["neighbors", "positions", "solutions"] = "neighbors"
    guarantees: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self):
        check(self)

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test. `modules` are the 0/1 rows of the view."""
        num_tasks = len(modules)
        is_test = np.zeros(num_tasks, bool)
        num_left = modules.sum(axis=0, dtype=np.int64)  # train tasks with each feature
        occurring = np.flatnonzero(num_left)
        held_out = np.zeros(len(num_left), bool)
        for feature in rng.permutation(occurring):
            has_feature = (modules[:, feature] > 0) & ~is_test
            is_too_large = np.count_nonzero(is_test | has_feature) > frac_test * num_tasks
            if is_too_large and held_out.any():
                continue
            num_after = num_left - modules[has_feature].sum(axis=0, dtype=np.int64)
            others = occurring[~held_out[occurring] & (occurring != feature)]
            if (num_after[others] == 0).any():  # another feature would not occur any more
                continue
            held_out[feature] = True
            is_test |= has_feature
            num_left = num_after
        if not held_out.any():
            raise InputError(
                f"HeldOutFeatures cannot hold out any of {len(occurring)} {self.view} of "
                f"{num_tasks} tasks and keep the others in training: use a larger table or another "
                "view"
            )
        return mark(num_tasks, ~is_test)
