import jax
import jax.numpy as jnp
import pytest

import recombine as rc
from recombine.experiments.theory._theorem_31 import network
from recombine.parts.diagnostics.distance import Distance
from recombine.parts.prng import new_key
from recombine.parts.protocols import Split
from recombine.sweeps.run import Run
from recombine.training.task_sampler import Setting, TaskSampler, make_shared, make_split

FAMILY = rc.Hyperteacher(num_modules=5, num_hot=2, d_input=3, d_hidden=3, num_outputs=3)
KEY = new_key(0)


def distance(net, world, pieces):
    run = Run(FAMILY, diagnostics=())
    shared = jax.tree.map(jnp.asarray, make_shared(FAMILY))
    split = Split(*map(jnp.asarray, make_split(run, FAMILY.tasks())[0]))
    lab = TaskSampler(run, shared, split, Setting(world, ()), net)
    return float(Distance(pieces).measure(KEY, lab)["distance"])


def test_relative_to_the_size_of_the_construction():
    world = FAMILY.init(KEY)
    net = network(FAMILY, world, 5)
    assert distance(net, world, 5) == 0
    assert distance(jax.tree.map(lambda leaf: 1.25 * leaf, net), world, 5) == pytest.approx(
        0.25, abs=1e-6
    )
    # All numbers count equally: without the readout, the distance is its share of the norm.
    zeros = jax.tree.map(jnp.zeros_like, net.layers[2])
    of_readout, of_net = (
        sum(float(jnp.square(leaf).sum()) for leaf in jax.tree.leaves(tree))
        for tree in (net.layers[2], net)
    )
    without_readout = type(net)((*net.layers[:2], zeros), None)
    expected = (of_readout / of_net) ** 0.5
    assert distance(without_readout, world, 5) == pytest.approx(expected, rel=1e-5)


def test_another_world_is_far_and_another_shape_has_no_distance():
    world = FAMILY.init(KEY)
    assert distance(network(FAMILY, FAMILY.init(new_key(1)), 5), world, 5) > 0.2
    assert jnp.isnan(distance(network(FAMILY, world, 3), world, 5))
