"""Confidence intervals over combinations: a combination is drawn, not a sample.

Accuracy and R2 have the variance of the jackknife over combinations. Balanced accuracy has the sum
of the variances within values; a value with few combinations has at least the pooled one. A share
gets the interval of a binomial share with the effective number of samples (Korn and Graubard 1998,
Survey Methodology 24), and R2 a t interval of log(1 - R2). Both stay valid for few combinations and
near the bounds of the scores, where the percentiles of a bootstrap are too narrow.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

LEVEL = 0.95


def share_interval(share: float, left_out: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The interval of a share, given the share without each combination in turn."""
    num = len(left_out)
    if num < 2 or np.isnan(share) or np.isnan(left_out).any():
        return np.nan, np.nan
    variance = (num - 1) / num * np.square(left_out - left_out.mean()).sum()
    return _interval_of_share(share, float(variance), num, num - 1, level)


def balanced_interval(
    count: np.ndarray, hits: np.ndarray, level: float = LEVEL
) -> tuple[float, float]:
    """The interval of balanced accuracy, from samples and hits of combinations x values."""
    total = count.sum(axis=0)
    occurs = total > 0
    count = count[:, occurs]
    hits = hits[:, occurs]
    total = total[occurs]
    num_values = len(total)
    num_of_value = (count > 0).sum(axis=0)
    freedom = int(num_of_value.sum()) - num_values
    if len(count) < 2 or freedom < 1:
        return np.nan, np.nan
    recall = hits.sum(axis=0) / total
    # Squared deviations of combinations, in units of a combination's mean share of the value.
    squared = np.square((hits - recall * count) * num_of_value / total)
    pooled = squared.sum() / freedom
    own = squared.sum(axis=0) / np.maximum(num_of_value - 1, 1)
    variance = (np.maximum(own, pooled) / num_of_value).sum() / num_values**2
    return _interval_of_share(float(recall.mean()), float(variance), len(count), freedom, level)


def _interval_of_share(
    share: float, variance: float, num: int, freedom: int, level: float
) -> tuple[float, float]:
    """The interval of a share with this variance over `num` combinations."""
    tail = (1 - level) / 2
    t_ratio = float(stats.norm.ppf(tail) / stats.t.ppf(tail, freedom)) ** 2
    # With hardly any mistakes (or hits) the variance says little about further combinations.
    spread = max(share * (1 - share), 0.0)
    effective = spread / variance * t_ratio if variance > 0 else num
    effective = min(max(effective, 1.0), _largest_effective(num, spread))
    hits = share * effective
    low = 0.0 if hits <= 0 else float(stats.beta.ppf(tail, hits, effective - hits + 1))
    high = 1.0 if hits >= effective else float(stats.beta.isf(tail, hits + 1, effective - hits))
    return min(low, share), max(high, share)


def r2_interval(r2: float, left_out: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The interval of an R2, given the R2 without each combination in turn."""
    num = len(left_out)
    if num < 2 or np.isnan(r2) or np.isnan(left_out).any():
        return np.nan, np.nan
    missed = max(1 - r2, np.finfo(float).tiny)
    logs = np.log(np.maximum(1 - left_out, np.finfo(float).tiny))
    deviation = np.sqrt((num - 1) / num * np.square(logs - logs.mean()).sum())
    width = float(stats.t.ppf((1 + level) / 2, num - 1)) * deviation
    return float(1 - missed * np.exp(width)), float(1 - missed * np.exp(-width))


def _largest_effective(num: int, spread: float) -> float:
    """A bound on the effective number of samples: that of the combinations where none is wrong."""
    return num * (1 + 99 * min(1.0, spread / 0.05))
