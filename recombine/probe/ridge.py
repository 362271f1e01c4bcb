"""Ridge regressions from one layer to all targets, with any folds left out, in one pass.

    W = argmin sum_i |y_i - b - W z_i|^2 + penalty n |W|^2,   z = (h - mean) / deviation

Features are standardized inside every fit, with the mean and the deviation of its own samples.
Sums of products are stored per fold. To leave folds out, their sums are subtracted from the total:
no sample is visited twice, and all targets share one factorization per penalty.

If there are more features than samples, the regression is solved in the span of the samples, and
the deviations are those of all samples that the object may fit on. Memory: one matrix of features x
features per fold, and one block of samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from recombine.probe.algebra import Algebra
from recombine.probe.discriminant import discriminant

BLOCK_SAMPLES = 4096  # samples that are converted to float64 at a time
ROUNDING = 1e-12  # relative to the largest eigenvalue or diagonal: anything below is rounding
# A deviation below this many units of the type's precision, relative to the mean, is rounding.
MIN_DEVIATION = 4
PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
NO_FOLD: frozenset[int] = frozenset()


class LinearMap(NamedTuple):
    """A linear map in the model's own units: features x targets, and a constant per target."""

    weights: np.ndarray
    constant: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Samples x features to samples x targets."""
        starts = range(0, max(len(x), 1), BLOCK_SAMPLES)
        blocks = [x[start : start + BLOCK_SAMPLES] @ self.weights for start in starts]
        return np.concatenate(blocks) + self.constant


class Moments(NamedTuple):
    """Sums over samples: their number or weight, x and y, and the products x xᵀ and x yᵀ."""

    n: Any
    x: Any
    y: Any
    xx: Any
    xy: Any


class System(NamedTuple):
    """The normal equations of some folds, for standardized features."""

    n: float
    mean: np.ndarray  # of the features
    inverse_scale: np.ndarray  # 1 / deviation; 0 for features that never vary
    correlation: Any  # features x features, divided by the number of samples

    def cross(self, xy: np.ndarray, y_sum: np.ndarray) -> np.ndarray:
        """The right-hand side for targets with these sums: features x targets."""
        centered = xy - np.outer(self.mean, y_sum)
        return centered * self.inverse_scale[:, None] / self.n


class Ridge:
    """Ridge regressions of one layer.

    `folds` gives the fold of every sample, -1 for samples that are never fitted on, `weights` the
    weight of every sample. No fit of this object uses the folds `never`. For the columns `one_hot`
    of factors of names, maps give the logits of a discriminant analysis.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        folds: np.ndarray,
        weights: np.ndarray | None = None,
        never: frozenset[int] = NO_FOLD,
        algebra: Algebra | None = None,
        one_hot: Sequence[slice] = (),
    ):
        self.x = x
        self.precision = precision_of(x)
        self.one_hot = one_hot
        self.algebra = algebra or Algebra()
        self.weights = np.ones(len(x)) if weights is None else weights
        self.folds = np.where(np.isin(folds, list(never)), -1, folds)
        used = np.flatnonzero(self.folds >= 0)
        # Sums of products lose digits if the data is far from zero, so an estimated mean is
        # removed.
        self.shift = np.mean(x[used[:BLOCK_SAMPLES]], axis=0, dtype=float)
        self.is_wide = x.shape[1] > len(used)
        self.basis = _span(x, used, self.weights, self.shift) if self.is_wide else None
        self.fold_moments = [
            self._moments(y, np.flatnonzero(self.folds == fold)) for fold in range(folds.max() + 1)
        ]
        self.total = Moments._make(map(sum, zip(*self.fold_moments, strict=True)))
        self._last_system: tuple[frozenset[int], System] | None = None

    def features(self, x: np.ndarray, dtype: Any = float) -> np.ndarray:
        """The inputs of sums: activations minus the shift, or their coordinates in the span."""
        shifted = np.asarray(x, dtype) - self.shift.astype(dtype)
        return shifted if self.basis is None else shifted @ self.basis.astype(dtype)

    def moments(self, without: frozenset[int]) -> Moments:
        """The sums of all folds but these."""
        sums = list(self.total)
        for fold in without:
            sums = [total - part for total, part in zip(sums, self.fold_moments[fold], strict=True)]
        return Moments(*sums)

    def system(self, without: frozenset[int]) -> System:
        """The normal equations of all folds but these; the last one is kept."""
        if self._last_system is None or self._last_system[0] != without:
            self._last_system = None  # its memory is needed
            self._last_system = (without, self._make_system(self.moments(without)))
        return self._last_system[1]

    def factor(self, without: frozenset[int], penalty: float) -> Any:
        """The factorization of the normal equations of all folds but these."""
        return self.algebra.factor(self.system(without).correlation, penalty + ROUNDING)

    def solve(
        self, without: frozenset[int], factor: Any, xy: np.ndarray, y_sum: np.ndarray
    ) -> LinearMap:
        """Solve for targets with these sums: a map from `features` to targets."""
        system = self.system(without)
        weights = self.algebra.solve(factor, system.cross(xy, y_sum))
        weights *= system.inverse_scale[:, None]
        return LinearMap(weights, y_sum / system.n - system.mean @ weights)

    def fit(self, without: frozenset[int], penalties: Sequence[float]) -> list[LinearMap]:
        """Maps from `features` to all targets, one for each penalty."""
        of_y = self.moments_of_targets(without)
        maps = []
        for penalty in penalties:
            fitted = self.solve(without, self.factor(without, penalty), *of_y)
            maps.append(self._with_logits(fitted, without, of_y, penalty))
        return maps

    def explained(
        self, fitted: LinearMap, without: frozenset[int], xy: np.ndarray, y_sum: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Standardized weights and cross products of a map, and the mean of the targets."""
        system = self.system(without)
        scale = np.where(system.inverse_scale > 0, system.inverse_scale, 1)
        return fitted.weights / scale[:, None], system.cross(xy, y_sum), y_sum / system.n

    def _with_logits(
        self,
        fitted: LinearMap,
        without: frozenset[int],
        of_y: tuple[np.ndarray, np.ndarray],
        penalty: float,
    ) -> LinearMap:
        if not self.one_hot:
            return fitted
        weights, cross, share = self.explained(fitted, without, *of_y)
        new_weights = fitted.weights.copy()
        new_constant = fitted.constant.copy()
        for columns in self.one_hot:
            outputs = slice(columns.start, columns.stop - 1)
            w = weights[:, outputs]
            fitted_discriminant = discriminant(
                w.T @ cross[:, outputs], w.T @ w, share[columns], penalty
            )
            new_weights[:, columns] = fitted.weights[:, outputs] @ fitted_discriminant.weights
            centered = fitted.constant[outputs] - fitted_discriminant.share
            new_constant[columns] = (
                centered @ fitted_discriminant.weights + fitted_discriminant.constant
            )
        return LinearMap(new_weights, new_constant)

    def moments_of_targets(self, without: frozenset[int]) -> tuple[np.ndarray, np.ndarray]:
        """The sums x yᵀ and y of all folds but these."""
        xy = self.total.xy
        y = self.total.y
        for fold in without:
            xy = xy - self.fold_moments[fold].xy
            y = y - self.fold_moments[fold].y
        return xy, y

    def in_model_units(self, of_features: LinearMap) -> LinearMap:
        """A map from `features` as a map from activations."""
        weights = of_features.weights
        if self.basis is not None:
            weights = self.basis @ weights
        return LinearMap(weights, of_features.constant - self.shift @ weights)

    def predict(self, of_features: LinearMap, rows: np.ndarray) -> np.ndarray:
        """Apply a map from `features` to samples of the layer."""
        return np.concatenate([h @ of_features.weights for h in self.blocks(rows)]) + (
            of_features.constant
        )

    def blocks(self, rows: np.ndarray, dtype: Any = float) -> Iterator[np.ndarray]:
        """The features of some samples, block by block; at least one block."""
        for start in range(0, max(len(rows), 1), BLOCK_SAMPLES):
            yield self.features(self.x[rows[start : start + BLOCK_SAMPLES]], dtype)

    def _make_system(self, moments: Moments) -> System:
        n = float(moments.n)
        mean = moments.x / n
        if self.is_wide:  # the span is that of standardized features
            inverse_scale = np.ones(len(mean))
        else:
            variance = _diagonal(self.algebra, moments.xx) / n - mean**2
            inverse_scale = self._inverse_deviations(variance, mean)
        correlation = self.algebra.standardized(moments.xx, moments.x, inverse_scale, n)
        return System(n, mean, inverse_scale, correlation)

    def _inverse_deviations(self, variance: np.ndarray, mean: np.ndarray) -> np.ndarray:
        smallest = (MIN_DEVIATION * self.precision * np.abs(self.shift + mean)) ** 2
        smallest += ROUNDING * mean**2 + np.finfo(float).tiny
        varies = variance > smallest
        return np.where(varies, 1 / np.sqrt(np.where(varies, variance, 1)), 0.0)

    def _moments(self, y: np.ndarray, rows: np.ndarray) -> Moments:
        width = len(self.shift) if self.basis is None else self.basis.shape[1]
        total: list[Any] = [np.zeros(()), np.zeros(width), np.zeros(y.shape[1])]
        xx: Any = 0.0
        xy = np.zeros((width, y.shape[1]))
        for start in range(0, max(len(rows), 1), BLOCK_SAMPLES):
            block = rows[start : start + BLOCK_SAMPLES]
            h = self.features(self.x[block])
            weights = self.weights[block]
            target = y[block] * weights[:, None]
            total[0] = total[0] + weights.sum()
            total[1] += weights @ h
            total[2] += target.sum(axis=0)
            xy += h.T @ target
            xx = self.algebra.gram(h, weights) + xx
        return Moments(total[0], total[1], total[2], xx, xy)


def precision_of(x: np.ndarray) -> float:
    """The relative rounding error of the numbers in an array; 0 for whole numbers."""
    return float(np.finfo(x.dtype).eps) if x.dtype.kind == "f" else 0.0


def constant_features(ridge: Ridge) -> int:
    """The number of features that no fit can use, because they never vary."""
    if ridge.basis is not None:
        return int((np.abs(ridge.basis).max(axis=1, initial=0.0) == 0).sum())
    return int((ridge.system(NO_FOLD).inverse_scale == 0).sum())


def _diagonal(algebra: Algebra, matrix: Any) -> np.ndarray:
    return algebra.array(matrix.diagonal())


def _span(x: np.ndarray, used: np.ndarray, weights: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """A basis of the standardized samples, where there are fewer samples than features.

    The ridge solution lies in this span. Features x dimensions; a row is 0 for a feature that never
    varies.
    """
    share = weights[used] / weights[used].sum()
    centered = x[used] - shift
    centered -= share @ centered
    deviation = np.sqrt(share @ centered**2)
    varies = deviation > MIN_DEVIATION * precision_of(x) * np.abs(shift) + np.finfo(float).tiny
    inverse = np.where(varies, 1 / np.where(varies, deviation, 1), 0.0)
    centered *= inverse
    values, vectors = np.linalg.eigh(centered @ centered.T)
    nonzero = values > ROUNDING * max(values[-1], np.finfo(float).tiny)
    return inverse[:, None] * (centered.T @ (vectors[:, nonzero] / np.sqrt(values[nonzero])))
