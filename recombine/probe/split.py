"""Splits by combination, never by sample: folds of combinations, samples put aside, and factors that changed places."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require

EVERY = 5  # one sample in five of a combination is put aside, at least one


class Split(NamedTuple):
    """What every sample is there for."""

    folds: np.ndarray  # the fold of its combination; -1 where the user holds it out
    aside: (
        np.ndarray
    )  # whether no probe is fitted on it, although its combination is not held out: "seen"
    elsewhere: np.ndarray  # the sample of another combination, whose factors it gets in the control

    @property
    def fitted(self) -> np.ndarray:
        """The fold of every sample that probes are fitted on; -1 for the others."""
        return np.where(self.aside, -1, self.folds)


def split(
    combinations: np.ndarray, held: np.ndarray, num_folds: int, seed: int, names: list[str]
) -> Split:
    """Put combinations into folds, and some samples of each aside."""
    of_side = [np.unique(combinations[side]) for side in (~held, held)]
    both = np.intersect1d(of_side[0], of_side[1])
    if len(both):
        raise InputError(
            f"the combination {names[both[0]]!r} is held out in some samples and not in others"
        )
    train = of_side[0]
    told = f"{len(train)} combinations to fit on are too few for {num_folds} folds"
    require(len(train) >= num_folds, f"{told}: give more, or name fewer folds")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(combinations))
    position = np.empty(len(order), int)
    position[order] = pd.Series(combinations[order]).groupby(combinations[order]).cumcount()
    count = np.bincount(combinations)
    told = "every combination has one sample only, so that none is left to score seen combinations with"
    remedy = "give two or more of each, or name combinations where a factor differs in every sample"
    require(bool((count[train] > 1).any()), f"{told}: {remedy}")
    fold = np.full(len(count), -1)
    fold[rng.permutation(train)] = np.arange(len(train)) % num_folds
    aside = (position % EVERY == 0) & (count[combinations] > 1) & ~held
    return Split(fold[combinations], aside, _elsewhere(combinations, position, count, of_side, rng))


def _elsewhere(
    combinations: np.ndarray,
    position: np.ndarray,
    count: np.ndarray,
    of_side: list[np.ndarray],
    rng: np.random.Generator,
) -> np.ndarray:
    """For every sample one of another combination of its side, the same combination for all samples of one."""
    partner = np.arange(len(count))
    for side in of_side:
        ring = rng.permutation(side)
        partner[ring] = np.roll(ring, 1)
    by_combination = np.lexsort((position, combinations))
    first = np.cumsum(count) - count
    other = partner[combinations]
    return by_combination[first[other] + position % count[other]]
