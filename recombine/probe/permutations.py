"""Draws of the permuted-label control: each combination receives another combination's value.

Each factor is permuted on its own, among the fitted combinations and among the held-out ones. In
every draw, each value's share of *samples* stays within 1% of its true share. A control without
this rule compares a rare value with a common one, and its accuracy drops for that reason alone.
"""

from __future__ import annotations

import numpy as np

MAX_SHARE_CHANGE = 0.01  # of the samples, for every value of a factor
NUM_BINS = 10  # numbers with more values than this keep the shares of as many quantile bins
MAX_SWAPS = 500  # swaps that repair the shares of one draw
NUM_ATTEMPTS = 10  # permutations to start a repair from
NUM_CANDIDATES = 64  # combinations of each value that are considered for a swap


def value_codes(values: np.ndarray) -> np.ndarray:
    """A number for every value, or for every quantile bin of a factor with many values."""
    distinct, codes = np.unique(values, return_inverse=True)
    if len(distinct) <= NUM_BINS or values.dtype.kind not in "fiub":
        return codes
    bounds = np.quantile(values, np.arange(1, NUM_BINS) / NUM_BINS)
    return np.searchsorted(bounds, values, side="right")


def draw_donors(
    codes: np.ndarray,
    sizes: np.ndarray,
    sides: np.ndarray,
    num_draws: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The combination whose value each combination receives: draws x combinations.

    `codes` has the value of each combination, `sizes` its number of samples, and `sides` true for
    held-out combinations.
    """
    donors = np.tile(np.arange(len(codes)), (num_draws, 1))
    for side in (False, True):
        members = np.flatnonzero(sides == side)
        if len(members) < 2:
            continue
        shares = _Shares(codes[members], sizes[members])
        for draw in range(num_draws):
            donors[draw, members] = members[shares.draw(rng)]
    return donors


def largest_share_change(
    codes: np.ndarray, sizes: np.ndarray, sides: np.ndarray, donors: np.ndarray
) -> float:
    """The largest change of any value's share of samples on either side, over all draws."""
    changes = [0.0]
    for side in (False, True):
        members = np.flatnonzero(sides == side)
        if len(members) > 1:
            shares = _Shares(codes[members], sizes[members])
            changes += [shares.change(codes[donor]) for donor in donors[:, members]]
    return max(changes)


class _Shares:
    """Permutations of the values of some combinations that keep every value's share of samples."""

    def __init__(self, codes: np.ndarray, sizes: np.ndarray):
        self.codes = codes
        self.sizes = sizes / sizes.sum()
        self.num_codes = int(codes.max()) + 1
        self.true_shares = np.bincount(codes, self.sizes, self.num_codes)

    def change(self, codes: np.ndarray) -> float:
        """The largest change of a share if the combinations have these values."""
        return float(np.abs(self._excess(codes)).max())

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """The combination that each combination receives its value from."""
        best = np.arange(len(self.codes))
        smallest_change = np.inf
        for _ in range(NUM_ATTEMPTS):
            order = rng.permutation(len(self.codes))
            change = self._repair(order, rng)
            if change < smallest_change:
                best = order
                smallest_change = change
            if change <= MAX_SHARE_CHANGE:
                break
        return best

    def _excess(self, codes: np.ndarray) -> np.ndarray:
        return np.bincount(codes, self.sizes, self.num_codes) - self.true_shares

    def _repair(self, order: np.ndarray, rng: np.random.Generator) -> float:
        """Swap values, in place, until every share is right; return the largest change left."""
        excess = self._excess(self.codes[order])
        for _ in range(MAX_SWAPS):
            change = float(np.abs(excess).max())
            if change <= MAX_SHARE_CHANGE:
                return change
            swap = self._best_swap(order, excess, rng)
            if swap is None:
                return change
            first, second = swap
            order[first], order[second] = order[second], order[first]
            excess = self._excess(self.codes[order])
        return float(np.abs(excess).max())

    def _best_swap(
        self, order: np.ndarray, excess: np.ndarray, rng: np.random.Generator
    ) -> tuple[int, int] | None:
        """Two combinations to swap: one of a value with too many samples, one with too few."""
        codes = self.codes[order]
        most, least = int(excess.argmax()), int(excess.argmin())
        firsts = _some(np.flatnonzero(codes == most), rng)
        seconds = _some(np.flatnonzero(codes == least), rng)
        if not len(firsts) or not len(seconds):
            return None
        moved = self.sizes[firsts][:, None] - self.sizes[seconds][None]
        left = np.maximum(np.abs(excess[most] - moved), np.abs(excess[least] + moved))
        best = int(left.argmin())
        if left.flat[best] >= max(excess[most], -excess[least]):
            return None
        row, column = np.unravel_index(best, left.shape)
        return int(firsts[row]), int(seconds[column])


def _some(members: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if len(members) <= NUM_CANDIDATES:
        return members
    return rng.choice(members, NUM_CANDIDATES, replace=False)
