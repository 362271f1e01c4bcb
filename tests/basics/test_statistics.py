import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn import metrics

from recombine.basics import statistics
from recombine.basics.statistics import (
    auroc,
    interval_over_seeds,
    mean_interval,
    rank_correlation,
    seed_interval,
)


def test_intervals():
    assert mean_interval([2.0]) == (2.0, 2.0)
    assert mean_interval([3.0, 1.0]) == (1.0, 3.0)
    values = np.random.default_rng(1).normal(size=200)
    low, high = mean_interval(values)
    # The bootstrap agrees with the normal approximation of the mean's error.
    assert (high - low) / 2 == pytest.approx(1.96 * values.std() / math.sqrt(200), rel=0.1)
    assert low < values.mean() < high
    assert mean_interval(values) == (low, high)


def frame(*values):
    """Two cells for each seed: a value, and ten times the value."""
    return pd.DataFrame(
        [{"seed": s, "cell": c, "r2": v * 10**c} for s, v in enumerate(values) for c in (0, 1)]
    )


def gap(rows):
    means = rows.groupby("cell")["r2"].mean()
    return float(means[1] - means[0])


@pytest.mark.parametrize("num_seeds", [3, 7])
def test_up_to_seven_seeds_give_the_range_of_single_seeds(num_seeds):
    values = [1.0, 2.0, 4.0, 8.0, 7.0, 5.0, 3.0][:num_seeds]
    interval = seed_interval(frame(*values), gap)
    assert interval == (9 * min(values), 9 * max(values), "range over seeds")
    assert interval_over_seeds(frame(*values), gap) == interval[:2]


def test_from_eight_seeds_on_the_interval_is_a_bootstrap():
    values = np.arange(8.0)
    interval = seed_interval(frame(*values), gap)
    assert interval.kind == "95% bootstrap interval"
    assert 0 < interval.low < 9 * values.mean() < interval.high < 9 * 7


def test_a_statistic_of_several_seeds_has_the_range_without_one():
    def deviation(rows):  # NaN for one seed
        return float(rows.groupby("seed")["r2"].mean().std())

    means = np.array([1.0, 2.0, 4.0, 8.0]) * 5.5  # of r2 and 10 times r2
    without_one = [np.delete(means, i).std(ddof=1) for i in range(4)]
    low, high, kind = seed_interval(frame(1.0, 2.0, 4.0, 8.0), deviation)
    assert (low, high) == pytest.approx((min(without_one), max(without_one)))
    assert kind == "range over sets without one seed"


def test_holms_correction_by_hand():
    # Sorted: .01 x 4, .02 x 3, .03 x 2, .04 x 1, each at least the one before.
    assert statistics.holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert statistics.holm([0.6, 0.9]) == [1.0, 1.0]
    assert statistics.holm([]) == []


def test_all_rows_of_a_seed_are_drawn_together():
    # Cells differ a lot between seeds, but the gap within a seed is constant: it has no spread.
    rows = frame(1.0, 2.0, 4.0)
    rows["r2"] = rows["seed"] * 100.0 + rows["cell"]
    assert interval_over_seeds(rows, gap) == pytest.approx((1.0, 1.0))


def test_draws_of_many_seeds_are_sampled():
    values = np.random.default_rng(1).normal(size=30)
    low, high = interval_over_seeds(frame(*values), gap)
    spread = 9 * values.std() / np.sqrt(30)
    assert low < 9 * values.mean() < high
    assert 3 * spread < high - low < 5 * spread
    assert interval_over_seeds(frame(*values), gap) == (low, high), (
        "the same rows, the same interval"
    )


def test_two_seeds_give_their_range_and_one_seed_gives_nan():
    assert interval_over_seeds(frame(3.0, 1.0), gap) == pytest.approx((9.0, 27.0))
    assert all(map(math.isnan, interval_over_seeds(frame(3.0), gap)))


def test_there_is_no_interval_if_a_draw_lacks_a_cell():
    rows = frame(*range(8))
    incomplete = rows[(rows["seed"] == 0) | (rows["cell"] == 0)]

    def gap_or_nan(rows):
        return gap(rows) if rows["cell"].nunique() == 2 else math.nan

    assert not math.isnan(gap_or_nan(incomplete))
    assert all(map(math.isnan, interval_over_seeds(incomplete, gap_or_nan)))
    few = incomplete[incomplete["seed"] < 3]  # without seed 0 there is no gap
    assert all(map(math.isnan, interval_over_seeds(few, gap_or_nan)))


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
    # Ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4: covariance 4.5 / 4, variances 4.5 / 4 and 5 / 4.
    assert rank_correlation([1, 2, 2, 4], [10, 30, 20, 40]) == pytest.approx(
        4.5 / math.sqrt(4.5 * 5)
    )
    first = pd.Series([1, 2, 2, 4], index=[7, 7, 8, 9])
    second = pd.Series([10, 30, 20, 40])
    assert rank_correlation(first, second) == pytest.approx(4.5 / math.sqrt(4.5 * 5)), (
        "by position, not by index"
    )


@pytest.mark.parametrize("num_values", [3, 30, 1000])
def test_results_agree_with_scikit_learn_and_scipy(num_values):
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
    ("first", "second"),
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
def test_rank_correlation_is_nan_where_it_is_undefined(first, second):
    assert math.isnan(rank_correlation(first, second))


def test_lists_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="same shape"):
        rank_correlation([1, 2, 3], [1, 2])


def test_old_names_of_functions_still_work():
    assert statistics.interval is mean_interval
    assert statistics.over_seeds is interval_over_seeds
    assert statistics.needed is statistics.tasks_needed
