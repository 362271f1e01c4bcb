"""Intervals by bootstrap: what a number could have been with other seeds; and how well scores predict failures.

Seeds are drawn with replacement, whole: a seed's runs share their teacher and their split wherever they stand in a
sweep, so what is compared within a seed stays paired. All draws of few seeds are counted exactly, with their weights.
Of three seeds each extreme draw comes once in 27: their 95% interval goes from the smallest value to the largest.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

LEVELS = (0.025, 0.975)
MOST_LISTED = 5  # seeds whose draws are all listed: 5 have 126 different ones
NUM_DRAWS = 300  # of more seeds

Statistic = Callable[[pd.DataFrame], float]


def interval(values: Iterable[float]) -> tuple[float, float]:
    """The bootstrap 95% interval of the mean; of one or two values, the smallest and the largest."""
    sample = np.asarray(list(values), float)
    if len(sample) < 3:
        return float(sample.min()), float(sample.max())
    draws = np.random.default_rng(0).integers(len(sample), size=(2000, len(sample)))
    low, high = np.quantile(sample[draws].mean(axis=1), LEVELS)
    return float(low), float(high)


def over_seeds(frame: pd.DataFrame, statistic: Statistic) -> tuple[float, float]:
    """The bootstrap 95% interval of a statistic of a frame over its column `seed`; of two seeds, what each gives by
    itself; NaN of one seed, or where a draw lacks what the statistic needs."""
    of_seed = [frame.loc[frame["seed"] == seed, :] for seed in sorted(frame["seed"].unique())]
    if len(of_seed) == 2:
        low, high = sorted(statistic(one) for one in of_seed)
        return low, high
    if len(of_seed) < 2:
        return math.nan, math.nan
    draws = _draws(len(of_seed))
    values = np.array(
        [statistic(pd.concat([of_seed[i] for i in draw], ignore_index=True)) for draw in draws]
    )
    if np.isnan(values).any():
        return math.nan, math.nan
    return _quantiles(values, np.array(list(draws.values()), float))


def _draws(num_seeds: int) -> dict[tuple[int, ...], float]:
    """Draws of so many seeds with replacement, each with how often it comes."""
    if num_seeds <= MOST_LISTED:
        listed = itertools.combinations_with_replacement(range(num_seeds), num_seeds)
        return {draw: _orders(draw) for draw in listed}
    drawn = np.sort(
        np.random.default_rng(0).integers(num_seeds, size=(NUM_DRAWS, num_seeds)), axis=1
    )
    return dict(Counter(map(tuple, drawn.tolist())))


def _orders(draw: tuple[int, ...]) -> float:
    """In how many orders a draw can come."""
    return math.factorial(len(draw)) / math.prod(math.factorial(n) for n in Counter(draw).values())


def _quantiles(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """The smallest values below which (and at which) so much of the weight lies."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    low, high = (float(values[order][np.searchsorted(reached, level - 1e-9)]) for level in LEVELS)
    return low, high


# A bootstrap calls the next two functions 300 times, so both use scipy's ranks. For 100 values, scikit-learn's
# `roc_auc_score` takes about 30 times as long, `scipy.stats.mannwhitneyu` 10 times, and `scipy.stats.spearmanr`, which
# also computes a p-value, almost twice. The tests compare the results with `roc_auc_score` and `spearmanr`.


def auroc(scores: Any, failed: Any) -> float:
    """The area under the ROC curve: how often a failure scores higher than a success, where ties count half.

    `scores` are numbers and `failed` is true or false for each. NaN if all or none failed, or if a value is NaN.
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


def rank_correlation(one: Any, other: Any) -> float:
    """Spearman's rank correlation of two lists of numbers, where ties share their mean rank.

    NaN if one of the lists is constant (or has fewer than two values), or if a value is NaN.
    """
    from scipy.stats import rankdata

    ranks = rankdata(np.stack([np.asarray(one, float), np.asarray(other, float)]), axis=1)
    constant = (ranks == ranks[:, :1]).all(axis=1)
    if constant.any() or np.isnan(ranks).any():
        return math.nan
    return float(np.corrcoef(ranks)[0, 1])


def needed(tasks: Iterable[float], shares: Iterable[float], target: float) -> float:
    """How many tasks it takes to reach a target: where the curve through the measured points last crosses it, on a
    logarithmic axis. Infinity where the most tasks do not reach it; the fewest where they already do."""
    points = sorted(zip(tasks, shares, strict=True))
    if not points or not points[-1][1] >= target:  # also where it is NaN
        return math.inf
    for (few, low), (many, high) in reversed(list(itertools.pairwise(points))):
        if math.isnan(low):
            return float(many)
        if low < target:
            return float(few * (many / few) ** ((target - low) / (high - low)))
    return float(points[0][0])


def ratio(tasks: float, others: float) -> float | None:
    """How many times as many; infinity where only the second number is known, None where not even that."""
    return None if math.isinf(others) else float(tasks / others)


def crossings(frame: Any, by: list[str], score: str, target: float) -> Any:
    """The tasks that each group of runs needs for a target (`needed`), and whether that was measured: `state` is
    `crossed`, or `never` where the most tasks do not reach it and `at once` where the fewest already do."""
    found = []
    for keys, group in frame.groupby(by):
        curve = group.groupby("support/num_train")[score].mean()
        tasks = needed(curve.index, curve, target)
        state = (
            "never" if math.isinf(tasks) else "at once" if tasks <= curve.index.min() else "crossed"
        )
        found.append((*keys, tasks, state))
    return pd.DataFrame(found, columns=[*by, "needed", "state"])
