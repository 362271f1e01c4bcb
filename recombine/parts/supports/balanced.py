"""A connected train set whose module counts differ by at most 1 (the paper's "equal" support).

A random connected set is levelled by batched swaps: tasks with module a and not b give way to their twins,
which have b in the place of a. Then, if need be, exchanges of two modules between two tasks connect it again,
and leave the counts alone. Both always succeed on a complete table; others get a bounded local search.
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

TRIES = 3  # fresh starts, which only sampled tables need
PATIENCE = 300  # steps of the local search without progress
CANDIDATES = 4_096  # tasks that a step looks at on each side
SHORTLIST = 64  # and those among them whose pairs it compares
EXCHANGES = 5_000  # attempts at connecting
CELLS = 50_000_000  # table cells that all those attempts may look at


@dataclass(frozen=True)
class Balanced:
    """Every module in the same number of train tasks, give or take one; all other tasks are test."""

    guarantees: ClassVar[frozenset[str]] = frozenset({"compositional", "connected", "balanced"})

    def __post_init__(self):
        check(self)

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray:
        """Mark every task: 1 train, 2 test."""
        num_train = train_size(len(modules), frac_test)
        table, spread = _Table(modules), []
        for _ in range(TRIES):
            choice = _Choice(table, draw(modules, num_train, rng), rng)
            choice.level()
            choice.search()
            spread.append(int(np.ptp(counts(choice.rows))))
            if spread[-1] <= 1 and choice.connect():
                return mark(len(modules), choice.tasks)
        best = (
            "not connected" if min(spread) <= 1 else f"module counts that differ by {min(spread)}"
        )
        raise InputError(
            f"found no {num_train} balanced train tasks among {len(modules)} (at best: {best}): use a "
            "complete table, another frac_test, or Random"
        )


class _Table:
    """The task table, and where to find a row in it."""

    def __init__(self, modules: np.ndarray):
        self.modules = modules
        self.stamps = stamps(modules.shape[1])
        self.prints = fingerprint(modules)
        self.order = np.argsort(self.prints)
        self.sorted = self.prints[self.order]

    def twins(self, tasks: np.ndarray, a: int | np.ndarray, b: int | np.ndarray) -> np.ndarray:
        """The tasks with module b in the place of a; -1 where the table lacks one."""
        wanted = self.prints[tasks] - self.stamps[a] + self.stamps[b]
        where = np.minimum(np.searchsorted(self.sorted, wanted), len(self.sorted) - 1)
        return np.where(self.sorted[where] == wanted, self.order[where], -1)


class _Choice:
    """The chosen tasks, on their way to balance."""

    def __init__(self, table: _Table, tasks: np.ndarray, rng: np.random.Generator):
        self.table, self.tasks, self.rng = table, tasks, rng
        self.taken = np.zeros(len(table.modules), bool)
        self.taken[tasks] = True

    @property
    def rows(self) -> np.ndarray:
        return self.table.modules[self.tasks]

    def replace(self, places: np.ndarray, tasks: np.ndarray) -> None:
        self.taken[self.tasks[places]] = False
        self.taken[tasks] = True
        self.tasks[places] = tasks

    def level(self) -> None:
        """Bring every count to its target by swaps; each settles a module if the table is complete."""
        count = counts(self.rows)
        num_modules = len(count)
        target = np.full(num_modules, count.sum() // num_modules)
        target[np.argsort(-count, kind="stable")[: count.sum() % num_modules]] += 1
        for _ in range(4 * num_modules):  # a complete table takes at most num_modules
            over, under = int(np.argmax(count - target)), int(np.argmin(count - target))
            moved = self.swap(
                over, under, min(count[over] - target[over], target[under] - count[under])
            )
            if not moved:
                break
            count[over] -= moved
            count[under] += moved

    def swap(self, a: int, b: int, num: int) -> int:
        """Replace up to `num` random tasks that have a and not b by their twins; how many there were.

        A complete table never runs short. Let A be the chosen tasks with a and not b, B those with b and not
        a. Twins pair the two kinds one to one, so at most |B| of A's twins are taken, and at least
        |A| - |B| = count_a - count_b >= num are free.
        """
        modules, n = self.table.modules, len(self.tasks)
        # A random sample mostly has enough of them, and far fewer to look up.
        for size in (min(n, 64 * num), n):
            places = self.rng.choice(n, size, replace=False)
            places = places[modules[self.tasks[places], a] > modules[self.tasks[places], b]]
            twins = self.table.twins(self.tasks[places], a, b)
            free = np.flatnonzero((twins >= 0) & ~self.taken[twins])[:num]
            if len(free) == num:
                break
        # Where tasks of a family share their modules, two tasks may have the same twin.
        twins, first = np.unique(twins[free], return_index=True)
        self.replace(places[free[first]], twins)
        return len(twins)

    def search(self) -> None:
        """While the counts are not balanced, make the trade of two tasks that lowers their variance most."""
        modules, rng = self.table.modules, self.rng
        count = counts(self.rows).astype(float)
        best, stale = np.inf, 0
        while np.ptp(count) > 1 and stale < PATIENCE:
            pull = count - count.mean()
            stale = 0 if pull @ pull < best - 1e-3 else stale + 1
            best = min(best, pull @ pull)
            places = rng.integers(len(self.tasks), size=CANDIDATES)
            places = places[_lowest(-(modules[self.tasks[places]] @ pull), rng)]
            tasks = rng.integers(len(modules), size=CANDIDATES)
            tasks = tasks[~self.taken[tasks]]
            tasks = tasks[_lowest(modules[tasks] @ pull, rng)]
            out, new = modules[self.tasks[places]].astype(float), modules[tasks].astype(float)
            size_out, size_new = out.sum(1)[:, None], new.sum(1)
            # |pull + new - out|^2 - |pull|^2 about the new mean; ties at random, and steps sideways too.
            cost = 2 * (new @ pull - (out @ pull)[:, None]) + size_new + size_out - 2 * out @ new.T
            cost += 1e-6 * rng.random(cost.shape) - (size_new - size_out) ** 2 / len(count)
            if cost.size and cost.min() < 1e-5:
                i, j = np.unravel_index(np.argmin(cost), cost.shape)
                self.replace(places[[i]], tasks[[j]])
                count += new[j] - out[i]

    def connect(self) -> bool:
        """Join components by exchanges of two modules between tasks of theirs; whether that worked.

        Tasks and modules are a bipartite graph of n + M nodes. The start was connected and swaps keep sizes,
        so it has at least n + M - 1 edges. In two or more pieces, some piece has a cycle, and exchanging an
        edge of that cycle with an edge of another piece joins the two. On a complete table the tasks that
        result exist and are new, as they mix modules of both. Which edge is on a cycle is found by trying.
        """
        groups = components(self.rows)
        for _ in range(min(EXCHANGES, CELLS // self.rows.size) if compositional(self.rows) else 0):
            if len(groups) == 1:
                break
            pair, twins = self.exchange(groups)
            if twins.min() < 0 or self.taken[twins].any():
                continue
            before = self.tasks[pair]
            self.replace(pair, twins)
            after = components(self.rows)
            if len(after) <= len(groups):
                groups = after
            else:
                self.replace(pair, before)
        return connected(self.rows)

    def exchange(self, groups: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        """Random places of two tasks in different components, and their tasks with two modules exchanged."""
        rows, ends = self.rows, []
        for number in self.rng.choice(len(groups), 2, replace=False):
            edges = np.argwhere(rows[:, groups[number]])
            place, index = edges[self.rng.integers(len(edges))]
            ends.append((place, groups[number][index]))
        places, modules = np.array(ends).T
        return places, self.table.twins(self.tasks[places], modules, modules[::-1])


def _lowest(score: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Where the lowest scores are, ties at random."""
    score = score + 1e-6 * rng.random(score.shape)
    return (
        np.argpartition(score, SHORTLIST)[:SHORTLIST]
        if len(score) > SHORTLIST
        else np.arange(len(score))
    )
