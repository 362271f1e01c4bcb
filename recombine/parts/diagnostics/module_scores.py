"""Which modules are handled badly in new company? The scores of unseen tasks by the modules that they need.

    score_m = mean over test tasks that hold module m,   share_m = fraction of the train tasks that hold it

A module that is rare in training should show here first.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from recombine.parts.field_checks import check
from recombine.parts.protocols import Lab


@dataclass(frozen=True)
class ModuleScores:
    """`num_tasks` are looked at on each side, evenly: none twice before each was once."""

    num_tasks: int = 1024

    def __post_init__(self):
        check(self, num_tasks=2)

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """Scores by module on test tasks (NaN where none of them holds it), and the share of train tasks with it."""
        key_train, key_test = jax.random.split(key)
        trained = lab.observe(key_train, "train", self.num_tasks).batch.task > 0
        test = lab.observe(key_test, "test", self.num_tasks)
        holds = test.batch.task > 0
        found = {"train/module=*/share": trained.mean(axis=0)}
        for metric, values in jax.vmap(lab.family.score)(test.prediction, test.batch.y).items():
            total = jnp.where(holds, values[:, None], 0).sum(axis=0)
            found[f"test/module=*/{metric}"] = total / holds.sum(axis=0)
        return found
