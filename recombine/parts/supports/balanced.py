"""A connected train set whose module counts differ by at most 1.

It is the support "equal" of arXiv 2507.07207, section 3. A random connected set is balanced by
swaps: a task with module a and without b is replaced by the task with b in place of a. If the
result is not connected, two modules are exchanged between two tasks, which leaves the counts as
they are. Both steps always succeed on a complete table; other tables get a bounded local search.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from recombine.basics.errors import InputError
from recombine.parts.conditions import (
    components,
    compositional,
    connected,
    counts,
    draw,
    fingerprint,
    mark,
    stamps,
    train_size,
)
from recombine.parts.field_checks import check

MAX_STARTS = 3  # only sampled tables need more than one
MAX_STALE_STEPS = 300  # steps of the local search without progress
NUM_CANDIDATES = 4_096  # tasks that a step of the local search looks at, inside and outside the set
NUM_COMPARED = 64  # the best of these candidates, whose pairs are compared
MAX_EXCHANGES = 5_000  # attempts at connecting the set
MAX_EXCHANGED_CELLS = 50_000_000  # table cells that all these attempts may read


@dataclass(frozen=True)
class Balanced:
    """Numbers of train tasks per module differ by at most one; all other tasks are test."""

    guarantees: ClassVar[frozenset[str]] = frozenset({"compositional", "connected", "balanced"})

    def __post_init__(self):
        check(self)

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test."""
        num_tasks = len(modules)
        num_train = train_size(num_tasks, frac_test)
        table = _Table(modules)
        spreads = []
        for _ in range(MAX_STARTS):
            train_set = _TrainSet(table, draw(modules, num_train, rng), rng)
            train_set.level()
            train_set.search()
            spreads.append(int(np.ptp(counts(train_set.rows))))
            if spreads[-1] <= 1 and train_set.connect():
                return mark(num_tasks, train_set.tasks)
        if min(spreads) <= 1:
            best = "not connected"
        else:
            best = f"module counts that differ by {min(spreads)}"
        raise InputError(
            f"found no {num_train} balanced train tasks among {num_tasks} (at best: {best}): "
            "use a complete table, another frac_test, or Random"
        )


class _Table:
    """The task table, with an index to find rows."""

    def __init__(self, modules: np.ndarray):
        self.modules = modules
        self.stamps = stamps(modules.shape[1])
        self.fingerprints = fingerprint(modules)
        self.order = np.argsort(self.fingerprints)
        self.sorted = self.fingerprints[self.order]

    def replace_module(
        self, tasks: np.ndarray, a: int | np.ndarray, b: int | np.ndarray
    ) -> np.ndarray:
        """The tasks with module b in place of a; -1 if the table does not have one."""
        wanted = self.fingerprints[tasks] - self.stamps[a] + self.stamps[b]
        index = np.minimum(np.searchsorted(self.sorted, wanted), len(self.sorted) - 1)
        return np.where(self.sorted[index] == wanted, self.order[index], -1)


class _TrainSet:
    """A set of train tasks that is changed until it is balanced and connected."""

    def __init__(self, table: _Table, tasks: np.ndarray, rng: np.random.Generator):
        self.table = table
        self.tasks = tasks
        self.rng = rng
        self.is_train = np.zeros(len(table.modules), bool)
        self.is_train[tasks] = True

    @property
    def rows(self) -> np.ndarray:
        return self.table.modules[self.tasks]

    def replace(self, positions: np.ndarray, tasks: np.ndarray) -> None:
        """Replace the train tasks at some positions by other tasks."""
        self.is_train[self.tasks[positions]] = False
        self.is_train[tasks] = True
        self.tasks[positions] = tasks

    def level(self) -> None:
        """Bring every module count to its target by swaps.

        On a complete table, every swap brings at least one module to its target.
        """
        count = counts(self.rows)
        num_modules = len(count)
        target = np.full(num_modules, count.sum() // num_modules)
        target[np.argsort(-count, kind="stable")[: count.sum() % num_modules]] += 1
        for _ in range(4 * num_modules):  # a complete table takes at most num_modules
            over = int(np.argmax(count - target))
            under = int(np.argmin(count - target))
            num_wanted = min(count[over] - target[over], target[under] - count[under])
            num_swapped = self.swap(over, under, num_wanted)
            if not num_swapped:
                break
            count[over] -= num_swapped
            count[under] += num_swapped

    def swap(self, a: int, b: int, num: int) -> int:
        """Replace module a by b in up to `num` random tasks with a and without b; return how many.

        A complete table always has enough of them. Let A be the train tasks with a and without b,
        and B those with b and without a. Replacing a by b maps the tasks of the first kind one to
        one to those of the second, so at most |B| of the results are train tasks already, and at
        least |A| - |B| = count_a - count_b >= num are not.
        """
        modules = self.table.modules
        num_train = len(self.tasks)
        # A random sample mostly has enough of them, and is faster to search.
        for num_sampled in (min(num_train, 64 * num), num_train):
            positions = self.rng.choice(num_train, num_sampled, replace=False)
            sampled = self.tasks[positions]
            positions = positions[modules[sampled, a] > modules[sampled, b]]
            swapped = self.table.replace_module(self.tasks[positions], a, b)
            free = np.flatnonzero((swapped >= 0) & ~self.is_train[swapped])[:num]
            if len(free) == num:
                break
        # If several tasks have the same modules, two tasks may have the same replacement.
        swapped, first = np.unique(swapped[free], return_index=True)
        self.replace(positions[free[first]], swapped)
        return len(swapped)

    def search(self) -> None:
        """While counts are not balanced, make the best replacement of one task by another.

        The best one lowers the variance of the counts most.
        """
        count = counts(self.rows).astype(float)
        best_variance = np.inf
        num_stale = 0
        while np.ptp(count) > 1 and num_stale < MAX_STALE_STEPS:
            excess = count - count.mean()
            variance = excess @ excess
            num_stale = 0 if variance < best_variance - 1e-3 else num_stale + 1
            best_variance = min(best_variance, variance)
            count += self._replace_one(excess)

    def _replace_one(self, excess: np.ndarray) -> np.ndarray | float:
        """Replace one of the sampled train tasks by a sampled other task; the change of counts."""
        modules = self.table.modules
        rng = self.rng
        positions = rng.integers(len(self.tasks), size=NUM_CANDIDATES)
        positions = positions[_lowest(-(modules[self.tasks[positions]] @ excess), rng)]
        tasks = rng.integers(len(modules), size=NUM_CANDIDATES)
        tasks = tasks[~self.is_train[tasks]]
        tasks = tasks[_lowest(modules[tasks] @ excess, rng)]
        old = modules[self.tasks[positions]].astype(float)
        new = modules[tasks].astype(float)
        old_size = old.sum(1)[:, None]
        new_size = new.sum(1)
        # The change of the variance: |excess + new - old|^2 - |excess|^2, about the new mean. Ties
        # are broken at random, and steps that do not change the variance are allowed.
        cost = 2 * (new @ excess - (old @ excess)[:, None]) + new_size + old_size - 2 * old @ new.T
        cost += 1e-6 * rng.random(cost.shape) - (new_size - old_size) ** 2 / len(excess)
        if not cost.size or cost.min() >= 1e-5:
            return 0.0
        i, j = np.unravel_index(np.argmin(cost), cost.shape)
        self.replace(positions[[i]], tasks[[j]])
        return new[j] - old[i]

    def connect(self) -> bool:
        """Join components by exchanging modules between their tasks; return whether it worked.

        Tasks and modules are a bipartite graph with n + M nodes. The first set was connected and
        swaps keep the sizes of tasks, so it has at least n + M - 1 edges. If it has two or more
        components, one of them has a cycle, and exchanging an edge of this cycle with an edge of
        another component joins the two. On a complete table the resulting tasks exist and are new,
        because they mix modules of both. Which edges are on a cycle is found by trial and error.
        """
        groups = components(self.rows)
        max_attempts = min(MAX_EXCHANGES, MAX_EXCHANGED_CELLS // self.rows.size)
        for _ in range(max_attempts if compositional(self.rows) else 0):
            if len(groups) == 1:
                break
            pair, exchanged = self.exchange(groups)
            if exchanged.min() < 0 or self.is_train[exchanged].any():
                continue
            tasks_before = self.tasks[pair]
            self.replace(pair, exchanged)
            groups_after = components(self.rows)
            if len(groups_after) <= len(groups):
                groups = groups_after
            else:
                self.replace(pair, tasks_before)
        return connected(self.rows)

    def exchange(self, groups: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Random positions of two tasks in different components, and the tasks after the exchange.

        Each of the two tasks gets a module of the other one in place of its own.
        """
        rows = self.rows
        edges = []
        for number in self.rng.choice(len(groups), 2, replace=False):
            group_edges = np.argwhere(rows[:, groups[number]])
            position, index = group_edges[self.rng.integers(len(group_edges))]
            edges.append((position, groups[number][index]))
        positions, modules = np.array(edges).T
        exchanged = self.table.replace_module(self.tasks[positions], modules, modules[::-1])
        return positions, exchanged


def _lowest(score: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The indices of the `NUM_COMPARED` lowest scores, with ties broken at random."""
    score = score + 1e-6 * rng.random(score.shape)
    if len(score) <= NUM_COMPARED:
        return np.arange(len(score))
    return np.argpartition(score, NUM_COMPARED)[:NUM_COMPARED]
