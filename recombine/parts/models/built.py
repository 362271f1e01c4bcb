"""A student that begins at the network of Theorem 3.1, or near it: what exists, to be held against what training finds.

It is a plain network of two hidden layers, made from the hidden teacher's own weights (`relu_products.py`).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, PyTree

from recombine.basics.errors import require
from recombine.parts import relu_products
from recombine.parts.field_checks import Knob, check
from recombine.parts.perceptron import Perceptron
from recombine.parts.protocols import Batch


@dataclass(frozen=True)
class Built:
    """The construction with so many pieces for a square, every array moved by Gaussian noise, relative to its own root
    mean square. `num_hot` must be the family's: the world does not tell it."""

    num_hot: int = 3
    pieces: int = 3
    noise: Knob = 0.0

    def __post_init__(self):
        check(self, num_hot=1, pieces=1, noise=0)

    def init(
        self,
        key: PRNGKeyArray,
        example: Batch,
        num_outputs: int,
        num_tokens: int = 0,
        world: PyTree[Array] | None = None,
    ) -> Perceptron:
        """Build the network for the hidden teacher, and move it."""
        net = relu_products.network(world, self.num_hot, self.num_hot, self.pieces)
        d_code = net.layers[0].weight.shape[1] - example.x.shape[-1]
        told = f"Built reads the {d_code} module weights themselves, got a code of shape {example.code.shape}"
        require(
            num_tokens == 0 and example.code.shape == (d_code,),
            f"{told}: choose encoding=Identity()",
        )
        leaves, tree = jax.tree.flatten(net)
        keys = jax.random.split(key, len(leaves))
        sizes = [self.noise * jnp.sqrt(jnp.square(leaf).mean()) for leaf in leaves]
        drawn = [
            size * jax.random.normal(k, leaf.shape)
            for k, size, leaf in zip(keys, sizes, leaves, strict=True)
        ]
        return jax.tree.unflatten(tree, map(jnp.add, leaves, drawn))
