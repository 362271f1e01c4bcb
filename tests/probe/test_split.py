"""Splits keep combinations whole: one fold each, and one other combination's factors as control."""

import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.probe.split import split


def make_split(sizes, held=(), num_folds=3, seed=0):
    """A split of combinations of these sizes: numbers, which are held out, and roles."""
    combinations = np.repeat(np.arange(len(sizes)), sizes)
    np.random.default_rng(5).shuffle(combinations)
    held_out = np.isin(combinations, held)
    names = [f"c{i}" for i in range(len(sizes))]
    return combinations, held_out, split(combinations, held_out, num_folds, seed, names)


def test_folds_hold_whole_combinations_in_equal_numbers():
    combinations, held_out, roles = make_split([3, 1, 7, 2, 5, 4, 6, 2], held=[2, 5])
    folds = [set(roles.folds[combinations == number]) for number in range(8)]
    assert all(len(of_combination) == 1 for of_combination in folds)
    assert [number for number in range(8) if folds[number] == {-1}] == [2, 5]
    assert sorted(min(of_combination) for of_combination in folds) == [-1, -1, 0, 0, 1, 1, 2, 2]
    assert not roles.reserved[held_out].any()


def test_a_fifth_of_the_samples_is_reserved_but_never_the_only_one():
    combinations, _, roles = make_split([10, 1, 2, 6, 3])
    num_reserved = [int(roles.reserved[combinations == number].sum()) for number in range(5)]
    assert num_reserved == [2, 0, 1, 2, 1]
    assert (roles.fit_folds[roles.reserved] == -1).all()
    assert (roles.fit_folds[~roles.reserved] >= 0).all()


def test_the_control_swaps_factors_between_combinations_of_the_same_side():
    combinations, held_out, roles = make_split([4, 2, 9, 3, 5, 6, 2], held=[1, 4, 6])
    partners = [set(combinations[roles.permuted][combinations == number]) for number in range(7)]
    assert all(len(of_combination) == 1 for of_combination in partners)
    partner = [min(of_combination) for of_combination in partners]
    assert sorted(partner) == list(range(7))
    assert all(number != other for number, other in enumerate(partner))
    assert (held_out[roles.permuted] == held_out).all()


def test_splits_depend_on_the_seed_and_are_deterministic():
    assert (make_split([2] * 30, seed=1)[2].folds != make_split([2] * 30, seed=2)[2].folds).any()
    for field, again in zip(make_split([2] * 30)[2], make_split([2] * 30)[2], strict=True):
        assert (field == again).all()


def test_impossible_splits_are_refused():
    with pytest.raises(InputError, match="2 combinations to fit on are too few for 3 folds"):
        make_split([4, 4])
    with pytest.raises(InputError, match="every combination has only one sample"):
        make_split([1] * 9)
    combinations = np.repeat(np.arange(5), 4)
    with pytest.raises(InputError, match="'c0' is held out in some samples and not in others"):
        split(combinations, np.arange(20) == 1, 3, 0, [f"c{i}" for i in range(5)])
