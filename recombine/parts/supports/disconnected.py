"""Groups of modules that never occur together in a train task; test tasks mix the groups.

Every module is trained, but there is no evidence of how modules of different groups combine. Two
groups of g and M-g modules hold out all tasks that mix them: for M=16 and K=3, that is 73% of all
tasks for 8 + 8 modules, and at most 25% only for 1 + 15. Source: arXiv 2507.07207, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

import numpy as np

from recombine.basics.errors import InputError, require
from recombine.parts.conditions import compositional, connected, draw, mark, train_size
from recombine.parts.field_checks import check

MAX_GROUPINGS = 20  # random groupings, until every module has a train task and some task is mixed


@dataclass(frozen=True)
class Disconnected:
    """Train tasks within groups of modules of these `sizes`; test tasks mix groups.

    Without `sizes`, there are two groups that are as even as `frac_test` allows.
    """

    sizes: tuple[int, ...] = ()
    guarantees: ClassVar[frozenset[str]] = frozenset({"compositional"})

    def __post_init__(self):
        check(self)
        require(
            not self.sizes or (len(self.sizes) > 1 and min(self.sizes) > 0),
            f"Disconnected.sizes must be two or more positive group sizes, got {self.sizes}",
        )

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test (mixed), 0 unused.

        There are as many train tasks as with `Random`, if the groups have so many.
        """
        num_tasks, num_modules = modules.shape
        require(num_modules > 1, "Disconnected needs a family with at least 2 modules, got 1")
        require(
            not self.sizes or sum(self.sizes) == num_modules,
            f"Disconnected.sizes {self.sizes} sum to {sum(self.sizes)}, but the family has "
            f"{num_modules} modules: change the sizes",
        )
        num_train = num_tasks if self.sizes else train_size(num_tasks, frac_test)
        for _ in range(MAX_GROUPINGS):
            order = rng.permutation(num_modules)
            sizes = self.sizes or _most_even_sizes(modules[:, order], frac_test)
            groups = np.split(order, np.cumsum(sizes)[:-1])
            touches = np.stack([modules[:, group].any(1) for group in groups])  # (groups, tasks)
            is_pure = touches.sum(0) == 1
            is_mixed = touches.sum(0) > 1
            if is_mixed.any() and compositional(modules[is_pure]):
                pools = [np.flatnonzero(is_pure & touches_group) for touches_group in touches]
                tables = [
                    modules[pool][:, group] for pool, group in zip(pools, groups, strict=True)
                ]
                train = np.concatenate(_choose(pools, tables, num_train, rng))
                return mark(num_tasks, train, is_mixed)
        raise InputError(
            f"in {MAX_GROUPINGS} random groupings of {num_modules} modules, some module had no "
            "train task or no task mixed two groups: change Disconnected.sizes, or use a family "
            "with tasks of one module and of several"
        )


def _most_even_sizes(modules: np.ndarray, frac_test: float) -> tuple[int, int]:
    """The sizes of the two most even groups that hold out at most the fraction `frac_test`.

    The first group has the first columns of `modules`.
    """
    num_tasks, num_modules = modules.shape
    num_active = modules.sum(1)
    num_in_first = np.zeros(num_tasks, np.int64)
    best = 1
    for size in range(1, num_modules // 2 + 1):
        num_in_first += modules[:, size - 1]
        is_mixed = (num_in_first > 0) & (num_in_first < num_active)
        if np.count_nonzero(is_mixed) <= frac_test * num_tasks:
            best = size
    return best, num_modules - best


def _choose(
    pools: list[np.ndarray], tables: list[np.ndarray], num_train: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Draw tasks of every group, `num_train` in all, that connect each group if possible.

    `pools` are the tasks of each group, `tables` their module rows.
    """
    pool_sizes = np.array([len(pool) for pool in pools])
    if num_train >= pool_sizes.sum():
        return pools
    linked = [connected(table) for table in tables]
    minimums = [_min_tasks(table, link) for table, link in zip(tables, linked, strict=True)]
    if sum(minimums) > num_train:
        linked = [False] * len(tables)
        minimums = [_min_tasks(table, False) for table in tables]
    require(
        sum(minimums) <= num_train,
        f"{num_train} train tasks are too few for {len(tables)} groups, which need "
        f"{sum(minimums)}: lower frac_test",
    )
    shares = rng.multivariate_hypergeometric(pool_sizes, num_train)
    while (shares < minimums).any():
        shares[np.argmax(shares - minimums)] -= 1
        shares[np.argmin(shares - minimums)] += 1
    return [
        pool[draw(table, share, rng, "lower frac_test", link)]
        for pool, table, share, link in zip(pools, tables, shares, linked, strict=True)
    ]


def _min_tasks(table: np.ndarray, linked: bool) -> int:
    """The number of tasks needed to connect (or only to cover) the modules of a group."""
    num_hot = int(table.sum(1).max())
    return max(1, ceil((table.shape[1] - linked) / max(1, num_hot - linked)))
