"""Splits by combination, never by sample: folds, reserved samples and permuted labels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require

RESERVE_EVERY = 5  # every fifth sample of a combination is reserved, at least one


class Split(NamedTuple):
    """The role of every sample."""

    folds: np.ndarray  # the fold of the sample's combination; -1 where the user holds it out
    # Whether no probe is fitted on the sample although its combination is fitted on. Reserved
    # samples give the "seen" scores.
    reserved: np.ndarray
    permuted: np.ndarray  # the sample whose factors this one gets in the permuted-label control

    @property
    def fit_folds(self) -> np.ndarray:
        """The fold of every sample that probes are fitted on; -1 for all other samples."""
        return np.where(self.reserved, -1, self.folds)

    def of_rows(self, groups: np.ndarray) -> Split:
        """The roles of rows of activations, which have those of their samples.

        The control of the first edition is not defined for rows.
        """
        return Split(self.folds[groups], self.reserved[groups], np.arange(len(groups)))


def split(
    combinations: np.ndarray, held_out: np.ndarray, num_folds: int, seed: int, names: list[str]
) -> Split:
    """Assign combinations to folds, reserve some samples of each, and permute labels.

    `combinations` has the number of each sample's combination, `names` the names by number.
    """
    train = np.unique(combinations[~held_out])
    test = np.unique(combinations[held_out])
    count = np.bincount(combinations)
    _check(train, test, count, num_folds, names)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(combinations))
    shuffled = combinations[order]
    position = np.empty(len(order), int)  # of a sample among those of its combination
    position[order] = pd.Series(shuffled).groupby(shuffled).cumcount()
    fold = np.full(len(count), -1)
    fold[rng.permutation(train)] = np.arange(len(train)) % num_folds
    several = count[combinations] > 1
    reserved = (position % RESERVE_EVERY == 0) & several & ~held_out
    permuted = _permuted(combinations, position, count, (train, test), rng)
    return Split(fold[combinations], reserved, permuted)


def _check(
    train: np.ndarray, test: np.ndarray, count: np.ndarray, num_folds: int, names: list[str]
) -> None:
    both = np.intersect1d(train, test)
    if len(both):
        raise InputError(
            f"the combination {names[both[0]]!r} is held out in some samples and not in others: "
            "hold out all of its samples or none"
        )
    require(
        len(train) >= num_folds,
        f"{len(train)} combinations to fit on are too few for {num_folds} folds: "
        "provide more combinations, or set fewer folds",
    )
    require(
        bool((count[train] > 1).any()),
        "every combination has only one sample, so none is left to score seen combinations: "
        "provide two or more samples of each, or name the combinations if a factor differs in "
        "every sample",
    )


def _permuted(
    combinations: np.ndarray,
    position: np.ndarray,
    count: np.ndarray,
    sides: tuple[np.ndarray, np.ndarray],
    rng: np.random.Generator,
) -> np.ndarray:
    """For every sample, one of another combination on the same side of the split.

    All samples of a combination get theirs from the same other combination.
    """
    partner = np.arange(len(count))
    for side in sides:
        ring = rng.permutation(side)
        partner[ring] = np.roll(ring, 1)
    by_combination = np.lexsort((position, combinations))
    first = np.cumsum(count) - count
    other = partner[combinations]
    return by_combination[first[other] + position % count[other]]
