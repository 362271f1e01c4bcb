"""How far is a network from the one that Theorem 3.1 builds for its teacher? Weight by weight.

Networks that compute the same function may be far apart by this measure: it is of use near the construction alone.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from recombine.basics.errors import require
from recombine.parts import relu_products
from recombine.parts.field_checks import check
from recombine.parts.protocols import Lab


@dataclass(frozen=True)
class Distance:
    """From the construction with so many pieces for a square, relative to the construction's own size."""

    pieces: int = 3

    def __post_init__(self):
        check(self, pieces=1)

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """The length of the difference of all weights, over the length of the weights; NaN for another shape."""
        family: Any = lab.family
        require(
            hasattr(family, "num_hot"),
            "Distance is from a hyperteacher's network: choose family=Hyperteacher()",
        )
        built = relu_products.network(lab.world, family.num_hot, family.num_hot, self.pieces)
        theirs, ours = jax.tree.leaves(lab.net), jax.tree.leaves(built)
        if [leaf.shape for leaf in theirs] != [leaf.shape for leaf in ours]:
            return {"distance": jnp.array(jnp.nan)}
        moved = sum(jnp.square(one - other).sum() for one, other in zip(theirs, ours, strict=True))
        return {"distance": jnp.sqrt(moved / sum(jnp.square(leaf).sum() for leaf in ours))}
