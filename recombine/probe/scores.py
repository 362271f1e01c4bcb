"""Scores of one decoded factor, and their intervals over combinations.

A factor of names is scored by accuracy and by balanced accuracy, the mean over values of the share
that is decoded correctly. A factor of numbers is scored by R2.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from recombine.probe.intervals import LEVEL, balanced_interval, r2_interval, share_interval
from recombine.probe.targets import Factor

MIN_VARIANCE = 1e-12  # anything below is rounding


class NameSums(NamedTuple):
    """Samples and hits by value: the last axis is the value, the axes before are free."""

    total: np.ndarray
    hits: np.ndarray

    @property
    def accuracy(self) -> np.ndarray:
        """The share of samples that is decoded correctly."""
        return _ratio(self.hits.sum(axis=-1), self.total.sum(axis=-1))

    @property
    def balanced_accuracy(self) -> np.ndarray:
        """The mean of that share over the values that occur."""
        recall = np.where(self.total > 0, self.hits / np.where(self.total > 0, self.total, 1), 0)
        return _ratio(recall.sum(axis=-1), (self.total > 0).sum(axis=-1))


class NumberSums(NamedTuple):
    """Samples, squared errors, and sums of the true values and of their squares."""

    total: np.ndarray
    missed: np.ndarray
    first: np.ndarray
    second: np.ndarray

    @property
    def r2(self) -> np.ndarray:
        """R2; NaN where the true values do not vary."""
        count = np.where(self.total > 0, self.total, 1)
        spread = self.second - self.first**2 / count
        varies = spread > MIN_VARIANCE * count
        return np.where(varies, 1 - self.missed / np.where(varies, spread, 1), np.nan)


class FactorScores:
    """Scores of one factor on one side of the split.

    `predicted` and `y` are the factor's columns, `groups` the combination of every sample.
    """

    def __init__(
        self,
        factor: Factor,
        predicted: np.ndarray,
        y: np.ndarray,
        groups: np.ndarray,
        weights: np.ndarray,
    ):
        self.is_named = bool(factor.values)
        distinct, group = np.unique(groups, return_inverse=True)
        self.num_combinations = len(distinct)
        if self.is_named:
            self.sums = name_sums(predicted, y, group, self.num_combinations, weights)
        else:
            self.sums = _number_sums(predicted[:, 0], y[:, 0], group, weights)

    @property
    def measure(self) -> str:
        """The name of the score."""
        return "accuracy" if self.is_named else "r2"

    @functools.cached_property
    def score(self) -> float:
        """Accuracy or R2."""
        return float(self._total(self._score_of))

    @functools.cached_property
    def evidence(self) -> float:
        """Balanced accuracy or R2, which verdicts are about."""
        return float(self._total(self._evidence_of))

    @property
    def num_values(self) -> int:
        """The number of values of the factor that occur; 0 for numbers."""
        return int((self.sums.total.sum(axis=0) > 0).sum()) if self.is_named else 0

    def score_interval(self) -> tuple[float, float]:
        """The 95% interval of the score."""
        return self._interval(self.score, self._score_of, LEVEL)

    def evidence_interval(self, level: float = LEVEL) -> tuple[float, float]:
        """The interval of balanced accuracy or R2."""
        if isinstance(self.sums, NameSums):
            return balanced_interval(self.sums.total, self.sums.hits, level)
        return self._interval(self.evidence, self._evidence_of, level)

    def _interval(self, value: float, statistic, level: float) -> tuple[float, float]:
        left_out = statistic(self.sums._make(s.sum(axis=0) - s for s in self.sums))
        bounds = share_interval if self.is_named else r2_interval
        return bounds(value, left_out, level)

    def _total(self, statistic) -> float:
        return statistic(self.sums._make(s.sum(axis=0) for s in self.sums))

    def _score_of(self, sums) -> np.ndarray:
        return sums.accuracy if self.is_named else sums.r2

    def _evidence_of(self, sums) -> np.ndarray:
        return sums.balanced_accuracy if self.is_named else sums.r2


def score_of(factor: Factor, predicted: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    """Accuracy or R2 of one factor, without an interval."""
    return FactorScores(factor, predicted, y, np.zeros(len(y), int), weights).score


def name_sums(
    predicted: np.ndarray, y: np.ndarray, group: np.ndarray, num_groups: int, weights: np.ndarray
) -> NameSums:
    """Sums by group and value."""
    width = y.shape[1]
    truth = y.argmax(axis=1)
    is_hit = predicted.argmax(axis=1) == truth
    cell = group * width + truth
    shape = (num_groups, width)
    count = np.bincount(cell, weights, num_groups * width).reshape(shape)
    hits = np.bincount(cell, weights * is_hit, num_groups * width).reshape(shape)
    return NameSums(count, hits)


def _number_sums(
    predicted: np.ndarray, y: np.ndarray, group: np.ndarray, weights: np.ndarray
) -> NumberSums:
    centered = y - y.mean()
    per_sample = (np.ones(len(y)), (predicted - y) ** 2, centered, centered**2)
    return NumberSums._make(np.bincount(group, weights * values) for values in per_sample)


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1), np.nan)
