"""The space of all possible combinations: values of factors, and sets of concepts of known sizes.

The space can be far too large to list. It is counted by formula, sampled at random, and listed only
for a few modules. A module is a value of a factor, or a concept. A combination is a row of module
numbers. Each factor has one column of it. A column of sets has as many as its largest set; they are
padded with -1 where a set is smaller.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from recombine.basics.errors import InputError

Rule = frozenset[int]  # modules that no combination may contain together

MAX_COUNT_STATES = 200_000  # partial results while combinations without forbidden ones are counted
MAX_ROUNDS = 64  # of random draws, until enough combinations are not forbidden


@dataclass(frozen=True, eq=False)
class Space:
    """Combinations with the allowed numbers of modules of each block.

    A block is a factor or a column of sets. Its modules have consecutive numbers. A combination
    that contains all modules of a forbidden rule is not possible.
    """

    starts: np.ndarray  # each block's first module, then the number of modules
    sizes: tuple[tuple[int, ...], ...]  # how many modules of each block; (1,) for a factor
    forbidden: tuple[Rule, ...] = ()
    _counts: dict[bytes, int] = field(default_factory=dict, init=False, repr=False)

    @functools.cached_property
    def blocks(self) -> list[np.ndarray]:
        """The modules of each block."""
        return [np.arange(first, end) for first, end in itertools.pairwise(self.starts)]

    @functools.cached_property
    def block_of(self) -> np.ndarray:
        """The block of each module."""
        return np.repeat(np.arange(len(self.sizes)), np.diff(self.starts))

    @functools.cached_property
    def capacities(self) -> list[int]:
        """The largest number of modules of each block in a combination."""
        return [max(sizes) for sizes in self.sizes]

    @property
    def is_factored(self) -> bool:
        """Whether every combination has exactly one value of each block."""
        return all(sizes == (1,) for sizes in self.sizes)

    @property
    def num_modules(self) -> int:
        """The number of values of all blocks together."""
        return int(self.starts[-1])

    @property
    def max_size(self) -> int:
        """The number of modules in the largest combination."""
        return sum(self.capacities)

    @property
    def rank(self) -> int:
        """The rank of all combinations as 0/1 rows, if none is forbidden.

        A block adds one direction per value beyond its first. It adds one more if its sets have
        several sizes. If no block's sets do, one more direction is shared by all combinations.
        """
        total = 0
        has_origin = True  # whether the affine hull of the combinations contains the origin
        for block, sizes in zip(self.blocks, self.sizes, strict=True):
            num_values = len(block)
            is_partial = any(0 < size < num_values for size in sizes)
            if is_partial:
                total += num_values - (len(sizes) == 1)
            else:
                total += len(sizes) - 1  # all values or none
            has_origin &= len(sizes) > 1 or sizes == (0,)
        return total + (not has_origin)

    @functools.cached_property
    def num_possible(self) -> int:
        """The number of combinations that are not forbidden."""
        return self.num_within(np.ones(self.num_modules, bool))

    @functools.cached_property
    def num_containing(self) -> list[int]:
        """The number of possible combinations that contain each module."""
        mentioned = frozenset().union(*self.forbidden)
        numbers: list[int] = []
        for block in self.blocks:
            shared: int | None = None  # modules that no rule mentions have the same number
            for module in block.tolist():
                if module in mentioned or shared is None:
                    number = self.num_possible - self.num_within(
                        np.arange(self.num_modules) != module
                    )
                    shared = shared if module in mentioned else number
                else:
                    number = shared
                numbers.append(number)
        return numbers

    def count(self, num_values: Sequence[int]) -> int:
        """The number of combinations, forbidden ones too, given the number of values per block."""
        return math.prod(
            sum(math.comb(int(number), size) for size in sizes)
            for number, sizes in zip(num_values, self.sizes, strict=True)
        )

    def num_within(self, modules: np.ndarray) -> int:
        """The number of possible combinations of the modules in this mask."""
        num_values = [int(np.count_nonzero(modules[block])) for block in self.blocks]
        if not self.forbidden:
            return self.count(num_values)
        key = np.packbits(modules).tobytes()
        if key not in self._counts:
            rules = frozenset(r for r in self.forbidden if all(modules[m] for m in r))
            self._counts[key] = _Counter(self, num_values).count(0, rules)
        return self._counts[key]

    def allowed(self, codes: np.ndarray) -> np.ndarray:
        """Whether each combination is not forbidden: a mask."""
        possible = np.ones(len(codes), bool)
        contains = {module: (codes == module).any(axis=1) for module in self._rules_with}
        for rule in self.forbidden:
            possible &= ~np.logical_and.reduce([contains[module] for module in rule])
        return possible

    def only_block(self, group: np.ndarray) -> int:
        """The block of a group whose modules all belong to one block, else -1.

        A combination can contain only as many such groups as the capacity of the block.
        """
        blocks = np.unique(self.block_of[group])
        return int(blocks[0]) if len(blocks) == 1 else -1

    def combinations_of(self, modules: np.ndarray) -> Iterator[tuple[int, ...]]:
        """List the possible combinations of these modules; smaller sets come first."""
        values = [np.intersect1d(block, modules).tolist() for block in self.blocks]
        return self._extend((), values)

    def completions(self, required: Iterable[int]) -> Iterator[tuple[int, ...]]:
        """List the possible combinations that contain these modules."""
        needed = frozenset(required)
        if not self._contains_rule(needed, needed):
            yield from self._extend((), [block.tolist() for block in self.blocks], needed)

    def _extend(
        self,
        chosen: tuple[int, ...],
        values: Sequence[Sequence[int]],
        required: frozenset[int] = frozenset(),
    ) -> Iterator[tuple[int, ...]]:
        """Extend a combination by the blocks whose values are left, without forbidden ones."""
        if not values:
            yield chosen
            return
        number = len(self.sizes) - len(values)
        own = [module for module in values[0] if module in required]
        others = [module for module in values[0] if module not in required]
        for size in self.sizes[number]:
            if size < len(own):
                continue
            padding = (-1,) * (self.capacities[number] - size)
            for more in itertools.combinations(others, size - len(own)):
                longer = (*chosen, *sorted((*own, *more)), *padding)
                if not self._contains_rule(more, required.union(longer)):
                    yield from self._extend(longer, values[1:], required)

    @functools.cached_property
    def _rules_with(self) -> dict[int, list[Rule]]:
        """The forbidden rules that contain each module."""
        rules: dict[int, list[Rule]] = {}
        for rule in self.forbidden:
            for module in rule:
                rules.setdefault(module, []).append(rule)
        return rules

    def _contains_rule(self, added: Iterable[int], present: frozenset[int]) -> bool:
        """Whether these modules contain a forbidden rule with one of those that were added."""
        return any(rule <= present for m in added for rule in self._rules_with.get(m, ()))

    def grid(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """All combinations of these values of each block that are not forbidden, as rows."""
        options = []
        for own, sizes, width in zip(values, self.sizes, self.capacities, strict=True):
            subsets = [
                [*subset, *[-1] * (width - size)]
                for size in sizes
                for subset in itertools.combinations(np.sort(own).tolist(), size)
            ]
            options.append(np.array(subsets, int).reshape(-1, width))
        indices = np.indices([len(each) for each in options]).reshape(len(options), -1)
        codes = [each[chosen] for each, chosen in zip(options, indices, strict=True)]
        grid = np.concatenate(codes, axis=1)
        return grid[self.allowed(grid)]

    def sample(self, rng: np.random.Generator, num: int) -> np.ndarray:
        """Draw up to `num` possible combinations uniformly: (num, largest size).

        There are fewer if nearly all combinations are forbidden.
        """
        drawn = self._draw(rng, num)
        if not self.forbidden:
            return drawn
        possible = drawn[self.allowed(drawn)]
        for _ in range(MAX_ROUNDS):
            if len(possible) >= num:
                break
            drawn = self._draw(rng, num)
            possible = np.concatenate([possible, drawn[self.allowed(drawn)]])
        return possible[:num]

    def _draw(self, rng: np.random.Generator, num: int) -> np.ndarray:
        if self.is_factored:
            return rng.integers(self.starts[:-1], self.starts[1:], size=(num, self.max_size))
        parts = []
        for block, sizes, width in zip(self.blocks, self.sizes, self.capacities, strict=True):
            numbers = [math.comb(len(block), size) for size in sizes]
            total = sum(numbers)
            drawn = rng.choice(sizes, num, p=[number / total for number in numbers])
            members = rng.random((num, len(block))).argsort(axis=1)[:, :width] + block[0]
            parts.append(np.where(np.arange(width) < drawn[:, None], members, -1))
        return np.concatenate(parts, axis=1)

    def neighbors(self, code: np.ndarray) -> np.ndarray:
        """List the possible combinations that differ from this one in one value, as rows."""
        changes = [
            (position, value)
            for position in np.flatnonzero(code >= 0)
            for value in np.setdiff1d(self.blocks[self.block_of[code[position]]], code)
        ]
        neighbors = np.tile(code, (len(changes), 1))
        for neighbor, (position, value) in zip(neighbors, changes, strict=True):
            neighbor[position] = value
        return neighbors[self.allowed(neighbors)]

    def slots(self, groups: Sequence[np.ndarray], main: np.ndarray) -> Iterator[list[np.ndarray]]:
        """List the ways to build a combination of the largest size with a module of each group.

        Each way assigns every group a block that it has values of. The remaining places are filled
        from the main group. A way gives the choices for each place.
        """
        # Groups with a single block choose first, so that the others take what is left.
        blocks_of_group = [np.unique(self.block_of[group]).tolist() for group in groups]
        order = sorted(range(len(groups)), key=lambda i: len(blocks_of_group[i]))
        options = [blocks_of_group[i] for i in order]
        for chosen in _choices_within(options, self.capacities):
            way = []
            for number, block in enumerate(self.blocks):
                own = [
                    groups[i] for i, choice in zip(order, chosen, strict=True) if choice == number
                ]
                filled = [*own, *[main] * (self.capacities[number] - len(own))]
                way += [np.intersect1d(block, group) for group in filled]
            yield way


def _choices_within(
    options: Sequence[Sequence[int]], capacities: Sequence[int], chosen: tuple[int, ...] = ()
) -> Iterator[tuple[int, ...]]:
    """List the ways to choose a block from each of the options, within the blocks' capacities."""
    if not options:
        yield chosen
        return
    for option in options[0]:
        if chosen.count(option) < capacities[option]:
            yield from _choices_within(options[1:], capacities, (*chosen, option))


class _Counter:
    """Counts combinations that contain no forbidden rule, block by block.

    What is left of a rule after some blocks is its modules in later blocks. All values that no rule
    mentions are counted at once.
    """

    def __init__(self, space: Space, num_values: Sequence[int]):
        self.space = space
        self.num_values = num_values
        self.known: dict[tuple[int, frozenset[Rule]], int] = {}

    def count(self, block: int, rules: frozenset[Rule]) -> int:
        """The number of ways to choose the modules of this and all later blocks."""
        if frozenset() in rules:
            return 0
        if not rules:
            later = zip(self.num_values[block:], self.space.sizes[block:], strict=True)
            return math.prod(sum(math.comb(n, size) for size in sizes) for n, sizes in later)
        key = (block, rules)
        if key not in self.known:
            if len(self.known) >= MAX_COUNT_STATES:
                raise InputError(
                    f"the {len(self.space.forbidden)} forbidden combinations overlap in too many "
                    "ways to be counted: forbid fewer, or forbid whole values"
                )
            self.known[key] = self._count_block(block, rules)
        return self.known[key]

    def _count_block(self, block: int, rules: frozenset[Rule]) -> int:
        first, end = self.space.starts[block], self.space.starts[block + 1]
        mentioned = sorted({m for rule in rules for m in rule if first <= m < end})
        num_others = self.num_values[block] - len(mentioned)
        # (what is left of the rules, how many modules are chosen) -> in how many ways
        ways: dict[tuple[frozenset[Rule], int], int] = {(rules, 0): 1}
        for module in mentioned:
            longer: dict[tuple[frozenset[Rule], int], int] = {}
            for (left, size), number in ways.items():
                without = frozenset(rule for rule in left if module not in rule)
                with_it = frozenset(rule - {module} for rule in left)
                outcomes = [(without, size)]
                if size < self.space.capacities[block] and frozenset() not in with_it:
                    outcomes.append((with_it, size + 1))
                for outcome in outcomes:
                    longer[outcome] = longer.get(outcome, 0) + number
            ways = longer
        total = 0
        for (left, size), number in ways.items():
            num_ways = sum(
                math.comb(num_others, whole - size)
                for whole in self.space.sizes[block]
                if whole >= size
            )
            if num_ways:
                total += number * num_ways * self.count(block + 1, left)
        return total
