"""How good is the answer of a recursive network after each of its supervision steps?

A network that has `unroll(x, code, num_steps)` gives a prediction after every step. It may take
more steps than it was trained with. Any other network has one step.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from recombine.basics.errors import require
from recombine.parts import sequences
from recombine.parts.field_checks import check
from recombine.parts.prng import stream
from recombine.parts.protocols import Batch, Lab, Nodes, Part


@dataclass(frozen=True)
class SupervisionSteps:
    """The scores after each number of `steps`, on `num_tasks` train tasks and as many test tasks.

    With `record`, the answers to one test task after each number of steps are columns too, for
    families whose answer is a row of symbols.
    """

    steps: tuple[int, ...] = (1, 2, 4, 8, 16)
    num_tasks: int = 256
    record: bool = False

    def __post_init__(self):
        check(self, num_tasks=2)
        require(
            len(self.steps) > 0 and min(self.steps) >= 1,
            f"SupervisionSteps.steps must be at least one number of at least 1, got {self.steps}",
        )

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """`SIDE/steps=K/SCORE`, where `SIDE` is `seen` or `test`.

        `record` adds `example/word=*`, `example/right=*` and `example/steps=K/value=*`.
        """
        result = {}
        sides: dict[str, Part] = {"seen": "train", "test": "test"}
        for side, part in sides.items():
            batch = lab.observe(stream(key, side), part, self.num_tasks).batch
            by_steps = self._predictions(lab.net, batch)
            for steps, prediction in by_steps.items():
                scores = jax.vmap(lab.family.score)(prediction, batch.y)
                for metric, values in scores.items():
                    result[f"{side}/steps={steps}/{metric}"] = values.mean()
            if self.record and side == "test":
                result |= _example(batch, by_steps)
        return result

    def _predictions(self, net, batch: Batch) -> dict[int, Float[Array, "tasks n O"]]:
        """The predictions after each number of steps."""
        if not hasattr(net, "unroll"):
            return {1: jax.vmap(lambda x, code: net(x, code)[0])(batch.x, batch.code)}
        longest = max(self.steps)
        unroll = jax.vmap(lambda x, code: net.unroll(x, code, longest)[1])
        predictions = unroll(batch.x, batch.code)
        return {steps: predictions[:, steps - 1] for steps in self.steps}


def _example(batch: Batch, by_steps: dict[int, Array]) -> dict[str, Array]:
    """The first task of a batch: its words, its right answer, and the answers after each step."""
    first: Batch = jax.tree.map(lambda leaf: leaf[0], batch)
    require(
        isinstance(first.y, Nodes) and first.code.ndim == 1,
        "SupervisionSteps records answers that are rows of symbols: set record=False",
    )
    right = sequences.at_answer(first.y.values, first.y)[0]
    result = {"example/word=*": first.code, "example/right=*": right}
    for steps, prediction in by_steps.items():
        logits = prediction[0, 0].reshape(len(right), -1)
        result[f"example/steps={steps}/value=*"] = jnp.argmax(logits, axis=-1)
    return result
