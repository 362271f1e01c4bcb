import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recombine.basics.errors import InputError
from recombine.parts.conditions import connected, feasible
from recombine.parts.supports.balanced import Balanced
from tests.tables import khot_table
from tests.timing import cpu_seconds


def check_split(table, parts, num_train):
    train = table[parts == 1]
    assert np.bincount(parts, minlength=3).tolist() == [0, num_train, len(table) - num_train]
    assert np.ptp(train.sum(0)) <= 1
    assert connected(train)


@settings(deadline=None, max_examples=50, derandomize=True)
@given(st.integers(2, 12), st.integers(2, 4), st.floats(0.02, 0.98), st.integers(0, 99))
def test_counts_are_within_one_wherever_the_bound_allows(num_modules, num_hot, frac_test, seed):
    table = khot_table(num_modules, num_hot)
    num_train = len(table) - round(frac_test * len(table))
    rng = np.random.default_rng(seed)
    if num_train in (0, len(table)) or not feasible(
        num_train, min(num_hot, num_modules), num_modules
    ):
        with pytest.raises(InputError):
            Balanced().parts(table, rng, frac_test)
    else:
        check_split(table, Balanced().parts(table, rng, frac_test), num_train)


@pytest.mark.parametrize(
    ("num_modules", "num_hot"), [(2, 2), (4, 2), (5, 3), (6, 2), (6, 3), (5, 5)]
)
def test_every_possible_number_of_train_tasks(num_modules, num_hot):
    table = khot_table(num_modules, num_hot)
    sizes = [n for n in range(1, len(table)) if feasible(n, num_hot, num_modules)]
    for num_train in sizes:
        parts = Balanced().parts(table, np.random.default_rng(0), 1 - num_train / len(table))
        check_split(table, parts, num_train)
    assert sizes


@pytest.mark.parametrize(("num_modules", "num_hot"), [(28, 4), (16, 3), (16, 2)])
@pytest.mark.parametrize("seed", range(20))
def test_on_the_bound_the_tasks_form_a_chain(num_modules, num_hot, seed):
    # If n(K-1)+1 = M, all tasks have K modules, n-1 modules are in two tasks and the others in one.
    table = khot_table(num_modules, num_hot)
    num_train = -(-(num_modules - 1) // (num_hot - 1))
    parts = Balanced().parts(table, np.random.default_rng(seed), 1 - num_train / len(table))
    check_split(table, parts, num_train)
    spare = num_train * (num_hot - 1) + 1 - num_modules
    assert np.count_nonzero(table[parts == 1].sum(0) == 2) in range(
        num_train - 1, num_train + spare
    )


@pytest.mark.parametrize(("keep", "frac_test"), [(0.3, 0.25), (0.3, 0.9), (0.02, 0.5)])
def test_a_sampled_table_is_balanced_by_search(keep, frac_test):
    rng = np.random.default_rng(0)
    table = khot_table(20, 4)
    table = table[rng.random(len(table)) < keep]
    parts = Balanced().parts(table, rng, frac_test)
    check_split(table, parts, len(table) - round(frac_test * len(table)))


def test_a_table_with_repeated_rows_is_balanced():
    table = np.repeat(khot_table(8, 3), 3, axis=0)
    check_split(
        table, Balanced().parts(table, np.random.default_rng(0), 0.4), round(0.6 * len(table))
    )


def test_an_impossible_balance_is_an_error_that_gives_the_spread():
    # Tasks have one of 4 and one of 6 values: counts are at best 15 and 10 for n = 60.
    table = np.zeros((4 * 6 * 5, 10), np.int8)
    for row, (a, b, _) in zip(table, itertools.product(range(4), range(6), range(5)), strict=True):
        row[[a, 4 + b]] = 1
    with pytest.raises(InputError, match=r"found no 60 balanced .* differ by 5") as e:
        Balanced().parts(table, np.random.default_rng(0), 0.5)
    assert "\n" not in str(e.value)


def test_no_module_is_favored():
    # Which modules are in one more task is random: over many draws, all of them are.
    table = khot_table(7, 2)
    extra = np.zeros(7)
    for seed in range(200):
        count = table[Balanced().parts(table, np.random.default_rng(seed), 0.5) == 1].sum(0)
        extra += count > count.min()
    assert extra.min() > 0.5 * extra.mean()
    assert extra.max() < 1.5 * extra.mean()


def test_the_draw_depends_on_the_generator_alone():
    table = khot_table(10, 3)
    first, same, other = (
        Balanced().parts(table, np.random.default_rng(seed), 0.5) for seed in (1, 1, 2)
    )
    assert (first == same).all()
    assert (first != other).any()


@pytest.mark.parametrize("frac_test", [0.25, 0.9, 1 - 6 / 499_177])
def test_splitting_half_a_million_tasks_takes_little_more_than_listing_them(frac_test):
    table = khot_table(28, 6)

    def split() -> np.ndarray:
        return Balanced().parts(table, np.random.default_rng(0), frac_test)

    assert cpu_seconds(split) < 40 * cpu_seconds(lambda: khot_table(28, 6))
    parts = split()
    check_split(table, parts, len(table) - round(frac_test * len(table)))
