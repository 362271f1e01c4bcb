"""Combinations are never cut: all samples of one are in one fold, and get the factors of one other."""

import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.probe.split import split


def made(sizes, held=(), num_folds=3, seed=0):
    combinations = np.repeat(np.arange(len(sizes)), sizes)
    np.random.default_rng(5).shuffle(combinations)
    out = np.isin(combinations, held)
    return (
        combinations,
        out,
        split(combinations, out, num_folds, seed, [f"c{i}" for i in range(len(sizes))]),
    )


def test_folds_hold_whole_combinations_in_equal_numbers():
    combinations, held, parts = made([3, 1, 7, 2, 5, 4, 6, 2], held=[2, 5])
    folds = [set(parts.folds[combinations == one]) for one in range(8)]
    assert all(len(one) == 1 for one in folds)
    assert [one for one in range(8) if folds[one] == {-1}] == [2, 5]
    assert sorted(min(one) for one in folds) == [-1, -1, 0, 0, 1, 1, 2, 2]
    assert not parts.aside[held].any()


def test_a_fifth_of_the_samples_is_put_aside_but_never_the_only_one():
    combinations, _, parts = made([10, 1, 2, 6, 3])
    assert [int(parts.aside[combinations == one].sum()) for one in range(5)] == [2, 0, 1, 2, 1]
    assert (parts.fitted[parts.aside] == -1).all()
    assert (parts.fitted[~parts.aside] >= 0).all()


def test_the_control_gives_a_combinations_factors_to_another_of_the_same_side():
    combinations, held, parts = made([4, 2, 9, 3, 5, 6, 2], held=[1, 4, 6])
    given = [set(combinations[parts.elsewhere][combinations == one]) for one in range(7)]
    assert all(len(one) == 1 for one in given)
    partner = [min(one) for one in given]
    assert sorted(partner) == list(range(7))
    assert all(one != other for one, other in enumerate(partner))
    assert (held[parts.elsewhere] == held).all()


def test_seeds_differ_and_repeat():
    assert (made([2] * 30, seed=1)[2].folds != made([2] * 30, seed=2)[2].folds).any()
    assert all((a == b).all() for a, b in zip(made([2] * 30)[2], made([2] * 30)[2], strict=True))


def test_what_cannot_be_split_is_refused():
    with pytest.raises(InputError, match="2 combinations to fit on are too few for 3 folds"):
        made([4, 4])
    with pytest.raises(InputError, match="every combination has one sample only"):
        made([1] * 9)
    combinations = np.repeat(np.arange(5), 4)
    with pytest.raises(InputError, match="'c0' is held out in some samples and not in others"):
        split(combinations, np.arange(20) == 1, 3, 0, [f"c{i}" for i in range(5)])
