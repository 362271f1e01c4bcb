"""A dense layer with LeCun truncated-normal weights and zero biases.

The paper's networks are initialized this way. Layers of equinox have uniform weights and biases.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray


def linear(key: PRNGKeyArray, d_in: int, d_out: int, use_bias: bool = True) -> eqx.nn.Linear:
    """Draw a layer with `d_in` inputs and `d_out` outputs."""
    layer = eqx.nn.Linear(d_in, d_out, use_bias, key=key)
    weight = jax.nn.initializers.lecun_normal(in_axis=1, out_axis=0)(key, (d_out, d_in))
    bias = jnp.zeros(d_out) if use_bias else None
    return eqx.tree_at(
        lambda layer: (layer.weight, layer.bias),
        layer,
        (weight, bias),
        is_leaf=lambda leaf: leaf is None,
    )
