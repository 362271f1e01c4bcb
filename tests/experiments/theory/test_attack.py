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


def test_it_comes_close_to_what_the_proof_allows(world):
    for pieces in (5, 41):
        net = _theorem_31.network(FAMILY, world, pieces)
        share = (
            _attack.sup_error(net, FAMILY, world, new_key(1))
            * pieces**2
            / _theorem_31.slack(FAMILY, world)
        )
        assert 0.8 < share <= 1.0001  # the network was built in float32


def test_climbing_finds_more_than_sampling(world):
    net = _theorem_31.network(FAMILY, world, 41)
    sampled, climbed = (
        _attack.sup_error(net, FAMILY, world, new_key(2), num_steps=steps) for steps in (1, 100)
    )
    assert climbed > 1.05 * sampled


def test_a_spike_that_sampling_misses_is_found_from_its_slope(world):
    """An exact network whose error is added by hand: |x_0 - 0.3| turned over, 1 at the top and known everywhere."""
    with jax.enable_x64(True):
        exact = _theorem_31.exact(FAMILY, world)
        first, second, last = exact.layers
        rows = jnp.zeros((2, 8)).at[:, 6].set(jnp.array([1.0, -1.0]))
        first = eqx.tree_at(
            lambda layer: (layer.weight, layer.bias),
            first,
            (
                jnp.concatenate([first.weight, rows]),
                jnp.concatenate([first.bias, jnp.array([-0.3, 0.3])]),
            ),
        )
        # A hidden unit 1 - |x_0 - 0.3|, which is added to the first output.
        second = eqx.tree_at(
            lambda layer: (layer.weight, layer.bias),
            second,
            (
                jnp.zeros((3, first.weight.shape[0]))
                .at[:2, :-2]
                .set(second.weight)
                .at[2, -2:]
                .set(-1.0),
                jnp.append(second.bias, 1.0),
            ),
        )
        last = eqx.tree_at(
            lambda layer: layer.weight,
            last,
            jnp.append(last.weight, jnp.array([[1.0], [0.0]]), axis=1),
        )
        net = eqx.tree_at(lambda net: net.layers, exact, (first, second, last))
    error = _attack.sup_error(
        net, FAMILY, world, new_key(3), "corners", num_samples=64, num_starts=8
    )
    np.testing.assert_allclose(error, 1.0, atol=1e-6)


@pytest.mark.parametrize("where", ["compact", "cube", "corners"])
def test_points_are_of_the_set_and_stay_there(where):
    points, moves = _attack._draw(FAMILY, new_key(4), where, 500)
    z, x = np.asarray(points[:, :6]), np.asarray(points[:, 6:])
    assert (np.abs(x) <= 1).all()
    assert x.min() < -0.9
    assert x.max() > 0.9
    assert (z >= 0).all()
    assert (z <= 1).all()
    active = (np.asarray(moves[:, :6]) > 0).sum(axis=1)
    assert set((z > 0).sum(axis=1)) == {"compact": {2}, "cube": {6}, "corners": {1, 2}}[where]
    assert set(active) == {"compact": {2}, "cube": {6}, "corners": {0}}[where], (
        "the others are held"
    )
    assert set(np.unique(z)) == {0.0, 1.0} or where != "corners"


def test_weights_between_are_searched_only_where_asked(world):
    with jax.enable_x64(True):
        net = _theorem_31.exact(FAMILY, jax.tree.map(lambda leaf: jnp.asarray(leaf, float), world))
    assert _attack.sup_error(net, FAMILY, world, new_key(5), "corners") < 1e-12
    assert _attack.sup_error(net, FAMILY, world, new_key(5), "compact") > 0.1
