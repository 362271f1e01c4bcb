"""The probes of one layer: penalties by nested cross-validation, scored fits, and the control.

Costs are kept low in this way. Penalties come from ridge regressions: all targets share their
factorizations. Logistic regressions are fitted only where they are scored or returned, with the
factor's penalty. The control's draws are solved on the ridge path, and compared with ridge scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from recombine.probe.algebra import Algebra
from recombine.probe.control import NUM_SEEN_DRAWS, Control, ControlFits, DrawFits, NullScores
from recombine.probe.logistic import Logistic
from recombine.probe.ridge import (
    NO_FOLD,
    LinearMap,
    Ridge,
    constant_features,
)
from recombine.probe.scores import FactorScores
from recombine.probe.split import Split
from recombine.probe.targets import Targets

MIN_EDGE_GAIN = 0.01  # relative: a smaller gain at the edge of the grid is not worth a note
MAX_EDGE_ERROR = 0.95
MAX_ERROR_GAIN = 0.002  # 1 is the error of predicting the mean: a smaller gain changes no penalty
# Above it, shrinkage leaves little of a logistic regression. The discriminant analysis is kept.
MAX_LOGISTIC_PENALTY = 0.1
SIDES = ("seen", "held out")


class Data(NamedTuple):
    """What all layers share."""

    targets: Targets
    y: np.ndarray  # samples x target columns
    numbers: np.ndarray  # the combination of every sample
    roles: Split
    weights: np.ndarray
    control: Control | None
    is_logistic: list[bool]  # by factor
    penalties: tuple[float, ...]
    algebra: Algebra

    @property
    def one_hot(self) -> list[slice]:
        """The columns of the factors that are decoded by logits."""
        factors = zip(self.targets.factors, self.is_logistic, strict=True)
        return [factor.columns for factor, is_logistic in factors if is_logistic]

    def errors(self, outputs: np.ndarray, rows: Any) -> np.ndarray:
        """The error of every sample and factor, from decoded values and logits."""
        decoded = self.targets.probabilities(outputs, self.is_logistic)
        return self.targets.errors(decoded, self.y[rows])


class Evaluation(NamedTuple):
    """One probe to score: the folds that it is fitted without, and the samples that it scores.

    The best penalty for seen combinations is chosen on the samples `tuning`: a layer that
    memorizes combinations is decoded on them with little shrinkage, and elsewhere not at all.
    """

    without: frozenset[int]
    held_out: np.ndarray
    seen: np.ndarray
    tuning: np.ndarray

    def rows(self, side: str) -> np.ndarray:
        """The samples of one side, as indices."""
        return np.flatnonzero(self.held_out if side == "held out" else self.seen)


class Scored(NamedTuple):
    """Scored probes of one layer or of its nonlinear features."""

    scores: dict[str, list[FactorScores | None]]  # by side, then factor
    ridge_evidence: dict[str, np.ndarray]  # by side: that of the ridge regression, by factor
    nulls: dict[str, NullScores]  # by side: the control


class LayerResult(NamedTuple):
    """The probes of one layer. `errors` is NaN for samples that the user holds out."""

    scored: Scored
    decode: LinearMap  # logits of logistic factors, otherwise decoded values
    ridge_decode: LinearMap  # all factors by ridge regression
    errors: np.ndarray  # of every sample, decoded by a ridge regression without its combination
    is_misread: np.ndarray
    factor_errors: np.ndarray  # the mean of these errors by factor
    penalties: np.ndarray  # by factor
    is_at_edge: np.ndarray  # whether a penalty beyond the grid may be better, by factor
    num_constant: int


def evaluations(roles: Split) -> Iterator[Evaluation]:
    """The probes to score: one if the user holds samples out, otherwise one per fold.

    Each fold is held out once. Its samples that no probe is fitted on are scored as seen once, by
    the probe that holds out the fold before.
    """
    held_out = roles.folds == -1
    num_folds = roles.folds.max() + 1
    if held_out.any():
        tuning = roles.reserved & (roles.folds == 0)
        yield Evaluation(NO_FOLD, held_out, roles.reserved & ~tuning, tuning)
        return
    for fold in range(num_folds):
        seen = roles.reserved & (roles.folds == (fold + 1) % num_folds)
        tuning = roles.reserved & (roles.folds == (fold + 2) % num_folds)
        yield Evaluation(frozenset({fold}), roles.folds == fold, seen, tuning)


class LayerFits:
    """Fits of one layer without any folds, with penalties chosen on the folds that remain."""

    def __init__(self, x: np.ndarray, data: Data):
        self.x = x
        self.data = data
        self.folds = range(data.roles.folds.max() + 1)
        self.is_wide = x.shape[1] > (data.roles.fit_folds >= 0).sum() * 0.8
        self._ridges: dict[frozenset[int], Ridge] = {}
        self._errors: dict[Any, np.ndarray] = {}

    def ridge(self, without: frozenset[int]) -> Ridge:
        """The regressions that may leave out these folds, and one more.

        A wide layer is standardized over all samples that are used, so that it needs its own object
        for every set of folds that is scored.
        """
        key = without if self.is_wide else NO_FOLD
        if key not in self._ridges:
            self._ridges.clear()
            data = self.data
            self._ridges[key] = Ridge(
                self.x, data.y, data.roles.fit_folds, data.weights, key, data.algebra, data.one_hot
            )
        return self._ridges[key]

    def penalty_errors(self, without: frozenset[int]) -> np.ndarray:
        """Cross-validated errors on the folds that remain: penalties x factors."""
        remaining = [fold for fold in self.folds if fold not in without]
        total = np.zeros((len(self.data.penalties), len(self.data.targets.factors)))
        for fold in remaining:
            total += self._errors_of_fold(without, fold)
        self._errors = {key: value for key, value in self._errors.items() if not self.is_wide}
        weight = self.data.weights[np.isin(self.data.roles.folds, remaining)].sum()
        return total / weight

    def penalties(self, without: frozenset[int]) -> np.ndarray:
        """The best penalty of every factor by cross-validation."""
        return self.best_penalties(self.penalty_errors(without))

    def best_penalties(self, errors: np.ndarray) -> np.ndarray:
        """The penalty of every factor with the lowest of these errors (penalties x factors).

        For logits it is the smallest penalty that is nearly as good: scaling the weights does not
        change a discriminant analysis, but a logistic regression suffers from needless shrinkage.
        """
        is_near = errors <= errors.min(axis=0) + MAX_ERROR_GAIN
        best_index = np.where(self.data.is_logistic, is_near.argmax(axis=0), errors.argmin(axis=0))
        return np.array(self.data.penalties)[best_index]

    def seen_penalties(
        self, evaluation: Evaluation, penalties: np.ndarray, ridge: Ridge
    ) -> np.ndarray:
        """The best penalties for seen combinations; the given ones where they are as good."""
        data = self.data
        rows = np.flatnonzero(evaluation.tuning)
        if not len(rows):
            return penalties
        maps = ridge.fit(evaluation.without, data.penalties)
        errors = self._summed_errors(ridge, _stacked(maps), rows)
        penalty_index = np.searchsorted(data.penalties, penalties)
        errors = errors / data.weights[rows].sum()
        present_errors = errors[penalty_index, np.arange(len(penalty_index))]
        is_as_good = present_errors <= errors.min(axis=0) + MAX_ERROR_GAIN
        return np.where(is_as_good, penalties, self.best_penalties(errors))

    def ridge_map(self, without: frozenset[int], penalties: np.ndarray, ridge: Ridge) -> LinearMap:
        """Ridge regressions with a penalty per factor, as a map from the ridge's features."""
        columns = self._penalty_of_columns(penalties)
        distinct = np.unique(columns)
        maps = ridge.fit(without, [float(penalty) for penalty in distinct])
        weights = np.empty_like(maps[0].weights)
        constant = np.empty_like(maps[0].constant)
        for penalty, fitted in zip(distinct, maps, strict=True):
            is_used = columns == penalty
            weights[:, is_used] = fitted.weights[:, is_used]
            constant[is_used] = fitted.constant[is_used]
        return LinearMap(weights, constant)

    def scored_map(
        self,
        without: frozenset[int],
        penalties: np.ndarray,
        ridge: Ridge,
        of_ridge: LinearMap,
        known: LinearMap | None = None,
        is_new: np.ndarray | None = None,
    ) -> LinearMap:
        """The same, with logits of logistic regressions for the factors that have them.

        Factors that are not `is_new` take theirs from the map `known`.
        """
        weights = of_ridge.weights.copy()
        constant = of_ridge.constant.copy()
        chosen = []
        for i, factor in enumerate(self.data.targets.factors):
            if known is not None and is_new is not None and not is_new[i]:
                weights[:, factor.columns] = known.weights[:, factor.columns]
                constant[factor.columns] = known.constant[factor.columns]
            elif self.data.is_logistic[i] and penalties[i] <= MAX_LOGISTIC_PENALTY:
                chosen.append(i)
        if chosen:
            factors = [self.data.targets.factors[i] for i in chosen]
            logistic = Logistic(ridge, without, self.data.y, factors, list(penalties[chosen]))
            columns = np.concatenate([np.r_[factor.columns] for factor in factors])
            fitted = logistic.fit()
            weights[:, columns] = fitted.weights
            constant[columns] = fitted.constant
        return LinearMap(weights, constant)

    def _errors_of_fold(self, without: frozenset[int], fold: int) -> np.ndarray:
        """Summed errors on a fold of regressions without it: penalties x factors."""
        left_out = without | {fold}
        key = (left_out, fold)
        if key not in self._errors:
            ridge = self.ridge(without)
            stacked = _stacked(ridge.fit(left_out, self.data.penalties))
            # Another probe that is scored needs the errors of the same regressions.
            wanted = [fold] if self.is_wide else sorted(left_out)
            for each in wanted:
                rows = np.flatnonzero(self.data.roles.folds == each)
                self._errors[left_out, each] = self._summed_errors(ridge, stacked, rows)
        return self._errors[key]

    def _summed_errors(self, ridge: Ridge, stacked: LinearMap, rows: np.ndarray) -> np.ndarray:
        data = self.data
        shape = (len(rows), len(data.penalties), data.targets.width)
        predicted = ridge.predict(stacked, rows).reshape(shape)
        weights = data.weights[rows]
        return np.stack([weights @ data.errors(predicted[:, i], rows) for i in range(shape[1])])

    def _penalty_of_columns(self, penalties: np.ndarray) -> np.ndarray:
        widths = [f.columns.stop - f.columns.start for f in self.data.targets.factors]
        return np.repeat(penalties, widths)


class Scorer:
    """Collects the predictions of all scored probes of one layer, and the control's scores."""

    def __init__(self, data: Data):
        self.data = data
        shape = (len(SIDES), *data.y.shape)
        self.predicted = np.full(shape, np.nan)
        self.of_ridge = np.full(shape, np.nan)
        num_draws = 0 if data.control is None else data.control.num_draws
        draws = {"held out": num_draws, "seen": min(num_draws, NUM_SEEN_DRAWS)}
        self.nulls = {side: NullScores(data.targets, draws[side]) for side in SIDES}

    def add(self, evaluation: Evaluation, fits: LayerFits, use_logistic: bool = True) -> None:
        """Fit the probes of one evaluation and add their predictions and their control."""
        without = evaluation.without
        held_out = fits.penalties(without)
        ridge = fits.ridge(without)
        seen = fits.seen_penalties(evaluation, held_out, ridge)
        known: LinearMap | None = None
        for side, penalties in (("held out", held_out), ("seen", seen)):
            rows = evaluation.rows(side)
            if not len(rows):
                continue
            of_ridge = fits.ridge_map(without, penalties, ridge)
            scored = of_ridge
            if use_logistic:
                is_new = np.ones(len(held_out), bool) if known is None else penalties != held_out
                scored = fits.scored_map(without, penalties, ridge, of_ridge, known, is_new)
            known = scored
            side_index = SIDES.index(side)
            self.of_ridge[side_index, rows] = ridge.predict(of_ridge, rows)
            self.predicted[side_index, rows] = ridge.predict(scored, rows)
            if self.data.control is not None:
                self._add_control(evaluation, ridge, penalties, side)

    def result(self) -> Scored:
        """Scores of all factors on both sides."""
        scores: dict[str, list[FactorScores | None]] = {}
        evidence = {}
        for i, side in enumerate(SIDES):
            scores[side] = self._scores(self.predicted[i])
            of_ridge = self._scores(self.of_ridge[i])
            evidence[side] = np.array([np.nan if s is None else s.evidence for s in of_ridge])
        return Scored(scores, evidence, self.nulls)

    def _scores(self, predicted: np.ndarray) -> list[FactorScores | None]:
        data = self.data
        rows = np.flatnonzero(~np.isnan(predicted[:, 0]))
        if not len(rows):
            return [None] * len(data.targets.factors)
        return [
            FactorScores(
                factor,
                predicted[rows, factor.columns],
                data.y[rows, factor.columns],
                data.numbers[rows],
                data.weights[rows],
            )
            for factor in data.targets.factors
        ]

    def _add_control(
        self, evaluation: Evaluation, ridge: Ridge, penalties: np.ndarray, side: str
    ) -> None:
        """Fit and score the draws of the control with the penalties of one side."""
        control: Any = self.data.control
        num_draws = self.nulls[side].num_draws
        fits = ControlFits(control, ridge, evaluation.without)
        for penalty in np.unique(penalties):
            factorization = ridge.factor(evaluation.without, float(penalty))
            for factor in map(int, np.flatnonzero(penalties == penalty)):
                for draws in fits.chunks(factor, num_draws):
                    fitted = fits.fit(factor, draws, factorization, float(penalty))
                    self._score_draws(ridge, factor, draws, fitted, evaluation.rows(side), side)

    def _score_draws(
        self,
        ridge: Ridge,
        factor: int,
        draws: slice,
        fitted: DrawFits,
        rows: np.ndarray,
        side: str,
    ) -> None:
        control: Any = self.data.control
        num_draws = draws.stop - draws.start
        is_named = bool(self.data.targets.factors[factor].values)
        start = 0
        for h in ridge.blocks(rows, np.float32):
            block = rows[start : start + len(h)]
            start += len(h)
            outputs = fitted.outputs(h, num_draws, is_named)
            truth = control.truth(factor, draws, block)
            self.nulls[side].add(factor, draws, outputs, truth, self.data.weights[block])


def probe_layer(
    x: np.ndarray,
    data: Data,
    add_nonlinear: Callable[[Evaluation, Ridge], None] | None = None,
) -> LayerResult:
    """Fit and score the probes of one layer, `x` of samples x features.

    `add_nonlinear` fits further probes of an evaluation, from the sums of the linear ones.
    """
    fits = LayerFits(x, data)
    scorer = Scorer(data)
    for evaluation in evaluations(data.roles):
        scorer.add(evaluation, fits)
        if add_nonlinear is not None:
            add_nonlinear(evaluation, fits.ridge(evaluation.without))
    errors = fits.penalty_errors(NO_FOLD)
    penalties = fits.best_penalties(errors)
    ridge = fits.ridge(NO_FOLD)
    left_out = _left_out(fits, ridge, penalties)
    errors_of_samples = data.errors(left_out, slice(None))
    of_ridge = fits.ridge_map(NO_FOLD, penalties, ridge)
    scored = fits.scored_map(NO_FOLD, penalties, ridge, of_ridge)
    return LayerResult(
        scored=scorer.result(),
        decode=ridge.in_model_units(scored),
        ridge_decode=ridge.in_model_units(of_ridge),
        errors=errors_of_samples.mean(axis=1),
        factor_errors=np.nanmean(errors_of_samples, axis=0),
        is_misread=data.targets.is_misread(left_out, data.y),
        penalties=penalties,
        is_at_edge=is_at_edge(errors),
        num_constant=constant_features(ridge),
    )


def _left_out(fits: LayerFits, ridge: Ridge, penalties: np.ndarray) -> np.ndarray:
    """Decode every fold by ridge regressions without it; held-out samples are NaN."""
    data = fits.data
    predicted = np.full(data.y.shape, np.nan)
    for fold in fits.folds:
        rows = np.flatnonzero(data.roles.folds == fold)
        of_ridge = fits.ridge_map(frozenset({fold}), penalties, ridge)
        predicted[rows] = ridge.predict(of_ridge, rows)
    return predicted


def _stacked(maps: list[LinearMap]) -> LinearMap:
    """Several maps side by side."""
    return LinearMap(
        np.concatenate([fitted.weights for fitted in maps], axis=1),
        np.concatenate([fitted.constant for fitted in maps]),
    )


def is_at_edge(errors: np.ndarray) -> np.ndarray:
    """Whether the error still falls at the edge of the grid: errors of penalties x factors."""
    if len(errors) < 2:
        return np.zeros(errors.shape[1], bool)
    is_missed = errors[0] > MAX_ERROR_GAIN
    falls_at_start = is_missed & (errors[0] < (1 - MIN_EDGE_GAIN) * errors[1])
    is_decoded = errors[-1] < MAX_EDGE_ERROR  # 1 is the error of predicting the mean
    falls_at_end = is_decoded & (errors[-1] < (1 - MIN_EDGE_GAIN) * errors[-2])
    best = errors.argmin(axis=0)
    return np.where(best == 0, falls_at_start, (best == len(errors) - 1) & falls_at_end)
