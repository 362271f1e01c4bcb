"""The code shuffles intervals: [0, 1) is cut into 10 intervals, which are permuted; the place within one is kept.

The value 1 stays where it is. Invertible, but neither linear nor continuous in the task.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recombine.parts.field_checks import added, check
from recombine.parts.protocols import Family


@dataclass(frozen=True)
class IntervalShuffle:
    """The model is given every module weight moved to another interval, by one permutation for all modules.

    The public code also moves the weight 0 of absent modules. With `keep_zero` they stay at 0, a variant of ours.
    """

    num_intervals: int = 10
    keep_zero: bool = added(False, before=False)

    def __post_init__(self):
        check(self, num_intervals=2)

    def num_tokens(self, family: Family) -> int:
        """Codes are float vectors."""
        return 0

    def init(self, key: PRNGKeyArray, family: Family) -> Int[Array, " intervals"]:
        """Draw the permutation."""
        return jax.random.permutation(key, self.num_intervals)

    def encode(
        self,
        params: Int[Array, " intervals"],
        key: PRNGKeyArray,
        task: Float[Array, " M"],
        examples,
    ) -> Float[Array, " M"]:
        """Move every weight to its new interval."""
        scaled = task * self.num_intervals
        # A weight on a border belongs to the interval that it opens, whichever way its float was rounded.
        nearest = jnp.round(scaled)
        scaled = jnp.where(jnp.abs(scaled - nearest) < 1e-4, nearest, scaled)
        interval = jnp.floor(scaled).astype(params.dtype)
        moved = (
            params[jnp.minimum(interval, self.num_intervals - 1)] + scaled - interval
        ) / self.num_intervals
        stays = (interval >= self.num_intervals) | (self.keep_zero & (task == 0))
        return jnp.where(stays, task, moved)
