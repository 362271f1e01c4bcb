import jax
import numpy as np

from recombine.parts.linear_layer import linear
from recombine.parts.prng import new_key


def test_kernels_are_truncated_normal_and_biases_zero():
    layer = jax.jit(lambda key: linear(key, 200, 300))(new_key(0))
    weight = np.asarray(layer.weight)
    assert weight.shape == (300, 200)
    np.testing.assert_allclose(weight.std(), 200**-0.5, rtol=0.02)
    # The normal distribution is truncated at two standard deviations, then rescaled.
    assert np.abs(weight).max() < 2.28 * 200**-0.5
    assert not layer.bias.any()
    assert linear(new_key(0), 2, 3, use_bias=False).bias is None
