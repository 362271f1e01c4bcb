"""Predict how much worse a model handles the missing combinations than after balanced training.

    drop = mean over the missing combinations of
               sum of rarity_drop(count of m) over the modules m of the combination
               + DROP_UNMIXED if it mixes groups, or else DROP_UNSPANNED if it is not spanned

The constants were measured on hyperteachers with M=16 and K=3 (docs/results: module_frequency and
support_conditions). Use the drop to compare combinations: its absolute size depends on the problem.

The count of a module is a number of combinations. A combination with fewer examples than the
reference number counts as the share that it has of it, and is missing by the rest.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from recombine.basics.random_streams import generator
from recombine.coverage.space import Space
from recombine.parts.conditions import ZERO_TOLERANCE, components, missing_directions

# The drop in R2, compared with balanced supports, by the number of train tasks with the module.
DROP_BY_COUNT = {1: 0.136, 2: 0.080, 4: 0.050, 8: 0.029, 16: 0.010, 32: 0.004}
DROP_ABSENT = 0.62  # for a module that no train task contains
DROP_UNMIXED = 0.32  # for a task that mixes groups which no train task mixes
DROP_UNSPANNED = 0.16  # for a pair outside the span of the train tasks, with drawn weights
MAX_LISTED = 20_000  # combinations from which the reachable directions are computed
NUM_COMPLETIONS = 8  # combinations of each module that are built, if there are too many to list
NUM_SAMPLED = 512  # combinations that estimate the unspanned fraction


def rarity_drop(counts: np.ndarray) -> np.ndarray:
    """The drop for modules that occur in `counts` combinations.

    It interpolates the measured values over log2(count), and falls as 1/count beyond the last one.
    Below one combination, it is linear between none and one.
    """
    positive = np.maximum(counts, 1)
    interpolated = np.interp(
        np.log2(positive), np.log2(list(DROP_BY_COUNT)), list(DROP_BY_COUNT.values())
    )
    drop = interpolated * np.minimum(1, max(DROP_BY_COUNT) / positive)
    fraction = np.clip(counts, 0, 1)
    return np.where(counts < 1, DROP_ABSENT + fraction * (DROP_BY_COUNT[1] - DROP_ABSENT), drop)


@dataclass(frozen=True, eq=False)
class Trained:
    """A train set, reduced to what the suggestions depend on."""

    space: Space
    counts: np.ndarray  # (modules,): the number of combinations that contain each module
    group: np.ndarray  # (modules,): the group of each module, linked by shared combinations
    unseen: np.ndarray  # (directions, modules): an orthonormal basis outside the train set's span
    num_unreachable: int = 0  # directions among `unseen` that no possible combination has

    @classmethod
    def of(
        cls, space: Space, cooccurrence: np.ndarray, counts: np.ndarray | None = None
    ) -> Trained:
        """The train set with this co-occurrence matrix (modules, modules).

        `counts` are those of its diagonal, unless some combinations count only in part.
        """
        group = np.zeros(len(cooccurrence), int)
        for number, members in enumerate(components(cooccurrence > 0)):
            group[members] = number
        counts = np.diag(cooccurrence).copy() if counts is None else counts
        unseen = missing_directions(cooccurrence).T
        if space.forbidden:
            num_unreachable = len(unseen) - _num_reachable(space, unseen)
        else:
            num_unreachable = space.num_modules - space.rank
        return cls(space, counts, group, unseen, num_unreachable)

    @property
    def num_missing_directions(self) -> int:
        """How many directions the space has and the train set lacks."""
        return len(self.unseen) - self.num_unreachable

    def groups(self) -> list[np.ndarray]:
        """The modules of each group, the largest group first."""
        members = [np.flatnonzero(self.group == number) for number in np.unique(self.group)]
        return sorted(members, key=len, reverse=True)

    def plus(self, code: np.ndarray, amount: float = 1.0) -> Trained:
        """The train set with one more combination, or with this share of the reference number."""
        modules = code[code >= 0]
        joined = self.group[modules]
        group = np.where(np.isin(self.group, joined), joined.min(), self.group)
        counts = self.counts + amount * np.isin(np.arange(len(self.counts)), modules)
        unseen_after = _remove_direction(self.unseen, self.unseen[:, modules].sum(1))
        return Trained(self.space, counts, group, unseen_after, self.num_unreachable)

    def adds_direction(self, codes: np.ndarray) -> np.ndarray:
        """Whether each combination is outside the span of the train set."""
        padded = np.pad(self.unseen, ((0, 0), (0, 1)))  # the padding -1 selects a column of zeros
        coordinates = np.sum([padded[:, column] for column in codes.T], axis=0)
        return np.any(np.abs(coordinates) > ZERO_TOLERANCE, axis=0)


def _num_reachable(space: Space, unseen: np.ndarray) -> int:
    """The number of unseen directions that combinations have that are not forbidden.

    In a large space, combinations are drawn at random, and some are built for each module.
    """
    if not len(unseen):
        return 0
    if space.num_possible <= MAX_LISTED:
        codes = np.array(list(space.combinations_of(np.arange(space.num_modules))), int)
    else:
        drawn = space.sample(generator(0, "directions"), MAX_LISTED)
        built = [
            code
            for module in range(space.num_modules)
            for code in itertools.islice(space.completions([module]), NUM_COMPLETIONS)
        ]
        codes = np.concatenate([drawn, np.array(built, int).reshape(-1, space.max_size)])
    codes = codes.reshape(-1, space.max_size)
    padded = np.pad(unseen, ((0, 0), (0, 1)))
    coordinates = np.sum([padded[:, column] for column in codes.T], axis=0)
    return int(np.linalg.matrix_rank(coordinates @ coordinates.T, tol=ZERO_TOLERANCE))


def _remove_direction(basis: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
    """An orthonormal basis without the direction that has these coordinates in the basis.

    A Householder reflection turns the direction to the first row, which is then dropped.
    """
    length = np.linalg.norm(coordinates)
    if length <= ZERO_TOLERANCE:
        return basis
    normal = coordinates / length
    normal = normal + np.copysign(np.eye(len(coordinates))[0], normal[0])
    normal /= np.linalg.norm(normal)
    return (basis - 2 * np.outer(normal, normal @ basis))[1:]


class ExpectedDrop:
    """The expected drop over the combinations that a table lacks, before and after additions.

    The mean is always over the combinations that are missing at the start.
    """

    def __init__(self, trained: Trained, num_present: float, present: np.ndarray | None = None):
        space = trained.space
        self.num_possible = space.num_possible
        self.num_missing = self.num_possible - num_present
        if self.num_missing <= ZERO_TOLERANCE:
            self.num_missing = 1
        # The fraction of the missing combinations that contain each module.
        num_present_with = (trained.counts if present is None else present).tolist()
        self.share = np.array(
            [
                max((possible - present) / self.num_missing, 0.0)
                for possible, present in zip(space.num_containing, num_present_with, strict=True)
            ]
        )
        self.sampled = space.sample(generator(0, "outlook"), NUM_SAMPLED)

    def __call__(self, trained: Trained) -> float:
        """The expected drop for this train set."""
        rare = float(self.share @ rarity_drop(trained.counts))
        unmixed = self._frac_unmixed(trained)
        unspanned = self._frac_unspanned(trained)
        return rare + DROP_UNMIXED * unmixed + DROP_UNSPANNED * unspanned

    def _frac_unmixed(self, trained: Trained) -> float:
        """The fraction of missing combinations that mix groups.

        Absent modules do not count as groups: their count already adds DROP_ABSENT.
        """
        absent = trained.counts == 0
        allowed = [
            (trained.group == number) | absent for number in np.unique(trained.group[~absent])
        ]
        space = trained.space
        num_pure = sum(space.num_within(modules) for modules in allowed)
        # Combinations of absent modules alone were counted once per group.
        num_pure -= (len(allowed) - 1) * space.num_within(absent)
        return (self.num_possible - num_pure) / self.num_missing

    def _frac_unspanned(self, trained: Trained) -> float:
        """The fraction of missing combinations outside the span that have no other fault.

        It is estimated from a random sample.
        """
        if not len(trained.unseen) or not len(self.sampled):
            return 0.0
        unspanned = trained.adds_direction(self.sampled) & self._is_pure(trained)
        frac_possible = float(unspanned.mean())
        return min(1.0, frac_possible * (self.num_possible / self.num_missing))

    def _is_pure(self, trained: Trained) -> np.ndarray:
        """Whether the modules of each sampled combination occur in the table and share a group."""
        padding = self.sampled < 0
        first = padding.argmin(axis=1)[:, None]  # the first place that is not empty
        first_group = trained.group[np.take_along_axis(self.sampled, first, axis=1)]
        group = np.where(padding, first_group, trained.group[self.sampled])
        one_group = (group == first_group).all(axis=1)
        present = ((trained.counts[self.sampled] > 0) | padding).all(axis=1)
        return one_group & present
