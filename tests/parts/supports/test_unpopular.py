import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.conditions import connected
from recombine.parts.supports.unpopular import Unpopular
from tests.tables import khot_table


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("num_unpopular", "num_tasks"), [(2, 1), (3, 1), (2, 2)])
def test_unpopular_modules_are_in_exactly_num_tasks_train_tasks(num_unpopular, num_tasks, seed):
    table = khot_table(12, 3)
    parts = Unpopular(num_unpopular, num_tasks).parts(table, np.random.default_rng(seed), 0.6)
    train = table[parts == 1]
    num_train = len(table) - round(0.6 * len(table))
    assert np.bincount(parts, minlength=3).tolist() == [0, num_train, len(table) - num_train]
    count = train.sum(0)
    rare = np.argsort(count)[:num_unpopular]
    assert (count[rare] == num_tasks).all()
    assert np.sort(count)[num_unpopular] > 10 * num_tasks
    links = train[train[:, rare].any(1)]
    assert len(links) == num_unpopular * num_tasks
    assert (links.sum(1) >= 2).all()
    assert connected(train)


def test_all_plain_tasks_are_used_if_there_are_too_few():
    # M=16, K=3 without 2 modules: 14 + C(14,2) + C(14,3) = 469 tasks, fewer than the 522 of Random.
    parts = Unpopular().parts(khot_table(16, 3), np.random.default_rng(0), 0.25)
    assert np.bincount(parts).tolist() == [0, 471, 696 - 471]


def test_which_modules_are_unpopular_is_random():
    table = khot_table(10, 3)
    rarest = set()
    for seed in range(20):
        count = table[Unpopular(1).parts(table, np.random.default_rng(seed), 0.5) == 1].sum(0)
        rarest.add(int(np.argmin(count)))
    assert len(rarest) > 4


def test_bad_numbers_are_errors():
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match="num_unpopular=4 must be below"):
        Unpopular(4).parts(khot_table(4, 2), rng, 0.25)
    with pytest.raises(InputError, match="only 2 tasks link"):
        Unpopular(2, num_tasks=3).parts(khot_table(4, 2), rng, 0.25)
    with pytest.raises(InputError, match="lower frac_test, num_unpopular or num_tasks"):
        Unpopular(2, num_tasks=4).parts(khot_table(8, 2), rng, 0.8)
