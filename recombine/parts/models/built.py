"""A student that starts at, or near, the network that Theorem 3.1 constructs.

It is a plain ReLU network with two hidden layers, built from the weights of the hidden teacher
(`relu_products.py`). It allows comparing a solution that exists with those that training finds.
Source of the theorem: arXiv 2507.07207, section 3.
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
    """The constructed network, with Gaussian noise added to its weights.

    `num_hot` must be that of the family. `pieces` is the number of linear pieces per square.
    `noise` is the standard deviation of the noise, relative to the root mean square of each array.
    It needs `Hyperteacher(num_layers=1)` and `Identity` codes.
    """

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
        """Build the network for the hidden teacher and add the noise."""
        net = relu_products.network(world, self.num_hot, self.num_hot, self.pieces)
        num_modules = net.layers[0].weight.shape[1] - example.x.shape[-1]
        require(
            num_tokens == 0 and example.code.shape == (num_modules,),
            f"Built needs the {num_modules} module weights as its code, got a code of shape "
            f"{example.code.shape}: choose encoding=Identity()",
        )
        leaves, tree = jax.tree.flatten(net)
        keys = jax.random.split(key, len(leaves))
        noisy_leaves = []
        for leaf_key, leaf in zip(keys, leaves, strict=True):
            scale = self.noise * jnp.sqrt(jnp.square(leaf).mean())
            noisy_leaves.append(leaf + scale * jax.random.normal(leaf_key, leaf.shape))
        return jax.tree.unflatten(tree, noisy_leaves)
