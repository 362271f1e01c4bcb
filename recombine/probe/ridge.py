"""Ridge regressions from one layer to all targets, for any folds left out, from one pass over the activations.

    W = argmin sum_i |y_i - b - W h_i|^2 + penalty n v |W|^2,   v the layer's mean variance over the n samples

Sums of products are kept per fold. They add up, so to leave folds out is to subtract theirs: no sample is read twice,
and all targets share one factorisation. Memory: a matrix of features x features per fold, and one block of samples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import linalg

BLOCK = 4096  # samples that are turned into float64 at a time
FLAT = 1e-12  # of the largest eigenvalue, or of all: below it there is nothing but rounding

Reading = Callable[[np.ndarray], np.ndarray]  # activations -> what is read of every target


Moments = list[
    Any
]  # of some samples: their number, sums of x and of y, sums of the products xx and xy


class Ridge:
    """Ridge regressions of one layer; `folds` has the fold of every sample, -1 where it is not to be fitted on."""

    # Decades around the lab's own probe (LinearDecodability), 1e-3.
    penalties = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)

    def __init__(self, x: np.ndarray, y: np.ndarray, folds: np.ndarray):
        used = np.flatnonzero(folds >= 0)
        shift = np.mean(
            x[used[:BLOCK]], axis=0, dtype=float
        )  # sums of products lose digits far from zero
        basis = _span(x[used] - shift) if x.shape[1] > len(used) else None
        self.features = functools.partial(_features, shift=shift, basis=basis)
        rows = [np.flatnonzero(folds == fold) for fold in range(folds.max() + 1)]
        self.parts = [self._moments(x, y, of_fold) for of_fold in rows]
        self.whole = [sum(parts) for parts in zip(*self.parts, strict=True)]
        self.width = x.shape[1]
        self.least = FLAT * np.trace(
            self.whole[3]
        )  # what sums that are subtracted leave of samples that are all alike

    def fit(self, without: frozenset[int], penalty: float) -> Reading:
        """What reads the targets from activations, fitted on all folds but these."""
        left = [self.whole, *(self.parts[fold] for fold in without)]
        n, x, y, xx, xy = (
            functools.reduce(np.subtract, moments) for moments in zip(*left, strict=True)
        )
        gram = xx - np.outer(x, x / n)
        weight = (
            max(penalty * np.trace(gram) / self.width, self.least) or 1.0
        )  # 1 where a layer never changes
        gram[np.diag_indices_from(gram)] += weight
        # Not eigenvectors, which would serve all penalties: at 4,096 features they take longer than five of these.
        factor = linalg.cho_factor(gram, overwrite_a=True, check_finite=False)
        weights = linalg.cho_solve(factor, xy - np.outer(x, y / n), check_finite=False)
        constant = (y - x @ weights) / n
        features = self.features  # and not self: what reads must not keep all sums alive
        return lambda new: _blocks(new, lambda block: features(block) @ weights + constant)

    def _moments(self, x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> Moments:
        d, t = self.features(x[:1]).shape[1], y.shape[1]
        total = [np.zeros(()), np.zeros(d), np.zeros(t), np.zeros((d, d)), np.zeros((d, t))]
        for start in range(0, len(rows), BLOCK):
            part = rows[start : start + BLOCK]
            h, to = self.features(x[part]), y[part]
            for sums, more in zip(
                total, (len(h), h.sum(axis=0), to.sum(axis=0), h.T @ h, h.T @ to), strict=True
            ):
                sums += more
        return total


def _features(x: np.ndarray, shift: np.ndarray, basis: np.ndarray | None) -> np.ndarray:
    centred = x - shift  # float64, as the shift is
    return centred if basis is None else centred @ basis


def _span(x: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the few samples of many features: no ridge solution has a part outside it."""
    values, vectors = np.linalg.eigh(x @ x.T)
    kept = values > FLAT * max(values[-1], np.finfo(float).tiny)
    return x.T @ (vectors[:, kept] / np.sqrt(values[kept]))


def _blocks(x: np.ndarray, read: Reading) -> np.ndarray:
    return np.concatenate(
        [read(x[start : start + BLOCK]) for start in range(0, max(len(x), 1), BLOCK)]
    )
