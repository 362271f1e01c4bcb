from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts import khot
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.families.preference_grid import PreferenceGrid
from recombine.parts.prng import new_key
from tests.tables import khot_table


def family(**fields):
    return SimpleNamespace(
        **{"num_modules": 9, "num_hot": 3, "max_tasks": 0, "table_seed": 0} | fields
    )


def test_the_table_holds_every_row_once():
    np.testing.assert_array_equal(khot.table(family()), khot_table(9, 3))
    assert khot.count_rows(9, 3) == 9 + 36 + 84


def test_both_families_of_khot_rows_have_the_same_tasks():
    sizes = {"num_modules": 12, "num_hot": 2, "max_tasks": 40, "table_seed": 3}
    hyperteacher = Hyperteacher(**sizes)
    grid = PreferenceGrid(**sizes)
    np.testing.assert_array_equal(hyperteacher.tasks(), grid.tasks())
    np.testing.assert_array_equal(hyperteacher.extrapolation(), grid.extrapolation())
    assert hyperteacher.tasks().shape == (40, 12)


def test_extrapolation_rows_have_more_active_modules():
    beyond = khot.extrapolation_rows(family())
    assert sorted(set(beyond.sum(axis=1).tolist())) == [4, 5]
    assert len(np.unique(beyond, axis=0)) == len(beyond)


@pytest.mark.parametrize(
    ("distribution", "values"), [("khot", {1.0}), ("discrete", {0.5, 0.6, 0.7, 0.8, 0.9, 1.0})]
)
def test_weights_have_the_values_of_their_distribution(distribution, values):
    row = jnp.array([1, 0, 1, 1], jnp.int8)
    drawn = jax.vmap(lambda key: khot.weigh(key, row, distribution))(
        jax.random.split(new_key(0), 200)
    )
    assert {round(float(weight), 3) for weight in np.asarray(drawn[:, row == 1]).ravel()} == values
    assert not drawn[:, 1].any()


def test_continuous_weights_lie_between_a_half_and_one():
    row = jnp.array([1, 0, 1, 1], jnp.int8)
    drawn = jax.vmap(lambda key: khot.weigh(key, row, "continuous"))(
        jax.random.split(new_key(0), 500)
    )
    active = np.asarray(drawn[:, row == 1])
    assert active.min() > 0.5
    assert active.max() < 1
    assert (active.sum(axis=1) < 2).all(), (
        "0.5 for each of three modules, and at most 0.5 in total on top"
    )


def test_too_many_tasks_are_refused():
    with pytest.raises(InputError, match="too long to list: set max_tasks"):
        PreferenceGrid(num_modules=60, num_features=60, num_hot=8)
    assert (
        len(PreferenceGrid(num_modules=60, num_features=60, num_hot=8, max_tasks=100).tasks())
        == 100
    )
