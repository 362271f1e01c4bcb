"""Scores on test tasks for each module: which modules fail in held-out combinations?

    score_m = mean score of the test tasks that contain module m
    share_m = fraction of the train tasks that contain module m

A module that is rare in training is expected to have low scores.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from recombine.parts.field_checks import check
from recombine.parts.protocols import Lab


@dataclass(frozen=True)
class ModuleScores:
    """Scores by module, from `num_tasks` train tasks and as many test tasks.

    Tasks are taken evenly: none is used twice before each was used once.
    """

    num_tasks: int = 1024

    def __post_init__(self):
        check(self, num_tasks=2)

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """`test/module=*/SCORE` (NaN if no test task contains it) and `train/module=*/share`."""
        key_train, key_test = jax.random.split(key)
        in_train = lab.observe(key_train, "train", self.num_tasks).batch.task > 0
        test = lab.observe(key_test, "test", self.num_tasks)
        in_test = test.batch.task > 0
        result = {"train/module=*/share": in_train.mean(axis=0)}
        for metric, values in jax.vmap(lab.family.score)(test.prediction, test.batch.y).items():
            total = jnp.where(in_test, values[:, None], 0).sum(axis=0)
            result[f"test/module=*/{metric}"] = total / in_test.sum(axis=0)
        return result
