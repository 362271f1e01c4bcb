"""The code is a rotated task: phi(z) = Q z with a random orthogonal Q, so that no code entry is one module."""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from recombine.parts.protocols import Family


@dataclass(frozen=True)
class Orthogonal:
    """The model is given a fixed random rotation of the module weights."""

    def num_tokens(self, family: Family) -> int:
        """Codes are float vectors."""
        return 0

    def init(self, key: PRNGKeyArray, family: Family) -> Float[Array, "M M"]:
        """Draw Q, uniform over orthogonal matrices."""
        return jax.random.orthogonal(key, family.num_modules)

    def encode(
        self, params: Float[Array, "M M"], key: PRNGKeyArray, task: Float[Array, " M"], examples
    ) -> Array:
        """Rotate the task."""
        return params @ task
