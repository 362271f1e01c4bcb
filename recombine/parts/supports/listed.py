"""A list of train combinations, each a tuple of module indices.

`SCHUG_SUPPORTS` are the four supports of 6 modules in Schug et al. 2024. `SCHUG_GENERALIZES` says
which of them generalized there. A connected support is not enough (`cycle`), and a spanned one is
not either (`singletons`): the one that generalized is both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from recombine.basics.errors import InputError, require
from recombine.parts.conditions import fingerprint, mark, stamps
from recombine.parts.field_checks import check

Combinations = tuple[tuple[int, ...], ...]

_SINGLETONS: Combinations = tuple((m,) for m in range(6))
_CYCLE: Combinations = tuple((m, (m + 1) % 6) for m in range(6))
_TRIANGLES: Combinations = ((0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5))

SCHUG_SUPPORTS: dict[str, Combinations] = {
    "singletons": _SINGLETONS,
    "cycle": _CYCLE,
    "triangles": _SINGLETONS + _TRIANGLES,
    "singletons_cycle": _SINGLETONS + _CYCLE,
}
SCHUG_GENERALIZES: dict[str, bool] = {
    "singletons": False,
    "cycle": False,
    "triangles": False,
    "singletons_cycle": True,
}


@dataclass(frozen=True)
class Listed:
    """Exactly the listed train `combinations`.

    Test tasks are those of the combinations `held_out`, or all other tasks if it is empty.
    """

    combinations: Combinations = SCHUG_SUPPORTS["singletons_cycle"]
    held_out: Combinations = ()
    guarantees: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self):
        check(self)
        require(
            len(self.combinations) > 0,
            "Listed.combinations is empty: list at least one train combination",
        )
        side_of: dict[frozenset[int], str] = {}
        for side in ("combinations", "held_out"):
            for combination in getattr(self, side):
                modules = frozenset(combination)
                require(
                    len(modules) == len(combination) and min(modules, default=0) >= 0,
                    f"Listed.{side} has {combination}: a combination consists of distinct module "
                    "indices from 0",
                )
                where = "twice" if side_of.get(modules) == side else "on both sides"
                require(
                    modules not in side_of,
                    f"Listed has {combination} {where}: remove one of them",
                )
                side_of[modules] = side

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test, 0 unused. `rng` and `frac_test` have no effect."""
        fingerprints = fingerprint(modules)
        num_modules = modules.shape[1]
        train = self._find(self.combinations, fingerprints, num_modules)
        test = self._find(self.held_out, fingerprints, num_modules) if self.held_out else None
        return mark(len(modules), train, test)

    def _find(
        self, combinations: Combinations, fingerprints: np.ndarray, num_modules: int
    ) -> np.ndarray:
        """The tasks of these combinations; several tasks may have the same modules."""
        stamp = stamps(num_modules)
        possible = [
            combination for combination in combinations if max(combination, default=0) < num_modules
        ]
        wanted = np.array(
            [stamp[list(combination)].sum(dtype=np.uint64) for combination in possible], np.uint64
        )
        tasks = np.flatnonzero(np.isin(fingerprints, wanted))
        in_table = np.isin(wanted, fingerprints[tasks]).tolist()
        is_known = dict(zip(possible, in_table, strict=True))
        missing = [combination for combination in combinations if not is_known.get(combination)]
        if missing:
            raise InputError(
                f"the table of {len(fingerprints)} tasks and {num_modules} modules lacks "
                f"{len(missing)} of Listed's combinations, first {missing[0]}: remove it, or use a "
                "family that has it"
            )
        return tasks


# Earlier names, which work until the next release.
FIXTURES = SCHUG_SUPPORTS
LABELS = SCHUG_GENERALIZES
