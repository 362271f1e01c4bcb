import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn import metrics

from recombine.basics.statistics import auroc, interval, over_seeds, rank_correlation


def test_intervals():
    assert interval([2.0]) == (2.0, 2.0)
    assert interval([3.0, 1.0]) == (1.0, 3.0)
    values = np.random.default_rng(1).normal(size=200)
    low, high = interval(values)
    # The bootstrap agrees with the normal approximation of the mean's error.
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / math.sqrt(200), rel=0.1)
    assert low < values.mean() < high
    assert interval(values) == (low, high)


def frame(*values):
    """Two cells for each seed: a value and ten times it."""
    return pd.DataFrame(
        [{"seed": s, "cell": c, "r2": v * 10**c} for s, v in enumerate(values) for c in (0, 1)]
    )


def gap(rows):
    means = rows.groupby("cell")["r2"].mean()
    return float(means[1] - means[0])


def test_few_seeds_are_counted_exactly():
    values = (1.0, 2.0, 4.0)
    every = [9 * np.mean(draw) for draw in itertools.product(values, repeat=3)]
    low, high = over_seeds(frame(*values), gap)
    # The smallest draw (1, 1, 1) comes once in 27, which is more than 2.5%; so does the largest.
    assert (low, high) == pytest.approx((min(every), max(every)))
    values = (1.0, 2.0, 4.0, 8.0)
    every = np.sort([9 * np.mean(draw) for draw in itertools.product(values, repeat=4)])
    # Of 256 draws, the 7th is the first at which at least 2.5% lie.
    assert over_seeds(frame(*values), gap) == pytest.approx((every[6], every[249]))


def test_a_seed_is_drawn_whole():
    # Between seeds the cells differ a lot, within a seed always by the same: the gap has no spread at all.
    rows = frame(1.0, 2.0, 4.0)
    rows["r2"] = rows["seed"] * 100.0 + rows["cell"]
    assert over_seeds(rows, gap) == pytest.approx((1.0, 1.0))


def test_many_seeds_are_sampled():
    values = np.random.default_rng(1).normal(size=30)
    low, high = over_seeds(frame(*values), gap)
    spread = 9 * values.std() / np.sqrt(30)
    assert low < 9 * values.mean() < high
    assert 3 * spread < high - low < 5 * spread
    assert over_seeds(frame(*values), gap) == (low, high), "the same rows, the same interval"


def test_two_seeds_give_a_range_and_one_gives_none():
    assert over_seeds(frame(3.0, 1.0), gap) == pytest.approx((9.0, 27.0))
    assert all(map(math.isnan, over_seeds(frame(3.0), gap)))


def test_a_draw_that_lacks_a_cell_gives_no_interval():
    rows = frame(1.0, 2.0, 4.0)
    lacking = rows[(rows["seed"] == 0) | (rows["cell"] == 0)]

    def lost(rows):
        return gap(rows) if rows["cell"].nunique() == 2 else math.nan

    assert not math.isnan(lost(lacking))
    assert all(map(math.isnan, over_seeds(lacking, lost)))


def test_auroc_by_hand():
    assert auroc([1, 2, 3, 4], [False, False, True, True]) == 1
    assert auroc([4, 3, 2, 1], [False, False, True, True]) == 0
    # Of four pairs of a failure and a success, three are in the right order and one is a tie.
    assert auroc([1, 2, 2, 3], [False, False, True, True]) == 3.5 / 4
    assert (
        auroc(pd.Series([1, 2, 2, 3], index=[7, 7, 8, 9]), pd.Series([0.0, 0.0, 1.0, 1.0]))
        == 3.5 / 4
    )
    assert auroc([-np.inf, 2, 2, np.inf], [False, False, True, True]) == 3.5 / 4


def test_auroc_of_equal_scores_is_chance():
    assert auroc([0.3] * 5, [True, False, False, True, False]) == 0.5


def test_rank_correlation_by_hand():
    assert rank_correlation([1, 2, 3], [1, 10, 1e9]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3, np.inf], [1, 10, 1e9, -np.inf]) == pytest.approx(-0.2)
    # Ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4: the covariance is 4.5 / 4, the variances are 4.5 / 4 and 5 / 4.
    assert rank_correlation([1, 2, 2, 4], [10, 30, 20, 40]) == pytest.approx(
        4.5 / math.sqrt(4.5 * 5)
    )
    one, other = pd.Series([1, 2, 2, 4], index=[7, 7, 8, 9]), pd.Series([10, 30, 20, 40])
    assert rank_correlation(one, other) == pytest.approx(4.5 / math.sqrt(4.5 * 5)), (
        "by place, not by index"
    )


@pytest.mark.parametrize("num_values", [3, 30, 1000])
def test_they_agree_with_scikit_learn_and_scipy(num_values):
    rng = np.random.default_rng(num_values)
    scores = rng.integers(0, num_values // 3 + 1, num_values).astype(float)  # with ties
    others = rng.normal(size=num_values) + scores
    failed = others > np.median(others)
    assert auroc(scores, failed) == pytest.approx(metrics.roc_auc_score(failed, scores), abs=1e-12)
    expected = stats.spearmanr(scores, others).statistic
    assert rank_correlation(scores, others) == pytest.approx(expected, abs=1e-12)


NOT_A_NUMBER = [1.0, math.nan, 3.0]


@pytest.mark.parametrize(
    ("scores", "failed"),
    [
        ([1, 2, 3], [True, True, True]),
        ([1, 2, 3], [False, False, False]),
        ([], []),
        (NOT_A_NUMBER, [False, False, True]),
        ([1, 2, 3], [0.0, math.nan, 1.0]),
        (NOT_A_NUMBER, [True, True, True]),
    ],
)
def test_auroc_is_nan_where_it_is_undefined(scores, failed):
    assert math.isnan(auroc(scores, failed))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2, 3], [5, 5, 5]),
        ([5, 5, 5], [1, 2, 3]),
        ([5, 5, 5], [5, 5, 5]),
        ([], []),
        ([1], [1]),
        (NOT_A_NUMBER, [1, 2, 3]),
        ([1, 2, 3], NOT_A_NUMBER),
        (NOT_A_NUMBER, [5, 5, 5]),
    ],
)
def test_rank_correlation_is_nan_where_it_is_undefined(one, other):
    assert math.isnan(rank_correlation(one, other))


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="same shape"):
        rank_correlation([1, 2, 3], [1, 2])
