import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.conditions import components, connected, feasible
from recombine.parts.supports.random import Random
from tests.tables import khot_table
from tests.timing import cpu_seconds


@pytest.mark.parametrize(
    ("num_modules", "num_hot"), [(2, 2), (4, 2), (5, 3), (6, 2), (6, 3), (5, 5)]
)
def test_succeeds_exactly_where_the_bound_allows(num_modules, num_hot):
    table = khot_table(num_modules, num_hot)
    num_possible = 0
    for num_train in range(1, len(table)):
        frac_test = 1 - num_train / len(table)
        if not feasible(num_train, num_hot, num_modules):
            with pytest.raises(InputError, match="cannot connect"):
                Random().parts(table, np.random.default_rng(0), frac_test)
            continue
        parts = Random().parts(table, np.random.default_rng(num_train), frac_test)
        assert np.bincount(parts, minlength=3).tolist() == [0, num_train, len(table) - num_train]
        assert connected(table[parts == 1])
        num_possible += 1
    assert num_possible > 0


@pytest.mark.parametrize("seed", range(5))
def test_the_tightest_set_is_a_tree(seed):
    # 15 uniformly drawn tasks are hardly ever a tree of 16 modules, so the set has to be grown.
    table = khot_table(16, 2)
    parts = Random().parts(table, np.random.default_rng(seed), 1 - 15 / len(table))
    train = table[parts == 1]
    assert train.shape == (15, 16)
    assert (train.sum(1) == 2).all()
    assert len(components(train)) == 1


def test_the_error_gives_the_numbers_and_advice_that_works():
    table = khot_table(16, 3)
    with pytest.raises(
        InputError, match=r"3 train tasks of at most 3 .*3\*2\+1 = 7 < 16.*at most 0\.988 "
    ) as e:
        Random().parts(table, np.random.default_rng(0), 1 - 3 / len(table))
    assert "\n" not in str(e.value)
    parts = Random().parts(table, np.random.default_rng(0), 0.988)
    assert connected(table[parts == 1])
    with pytest.raises(InputError, match=r": raise num_hot$"):
        Random().parts(khot_table(4, 1), np.random.default_rng(0), 0.25)


def test_the_draw_depends_on_the_generator_alone():
    table = khot_table(10, 3)
    first, same, other = (
        Random().parts(table, np.random.default_rng(seed), 0.5) for seed in (1, 1, 2)
    )
    assert (first == same).all()
    assert (first != other).any()


@pytest.mark.parametrize("frac_test", [0.25, 0.9, 1 - 6 / 499_177])
def test_splitting_half_a_million_tasks_takes_little_more_than_listing_them(frac_test):
    table = khot_table(28, 6)

    def split() -> np.ndarray:
        return Random().parts(table, np.random.default_rng(0), frac_test)

    assert cpu_seconds(split) < 10 * cpu_seconds(lambda: khot_table(28, 6))
    parts = split()
    assert np.count_nonzero(parts == 2) == round(frac_test * len(table))
