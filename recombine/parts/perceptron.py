"""A multilayer perceptron on the concatenation [code, x]; several models draw its weights.

    h <- act(norm(W h + b));   with `residual`, from the second hidden layer on:
    h <- h + act(norm(W h + b))

A long code is multiplied with the first layer once per task and not once per point:
W [code, x] = W_c code + W_x x.
"""

from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

LONG_CODE = 64  # a code with more entries is multiplied with the first layer once per task

Activation = Literal["relu", "gelu", "silu", "tanh"]
ACTIVATION_FUNCTIONS = {
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,  # the tanh approximation
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


class Perceptron(eqx.Module):
    """The network. It is called with the points (n, I) and the code of one task.

    `norms` has one norm for each hidden layer, or none at all. With an `embedding`, codes are
    indices of words.
    """

    mixed_precision: ClassVar[bool] = True  # products have the type of the weights

    layers: tuple[eqx.nn.Linear, ...]
    embedding: eqx.nn.Embedding | None
    norms: tuple[eqx.nn.LayerNorm | eqx.nn.RMSNorm, ...] = ()
    activation: Activation = eqx.field(static=True, default="relu")
    residual: bool = eqx.field(static=True, default=False)

    def __call__(
        self, x: Float[Array, "n I"], code: Shaped[Array, " code"]
    ) -> tuple[Float[Array, "n O"], dict[str, Array]]:
        """Predict every point, and return the activations.

        Activations are the inputs of each hidden layer's nonlinearity (`pre0`, …), the outputs of
        the layer (`hidden0`, …) and the prediction (`output`).
        """
        return jax.tree.map(lambda leaf: leaf[0], self.many(x[None], code[None]))

    def many(
        self, x: Float[Array, "tasks n I"], code: Shaped[Array, "tasks code"]
    ) -> tuple[Float[Array, "tasks n O"], dict[str, Array]]:
        """The same for several tasks at once, which is faster than a `vmap` over tasks."""
        tasks, n, _ = x.shape
        # Every point is a column: the gradient of a bias is then a sum over contiguous memory,
        # which takes half the time on a GPU.
        code_columns = self._code_vectors(code, x.dtype).reshape(tasks, -1).T
        x_columns = x.reshape(tasks * n, -1).T
        pre = self._first_layer(x_columns, code_columns, n)
        activations = {}
        for i, layer in enumerate(self.layers[1:]):
            # Norms are float32 whatever the type of the weights: adding the bias made `pre` so.
            if self.norms:
                pre = jax.vmap(self.norms[i], in_axes=1, out_axes=1)(pre)
            h = ACTIVATION_FUNCTIONS[self.activation](pre)
            if self.residual and i > 0:
                h = activations[f"hidden{i - 1}"] + h
            activations[f"pre{i}"] = pre
            activations[f"hidden{i}"] = h
            pre = _product(layer.weight, h) + jnp.asarray(layer.bias)[:, None]
        activations["output"] = pre
        activations = {
            name: h.reshape(-1, tasks, n).transpose(1, 2, 0) for name, h in activations.items()
        }
        return activations["output"], activations

    def _code_vectors(self, code: Shaped[Array, "tasks code"], x_dtype: jnp.dtype) -> Array:
        if self.embedding is None:
            return code.astype(jnp.promote_types(x_dtype, jnp.float32))
        return jax.vmap(jax.vmap(self.embedding))(code)

    def _first_layer(
        self, x: Float[Array, "I points"], code: Float[Array, "code tasks"], n: int
    ) -> Float[Array, "H points"]:
        """The first layer before its nonlinearity."""
        layer = self.layers[0]
        bias = jnp.asarray(layer.bias)[:, None]
        if len(code) <= LONG_CODE:
            inputs = jnp.concatenate([jnp.repeat(code, n, axis=1), x])
            return _product(layer.weight, inputs) + bias
        of_task = _product(layer.weight[:, : len(code)], code) + bias
        return _product(layer.weight[:, len(code) :], x) + jnp.repeat(of_task, n, axis=1)


def _product(weight: Array, h: Array) -> Array:
    # In the type of the weights, which may be lower than the type of other arrays.
    return weight @ h.astype(weight.dtype)
