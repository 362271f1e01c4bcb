"""A multilayer perceptron on the concatenation [code, x], the main student of the paper.

Weights are LeCun truncated-normal, biases start at zero. Source: arXiv 2507.07207, section 3 and
appendix.
"""

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

Norms = tuple[eqx.nn.LayerNorm | eqx.nn.RMSNorm, ...]


@dataclass(frozen=True)
class MLP:
    """A multilayer perceptron for points (n, d) and flat codes.

    - `widths`: the widths of the hidden layers.
    - `tokens`: integer codes are used as floats (`"float"`), or each word is embedded as a vector
      of size `d_embed` (`"embed"`). Embed sentences, in which the index of a word has no meaning.
    - `activation`: the nonlinearity.
    - `normalisation`: normalize the units of each hidden layer before the nonlinearity, with a
      learned gain, and also a learned shift for `"layer"`.
    - `residual`: add the output of the previous hidden layer; all widths must be equal.
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
            len(self.widths) > 0,
            "MLP.widths must name at least one hidden layer, for example (128, 128)",
        )
        check_layers(self, len(self.widths))
        require(min(self.widths) >= 1, f"MLP.widths must all be at least 1, got {self.widths}")
        require(
            not self.residual or len(set(self.widths)) == 1,
            "MLP.residual adds each layer to the one before it: make all widths equal, "
            f"got {self.widths}",
        )

    def init(
        self,
        key: PRNGKeyArray,
        example: Batch,
        num_outputs: int,
        num_tokens: int = 0,
        world: PyTree[Array] | None = None,
    ) -> Perceptron:
        """Draw a network for points and codes with the shapes of the example."""
        require(
            getattr(example.x, "ndim", 0) == 2 and example.code.ndim == 1,
            "MLP needs points (n, d) and a flat code: choose an encoding that gives a vector, not "
            "a sequence, or model=Transformer",
        )
        embedding = None
        d_code = example.code.shape[0]
        if num_tokens and self.tokens == "embed":
            embedding = eqx.nn.Embedding(num_tokens, self.d_embed, key=stream(key, "embedding"))
            d_code *= self.d_embed
        sizes = (d_code + example.x.shape[1], *self.widths, num_outputs)
        keys = jax.random.split(stream(key, "layers"), len(sizes) - 1)
        layers = tuple(
            linear(k, d_in, d_out)
            for k, d_in, d_out in zip(keys, sizes[:-1], sizes[1:], strict=True)
        )
        return Perceptron(layers, embedding, self._norms(), self.activation, self.residual)

    def _norms(self) -> Norms:
        if self.normalisation == "layer":
            return tuple(eqx.nn.LayerNorm(width) for width in self.widths)
        if self.normalisation == "rms":
            return tuple(eqx.nn.RMSNorm(width, use_bias=False) for width in self.widths)
        return ()
