"""The control of linear decodability: the same decoders, with every task's weights given to another task's activations.

Nothing is left to be read, so a score above zero would mean that the measure itself finds what is not there.
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
    """As `LinearDecodability`, on tasks in a random order."""

    num_fit: int = 512
    num_seen: int = 512
    num_test: int = 1024
    l2: float = 1e-3

    def __post_init__(self):
        check(self, num_fit=2, num_seen=2, num_test=2, l2=0)
        require(
            self.l2 > 0,
            "ShuffledDecodability.l2 must be above 0: a layer with a dead unit has no solution",
        )

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """Scores by layer, side and module; `best` is chosen on seen tasks, as ever."""
        sizes: dict[str, tuple[Part, int]] = {}
        sizes |= {
            "fit": ("train", self.num_fit),
            "seen": ("train", self.num_seen),
            "test": ("test", self.num_test),
        }
        seen = {}
        for i, (side, (part, n)) in enumerate(sizes.items()):
            key_look, key_order = jax.random.split(jax.random.fold_in(key, i))
            seen[side] = _shuffle(key_order, lab.observe(key_look, part, n))
        return decoder.scores(seen.pop("fit"), seen, self.l2)


def _shuffle(key: PRNGKeyArray, seen: Observation) -> Observation:
    task = seen.batch.task
    return seen._replace(
        batch=seen.batch._replace(task=task[jax.random.permutation(key, len(task))])
    )
