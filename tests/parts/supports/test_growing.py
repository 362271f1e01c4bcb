import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.conditions import connected
from recombine.parts.supports.growing import Growing
from tests.tables import khot_table


@pytest.mark.parametrize(
    ("support", "num_train"),
    [(Growing(), 8 * 14), (Growing("quadratic", 1), 14**2), (Growing(factor=0.75), 10)],
)
def test_the_law_gives_the_number_of_train_tasks(support, num_train):
    table = khot_table(14, 3)
    parts = support.parts(table, np.random.default_rng(0), 0.25)
    num_test = round(0.25 * len(table))
    assert np.bincount(parts).tolist() == [len(table) - num_train - num_test, num_train, num_test]
    assert connected(table[parts == 1])


def test_runs_that_differ_in_the_law_share_their_test_tasks():
    table = khot_table(12, 3)
    linear, quadratic = (
        support.parts(table, np.random.default_rng(3), 0.25)
        for support in (Growing(), Growing("quadratic"))
    )
    assert ((linear == 2) == (quadratic == 2)).all()
    assert np.count_nonzero(quadratic == 1) == 1.5 * np.count_nonzero(linear == 1)


@pytest.mark.parametrize("seed", range(10))
def test_test_tasks_leave_enough_to_connect_the_modules(seed):
    # A random third of all pairs of 16 modules is often not connected: test tasks are then redrawn.
    table = khot_table(16, 2)
    parts = Growing(factor=1).parts(table, np.random.default_rng(seed), 0.7)
    assert connected(table[parts == 1])
    assert np.count_nonzero(parts == 1) == 16


def test_impossible_laws_are_errors():
    rng = np.random.default_rng(0)
    with pytest.raises(
        InputError, match=r"linear law needs 64 train tasks, but frac_test=0.25 leaves 27 of 36"
    ):
        Growing().parts(khot_table(8, 2), rng, 0.25)
    with pytest.raises(InputError, match=r"cannot connect 8 modules .*raise factor"):
        Growing(factor=0.5).parts(khot_table(8, 2), rng, 0.25)
    with pytest.raises(InputError, match="factor must be positive"):
        Growing(factor=0)
    with pytest.raises(InputError, match="one of 'linear', 'quadratic'"):
        Growing("cubic")
