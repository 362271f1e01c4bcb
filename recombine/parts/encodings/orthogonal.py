"""The code is a rotated task: phi(z) = Q z with a random orthogonal matrix Q.

No entry of the code belongs to a single module. Source: arXiv 2507.07207, section 4.
"""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from recombine.parts.protocols import Family


@dataclass(frozen=True)
class Orthogonal:
    """The model receives M floats: a random rotation of the module weights, fixed for the run."""

    def num_tokens(self, family: Family) -> int:
        """0: codes are floats."""
        return 0

    def init(self, key: PRNGKeyArray, family: Family) -> Float[Array, "M M"]:
        """Draw Q uniformly from the orthogonal matrices."""
        return jax.random.orthogonal(key, family.num_modules)

    def encode(
        self, params: Float[Array, "M M"], key: PRNGKeyArray, task: Float[Array, " M"], examples
    ) -> Array:
        """Rotate the task."""
        return params @ task
