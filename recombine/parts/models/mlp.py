"""A plain multilayer perceptron on [code, x]: the paper's student, LeCun truncated-normal kernels and zero biases."""

from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
from jaxtyping import Array, PRNGKeyArray, PyTree

from recombine.basics.errors import require
from recombine.parts.field_checks import check, check_layers
from recombine.parts.linear_layer import linear
from recombine.parts.perceptron import Activation, Perceptron
from recombine.parts.prng import stream
from recombine.parts.protocols import Batch


@dataclass(frozen=True)
class MLP:
    """`widths` are the hidden layers. Integer codes are read as plain floats, or embedded with `tokens="embed"`, which
    is right for sentences, where the number of a word means nothing.

    `normalisation` is of each hidden layer before its nonlinearity, across its units, with a learned gain (and shift
    for `layer`).
    """

    widths: tuple[int, ...] = (1024, 1024, 1024, 1024)
    tokens: Literal["float", "embed"] = "float"
    d_embed: int = 16
    activation: Activation = "relu"
    normalisation: Literal["none", "layer", "rms"] = "none"
    residual: bool = False

    def __post_init__(self):
        check(self, d_embed=1)
        require(
            len(self.widths) > 0, "MLP.widths must name at least one hidden layer, (128, 128) say"
        )
        check_layers(self, len(self.widths))
        require(min(self.widths) >= 1, f"MLP.widths must all be at least 1, got {self.widths}")
        require(
            not self.residual or len(set(self.widths)) == 1,
            f"MLP.residual adds a layer to the one before it: make all widths equal, got {self.widths}",
        )

    def init(
        self,
        key: PRNGKeyArray,
        example: Batch,
        num_outputs: int,
        num_tokens: int = 0,
        world: PyTree[Array] | None = None,
    ) -> Perceptron:
        """Draw a network for points and codes of the example's shape."""
        require(
            getattr(example.x, "ndim", 0) == 2 and example.code.ndim == 1,
            "MLP reads points (n, d) and a flat code: choose an encoding that gives a vector, not a sequence, "
            "or model=Transformer",
        )
        embedding, d_code = None, example.code.shape[0]
        if num_tokens and self.tokens == "embed":
            embedding = eqx.nn.Embedding(num_tokens, self.d_embed, key=stream(key, "embedding"))
            d_code *= self.d_embed
        sizes = (d_code + example.x.shape[1], *self.widths, num_outputs)
        keys = jax.random.split(stream(key, "layers"), len(sizes) - 1)
        layers = tuple(linear(k, i, o) for k, i, o in zip(keys, sizes[:-1], sizes[1:], strict=True))
        norms = ()
        if self.normalisation == "layer":
            norms = tuple(eqx.nn.LayerNorm(width) for width in self.widths)
        if self.normalisation == "rms":
            norms = tuple(eqx.nn.RMSNorm(width, use_bias=False) for width in self.widths)
        return Perceptron(layers, embedding, norms, self.activation, self.residual)
