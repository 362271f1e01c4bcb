"""Linear discriminant analysis from a ridge regression to one-hot columns.

A ridge regression alone masks values: if the values of a factor lie on a line, it never predicts
those in the middle. Its outputs still hold all that a linear classifier needs. Each value has a
normal distribution in the space of the outputs, with a shared covariance within values, and both
follow from the regression's own sums: no sample is visited again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MIN_WITHIN = 1e-7  # smallest eigenvalue of the covariance, relative to the total one
MIN_SHARE = 1e-12


class Discriminant(NamedTuple):
    """Logits of all values from the outputs of all but the last value; leading axes are free."""

    share: np.ndarray  # ... x outputs
    weights: np.ndarray  # ... x outputs x values
    constant: np.ndarray  # ... x values


def discriminant(
    explained: np.ndarray, squared: np.ndarray, share: np.ndarray, penalty: float
) -> Discriminant:
    """The discriminant of a ridge regression with weights W to all one-hot columns but the last.

    `explained` is Wᵀ C and `squared` is Wᵀ W (... x outputs x outputs), where C are the
    standardized cross products of features and columns. `share` is that of every value.
    """
    known = np.maximum(share, MIN_SHARE)
    of_first = explained / known[..., None, :-1]
    of_last = -explained.sum(axis=-1) / known[..., -1:]
    means = np.concatenate([of_first, of_last[..., None]], axis=-1)
    means = np.where(share[..., None, :] > MIN_SHARE, means, 0.0)
    total = explained - penalty * squared  # because (T + penalty) W = C
    within = total - (means * share[..., None, :]) @ np.swapaxes(means, -1, -2)
    values, vectors = np.linalg.eigh((within + np.swapaxes(within, -1, -2)) / 2)
    scale = np.trace(total, axis1=-2, axis2=-1)[..., None]
    floor = np.maximum(MIN_WITHIN * np.abs(scale), np.finfo(float).tiny ** 0.5)
    inverse = (vectors / np.maximum(values, floor)[..., None, :]) @ np.swapaxes(vectors, -1, -2)
    weights = inverse @ means
    constant = np.log(known) - 0.5 * (means * weights).sum(axis=-2)
    return Discriminant(share[..., :-1], weights, constant)
