from itertools import combinations

import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.conditions import connected
from recombine.parts.supports.popular import Popular
from tests.tables import khot_table


def num_uncovered(train, num_popular):
    """The smallest number of train tasks without any of `num_popular` modules."""
    return min(
        (~train[:, list(c)].any(1)).sum() for c in combinations(range(train.shape[1]), num_popular)
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("num_popular", "frac_filler"), [(2, 0.0), (2, 0.1), (4, 0.05)])
def test_only_fillers_lack_a_popular_module(num_popular, frac_filler, seed):
    table = khot_table(12, 3)
    parts = Popular(num_popular, frac_filler).parts(table, np.random.default_rng(seed), 0.8)
    train = table[parts == 1]
    num_train = len(table) - round(0.8 * len(table))
    assert np.bincount(parts, minlength=3).tolist() == [0, num_train, len(table) - num_train]
    assert num_uncovered(train, num_popular) == round(frac_filler * num_train)
    assert connected(train)


def test_popular_modules_are_popular():
    table = khot_table(12, 3)
    count = table[Popular(2).parts(table, np.random.default_rng(0), 0.8) == 1].sum(0)
    assert np.sort(count)[-2] > 1.5 * np.sort(count)[-3]


def test_all_popular_tasks_are_used_if_there_are_too_few():
    # M=16, K=3, 4 popular modules: 12 + C(12,2) + C(12,3) = 298 tasks without one, so 398 with.
    table = khot_table(16, 3)
    parts = Popular().parts(table, np.random.default_rng(0), 0.25)
    assert np.count_nonzero(parts == 1) == 398 + round(398 * 0.05 / 0.95)
    assert num_uncovered(table[parts == 1], 4) == 21


def test_near_the_bound():
    # 16 tasks with one filler: 15 pairs connect 16 modules only as a tree around popular modules.
    table = khot_table(16, 2)
    parts = Popular(2, 1 / 16).parts(table, np.random.default_rng(0), 1 - 16 / len(table))
    assert connected(table[parts == 1])
    assert np.count_nonzero(parts == 1) == 16


def test_bad_numbers_are_errors():
    table = khot_table(4, 2)
    with pytest.raises(InputError, match="num_popular=4 must be below"):
        Popular().parts(table, np.random.default_rng(0), 0.25)
    with pytest.raises(InputError, match="frac_filler must be below 1"):
        Popular(frac_filler=1)
    with pytest.raises(
        InputError, match=r"cannot connect 8 modules .*lower frac_test or frac_filler"
    ):
        Popular().parts(khot_table(8, 2), np.random.default_rng(0), 0.9)
