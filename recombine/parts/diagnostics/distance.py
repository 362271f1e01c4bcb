"""The distance in weight space to the network that Theorem 3.1 constructs for the teacher.

Networks that compute the same function can be far apart in this measure, so it is only useful near
the construction. Source of the theorem: arXiv 2507.07207, section 3.
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
    """The relative distance to the construction with `pieces` linear pieces per square."""

    pieces: int = 3

    def __post_init__(self):
        check(self, pieces=1)

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """`distance`: the norm of the difference of all weights, over the construction's norm.

        NaN if the network does not have the construction's shapes.
        """
        family: Any = lab.family
        require(
            hasattr(family, "num_hot"),
            "Distance compares with a network built for a hyperteacher: "
            "choose family=Hyperteacher()",
        )
        built = relu_products.network(lab.world, family.num_hot, family.num_hot, self.pieces)
        net_leaves = jax.tree.leaves(lab.net)
        built_leaves = jax.tree.leaves(built)
        if [leaf.shape for leaf in net_leaves] != [leaf.shape for leaf in built_leaves]:
            return {"distance": jnp.array(jnp.nan)}
        squared_distance = sum(
            jnp.square(a - b).sum() for a, b in zip(net_leaves, built_leaves, strict=True)
        )
        squared_norm = sum(jnp.square(leaf).sum() for leaf in built_leaves)
        return {"distance": jnp.sqrt(squared_distance / squared_norm)}
