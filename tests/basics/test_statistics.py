import itertools
import math

import numpy as np
import pandas as pd
import pytest

from recombine.basics.statistics import interval, over_seeds


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
    return pd.DataFrame([{"seed": s, "cell": c, "r2": v * 10**c} for s, v in enumerate(values) for c in (0, 1)])


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
