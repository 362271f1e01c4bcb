"""The first edition of the probe, kept for the tables that were made with it.

Cells of experiments are identified by name, so their rows must not mix two kinds of probes. It
differs from the current one in this: features are not standardized for ridge regressions, all
factors of a layer share a penalty from a grid of five, logistic regressions have the penalty 1, and
the control is one exchange of factors between combinations. There are no verdicts. To see what a
current probe does on the same activations, leave `edition` out.

    W = argmin sum_i |y_i - b - W h_i|^2 + penalty n v |W|^2,   v: mean variance of the features
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import linalg
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from recombine.probe.layer_probe import evaluations
from recombine.probe.ridge import NO_FOLD, Moments
from recombine.probe.scores import FactorScores
from recombine.probe.split import Split
from recombine.probe.targets import Targets

BLOCK_SAMPLES = 4096  # samples that are converted to float64 at a time
ROUNDING = 1e-12  # relative to the largest eigenvalue or to the trace: anything below is rounding
MAX_ITERATIONS = 1000  # scikit-learn's default of 100 is too few for wide layers

Decoder = Callable[[np.ndarray], np.ndarray]  # samples x features -> samples x targets


class FirstLayerResult(NamedTuple):
    """The probe of one layer; errors are NaN for samples that the user holds out."""

    scores: pd.DataFrame
    decode: Decoder
    errors: np.ndarray
    is_misread: np.ndarray


def probe_layer(
    x: np.ndarray, y: np.ndarray, numbers: np.ndarray, roles: Split, targets: Targets, kind: str
) -> FirstLayerResult:
    """Fit and score the probe of one layer, `x` of samples x features.

    The control is fitted along with it, as further targets with permuted labels.
    """
    y_and_control = np.concatenate([y, y[roles.permuted]], axis=1)
    regression = _regression(x, y_and_control, roles, targets, kind)
    validation = _NestedCrossValidation(regression, x, y, roles.folds, targets)
    predicted = {
        "seen": np.full(y_and_control.shape, np.nan),
        "held out": np.full(y_and_control.shape, np.nan),
    }
    for evaluation in evaluations(roles):
        penalty = validation.best_penalty(evaluation.without)
        decode = validation.fit(evaluation.without, penalty)
        # The first edition had no samples to choose a penalty for seen combinations.
        seen = evaluation.seen if evaluation.without else roles.reserved
        for side, rows in (("held out", evaluation.held_out), ("seen", seen)):
            if rows.any():
                predicted[side][rows] = decode(x[rows])
    penalty = validation.best_penalty(NO_FOLD)
    left_out = validation.predict_left_out(NO_FOLD, penalty)
    return FirstLayerResult(
        scores=_scores(predicted, y_and_control, numbers, targets),
        decode=_OwnTargets(validation.fit(NO_FOLD, penalty), targets.width),
        errors=targets.errors(left_out, y).mean(axis=1),
        is_misread=targets.is_misread(left_out, y),
    )


class _OwnTargets:
    """A decoder without the targets of the control."""

    def __init__(self, decode: Decoder, width: int):
        self.decode = decode
        self.width = width

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.decode(x)[:, : self.width]


def _regression(
    x: np.ndarray, y_and_control: np.ndarray, roles: Split, targets: Targets, kind: str
) -> Any:
    if kind == "ridge":
        return RawRidge(x, y_and_control, roles.fit_folds)
    width = targets.width
    blocks = [factor.columns for factor in targets.factors]
    control_blocks = [slice(block.start + width, block.stop + width) for block in blocks]
    return FixedLogistic(x, y_and_control, roles.fit_folds, blocks + control_blocks)


def _scores(
    predicted: dict[str, np.ndarray],
    y_and_control: np.ndarray,
    numbers: np.ndarray,
    targets: Targets,
) -> pd.DataFrame:
    """Scores with intervals by factor and split, and scores of the permuted-label control."""
    rows = []
    for side, of_side in predicted.items():
        samples = ~np.isnan(of_side[:, 0])
        for factor in targets.factors:
            own, control = (
                FactorScores(
                    factor,
                    of_side[samples, start : start + factor.width],
                    y_and_control[samples, start : start + factor.width],
                    numbers[samples],
                    np.ones(int(samples.sum())),
                )
                for start in (factor.columns.start, factor.columns.start + targets.width)
            )
            interval = own.score_interval()
            rows.append((factor.name, side, own.measure, own.score, *interval, control.score))
    columns = ["factor", "split", "measure", "score", "low", "high", "shuffled"]
    return pd.DataFrame(rows, columns=columns)


class _NestedCrossValidation:
    """Fits one layer's regression without some folds, and chooses the penalty on those that remain.

    `y` has only the true targets; the regression may have further ones after them.
    """

    def __init__(
        self, regression: Any, x: np.ndarray, y: np.ndarray, folds: np.ndarray, targets: Targets
    ):
        self.fit = functools.cache(regression.fit)  # (folds left out, penalty) -> decoder
        self.penalties = regression.penalties
        self.x = x
        self.y = y
        self.folds = folds
        self.targets = targets

    def predict_left_out(self, without: frozenset[int], penalty: float) -> np.ndarray:
        """Decode every fold by a probe that was fitted without it and without the folds `without`.

        Samples of the folds `without` and samples in no fold (-1) are NaN.
        """
        predicted = np.full(self.y.shape, np.nan)
        for fold in range(self.folds.max() + 1):
            if fold not in without:
                rows = self.folds == fold
                decode = self.fit(without | {fold}, penalty)
                predicted[rows] = decode(self.x[rows])[:, : self.y.shape[1]]
        return predicted

    def best_penalty(self, without: frozenset[int]) -> float:
        """The penalty with the lowest cross-validated error on the remaining folds."""
        if len(self.penalties) == 1:
            return self.penalties[0]
        errors = []
        for penalty in self.penalties:
            predicted = self.predict_left_out(without, penalty)
            errors.append(np.nanmean(self.targets.errors(predicted, self.y)))
        return self.penalties[int(np.argmin(errors))]


class RawRidge:
    """Ridge regressions of one layer whose features are not standardized.

    `folds` gives the fold of every sample, -1 for samples that are never fitted on.
    """

    # Powers of ten around 1e-3, the penalty of the lab's own diagnostic (LinearDecodability).
    penalties = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)

    def __init__(self, x: np.ndarray, y: np.ndarray, folds: np.ndarray):
        used = np.flatnonzero(folds >= 0)
        # Sums of products lose digits if the data is far from zero, so an estimated mean is
        # removed.
        shift = np.mean(x[used[:BLOCK_SAMPLES]], axis=0, dtype=float)
        basis = _span(x[used] - shift) if x.shape[1] > len(used) else None
        self.features = functools.partial(_features, shift=shift, basis=basis)
        rows_by_fold = [np.flatnonzero(folds == fold) for fold in range(folds.max() + 1)]
        self.fold_moments = [self._moments(x, y, rows) for rows in rows_by_fold]
        self.total = Moments(*map(sum, zip(*self.fold_moments, strict=True)))
        self.width = x.shape[1]
        # Subtracting sums of identical samples leaves rounding errors: no penalty is below them.
        self.min_penalty = ROUNDING * np.trace(self.total.xx)

    def fit(self, without: frozenset[int], penalty: float) -> Decoder:
        """Fit on all folds except these; return a function from activations to targets."""
        left_out = [self.fold_moments[fold] for fold in without]
        n, x, y, xx, xy = (
            functools.reduce(np.subtract, sums) for sums in zip(self.total, *left_out, strict=True)
        )
        gram = xx - np.outer(x, x / n)
        scaled_penalty = max(penalty * np.trace(gram) / self.width, self.min_penalty)
        gram[np.diag_indices_from(gram)] += scaled_penalty or 1.0  # 0 only for a constant layer
        # Eigenvectors would serve all penalties at once, but for wide layers one eigendecomposition
        # takes longer than one Cholesky factorization per penalty.
        factor = linalg.cho_factor(gram, overwrite_a=True, check_finite=False)
        weights = linalg.cho_solve(factor, xy - np.outer(x, y / n), check_finite=False)
        constant = (y - x @ weights) / n
        features = self.features  # not self: the decoder must not keep the sums in memory
        return lambda new: _in_blocks(new, lambda block: features(block) @ weights + constant)

    def _moments(self, x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> Moments:
        d = self.features(x[:1]).shape[1]
        t = y.shape[1]
        total = Moments(np.zeros(()), np.zeros(d), np.zeros(t), np.zeros((d, d)), np.zeros((d, t)))
        for start in range(0, len(rows), BLOCK_SAMPLES):
            block = rows[start : start + BLOCK_SAMPLES]
            h = self.features(x[block])
            target = y[block]
            of_block = Moments(len(h), h.sum(axis=0), target.sum(axis=0), h.T @ h, h.T @ target)
            for sums, more in zip(total, of_block, strict=True):
                sums += more
        return total


def _features(x: np.ndarray, shift: np.ndarray, basis: np.ndarray | None) -> np.ndarray:
    centered = x - shift  # float64, because the shift is
    return centered if basis is None else centered @ basis


def _span(x: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the samples, where there are fewer samples than features.

    The ridge solution lies in this span.
    """
    values, vectors = np.linalg.eigh(x @ x.T)
    nonzero = values > ROUNDING * max(values[-1], np.finfo(float).tiny)
    return x.T @ (vectors[:, nonzero] / np.sqrt(values[nonzero]))


def _in_blocks(x: np.ndarray, decode: Decoder) -> np.ndarray:
    starts = range(0, max(len(x), 1), BLOCK_SAMPLES)
    return np.concatenate([decode(x[start : start + BLOCK_SAMPLES]) for start in starts])


class _FittedFactor(NamedTuple):
    """The probabilities of one factor, and the target columns that they fill."""

    columns: np.ndarray
    probabilities: Callable[[np.ndarray], np.ndarray]


class FixedLogistic:
    """Logistic regressions of one layer to blocks of one-hot columns; `folds` as for `Ridge`."""

    penalties = (1.0,)  # scikit-learn's default, and that of the paper's image probes

    def __init__(self, x: np.ndarray, y: np.ndarray, folds: np.ndarray, blocks: list[slice]):
        self.x = x
        self.folds = folds
        self.width = y.shape[1]
        self.classes = [(block.start, y[:, block].argmax(axis=1)) for block in blocks]

    def fit(self, without: frozenset[int], penalty: float) -> Decoder:
        """Fit on all folds except these; return a function from activations to probabilities."""
        rows = np.flatnonzero((self.folds >= 0) & ~np.isin(self.folds, list(without)))
        scaler = StandardScaler().fit(self.x[rows])
        scaled = np.asarray(scaler.transform(self.x[rows]))
        fitted = [
            _fit_factor(scaled, start, classes[rows], penalty) for start, classes in self.classes
        ]
        width = self.width  # not self: the decoder must not keep the activations in memory

        def decode(new: np.ndarray) -> np.ndarray:
            predicted = np.zeros((len(new), width))
            scaled_new = np.asarray(scaler.transform(new))
            for factor in fitted:
                predicted[:, factor.columns] = factor.probabilities(scaled_new)
            return predicted

        return decode


def _fit_factor(
    scaled: np.ndarray, start: int, classes: np.ndarray, penalty: float
) -> _FittedFactor:
    if len(np.unique(classes)) == 1:  # the folds that remain have only one value of this factor
        return _FittedFactor(start + classes[:1], lambda new: np.ones((len(new), 1)))
    model = LogisticRegression(C=1 / penalty, max_iter=MAX_ITERATIONS).fit(scaled, classes)
    return _FittedFactor(start + model.classes_, model.predict_proba)
