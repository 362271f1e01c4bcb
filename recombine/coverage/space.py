"""All combinations that there could be: one value of each factor, or sets of concepts of the sizes that were seen.

There may be far too many to list, so they are counted by formula, drawn at random, and listed only among few modules.
A combination is a row of module numbers, -1 where a set has fewer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Factored:
    """One value of each factor; a factor's modules have consecutive numbers."""

    starts: np.ndarray

    @property
    def blocks(self) -> list[np.ndarray]:
        """The modules of each factor."""
        return [np.arange(first, end) for first, end in itertools.pairwise(self.starts)]

    @property
    def num_modules(self) -> int:
        """How many values all factors have."""
        return int(self.starts[-1])

    @property
    def most(self) -> int:
        """A combination has a value of every factor."""
        return len(self.starts) - 1

    @property
    def rank(self) -> int:
        """Every value beyond a factor's first is a direction, and one is common to all combinations."""
        return self.num_modules - self.most + 1

    @property
    def holding(self) -> list[int]:
        """How many combinations hold each value: it goes with all values of the other factors."""
        sizes = np.diff(self.starts).tolist()
        return [math.prod(sizes) // size for size in sizes for _ in range(size)]

    def size(self, numbers: Sequence[int]) -> int:
        """How many combinations there are with so many values of each factor."""
        return math.prod(map(int, numbers))

    def kind(self, group: np.ndarray) -> int:
        """The factor of a group that has one factor only: a combination can hold one such group; else -1."""
        factors = self._factors(group)
        return factors[0] if len(factors) == 1 else -1

    def among(self, modules: np.ndarray) -> Iterator[tuple[int, ...]]:
        """The product of each factor's values."""
        return itertools.product(
            *(np.intersect1d(block, modules).tolist() for block in self.blocks)
        )

    def draw(self, rng: np.random.Generator, num: int) -> np.ndarray:
        """A random value of each factor."""
        return rng.integers(self.starts[:-1], self.starts[1:], size=(num, self.most))

    def twins(self, code: np.ndarray) -> np.ndarray:
        """Each factor's value replaced by each other one."""
        others = [
            (place, other)
            for place, block in enumerate(self.blocks)
            for other in block
            if other != code[place]
        ]
        twins = np.tile(code, (len(others), 1))
        twins[np.arange(len(others)), [place for place, _ in others]] = [
            other for _, other in others
        ]
        return twins

    def slots(self, groups: Sequence[np.ndarray], main: np.ndarray) -> Iterator[list[np.ndarray]]:
        """Every way to give each group a factor of which it has values, and the main one those that are left."""
        # Those with one factor first, so that the others find theirs among what is left.
        ordered = sorted(groups, key=lambda group: len(self._factors(group)))
        for chosen in _different([self._factors(group) for group in ordered]):
            taken = dict(zip(chosen, ordered, strict=True))
            yield [
                np.intersect1d(block, taken.get(factor, main))
                for factor, block in enumerate(self.blocks)
            ]

    def _factors(self, group: np.ndarray) -> list[int]:
        return np.unique(np.searchsorted(self.starts, group, "right") - 1).tolist()


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets of concepts, of some sizes."""

    num_modules: int
    sizes: tuple[int, ...]

    @property
    def blocks(self) -> list[np.ndarray]:
        """All concepts compete for the same places."""
        return [np.arange(self.num_modules)]

    @property
    def most(self) -> int:
        """The largest size."""
        return max(self.sizes)

    @property
    def rank(self) -> int:
        """All sets of one size span everything, unless there is only one."""
        return self.num_modules if min(self.sizes) < self.num_modules else 1

    @property
    def holding(self) -> list[int]:
        """How many sets hold each concept: it goes with all sets of the others."""
        return [
            sum(math.comb(self.num_modules - 1, size - 1) for size in self.sizes)
        ] * self.num_modules

    def size(self, numbers: Sequence[int]) -> int:
        """How many sets there are of so many concepts."""
        return sum(math.comb(int(numbers[0]), size) for size in self.sizes)

    def kind(self, group: np.ndarray) -> int:
        """A set may hold any groups."""
        return -1

    def among(self, modules: np.ndarray) -> Iterator[tuple[int, ...]]:
        """The sets of these concepts, small ones first."""
        for size in self.sizes:
            for chosen in itertools.combinations(sorted(modules.tolist()), size):
                yield chosen + (-1,) * (self.most - size)

    def draw(self, rng: np.random.Generator, num: int) -> np.ndarray:
        """Sizes as often as there are sets of them, and random concepts."""
        weights = [
            math.comb(self.num_modules, size) / self.size([self.num_modules]) for size in self.sizes
        ]
        sizes = rng.choice(self.sizes, num, p=weights)
        ranks = rng.random((num, self.num_modules)).argsort(axis=1)[:, : self.most]
        return np.where(np.arange(self.most) < sizes[:, None], ranks, -1)

    def twins(self, code: np.ndarray) -> np.ndarray:
        """Each concept replaced by each one that the set does not have."""
        places, others = np.flatnonzero(code >= 0), np.setdiff1d(np.arange(self.num_modules), code)
        twins = np.tile(code, (len(places) * len(others), 1))
        twins[np.arange(len(twins)), np.repeat(places, len(others))] = np.tile(others, len(places))
        return twins

    def slots(self, groups: Sequence[np.ndarray], main: np.ndarray) -> Iterator[list[np.ndarray]]:
        """A place for each group, all others for the main one."""
        yield [*groups, *[main] * (self.most - len(groups))]


def _different(
    choices: Sequence[Sequence[int]], taken: tuple[int, ...] = ()
) -> Iterator[tuple[int, ...]]:
    """One of each, no two alike."""
    if not choices:
        yield taken
    for one in choices[0] if choices else ():
        if one not in taken:
            yield from _different(choices[1:], (*taken, one))


Space = Factored | Sets
