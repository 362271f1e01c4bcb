"""The code is a task with gaps: every module's weight is shown or hidden by chance, anew for each sample.

    phi(z) = (s_1 z_1, …, s_M z_M, s_1, …, s_M),   s_m = 0 with probability frac_hidden, else 1

The second half tells what is shown, so that a hidden module is not taken for an absent one.
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
    """The model is given some of the module weights, and told which: an incomplete description of the task."""

    frac_hidden: Knob = 0.5

    def __post_init__(self):
        check(self)
        told = f"Hidden.frac_hidden must lie between 0 and 1, got {self.frac_hidden}: 0.5 hides half of the weights"
        require(0 <= self.frac_hidden <= 1, told)

    def num_tokens(self, family: Family) -> int:
        """Codes are float vectors."""
        return 0

    def init(self, key: PRNGKeyArray, family: Family) -> tuple[()]:
        """Nothing to draw."""
        return ()

    def encode(
        self, params: tuple[()], key: PRNGKeyArray, task: Float[Array, " M"], examples
    ) -> Float[Array, " 2*M"]:
        """Hide some weights, and tell which are shown."""
        shown = (jax.random.uniform(key, task.shape) >= self.frac_hidden).astype(jnp.float32)
        return jnp.concatenate([shown * task, shown])
