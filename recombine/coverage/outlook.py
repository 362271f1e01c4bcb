"""How much worse the combinations that a train set lacks are expected to be done than those of a balanced one.

    drop = mean over lacking combinations of  sum of rarity(count of m) over its modules m
                                              + UNMIXED if it mixes groups, or else UNSPANNED if it is not spanned

The numbers are the lab's, measured on hyperteachers with M=16 and K=3 (docs/results: module_frequency and
support_conditions). Their order is what is meant: how large drops are depends on what is learned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recombine.basics.random_streams import generator
from recombine.coverage.space import Space
from recombine.parts.conditions import NOTHING, components, unseen

# The drop in R2, against balanced supports, on tasks with modules that so many train tasks hold.
RARE = {1: 0.136, 2: 0.080, 4: 0.050, 8: 0.029, 16: 0.010, 32: 0.004}
ABSENT = 0.62  # that no train task holds
UNMIXED = 0.32  # on tasks that mix modules of groups which no train task mixes
UNSPANNED = 0.16  # on pairs outside the span of the train tasks, with drawn weights
NUM_DRAWN = 512  # combinations from which the share of unspanned ones is told, to some percent


def rarity(counts: np.ndarray) -> np.ndarray:
    """The measured drop for modules in so many combinations: along a logarithmic axis, then falling as 1/n."""
    known = np.maximum(counts, 1)
    drop = np.interp(np.log2(known), np.log2(list(RARE)), list(RARE.values())) * np.minimum(
        1, max(RARE) / known
    )
    return np.where(counts > 0, drop, ABSENT)


@dataclass(frozen=True, eq=False)
class Trained:
    """A set of combinations, as far as advice depends on it."""

    space: Space
    counts: np.ndarray  # combinations that hold each module
    group: np.ndarray  # each module's group, linked by shared combinations
    unseen: np.ndarray  # rows: directions in which no combination goes

    @classmethod
    def of(cls, space: Space, together: np.ndarray) -> Trained:
        """The train set whose combinations hold modules together so often."""
        group = np.zeros(len(together), int)
        for number, members in enumerate(components(together > 0)):
            group[members] = number
        return cls(space, np.diag(together).copy(), group, unseen(together).T)

    @property
    def lacking(self) -> int:
        """How many directions all combinations have and these do not."""
        return self.space.rank - (self.space.num_modules - len(self.unseen))

    def groups(self) -> list[np.ndarray]:
        """The modules of each group, the largest group first."""
        found = [np.flatnonzero(self.group == number) for number in np.unique(self.group)]
        return sorted(found, key=len, reverse=True)

    def plus(self, code: np.ndarray) -> Trained:
        """The train set with one combination more."""
        held = code[code >= 0]
        joined = np.where(np.isin(self.group, self.group[held]), self.group[held].min(), self.group)
        counts = self.counts + np.isin(np.arange(len(self.counts)), held)
        return Trained(
            self.space, counts, joined, _without(self.unseen, self.unseen[:, held].sum(1))
        )

    def outside(self, codes: np.ndarray) -> np.ndarray:
        """Whether each combination goes in an unseen direction."""
        padded = np.pad(self.unseen, ((0, 0), (0, 1)))  # -1 is the last column: nothing
        along = np.sum([padded[:, column] for column in codes.T], axis=0)
        return np.any(np.abs(along) > NOTHING, axis=0)


def _without(unseen: np.ndarray, along: np.ndarray) -> np.ndarray:
    """The directions that remain unseen when one with these coordinates is seen: turned to the first axis, and off."""
    length = np.linalg.norm(along)
    if length <= NOTHING:
        return unseen
    mirror = along / length
    mirror = mirror + np.copysign(np.eye(len(along))[0], mirror[0])
    mirror /= np.linalg.norm(mirror)
    return (unseen - 2 * np.outer(mirror, mirror @ unseen))[1:]


def _size(space: Space, kept: np.ndarray) -> int:
    """How many combinations there are of these modules only."""
    return space.size([int(np.count_nonzero(kept[block])) for block in space.blocks])


class Outlook:
    """The expected drop of the combinations that a table lacks now, as it stands and with some added."""

    def __init__(self, trained: Trained, num_present: int):
        space = trained.space
        self.total = space.size(list(map(len, space.blocks)))
        self.missing = max(self.total - num_present, 1)
        counts = trained.counts.astype(int).tolist()
        self.share = np.array(
            [(all_ - n) / self.missing for all_, n in zip(space.holding, counts, strict=True)]
        )
        self.drawn = space.draw(generator(0, "outlook"), NUM_DRAWN)

    def drop(self, trained: Trained) -> float:
        """The mean over the lacking combinations: for each of their modules, for being unmixed, or else unspanned."""
        absent, space = trained.counts == 0, trained.space
        # A module that is absent is told by its count: it makes no combination unmixed.
        joined = [
            (trained.group == number) | absent for number in np.unique(trained.group[~absent])
        ]
        pure = sum(_size(space, kept) for kept in joined) - (len(joined) - 1) * _size(space, absent)
        unspanned = (
            float((trained.outside(self.drawn) & self._pure(trained)).mean())
            if len(trained.unseen)
            else 0.0
        )
        rare = float(self.share @ rarity(trained.counts))
        unmixed, unspanned = (
            (self.total - pure) / self.missing,
            min(1.0, unspanned * (self.total / self.missing)),
        )
        return rare + UNMIXED * unmixed + UNSPANNED * unspanned

    def _pure(self, trained: Trained) -> np.ndarray:
        """Which of the drawn combinations have trained modules of one group only."""
        group = np.where(
            self.drawn >= 0, trained.group[self.drawn], trained.group[self.drawn[:, :1]]
        )
        return (group == group[:, :1]).all(axis=1) & (
            (trained.counts[self.drawn] > 0) | (self.drawn < 0)
        ).all(axis=1)
