from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.diagnostics.shuffled_decodability import ShuffledDecodability
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch, Observation


def lab():
    """A stub `Lab` with layers from which tasks can be decoded exactly, at each of two points."""
    rotation = jnp.asarray(
        np.linalg.qr(np.random.default_rng(7).normal(size=(4, 4)))[0], jnp.float32
    )

    def observe(key, part, n, net=None):
        rng = np.random.default_rng(["train", "test"].index(part))
        task = jnp.asarray(rng.random((n, 4)), jnp.float32)
        layer = jnp.repeat(task[:, None], 2, axis=1) @ rotation
        return Observation(
            Batch(layer, layer, task, task), layer, {"pre0": layer, "hidden0": layer}
        )

    absent = dict.fromkeys(["net", "family", "world", "table", "split", "encoding"])
    return SimpleNamespace(observe=observe, look=observe, **absent)


def test_nothing_is_decoded_from_another_tasks_activations():
    sizes = {"num_fit": 1000, "num_seen": 1000, "num_test": 1000}
    shuffled = ShuffledDecodability(**sizes).measure(new_key(0), lab())
    unpermuted = LinearDecodability(**sizes).measure(new_key(0), lab())
    assert shuffled.keys() == unpermuted.keys()
    for name in ("code/test/r2", "hidden0/seen/r2", "best/test/r2"):
        # Chance correlations with the true labels are about 1/sqrt(1000).
        assert abs(float(shuffled[name])) < 0.05, name
        assert float(unpermuted[name]) > 0.99, name


def test_bad_sizes():
    with pytest.raises(InputError, match="num_test"):
        ShuffledDecodability(num_test=0)
    with pytest.raises(InputError, match="l2"):
        ShuffledDecodability(l2=0.0)
