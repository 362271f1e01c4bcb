"""A hypernetwork: a linear map of the code gives all weights of a network with one hidden layer, which reads x.

    y = W2 relu(W1 x + b1) + b2,   each W = (G norm(c) + g) / sqrt(fan-in of W)   and each b = G norm(c) + g

The explicitly modular baseline: as the hyperteacher's, its weights are sums over what the task is told by.
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
    """A layer whose kernel and bias are made of the code, one of each for every task."""

    kernel: eqx.nn.Linear
    bias: eqx.nn.Linear

    def __call__(
        self, h: Float[Array, "tasks n _"], code: Float[Array, "tasks code"]
    ) -> Float[Array, "tasks n _"]:
        """The layer before its nonlinearity."""
        tasks, _, fan_in = h.shape
        # Scaled here and not at the start: the generators' own steps then need not know the layer's size.
        kernel = (_made(self.kernel, code) / math.sqrt(fan_in)).reshape(tasks, -1, fan_in)
        return (
            _product(h, kernel.astype(self.kernel.weight.dtype)) + _made(self.bias, code)[:, None]
        )


class Generated(eqx.Module):
    """The network. Called with the points and the code of one task."""

    mixed_precision: ClassVar[bool] = True  # products are in the type of the weights
    activation: ClassVar[str] = "relu"

    norm: eqx.nn.LayerNorm | None
    hidden: Layer
    readout: Layer

    def __call__(
        self, x: Float[Array, "n I"], code: Shaped[Array, " code"]
    ) -> tuple[Float[Array, "n O"], dict[str, Array]]:
        """Predict every point; also give the hidden layer before (`pre0`) and after (`hidden0`) its ReLU."""
        return jax.tree.map(lambda leaf: leaf[0], self.many(x[None], code[None]))

    def many(
        self, x: Float[Array, "tasks n I"], code: Shaped[Array, "tasks code"]
    ) -> tuple[Float[Array, "tasks n O"], dict[str, Array]]:
        """The same for many tasks at once: all their weights are made in one product."""
        code = code.astype(jnp.float32)
        code = code if self.norm is None else jax.vmap(self.norm)(code)
        pre = self.hidden(x, code)
        h = jax.nn.relu(pre)
        output = self.readout(h, code)
        return output, {"pre0": pre, "hidden0": h, "output": output}


def _made(maker: eqx.nn.Linear, code: Float[Array, "tasks code"]) -> Float[Array, "tasks _"]:
    return _product(code, maker.weight) + jnp.asarray(maker.bias)


def _product(h: Array, weight: Array) -> Array:
    # In the type of the weights, which may be lower than that of everything else.
    return h.astype(weight.dtype) @ weight.mT


@dataclass(frozen=True)
class Hypernetwork:
    """`d_hidden` is the width of the generated network. Integer codes are read as plain floats.

    A LayerNorm of the code loses its length, which tells hyperteacher tasks apart: `normalisation="none"` keeps it.
    Codes of large numbers, such as a sentence's words, need the LayerNorm.
    """

    d_hidden: int = 256  # published: 1024
    normalisation: Literal["layer", "none"] = "layer"  # published: layer

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
        """Draw a network for points and codes of the example's shape."""
        require(
            getattr(example.x, "ndim", 0) == 2 and example.code.ndim == 1,
            "Hypernetwork reads points (n, d) and a flat code: choose an encoding that gives a vector, not a sequence",
        )
        d_code, d_input = example.code.shape[0], example.x.shape[1]
        norm = eqx.nn.LayerNorm(d_code) if self.normalisation == "layer" else None
        hidden = _layer(stream(key, "hidden"), d_code, d_input, self.d_hidden)
        return Generated(
            norm, hidden, _layer(stream(key, "readout"), d_code, self.d_hidden, num_outputs)
        )


def _layer(key: PRNGKeyArray, d_code: int, d_in: int, d_out: int) -> Layer:
    # A code of unit entries, such as the LayerNorm gives, makes kernels of unit variance; a k-hot one, left as it is,
    # makes smaller ones, which learn as well (larger draws learned more slowly). Biases start at zero.
    draw = jax.nn.initializers.lecun_normal(in_axis=1, out_axis=0)
    return Layer(
        _linear(key, draw(key, (d_out * d_in, d_code))), _linear(key, jnp.zeros((d_out, d_code)))
    )


def _linear(key: PRNGKeyArray, weight: Float[Array, "out in"]) -> eqx.nn.Linear:
    # Equinox draws uniform kernels and biases.
    layer = eqx.nn.Linear(weight.shape[1], weight.shape[0], key=key)
    return eqx.tree_at(
        lambda made: (made.weight, made.bias), layer, (weight, jnp.zeros(len(weight)))
    )
