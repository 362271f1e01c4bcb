"""The user's own list of train combinations, each a tuple of module indices.

`FIXTURES` are the four 6-module supports of Schug et al. 2024 and `LABELS` says which of them were found to
generalise. Connected is not enough (`cycle`), nor is spanned (`singletons`): the one that works is both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from recombine.basics.errors import require
from recombine.parts.conditions import fingerprint, mark, stamps
from recombine.parts.field_checks import check

Combinations = tuple[tuple[int, ...], ...]

_SINGLETONS: Combinations = tuple((m,) for m in range(6))
_CYCLE: Combinations = tuple((m, (m + 1) % 6) for m in range(6))
_TRIANGLES: Combinations = ((0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5))

FIXTURES: dict[str, Combinations] = {
    "singletons": _SINGLETONS,
    "cycle": _CYCLE,
    "triangles": _SINGLETONS + _TRIANGLES,
    "singletons_cycle": _SINGLETONS + _CYCLE,
}
LABELS: dict[str, bool] = {
    "singletons": False,
    "cycle": False,
    "triangles": False,
    "singletons_cycle": True,
}


@dataclass(frozen=True)
class Listed:
    """Exactly these train combinations; test is `held_out`, or every other task where that is empty."""

    combinations: Combinations = FIXTURES["singletons_cycle"]
    held_out: Combinations = ()
    guarantees: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self):
        check(self)
        require(
            len(self.combinations) > 0, "Listed.combinations is empty: name a train combination"
        )
        sides: dict[frozenset[int], str] = {}
        for side in ("combinations", "held_out"):
            for combination in getattr(self, side):
                found = frozenset(combination)
                require(
                    len(found) == len(combination) and min(found, default=0) >= 0,
                    f"Listed.{side} holds {combination}: a combination is distinct module indices from 0",
                )
                where = "twice" if sides.get(found) == side else "on both sides"
                require(found not in sides, f"Listed has {combination} {where}: remove one of them")
                sides[found] = side

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test, 0 neither; the list decides, not `rng` or `frac_test`."""
        prints = fingerprint(modules)
        train = self._find(self.combinations, prints, modules.shape[1])
        test = self._find(self.held_out, prints, modules.shape[1]) if self.held_out else None
        return mark(len(modules), train, test)

    def _find(self, combinations: Combinations, prints: np.ndarray, num_modules: int) -> np.ndarray:
        """The tasks of these combinations (several, where tasks of a family share their modules)."""
        stamp = stamps(num_modules)
        within = [
            combination for combination in combinations if max(combination, default=0) < num_modules
        ]
        wanted = np.array([stamp[list(c)].sum(dtype=np.uint64) for c in within], np.uint64)
        found = np.flatnonzero(np.isin(prints, wanted))
        known = dict(zip(within, np.isin(wanted, prints[found]).tolist(), strict=True))
        lacking = [combination for combination in combinations if not known.get(combination)]
        require(
            not lacking,
            f"the table of {len(prints)} tasks and {num_modules} modules lacks {len(lacking)} of Listed's "
            f"combinations, first {lacking[0] if lacking else ()}: remove it, or use a family that has it",
        )
        return found
