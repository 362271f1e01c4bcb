"""The permuted-label control: every combination gets another's value, and shares are kept."""

import numpy as np
import pytest

from recombine.probe.permutations import (
    MAX_SHARE_CHANGE,
    draw_donors,
    largest_share_change,
    value_codes,
)


@pytest.mark.parametrize("seed", range(5))
def test_the_share_of_every_value_stays_within_one_percent_of_the_samples(seed):
    rng = np.random.default_rng(seed)
    num = int(rng.integers(30, 200))
    codes = rng.choice(4, num, p=(0.55, 0.3, 0.1, 0.05))
    codes[:4] = range(4)
    sizes = rng.geometric(0.02, num).astype(float)  # very unequal combinations
    sides = rng.random(num) < 0.4
    donors = draw_donors(codes, sizes, sides, 200, rng)
    for side in (False, True):
        members = sides == side
        total = sizes[members].sum()
        for value in range(4):
            share = sizes[members & (codes == value)].sum() / total
            drawn = codes[donors][:, members] == value
            shares = (drawn * sizes[members]).sum(axis=1) / total
            assert np.abs(shares - share).max() <= MAX_SHARE_CHANGE + 1e-12
    assert (np.sort(donors, axis=1) == np.arange(num)).all()  # every value is given once
    assert (sides[donors] == sides).all()  # held-out values stay held out
    moved = (codes[donors] != codes).mean()
    independent = 1 - (np.bincount(codes) / num @ (np.bincount(codes) / num))
    assert moved > 0.6 * independent


def test_draws_are_uniform_if_all_combinations_have_the_same_size():
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1], 4)
    donors = draw_donors(codes, np.ones(8), np.zeros(8, bool), 4000, rng)
    frequency = (donors[:, :, None] == np.arange(8)).mean(axis=0)
    assert np.abs(frequency - 1 / 8).max() < 0.03


def test_shares_that_cannot_be_kept_are_reported():
    codes = np.array([0, 1, 1, 1])
    sizes = np.array([997.0, 1, 1, 1])
    rng = np.random.default_rng(0)
    donors = draw_donors(codes, sizes, np.zeros(4, bool), 50, rng)
    assert largest_share_change(codes, sizes, np.zeros(4, bool), donors) <= MAX_SHARE_CHANGE
    assert (codes[donors][:, 0] == 0).all()  # the only way: the large combination keeps its value
    wrong = np.array([[1, 0, 2, 3]])
    assert largest_share_change(codes, sizes, np.zeros(4, bool), wrong) > 0.9


def test_numbers_with_many_values_are_put_into_bins():
    values = np.random.default_rng(0).normal(size=1000)
    assert np.bincount(value_codes(values)).tolist() == [100] * 10
    assert value_codes(np.array([3.0, 1.0, 3.0])).tolist() == [1, 0, 1]
