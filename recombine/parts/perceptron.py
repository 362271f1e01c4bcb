"""The plain network on [code, x] that several models draw, each in its own way.

    h <- act(norm(W h + b)),   from the second hidden layer on with `residual`   h <- h + act(norm(W h + b))

A long code is multiplied into the first layer once per task, not once per point: W [code, x] = W_c code + W_x x.
"""

from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

LONG = 64  # numbers in a code; a longer one is worth a product of its own

Activation = Literal["relu", "gelu", "silu", "tanh"]
FUNCTIONS = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}  # gelu: tanh formula


class Perceptron(eqx.Module):
    """The network. Called with the points and the code of one task."""

    mixed_precision: ClassVar[bool] = True  # products are in the type of the weights

    layers: tuple[eqx.nn.Linear, ...]
    embedding: eqx.nn.Embedding | None
    norms: tuple[eqx.nn.LayerNorm | eqx.nn.RMSNorm, ...] = ()  # one for each hidden layer, or none
    activation: Activation = eqx.field(static=True, default="relu")
    residual: bool = eqx.field(static=True, default=False)

    def __call__(
        self, x: Float[Array, "n I"], code: Shaped[Array, " code"]
    ) -> tuple[Float[Array, "n O"], dict[str, Array]]:
        """Predict every point; also give what enters each hidden layer's nonlinearity, `pre0`, …, and what the layer
        gives, `hidden0`, …"""
        return jax.tree.map(lambda leaf: leaf[0], self.many(x[None], code[None]))

    def many(
        self, x: Float[Array, "tasks n I"], code: Shaped[Array, "tasks code"]
    ) -> tuple[Float[Array, "tasks n O"], dict[str, Array]]:
        """The same for many tasks at once, faster than one by one under `vmap`."""
        tasks, n, _ = x.shape
        plain = jnp.promote_types(x.dtype, jnp.float32)
        code = (
            code.astype(plain)
            if self.embedding is None
            else jax.vmap(jax.vmap(self.embedding))(code)
        )
        code, x = code.reshape(tasks, -1).T, x.reshape(tasks * n, -1).T
        # Every point is a column: a bias's gradient is then a sum along memory, which a GPU does in half the time.
        first, *rest = self.layers
        bias = jnp.asarray(first.bias)[:, None]
        if len(code) <= LONG:
            pre = _product(first.weight, jnp.concatenate([jnp.repeat(code, n, axis=1), x])) + bias
        else:
            of_task = _product(first.weight[:, : len(code)], code) + bias
            pre = _product(first.weight[:, len(code) :], x) + jnp.repeat(of_task, n, axis=1)
        activations = {}
        for i, layer in enumerate(rest):
            if (
                self.norms
            ):  # in float32, whatever the type of the weights: adding the bias has made it so
                pre = jax.vmap(self.norms[i], in_axes=1, out_axes=1)(pre)
            h = FUNCTIONS[self.activation](pre)
            if self.residual and i > 0:
                h = activations[f"hidden{i - 1}"] + h
            activations |= {f"pre{i}": pre, f"hidden{i}": h}
            pre = _product(layer.weight, h) + jnp.asarray(layer.bias)[:, None]
        activations["output"] = pre
        activations = {
            name: h.reshape(-1, tasks, n).transpose(1, 2, 0) for name, h in activations.items()
        }
        return activations["output"], activations


def _product(weight: Array, h: Array) -> Array:
    # In the type of the weights, which may be lower than that of everything else.
    return weight @ h.astype(weight.dtype)
