"""A small nonlinear probe: ridge regressions on products of a layer's principal components.

It decodes codes that no linear probe decodes, such as an exclusive or, a product or a magnitude.
Components are computed without the combinations that are scored.
"""

from __future__ import annotations

import numpy as np

from recombine.probe.layer_probe import Data, Evaluation, LayerFits, Scored, Scorer
from recombine.probe.ridge import Ridge

NUM_COMPONENTS = 24  # with their products, 24 + 24 * 25 / 2 = 324 features
NUM_ITERATIONS = 8  # of the subspace iteration that finds the components
OVERSAMPLING = 8
BLOCK_SAMPLES = 1 << 14


class NonlinearScorer:
    """Collects the predictions of the nonlinear probes of one layer, in the way of linear ones."""

    def __init__(self, data: Data):
        self.data = data._replace(penalties=data.penalties[::2])  # a coarser grid: half the time
        self.scorer = Scorer(data)

    def add(self, evaluation: Evaluation, linear: Ridge) -> None:
        """Fit the probes of one evaluation on the sums of the layer's linear regressions."""
        features = product_features(linear, evaluation.without)
        # The features depend on the folds that are left out, so they serve this evaluation only.
        fits = LayerFits(features, self.data)
        fits.is_wide = True
        self.scorer.add(evaluation, fits, use_logistic=False)

    def result(self) -> Scored:
        """Scores of all factors on both sides."""
        return self.scorer.result()


def product_features(ridge: Ridge, without: frozenset[int]) -> np.ndarray:
    """The first principal components of all samples, and their products: samples x features."""
    system = ridge.system(without)
    correlation = ridge.algebra.array(system.correlation)
    directions, values = _largest_eigenvectors(correlation, NUM_COMPONENTS)
    directions = directions * system.inverse_scale[:, None] / np.sqrt(values)
    offset = system.mean @ directions
    components = np.concatenate(
        [
            h @ directions - offset
            for h in (
                ridge.features(ridge.x[start : start + BLOCK_SAMPLES])
                for start in range(0, len(ridge.x), BLOCK_SAMPLES)
            )
        ]
    )
    first, second = np.triu_indices(components.shape[1])
    products = components[:, first] * components[:, second]
    return np.concatenate([components, products], axis=1).astype(np.float32)


def _largest_eigenvectors(matrix: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    """The first eigenvectors of a symmetric matrix, by subspace iteration if it is large."""
    width = len(matrix)
    if width <= 512:
        values, vectors = np.linalg.eigh(matrix)
    else:
        start = np.random.default_rng(0).normal(size=(width, num + OVERSAMPLING))
        basis = np.linalg.qr(start)[0]
        for _ in range(NUM_ITERATIONS):
            basis = np.linalg.qr(matrix @ basis)[0]
        values, small = np.linalg.eigh(basis.T @ matrix @ basis)
        vectors = basis @ small
    is_large = values > 1e-9 * max(values.max(initial=0.0), np.finfo(float).tiny)
    return vectors[:, is_large][:, -num:], values[is_large][-num:]
