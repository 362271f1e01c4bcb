"""Intervals over seeds, rank statistics, and the number of tasks a target score needs.

Runs of one seed share their teacher and their split, so all rows of a seed stay together and
comparisons within a seed stay paired. From `MIN_BOOTSTRAP_SEEDS` seeds on, an interval is the 95%
bootstrap interval, which draws whole seeds with replacement. Fewer seeds give a range: the smallest
and the largest value of the statistic on the rows of a single seed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

LEVELS = (0.025, 0.975)  # quantiles of the bootstrap that bound the 95% interval
MIN_SEEDS = 3  # with fewer seeds no claim is judged
MIN_BOOTSTRAP_SEEDS = 8  # with fewer seeds an interval is a range
NUM_DRAWS = 300
NUM_DRAWS_OF_MEAN = 2000
RANGE = "range over seeds"
RANGE_WITHOUT_ONE = "range over sets without one seed"
RANGE_OVER_PAIRS = "range over pairs of seeds"
BOOTSTRAP = "95% bootstrap interval"

Statistic = Callable[[pd.DataFrame], float]


class SeedInterval(NamedTuple):
    """An interval of a statistic over seeds, and what kind of interval it is."""

    low: float
    high: float
    kind: str


def mean_interval(values: Iterable[float]) -> tuple[float, float]:
    """The bootstrap 95% interval of a mean; for one or two values, the smallest and the largest."""
    sample = np.asarray(list(values), float)
    if len(sample) < 3:
        return float(sample.min()), float(sample.max())
    draws = np.random.default_rng(0).integers(len(sample), size=(NUM_DRAWS_OF_MEAN, len(sample)))
    low, high = np.quantile(sample[draws].mean(axis=1), LEVELS)
    return float(low), float(high)


def interval_over_seeds(frame: pd.DataFrame, statistic: Statistic) -> tuple[float, float]:
    """The two ends of `seed_interval`."""
    return seed_interval(frame, statistic)[:2]


def seed_interval(frame: pd.DataFrame, statistic: Statistic) -> SeedInterval:
    """The interval of a statistic over the seeds in column `seed`.

    From `MIN_BOOTSTRAP_SEEDS` seeds on it is the 95% bootstrap interval, NaN if the statistic is
    NaN for one of the draws. Fewer seeds give the range of the statistic over single seeds, NaN if
    it is NaN for some of them, because rows are missing. If it is NaN for every single seed, it
    needs several seeds at once (a correlation over students, a standard deviation over seeds): then
    it is the range over the sets that leave out one seed. This range is narrower, so its kind says
    so. A single seed has no interval: NaN.
    """
    rows_of_seed = [rows for _, rows in frame.groupby("seed")]
    num_seeds = len(rows_of_seed)
    if num_seeds >= MIN_BOOTSTRAP_SEEDS:
        return SeedInterval(*_bootstrap_interval(rows_of_seed, statistic), BOOTSTRAP)
    if num_seeds < 2:
        return SeedInterval(math.nan, math.nan, RANGE)
    values = list(map(statistic, rows_of_seed))
    if num_seeds < MIN_SEEDS or not all(map(math.isnan, values)):
        return SeedInterval(*_ends(values), RANGE)
    others = itertools.combinations(rows_of_seed, num_seeds - 1)
    values = [statistic(pd.concat(rows, ignore_index=True)) for rows in others]
    return SeedInterval(*_ends(values), RANGE_WITHOUT_ONE)


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """The smallest and the largest value; NaN if one of them is NaN."""
    return float(np.min(values)), float(np.max(values))


def _bootstrap_interval(
    rows_of_seed: Sequence[pd.DataFrame], statistic: Statistic
) -> tuple[float, float]:
    """The 95% interval of a statistic of seeds that are drawn with replacement."""
    num_seeds = len(rows_of_seed)
    random = np.random.default_rng(0).integers(num_seeds, size=(NUM_DRAWS, num_seeds))
    draws = Counter(map(tuple, np.sort(random, axis=1).tolist()))
    values = []
    for draw in draws:
        resampled = pd.concat([rows_of_seed[i] for i in draw], ignore_index=True)
        values.append(statistic(resampled))
    if np.isnan(values).any():
        return math.nan, math.nan
    return _weighted_quantiles(np.array(values), np.array(list(draws.values()), float))


def _weighted_quantiles(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """For each level, the smallest value at or below which that share of the weight lies."""
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order]) / weights.sum()
    low, high = (
        float(values[order][np.searchsorted(cumulative, level - 1e-9)]) for level in LEVELS
    )
    return low, high


def holm(p_values: Sequence[float]) -> list[float]:
    """P values corrected for their number by Holm's method (family-wise error rate)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


# A bootstrap calls the next two functions hundreds of times, so both use scipy's ranks, which are
# much faster than scikit-learn's `roc_auc_score`, and than `scipy.stats.mannwhitneyu` and
# `spearmanr`, which also compute a p-value. Tests compare the results with these functions.


def auroc(scores: Any, failed: Any) -> float:
    """The area under the ROC curve: how often a failure scores higher than a success.

    `scores` are numbers and `failed` is true or false for each. Ties count half. NaN if all or none
    failed, or if a value is NaN.
    """
    from scipy.stats import rankdata

    outcomes = np.asarray(failed, float)
    positive = outcomes != 0
    num_failed = int(positive.sum())
    num_pairs = num_failed * (len(outcomes) - num_failed)
    if num_pairs == 0 or np.isnan(outcomes).any():
        return math.nan
    ranks = rankdata(np.asarray(scores, float))  # all NaN if a score is NaN
    num_right = ranks[positive].sum() - num_failed * (num_failed + 1) / 2
    return float(num_right / num_pairs)


def rank_correlation(first: Any, second: Any) -> float:
    """Spearman's rank correlation of two lists of numbers; ties share their mean rank.

    NaN if a list is constant or has fewer than two values, or if a value is NaN.
    """
    from scipy.stats import rankdata

    ranks = rankdata(np.stack([np.asarray(first, float), np.asarray(second, float)]), axis=1)
    constant = (ranks == ranks[:, :1]).all(axis=1)
    if constant.any() or np.isnan(ranks).any():
        return math.nan
    return float(np.corrcoef(ranks)[0, 1])


def tasks_needed(num_tasks: Iterable[float], scores: Iterable[float], target: float) -> float:
    """The number of tasks at which the curve of scores last crosses a target.

    The curve is linear between measured points, on a logarithmic axis of tasks. Infinity if the
    score at the most tasks is below the target; the fewest tasks if no score is below it.
    """
    points = sorted(zip(num_tasks, scores, strict=True))
    if not points or not points[-1][1] >= target:  # also if it is NaN
        return math.inf
    for (fewer, low), (more, high) in reversed(list(itertools.pairwise(points))):
        if math.isnan(low):
            return float(more)
        if low < target:
            return float(fewer * (more / fewer) ** ((target - low) / (high - low)))
    return float(points[0][0])


def ratio(tasks: float, others: float) -> float | None:
    """How many times as many tasks. Infinity if only `tasks` is infinite, None if `others` is."""
    return None if math.isinf(others) else float(tasks / others)


def crossings(frame: Any, by: list[str], score: str, target: float) -> Any:
    """The tasks that each group of runs needs to reach a target (`tasks_needed`).

    Gives a frame with the columns of `by`, `needed` and `state`: `crossed` if the curve crosses the
    target, `never` if the most tasks do not reach it, `at once` if the fewest already do.
    """
    lines = []
    for keys, group in frame.groupby(by):
        curve = group.groupby("support/num_train")[score].mean()
        needed = tasks_needed(curve.index, curve, target)
        if math.isinf(needed):
            state = "never"
        elif needed <= curve.index.min():
            state = "at once"
        else:
            state = "crossed"
        lines.append((*keys, needed, state))
    return pd.DataFrame(lines, columns=[*by, "needed", "state"])


# The old names, which users' experiments may import, for one more release.
interval = mean_interval
over_seeds = interval_over_seeds
needed = tasks_needed
