"""A hypernetwork: a linear map of the code generates the weights of a network that is applied to x.

    y = W2 relu(W1 x + b1) + b2,   each W = (G norm(c) + g) / sqrt(fan-in of W),  b = G norm(c) + g

An explicitly modular baseline: like the weights of the hyperteacher, the generated weights are sums
over the entries of the code. Source: arXiv 2507.07207, section 3; Schug et al. 2024.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

from recombine.basics.errors import require
from recombine.parts.field_checks import check
from recombine.parts.prng import stream
from recombine.parts.protocols import Batch


class Layer(eqx.Module):
    """A layer whose weight and bias are generated from the code, separately for every task."""

    kernel: eqx.nn.Linear
    bias: eqx.nn.Linear

    def __call__(
        self, h: Float[Array, "tasks n _"], code: Float[Array, "tasks code"]
    ) -> Float[Array, "tasks n _"]:
        """The layer before its nonlinearity."""
        tasks, _, fan_in = h.shape
        # Scaled here and not at initialization, so that the updates of the generator do not depend
        # on the size of the layer.
        kernel = (_generate(self.kernel, code) / math.sqrt(fan_in)).reshape(tasks, -1, fan_in)
        bias = _generate(self.bias, code)[:, None]
        return _product(h, kernel.astype(self.kernel.weight.dtype)) + bias


class Generated(eqx.Module):
    """The network. It is called with the points (n, I) and the code of one task."""

    mixed_precision: ClassVar[bool] = True  # products have the type of the weights
    activation: ClassVar[str] = "relu"

    norm: eqx.nn.LayerNorm | None
    hidden: Layer
    readout: Layer

    def __call__(
        self, x: Float[Array, "n I"], code: Shaped[Array, " code"]
    ) -> tuple[Float[Array, "n O"], dict[str, Array]]:
        """Predict every point, and return the activations.

        Activations are the hidden layer before (`pre0`) and after (`hidden0`) its ReLU, and the
        prediction (`output`).
        """
        return jax.tree.map(lambda leaf: leaf[0], self.many(x[None], code[None]))

    def many(
        self, x: Float[Array, "tasks n I"], code: Shaped[Array, "tasks code"]
    ) -> tuple[Float[Array, "tasks n O"], dict[str, Array]]:
        """The same for several tasks at once: one product generates the weights of all of them."""
        code = code.astype(jnp.float32)
        code = code if self.norm is None else jax.vmap(self.norm)(code)
        pre = self.hidden(x, code)
        h = jax.nn.relu(pre)
        output = self.readout(h, code)
        return output, {"pre0": pre, "hidden0": h, "output": output}


def _generate(
    generator: eqx.nn.Linear, code: Float[Array, "tasks code"]
) -> Float[Array, "tasks _"]:
    return _product(code, generator.weight) + jnp.asarray(generator.bias)


def _product(h: Array, weight: Array) -> Array:
    # In the type of the weights, which may be lower than the type of other arrays.
    return h.astype(weight.dtype) @ weight.mT


@dataclass(frozen=True)
class Hypernetwork:
    """A hypernetwork for points (n, d) and flat codes; integer codes are used as floats.

    `d_hidden` is the width of the generated network, which has one hidden layer (1024 in the public
    code). `normalisation` of the code is `"layer"` in the public code. A LayerNorm removes the
    length of the code, which distinguishes tasks of a hyperteacher; `"none"` keeps it. Codes of
    large numbers, such as the words of a sentence, need the LayerNorm.
    """

    d_hidden: int = 256
    normalisation: Literal["layer", "none"] = "layer"

    def __post_init__(self):
        check(self, d_hidden=1)

    def init(
        self,
        key: PRNGKeyArray,
        example: Batch,
        num_outputs: int,
        num_tokens: int = 0,
        world: PyTree[Array] | None = None,
    ) -> Generated:
        """Draw a network for points and codes with the shapes of the example."""
        require(
            getattr(example.x, "ndim", 0) == 2 and example.code.ndim == 1,
            "Hypernetwork needs points (n, d) and a flat code: choose an encoding that gives a "
            "vector, not a sequence",
        )
        d_code = example.code.shape[0]
        d_input = example.x.shape[1]
        norm = eqx.nn.LayerNorm(d_code) if self.normalisation == "layer" else None
        hidden = _draw_layer(stream(key, "hidden"), d_code, d_input, self.d_hidden)
        readout = _draw_layer(stream(key, "readout"), d_code, self.d_hidden, num_outputs)
        return Generated(norm, hidden, readout)


def _draw_layer(key: PRNGKeyArray, d_code: int, d_in: int, d_out: int) -> Layer:
    # A code with entries of unit size, as after the LayerNorm, generates weights of unit variance.
    # A k-hot code without a norm generates smaller ones, which learn as well; larger initial
    # weights learned more slowly. Generated biases start at zero.
    draw = jax.nn.initializers.lecun_normal(in_axis=1, out_axis=0)
    kernel = _linear_with(key, draw(key, (d_out * d_in, d_code)))
    bias = _linear_with(key, jnp.zeros((d_out, d_code)))
    return Layer(kernel, bias)


def _linear_with(key: PRNGKeyArray, weight: Float[Array, "out in"]) -> eqx.nn.Linear:
    """A layer with this weight and a zero bias."""
    layer = eqx.nn.Linear(weight.shape[1], weight.shape[0], key=key)
    bias = jnp.zeros(len(weight))
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), layer, (weight, bias))
