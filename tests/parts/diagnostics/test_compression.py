import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.experiments.theory._theorem_31 import network
from recombine.parts.diagnostics.compression import Compression
from recombine.parts.prng import new_key
from recombine.parts.protocols import Split
from recombine.sweeps.run import Run
from recombine.training.task_sampler import Setting, TaskSampler, make_shared, make_split

FAMILY = rc.Hyperteacher(num_modules=5, num_hot=2, d_input=3, d_hidden=3, num_outputs=3)
KEY = new_key(0)


def lab_of(net, world):
    run = Run(FAMILY, diagnostics=())
    shared = jax.tree.map(jnp.asarray, make_shared(FAMILY))
    split = Split(*map(jnp.asarray, make_split(run, FAMILY.tasks())[0]))
    return TaskSampler(run, shared, split, Setting(world, ()), net)


def test_neurons_without_outgoing_weights_are_not_counted():
    world = FAMILY.init(KEY)
    net = network(FAMILY, world, 5)
    first, second, _ = net.layers
    width, idle = len(first.bias), 300
    more = jax.random.normal(KEY, (idle, first.weight.shape[1]))
    padded = eqx.tree_at(
        lambda net: (net.layers[0].weight, net.layers[0].bias, net.layers[1].weight),
        net,
        (
            jnp.concatenate([first.weight, more]),
            jnp.concatenate([first.bias, jnp.ones(idle)]),
            jnp.concatenate([second.weight, jnp.zeros((len(second.bias), idle))], axis=1),
        ),
    )

    @jax.jit
    def measured(net):
        return Compression(64).measure(KEY, lab_of(net, world))

    without_idle = measured(net)
    with_idle = measured(padded)
    assert width / 4 < without_idle["neurons"] <= width
    # Numbers of neurons that are tried differ by about 20%.
    ratio = with_idle["neurons"] / without_idle["neurons"]
    assert 1 / 1.3 < ratio < 1.3
    # At most 1% of R2 is lost: on seen tasks by definition, on test tasks because the net
    # generalizes.
    assert with_idle["test/r2"] > 0.95
    silent = eqx.tree_at(lambda net: net.layers[1].weight, net, jnp.zeros_like(second.weight))
    assert measured(silent)["neurons"] == 1


@pytest.mark.parametrize(
    "model",
    [
        rc.MLP((8,)),
        rc.MLP((8, 8, 8)),
        rc.MLP((8, 8), activation="tanh"),
        rc.MLP((8, 8), residual=True),
    ],
    ids=str,
)
def test_other_networks_are_refused(model):
    run = Run(FAMILY, model=model, num_steps=1, num_evals=1, diagnostics=(Compression(4),))
    with pytest.raises(InputError, match="two hidden layers"):
        rc.train([run])
