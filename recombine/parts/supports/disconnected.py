"""Groups of modules that are never mixed in a train task: test holds the mixed tasks only.

Every module is learned, but nothing tells how modules of different groups combine. Two groups of g and M-g
modules hold out their mixed tasks: at 25%, M=16, K=3 that makes 1 and 15, while 8 + 8 would hold out 73%.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np

from recombine.basics.errors import InputError, require
from recombine.parts.conditions import compositional, connected, draw, mark, train_size
from recombine.parts.field_checks import check

TRIES = 20  # random groupings, until one has train tasks for every module and some mixed task


@dataclass(frozen=True)
class Disconnected:
    """Train within groups of these sizes; without sizes, two groups as even as `frac_test` allows."""

    sizes: tuple[int, ...] = ()
    guarantees: ClassVar[frozenset[str]] = frozenset({"compositional"})

    def __post_init__(self):
        check(self)
        require(
            not self.sizes or (len(self.sizes) > 1 and min(self.sizes) > 0),
            f"Disconnected.sizes must be two or more positive group sizes, got {self.sizes}",
        )

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test (mixed), 0 neither: as many train tasks as `Random`."""
        num_tasks, num_modules = modules.shape
        require(
            num_modules > 1, "Disconnected needs at least 2 modules to separate, the family has 1"
        )
        require(
            not self.sizes or sum(self.sizes) == num_modules,
            f"Disconnected.sizes {self.sizes} sum to {sum(self.sizes)}, the family has {num_modules} modules",
        )
        num_train = num_tasks if self.sizes else train_size(num_tasks, frac_test)
        for _ in range(TRIES):
            order = rng.permutation(num_modules)
            sizes = self.sizes or _even(modules[:, order], frac_test)
            groups = np.split(order, np.cumsum(sizes)[:-1])
            touched = np.stack([modules[:, group].any(1) for group in groups])
            within, mixed = touched.sum(0) == 1, touched.sum(0) > 1
            if mixed.any() and compositional(modules[within]):
                pools = [np.flatnonzero(within & inside) for inside in touched]
                tables = [
                    modules[pool][:, group] for pool, group in zip(pools, groups, strict=True)
                ]
                return mark(
                    num_tasks, np.concatenate(_choose(pools, tables, num_train, rng)), mixed
                )
        raise InputError(
            f"{TRIES} groupings of {num_modules} modules left one without train tasks or nothing to mix: "
            "change Disconnected.sizes, or use a family whose tasks have one module as well as several"
        )


def _even(modules: np.ndarray, frac_test: float) -> tuple[int, int]:
    """The sizes of the most even split of the columns whose mixed tasks are at most that fraction."""
    num_tasks, num_modules = modules.shape
    size, inside = modules.sum(1), np.zeros(num_tasks, np.int64)
    best = 1
    for first in range(1, num_modules // 2 + 1):
        inside += modules[:, first - 1]
        if np.count_nonzero((inside > 0) & (inside < size)) <= frac_test * num_tasks:
            best = first
    return best, num_modules - best


def _choose(
    pools: list[np.ndarray], tables: list[np.ndarray], num_train: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Random tasks of every group, `num_train` in all, that connect each group in itself where possible."""
    have = np.array([len(pool) for pool in pools])
    if num_train >= have.sum():
        return pools
    num_hot = [int(table.sum(1).max()) for table in tables]
    linked = [connected(table) for table in tables]
    least = [_least(table, k, link) for table, k, link in zip(tables, num_hot, linked, strict=True)]
    if sum(least) > num_train:
        linked = [False] * len(tables)
        least = [_least(table, k, False) for table, k in zip(tables, num_hot, strict=True)]
    require(
        sum(least) <= num_train,
        f"{num_train} train tasks cannot cover {len(tables)} groups, it takes {sum(least)}: lower frac_test",
    )
    share = rng.multivariate_hypergeometric(have, num_train)
    while (share < least).any():
        share[np.argmax(share - least)] -= 1
        share[np.argmin(share - least)] += 1
    return [
        pool[draw(table, num, rng, "lower frac_test", link)]
        for pool, table, num, link in zip(pools, tables, share, linked, strict=True)
    ]


def _least(table: np.ndarray, num_hot: int, linked: bool) -> int:
    """How many tasks it takes to connect (else cover) the modules of a group."""
    return max(1, ceil((table.shape[1] - linked) / max(1, num_hot - linked)))
