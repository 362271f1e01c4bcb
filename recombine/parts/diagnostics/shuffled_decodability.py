"""The permuted-label control of linear decodability.

The same decoders as in `LinearDecodability`, fitted and scored after the tasks were permuted: each
activation gets the module weights of a random other task. Nothing can be decoded, so a score above
zero would reveal an error in the measure.
"""

from dataclasses import dataclass

import jax
from jaxtyping import Array, PRNGKeyArray

from recombine.basics.errors import require
from recombine.parts import decoder
from recombine.parts.field_checks import check
from recombine.parts.protocols import Lab, Observation, Part


@dataclass(frozen=True)
class ShuffledDecodability:
    """`LinearDecodability` on permuted tasks.

    Decoders are fitted on `num_fit` train tasks and scored on `num_seen` train and `num_test` test
    tasks. `l2` is the penalty, relative to the mean variance of a layer's features.
    """

    num_fit: int = 512
    num_seen: int = 512
    num_test: int = 1024
    l2: float = 1e-3

    def __post_init__(self):
        check(self, num_fit=2, num_seen=2, num_test=2, l2=0)
        require(
            self.l2 > 0,
            "ShuffledDecodability.l2 must be above 0: "
            "otherwise the probe of a layer with dead units has no solution",
        )

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """R2 by layer, side and module. The layer `best` is chosen on seen tasks."""
        sides: dict[str, tuple[Part, int]] = {
            "fit": ("train", self.num_fit),
            "seen": ("train", self.num_seen),
            "test": ("test", self.num_test),
        }
        observations = {}
        for i, (side, (part, num_tasks)) in enumerate(sides.items()):
            key_observe, key_order = jax.random.split(jax.random.fold_in(key, i))
            observation = lab.observe(key_observe, part, num_tasks)
            observations[side] = _permute_tasks(key_order, observation)
        fit = observations.pop("fit")
        return decoder.scores(fit, observations, self.l2)


def _permute_tasks(key: PRNGKeyArray, observation: Observation) -> Observation:
    task = observation.batch.task
    permuted = task[jax.random.permutation(key, len(task))]
    return observation._replace(batch=observation.batch._replace(task=permuted))
