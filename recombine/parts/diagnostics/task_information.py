"""What do a network's layers tell of the task at all, whatever it was trained on?

The decoders of `LinearDecodability`, but fitted on half of all tasks, trained or not, and scored on the other half. A
student of few train tasks then has as good a decoder as any other: what it scores less, its layers do not tell. (It is
no prediction for unseen tasks: the decoder has seen others of them.)
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from recombine.basics.errors import require
from recombine.parts import decoder
from recombine.parts.field_checks import check
from recombine.parts.protocols import Lab


@dataclass(frozen=True)
class TaskInformation:
    """As `LinearDecodability`; `seen` are fresh samples of the tasks that decoders were fitted on, `test` others."""

    num_fit: int = 512
    num_test: int = 1024
    l2: float = 1e-3

    def __post_init__(self):
        check(self, num_fit=2, num_test=2, l2=0)
        require(
            self.l2 > 0,
            "TaskInformation.l2 must be above 0: a layer with a dead unit has no solution without it",
        )

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """Scores by layer, side and module, for one random division of all tasks into two halves."""
        key_halves, *keys = jax.random.split(key, 4)
        order = jax.random.permutation(key_halves, len(lab.table))
        half = len(lab.table) // 2
        fit = order[jnp.arange(self.num_fit) % half]
        others = order[half + jnp.arange(self.num_test) % (len(lab.table) - half)]
        fitted, seen, test = (
            lab.look(k, lab.table[tasks]) for k, tasks in zip(keys, (fit, fit, others), strict=True)
        )
        return decoder.scores(fitted, {"seen": seen, "test": test}, self.l2)
