import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.conditions import components, compositional
from recombine.parts.supports.disconnected import Disconnected
from tests.tables import khot_table


def split(table, support, frac_test, seed=0):
    parts = support.parts(table, np.random.default_rng(seed), frac_test)
    return parts, table[parts == 1], table[parts == 2]


@pytest.mark.parametrize("seed", range(5))
def test_a_quarter_held_out_at_the_papers_size_separates_one_module(seed):
    table = khot_table(16, 3)
    parts, train, test = split(table, Disconnected(), 0.25, seed)
    groups = components(train)
    assert [len(group) for group in groups] == [15, 1]
    # Mixed tasks: the lone module with 1 or 2 of 15. There are as many train tasks as with Random.
    assert np.bincount(parts).tolist() == [696 - 522 - 120, 522, 15 + 105]
    assert test[:, groups[1]].all()


def test_two_halves_hold_out_73_percent():
    table = khot_table(16, 3)
    parts, train, _ = split(table, Disconnected(sizes=(8, 8)), 0.25)
    assert [len(group) for group in components(train)] == [8, 8]
    # Mixed pairs 8*8, mixed triples 2*8*C(8,2).
    assert np.bincount(parts, minlength=3).tolist() == [0, 184, 64 + 448]
    assert 0.73 < (64 + 448) / 696 < 0.74


@pytest.mark.parametrize("frac_test", [0.05, 0.3, 0.5, 0.7, 0.9, 0.97])
def test_test_tasks_mix_the_groups_and_no_other_task_does(frac_test):
    table = khot_table(12, 3)
    parts, train, _ = split(table, Disconnected(), frac_test)
    groups = components(train)
    assert len(groups) == 2
    mixed = np.all([table[:, group].any(1) for group in groups], axis=0)
    assert ((parts == 2) == mixed).all()
    assert compositional(train)
    assert len(train) == min(len(table) - round(frac_test * len(table)), np.count_nonzero(~mixed))


def test_the_groups_are_as_even_as_the_fraction_allows():
    # Mixed tasks of g and 6-g modules, pairs only: 5, 8, 9 of 21 tasks.
    table = khot_table(6, 2)
    sizes = [
        len(components(split(table, Disconnected(), f / 21)[1])[-1])
        for f in (5, 7.4, 8, 8.9, 9, 12)
    ]
    assert sizes == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("seed", range(5))
def test_few_train_tasks_still_connect_each_group_or_at_least_cover_it(seed):
    table = khot_table(16, 3)
    # Two groups of 8 modules take 4 tasks each to be connected, 3 each to be covered.
    _, train, test = split(table, Disconnected(), 1 - 8 / 696, seed)
    assert [len(group) for group in components(train)] == [8, 8]
    _, train, test = split(table, Disconnected(), 1 - 6 / 696, seed)
    assert len(train) == 6
    assert compositional(train)
    assert len(test) == 512
    with pytest.raises(InputError, match="which need 6"):
        split(table, Disconnected(), 1 - 5 / 696, seed)


def test_which_modules_are_separated_is_random():
    table = khot_table(16, 3)
    lone = {components(split(table, Disconnected(), 0.25, seed)[1])[1][0] for seed in range(20)}
    assert len(lone) > 5


def test_three_groups():
    _, train, _ = split(khot_table(7, 3), Disconnected(sizes=(2, 4, 1)), 0.5)
    assert [len(group) for group in components(train)] == [4, 2, 1]


@pytest.mark.parametrize("sizes", [(16,), (8, 0, 8), (-1, 17)])
def test_sizes_are_checked(sizes):
    with pytest.raises(InputError, match=r"Disconnected\.sizes"):
        Disconnected(sizes=sizes)


def test_sizes_must_add_up_and_something_must_mix():
    with pytest.raises(InputError, match="sum to 12, but the family has 16"):
        split(khot_table(16, 3), Disconnected(sizes=(6, 6)), 0.25)
    with pytest.raises(InputError, match="no task mixed two groups"):
        split(khot_table(4, 1), Disconnected(), 0.25)
    with pytest.raises(InputError, match="at least 2 modules"):
        split(np.ones((2, 1), np.int8), Disconnected(), 0.5)
