"""How well any task, trained on or not, can be decoded from a network's layers.

The decoders of `LinearDecodability`, fitted on half of all tasks, train and test alike, and scored
on the other half. The number of train tasks of the student does not limit the decoder, so a low
score means that the layers do not represent the task linearly. The measure does not predict
generalization: the decoder is fitted on test tasks too.
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
    """R2 of decoders that are fitted on a random half of all tasks.

    The side `seen` has fresh samples of the `num_fit` tasks on which decoders are fitted, `test`
    has `num_test` tasks of the other half. `l2` is the penalty, relative to the mean variance of a
    layer's features.
    """

    num_fit: int = 512
    num_test: int = 1024
    l2: float = 1e-3

    def __post_init__(self):
        check(self, num_fit=2, num_test=2, l2=0)
        require(
            self.l2 > 0,
            "TaskInformation.l2 must be above 0: "
            "otherwise the probe of a layer with dead units has no solution",
        )

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """R2 by layer, side and module, for one random division of all tasks into halves."""
        key_halves, key_fit, key_seen, key_test = jax.random.split(key, 4)
        num_tasks = len(lab.table)
        order = jax.random.permutation(key_halves, num_tasks)
        half = num_tasks // 2
        fit_rows = lab.table[order[jnp.arange(self.num_fit) % half]]
        test_rows = lab.table[order[half + jnp.arange(self.num_test) % (num_tasks - half)]]
        fit = lab.look(key_fit, fit_rows)
        sides = {"seen": lab.look(key_seen, fit_rows), "test": lab.look(key_test, test_rows)}
        return decoder.scores(fit, sides, self.l2)
