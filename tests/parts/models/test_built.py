import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.experiments.theory._theorem_31 import network
from recombine.parts.models.built import Built
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch
from recombine.sweeps.run import replace_fields, structure

FAMILY = rc.Hyperteacher(num_modules=5, num_hot=2, d_input=3, d_hidden=3, num_outputs=3)
KEY = new_key(0)
EXAMPLE = Batch(jnp.zeros((2, 3)), jnp.zeros((2, 3)), jnp.zeros(5), jnp.zeros(5))


def test_without_noise_it_is_the_construction():
    world = FAMILY.init(KEY)
    net, expected = Built(2, 5).init(KEY, EXAMPLE, 3, 0, world), network(FAMILY, world, 5)
    assert jax.tree.structure(net) == jax.tree.structure(expected)
    for leaf, other in zip(jax.tree.leaves(net), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(leaf, other)


def test_noise_is_relative_to_each_array_and_a_knob():
    world = FAMILY.init(KEY)
    still, moved = (Built(2, 5, noise).init(KEY, EXAMPLE, 3, 0, world) for noise in (0.0, 0.3))
    for before, after in zip(jax.tree.leaves(still), jax.tree.leaves(moved), strict=True):
        size = float(jnp.sqrt(jnp.square(before).mean()))
        assert float(jnp.sqrt(jnp.square(after - before).mean())) == pytest.approx(
            0.3 * size, rel=0.8, abs=1e-9
        )
    run = rc.Run(FAMILY, model=Built(2, 5))
    assert structure(run) == structure(replace_fields(run, {"model.noise": 0.3}))


def test_with_learning_rate_zero_it_predicts_as_its_teacher():
    run = rc.Run(
        FAMILY,
        model=Built(2, 33),
        recipe=rc.Fast(0.0, precision="float32"),
        num_steps=1,
        num_evals=1,
        diagnostics=(),
    )
    assert rc.train([run])["test/r2"].iloc[-1] > 0.999
    wrong = replace_fields(run, {"model.num_hot": 3})
    assert rc.train([wrong])["test/r2"].iloc[-1] < 0.99, "z is divided by sqrt(3), not sqrt(2)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoding": rc.IntervalShuffle()}, None),  # the right shape, but the wrong network
        ({"encoding": rc.Language()}, "choose encoding=Identity"),
        ({"family.num_layers": 2}, "num_layers=1"),
        (
            {"family": rc.PreferenceGrid(5, 2), "num_points": 8, "num_eval_points": 8},
            "Hyperteacher",
        ),
    ],
)
def test_unsupported_codes_and_families_are_refused(change, message):
    run = replace_fields(
        rc.Run(FAMILY, model=Built(2), num_steps=1, num_evals=1, diagnostics=()), change
    )
    if message is None:
        assert rc.train([run])["test/r2"].iloc[-1] < 0.5
        return
    with pytest.raises(InputError, match=message):
        rc.train([run])
