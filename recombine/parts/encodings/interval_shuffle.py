"""The code shuffles intervals: [0, 1) is cut into equal intervals, which are permuted.

The position within an interval stays the same, and the value 1 is not moved. The code is invertible
but neither linear nor continuous in the task. Source: arXiv 2507.07207, section 4.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recombine.parts.field_checks import added, check
from recombine.parts.protocols import Family

BORDER_TOLERANCE = 1e-4  # in units of an interval


@dataclass(frozen=True)
class IntervalShuffle:
    """The model receives M module weights, each moved to another of `num_intervals` intervals.

    One random permutation is drawn per run and used for all modules. As in the public code, the
    weight 0 of absent modules is moved too; `keep_zero=True` leaves it at 0.
    """

    num_intervals: int = 10
    keep_zero: bool = added(False, before=False)

    def __post_init__(self):
        check(self, num_intervals=2)

    def num_tokens(self, family: Family) -> int:
        """0: codes are floats."""
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
        # A weight on a border belongs to the interval above, whatever the rounding of its float.
        nearest = jnp.round(scaled)
        scaled = jnp.where(jnp.abs(scaled - nearest) < BORDER_TOLERANCE, nearest, scaled)
        interval = jnp.floor(scaled).astype(params.dtype)
        new_interval = params[jnp.minimum(interval, self.num_intervals - 1)]
        moved = (new_interval + scaled - interval) / self.num_intervals
        stays = (interval >= self.num_intervals) | (self.keep_zero & (task == 0))
        return jnp.where(stays, task, moved)
