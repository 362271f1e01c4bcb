import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.experiments.theory import _attack, _theorem_31
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.prng import new_key

FAMILY = Hyperteacher(num_modules=6, num_hot=2, d_input=2, d_hidden=2, num_outputs=2)


@pytest.fixture(scope="module")
def world():
    return FAMILY.init(new_key(0))


def test_the_search_comes_close_to_the_error_that_the_proof_allows(world):
    for pieces in (5, 41):
        net = _theorem_31.network(FAMILY, world, pieces)
        allowed = _theorem_31.slack(FAMILY, world) / pieces**2
        share = _attack.sup_error(net, FAMILY, world, new_key(1)) / allowed
        assert 0.8 < share <= 1.0001  # the network was built in float32


def test_gradient_ascent_finds_larger_errors_than_sampling(world):
    net = _theorem_31.network(FAMILY, world, 41)
    after_one_step = _attack.sup_error(net, FAMILY, world, new_key(2), num_steps=1)
    after_many_steps = _attack.sup_error(net, FAMILY, world, new_key(2), num_steps=100)
    assert after_many_steps > 1.05 * after_one_step


def test_the_ascent_finds_a_maximum_that_sampling_misses(world):
    """An exact network with the known error 1 - |x_0 - 0.3| added, whose maximum is 1."""
    with jax.enable_x64(True):
        exact = _theorem_31.exact(FAMILY, world)
        first, second, last = exact.layers
        # Two units, relu(x_0 - 0.3) and relu(0.3 - x_0).
        new_rows = jnp.zeros((2, 8)).at[:, 6].set(jnp.array([1.0, -1.0]))
        new_biases = jnp.array([-0.3, 0.3])
        first = replace_arrays(
            first,
            jnp.concatenate([first.weight, new_rows]),
            jnp.concatenate([first.bias, new_biases]),
        )
        # A hidden unit 1 - |x_0 - 0.3|, which is added to the first output.
        weight = jnp.zeros((3, first.weight.shape[0]))
        weight = weight.at[:2, :-2].set(second.weight).at[2, -2:].set(-1.0)
        second = replace_arrays(second, weight, jnp.append(second.bias, 1.0))
        new_column = jnp.array([[1.0], [0.0]])
        last = replace_arrays(last, jnp.append(last.weight, new_column, axis=1), last.bias)
        net = eqx.tree_at(lambda net: net.layers, exact, (first, second, last))
    error = _attack.sup_error(
        net, FAMILY, world, new_key(3), "corners", num_samples=64, num_starts=8
    )
    np.testing.assert_allclose(error, 1.0, atol=1e-6)


def replace_arrays(layer, weight, bias):
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (weight, bias))


@pytest.mark.parametrize("where", ["compact", "cube", "corners"])
def test_points_belong_to_the_set_and_stay_in_it(where):
    points, is_free = _attack._draw(FAMILY, new_key(4), where, 500)
    z, x = np.asarray(points[:, :6]), np.asarray(points[:, 6:])
    assert (np.abs(x) <= 1).all()
    assert x.min() < -0.9
    assert x.max() > 0.9
    assert (z >= 0).all()
    assert (z <= 1).all()
    num_free = (np.asarray(is_free[:, :6]) > 0).sum(axis=1)
    assert set((z > 0).sum(axis=1)) == {"compact": {2}, "cube": {6}, "corners": {1, 2}}[where]
    assert set(num_free) == {"compact": {2}, "cube": {6}, "corners": {0}}[where]
    assert set(np.unique(z)) == {0.0, 1.0} or where != "corners"


def test_only_the_chosen_set_is_searched(world):
    with jax.enable_x64(True):
        net = _theorem_31.exact(FAMILY, jax.tree.map(lambda leaf: jnp.asarray(leaf, float), world))
    assert _attack.sup_error(net, FAMILY, world, new_key(5), "corners") < 1e-12
    assert _attack.sup_error(net, FAMILY, world, new_key(5), "compact") > 0.1
