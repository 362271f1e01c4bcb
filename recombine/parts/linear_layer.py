"""A dense layer as the models draw it: LeCun truncated-normal kernels, zero biases (equinox's own are uniform)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray


def linear(key: PRNGKeyArray, d_in: int, d_out: int, use_bias: bool = True) -> eqx.nn.Linear:
    """Draw a layer from `d_in` to `d_out` numbers."""
    layer = eqx.nn.Linear(d_in, d_out, use_bias, key=key)
    weight = jax.nn.initializers.lecun_normal(in_axis=1, out_axis=0)(key, (d_out, d_in))
    bias = jnp.zeros(d_out) if use_bias else None
    return eqx.tree_at(
        lambda ls: (ls.weight, ls.bias), layer, (weight, bias), is_leaf=lambda leaf: leaf is None
    )
