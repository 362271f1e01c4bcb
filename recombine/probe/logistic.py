"""Logistic regressions from one layer to every factor of names, all factors at once.

    argmin  mean_i -log p(value_i | z_i) + penalty_f v_f |W_f|^2 / 2,   z: standardized features

The penalty of a factor comes from its ridge path. v_f is the mean variance of the factor's one-hot
columns, so that both regressions shrink about equally. The optimizer is SciPy's L-BFGS, in
coordinates in which the features are uncorrelated: they come from the factorization of the ridge
regression, and a few dozen passes over the data suffice for any activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special

from recombine.probe.ridge import LinearMap, Ridge
from recombine.probe.targets import Factor

MAX_ITERATIONS = 150
TOLERANCE = 1e-5  # of the gradient of the mean loss
MAX_CACHED = 1 << 28  # bytes of features that are kept between passes


class _Parameters(NamedTuple):
    """Weights in uncorrelated coordinates (features x columns) and constants."""

    weights: np.ndarray
    constant: np.ndarray


class Logistic:
    """Logistic regressions of one layer to factors of names, without some folds."""

    def __init__(
        self,
        ridge: Ridge,
        without: frozenset[int],
        y: np.ndarray,
        factors: Sequence[Factor],
        penalties: Sequence[float],
    ):
        self.ridge = ridge
        self.system = ridge.system(without)
        self.rows = np.flatnonzero((ridge.folds >= 0) & ~np.isin(ridge.folds, list(without)))
        self.factors = list(factors)
        self.columns = _own_columns(self.factors)
        self.truth = np.concatenate([y[:, f.columns] for f in self.factors], axis=1)[self.rows]
        self.sample_weights = ridge.weights[self.rows] / ridge.weights[self.rows].sum()
        share = self.sample_weights @ self.truth
        variances = [(share[c] * (1 - share[c])).mean() for c in self.columns]
        self.column_scale = np.concatenate(
            [np.full(c.stop - c.start, v) for c, v in zip(self.columns, variances, strict=True)]
        )
        of_columns = [
            np.full(c.stop - c.start, penalty)
            for c, penalty in zip(self.columns, penalties, strict=True)
        ]
        self.decay = np.concatenate(of_columns) * self.column_scale
        self.start = np.log(np.clip(share, 1e-12, 1))
        self.factorization = ridge.factor(without, float(np.median(penalties)))
        size = len(self.rows) * len(self.system.mean) * 4
        self.cache = list(self._blocks()) if size <= MAX_CACHED else None

    def fit(self) -> LinearMap:
        """A map from the features of the ridge regression to the logits of all values."""
        width = len(self.start)
        num_features = len(self.system.mean)
        start = np.concatenate([np.zeros(num_features * width), self.start])
        solution = optimize.minimize(
            self._loss_and_gradient,
            start,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": MAX_ITERATIONS, "gtol": TOLERANCE, "maxcor": 20},
        )
        parameters = self._unpack(solution.x)
        weights = self._feature_weights(parameters)
        of_features = weights * self.system.inverse_scale[:, None]
        return LinearMap(of_features, parameters.constant - self.system.mean @ of_features)

    def _unpack(self, flat: np.ndarray) -> _Parameters:
        width = len(self.start)
        return _Parameters(flat[:-width].reshape(-1, width), flat[-width:])

    def _feature_weights(self, parameters: _Parameters) -> np.ndarray:
        algebra = self.ridge.algebra
        solved = algebra.half_solve(self.factorization, parameters.weights, transposed=True)
        return solved / np.sqrt(np.maximum(self.column_scale, 1e-6))

    def _blocks(self) -> Any:
        """Standardized features of the fitted samples, in float32."""
        mean = self.system.mean.astype(np.float32)
        scale = self.system.inverse_scale.astype(np.float32)
        for h in self.ridge.blocks(self.rows, np.float32):
            yield (h - mean) * scale

    def _loss_and_gradient(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        parameters = self._unpack(flat)
        weights = self._feature_weights(parameters)
        low = weights.astype(np.float32)
        loss = 0.5 * float((self.decay * weights**2).sum())
        of_weights = self.decay * weights
        of_constant = np.zeros(len(self.start))
        start = 0
        for z in self.cache or self._blocks():
            rows = slice(start, start + len(z))
            start += len(z)
            loss_of_block, residual = self._residual(z @ low + parameters.constant, rows)
            loss += loss_of_block
            of_weights += z.T @ residual.astype(np.float32)
            of_constant += residual.sum(axis=0)
        scaled = of_weights / np.sqrt(np.maximum(self.column_scale, 1e-6))
        of_weights = self.ridge.algebra.half_solve(self.factorization, scaled, transposed=False)
        return loss, np.concatenate([of_weights.ravel(), of_constant])

    def _residual(self, logits: np.ndarray, rows: slice) -> tuple[float, np.ndarray]:
        """The loss of some samples, and probabilities minus truth times the samples' weights."""
        residual = np.empty_like(logits)
        loss = 0.0
        weights = self.sample_weights[rows]
        for columns in self.columns:
            truth = self.truth[rows, columns]
            log_p = special.log_softmax(logits[:, columns], axis=1)
            loss -= float(weights @ (truth * log_p).sum(axis=1))
            residual[:, columns] = (np.exp(log_p) - truth) * weights[:, None]
        return loss, residual


def _own_columns(factors: Sequence[Factor]) -> list[slice]:
    columns = []
    start = 0
    for factor in factors:
        columns.append(slice(start, start + len(factor.values)))
        start += len(factor.values)
    return columns
