"""A partial task description: random module weights are hidden, drawn anew for every sample.

    phi(z) = (s_1 z_1, …, s_M z_M, s_1, …, s_M),   s_m = 0 with probability frac_hidden, else 1

The second half says which weights are visible, so a hidden module differs from an absent one.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from recombine.basics.errors import require
from recombine.parts.field_checks import Knob, check
from recombine.parts.protocols import Family


@dataclass(frozen=True)
class Hidden:
    """The model receives the visible module weights and a mask of them: 2M floats.

    Each weight is hidden independently with probability `frac_hidden`.
    """

    frac_hidden: Knob = 0.5

    def __post_init__(self):
        check(self)
        require(
            0 <= self.frac_hidden <= 1,
            f"Hidden.frac_hidden must lie between 0 and 1, got {self.frac_hidden}: "
            "0.5 hides half of the weights",
        )

    def num_tokens(self, family: Family) -> int:
        """0: codes are floats."""
        return 0

    def init(self, key: PRNGKeyArray, family: Family) -> tuple[()]:
        """No arrays."""
        return ()

    def encode(
        self, params: tuple[()], key: PRNGKeyArray, task: Float[Array, " M"], examples
    ) -> Float[Array, " 2*M"]:
        """Hide random weights and append the mask of the visible ones."""
        visible = (jax.random.uniform(key, task.shape) >= self.frac_hidden).astype(jnp.float32)
        return jnp.concatenate([visible * task, visible])
