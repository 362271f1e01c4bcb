"""The permuted-label control: the scores of probes whose factors belong to other combinations.

All draws are solved with the factorization of the probe itself. A factor that is constant within
every combination enters its draws by the sums of the combinations, not of the samples.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from recombine.probe.discriminant import Discriminant, discriminant
from recombine.probe.permutations import (
    MAX_SHARE_CHANGE,
    draw_donors,
    largest_share_change,
    value_codes,
)
from recombine.probe.ridge import LinearMap, Ridge
from recombine.probe.scores import NameSums, NumberSums
from recombine.probe.targets import Targets

NUM_SEEN_DRAWS = 20  # draws that are scored on seen combinations too
MAX_COLUMNS = 2048  # target columns that are solved at a time
MAX_SUMS = 1 << 28  # bytes of sums by combination


class FactorDraws(NamedTuple):
    """The draws of one factor."""

    donors: np.ndarray  # draws x combinations: where the value of a combination comes from
    by_combination: np.ndarray | None  # its targets, if they are constant in every combination


class Control:
    """The draws of all factors, the same for every layer."""

    def __init__(
        self,
        targets: Targets,
        y: np.ndarray,
        numbers: np.ndarray,
        held_out: np.ndarray,
        weights: np.ndarray,
        num_draws: int,
        seed: int,
        has_logits: list[bool],
    ):
        self.targets = targets
        self.has_logits = has_logits  # by factor: whether a discriminant analysis decodes it
        self.y = y
        self.numbers = numbers
        self.weights = weights
        self.num_draws = num_draws
        self.unbalanced: list[str] = []  # factors whose shares could not be kept
        sizes = np.bincount(numbers, weights)
        is_held_out = np.bincount(numbers, held_out) > 0
        first = np.unique(numbers, return_index=True)[1]
        self.first, self.position, self.count = _positions(numbers)
        self.order = np.lexsort((self.position, numbers))
        rng = np.random.default_rng([seed, 1])
        self.draws = []
        for factor in targets.factors:
            columns = y[:, factor.columns]
            of_first = columns[first]
            is_constant = bool((columns == of_first[numbers]).all())
            codes = of_first.argmax(axis=1) if factor.values else value_codes(of_first[:, 0])
            donors = draw_donors(codes, sizes, is_held_out, num_draws, rng)
            change = largest_share_change(codes, sizes, is_held_out, donors)
            if is_constant and change > MAX_SHARE_CHANGE:
                self.unbalanced.append(factor.name)
            self.draws.append(FactorDraws(donors, of_first if is_constant else None))

    def truth(self, factor: int, draws: slice, rows: np.ndarray) -> np.ndarray:
        """The permuted targets of some samples: draws x samples x columns."""
        donors, by_combination = self.draws[factor]
        of_rows = donors[draws][:, self.numbers[rows]]
        if by_combination is not None:
            return by_combination[of_rows]
        source = self.first[of_rows] + self.position[rows] % self.count[of_rows]
        return self.y[self.order[source], self.targets.factors[factor].columns]


def _positions(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each combination begins in sorted order, each sample's place in it, and the sizes."""
    count = np.bincount(numbers)
    position = pd.Series(numbers).groupby(numbers).cumcount().to_numpy()
    return np.cumsum(count) - count, position, count


class CombinationSums:
    """Sums of the features of every fitted combination, for one layer."""

    def __init__(self, ridge: Ridge, numbers: np.ndarray):
        num_combinations = int(numbers.max()) + 1
        width = len(ridge.total.x)
        self.count = np.zeros(num_combinations)
        self.fold = np.full(num_combinations, -1)
        self.sums = np.zeros((num_combinations, width))
        rows = np.flatnonzero(ridge.folds >= 0)
        rows = rows[np.argsort(numbers[rows], kind="stable")]
        self.fold[numbers[rows]] = ridge.folds[rows]
        np.add.at(self.count, numbers[rows], ridge.weights[rows])
        start = 0
        for h in ridge.blocks(rows):
            of_block = rows[start : start + len(h)]
            start += len(h)
            if not len(h):
                continue
            begins = np.flatnonzero(np.diff(numbers[of_block], prepend=-1))
            summed = np.add.reduceat(h * ridge.weights[of_block, None], begins)
            self.sums[numbers[of_block][begins]] += summed


def fits_in_memory(ridge: Ridge, numbers: np.ndarray) -> bool:
    """Whether the sums of all combinations are small enough to keep."""
    return 8 * (int(numbers.max()) + 1) * len(ridge.total.x) <= MAX_SUMS


class DrawFits(NamedTuple):
    """Some draws of one factor: a map from features to their columns, side by side."""

    of_features: LinearMap
    discriminant: Discriminant | None

    def outputs(self, h: np.ndarray, num_draws: int, is_named: bool) -> np.ndarray:
        """Numbers, or scores of every value: draws x samples x columns."""
        flat = h @ self.of_features.weights + self.of_features.constant
        by_draw = flat.reshape(len(h), num_draws, -1).transpose(1, 0, 2)
        discriminants = self.discriminant
        if discriminants is not None:
            centered = by_draw - discriminants.share[:, None]
            return centered @ discriminants.weights + discriminants.constant[:, None]
        if not is_named:
            return by_draw
        return np.concatenate([by_draw, 1 - by_draw.sum(axis=2, keepdims=True)], axis=2)


class ControlFits:
    """Fits the draws of the control on one layer, without some folds."""

    def __init__(self, control: Control, ridge: Ridge, without: frozenset[int]):
        self.control = control
        self.ridge = ridge
        self.without = without
        self.is_fitted = (ridge.folds >= 0) & ~np.isin(ridge.folds, list(without))
        self.sums: CombinationSums | None = None

    def chunks(self, factor: int, num_draws: int) -> list[slice]:
        """The first draws of a factor, cut so that one chunk fits in memory."""
        columns = self._num_columns(factor)
        step = max(1, MAX_COLUMNS // columns)
        return [slice(i, min(i + step, num_draws)) for i in range(0, num_draws, step)]

    def fit(self, factor: int, draws: slice, factorization: Any, penalty: float) -> DrawFits:
        """Fit these draws of a factor."""
        xy, y_sum = self._moments(factor, draws)
        fitted = self.ridge.solve(self.without, factorization, xy, y_sum)
        discriminants = None
        if self.control.has_logits[factor]:
            weights, cross, share = self.ridge.explained(fitted, self.without, xy, y_sum)
            shape = (len(weights), draws.stop - draws.start, self._num_columns(factor))
            by_draw = weights.reshape(shape).transpose(1, 2, 0)
            cross_by_draw = cross.reshape(shape).transpose(1, 0, 2)
            of_first = share.reshape(shape[1:])
            of_last = np.maximum(1 - of_first.sum(axis=1, keepdims=True), 0)
            discriminants = discriminant(
                by_draw @ cross_by_draw,
                by_draw @ by_draw.transpose(0, 2, 1),
                np.concatenate([of_first, of_last], axis=1),
                penalty,
            )
        low = LinearMap(fitted.weights.astype(np.float32), fitted.constant.astype(np.float32))
        return DrawFits(low, discriminants)

    def _num_columns(self, factor: int) -> int:
        values = self.control.targets.factors[factor].values
        return max(1, len(values) - 1)  # the probabilities of all values have the sum 1

    def _moments(self, factor: int, draws: slice) -> tuple[np.ndarray, np.ndarray]:
        by_combination = self.control.draws[factor].by_combination
        num_columns = self._num_columns(factor)
        if by_combination is None or not fits_in_memory(self.ridge, self.control.numbers):
            return self._moments_of_samples(factor, draws, num_columns)
        if self.sums is None:
            self.sums = CombinationSums(self.ridge, self.control.numbers)
        is_used = (self.sums.fold >= 0) & ~np.isin(self.sums.fold, list(self.without))
        donors = self.control.draws[factor].donors[draws][:, is_used]
        table = by_combination[:, :num_columns]
        values = table[donors].transpose(1, 0, 2).reshape(donors.shape[1], -1)
        return self.sums.sums[is_used].T @ values, self.sums.count[is_used] @ values

    def _moments_of_samples(
        self, factor: int, draws: slice, num_columns: int
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = np.flatnonzero(self.is_fitted)
        xy: Any = 0.0
        y_sum: Any = 0.0
        start = 0
        for h in self.ridge.blocks(rows):
            block = rows[start : start + len(h)]
            start += len(h)
            truth = self.control.truth(factor, draws, block)[..., :num_columns]
            values = truth.transpose(1, 0, 2).reshape(len(block), -1)
            values = values * self.ridge.weights[block, None]
            xy = xy + h.T @ values
            y_sum = y_sum + values.sum(axis=0)
        return xy, y_sum


class NullScores:
    """Sums over samples of every draw of every factor on one side, added probe by probe."""

    def __init__(self, targets: Targets, num_draws: int):
        self.targets = targets
        self.num_draws = num_draws
        self.sums: list[Any] = [
            np.zeros((2, num_draws, len(factor.values)))
            if factor.values
            else np.zeros((4, num_draws))
            for factor in targets.factors
        ]

    def add(
        self,
        factor: int,
        draws: slice,
        outputs: np.ndarray,
        truth: np.ndarray,
        weights: np.ndarray,
    ) -> None:
        """Add samples: outputs and truth of draws x samples x columns."""
        if self.targets.factors[factor].values:
            self._add_names(factor, draws, outputs, truth.argmax(axis=2), weights)
            return
        true = truth[..., 0]
        per_sample = (np.ones_like(true), (outputs[..., 0] - true) ** 2, true, true**2)
        self.sums[factor][:, draws] += np.stack([values @ weights for values in per_sample])

    def evidence(self) -> np.ndarray:
        """Balanced accuracy or R2 of every draw and factor: draws x factors."""
        return np.stack([_evidence(sums) for sums in self.sums], axis=1)

    def score(self) -> np.ndarray:
        """Accuracy or R2 of every draw and factor: draws x factors."""
        return np.stack([_score(sums) for sums in self.sums], axis=1)

    def _add_names(
        self,
        factor: int,
        draws: slice,
        outputs: np.ndarray,
        true: np.ndarray,
        weights: np.ndarray,
    ) -> None:
        decoded = outputs.argmax(axis=2)
        num_draws, num_samples = true.shape
        width = self.sums[factor].shape[2]
        cell = (np.arange(num_draws)[:, None] * width + true).ravel()
        repeated = np.broadcast_to(weights, (num_draws, num_samples)).ravel()
        is_hit = (decoded == true).ravel()
        for i, values in enumerate((repeated, repeated * is_hit)):
            summed = np.bincount(cell, values, num_draws * width)
            self.sums[factor][i, draws] += summed.reshape(num_draws, width)


def _evidence(sums: np.ndarray) -> np.ndarray:
    if sums.ndim == 3:
        return NameSums(*sums).balanced_accuracy
    return NumberSums(*sums).r2


def _score(sums: np.ndarray) -> np.ndarray:
    if sums.ndim == 3:
        return NameSums(*sums).accuracy
    return NumberSums(*sums).r2
