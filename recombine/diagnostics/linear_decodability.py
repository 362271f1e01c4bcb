"""Can the task be read linearly from a layer? Ridge regression from activations to module weights (paper, section 4).

    W = argmin sum_i |y_i - b - W h_i|^2 + l2 |W|^2,   h_i a layer's activation at a point, y_i the task's weights

Fitted on train tasks, scored by R2 on fresh train tasks ("seen") and on test tasks, for every layer and every module,
each layer from one factorisation. `code` is the input decoder: the same from the code itself.
"""

from dataclasses import dataclass

import jax
from jaxtyping import Array, PRNGKeyArray

from recombine import decoder
from recombine.core import Lab, check, require

MAX_TASKS = 1_000_000  # whose activations are in memory all at once


@dataclass(frozen=True)
class LinearDecodability:
    """`l2` is relative to the mean variance of a layer's features, so that scores do not depend on their scale.

    `paper=True` uses the public code's constants instead: l2 = 1 on the sum of squares, the intercept penalised too,
    only features before the ReLU and the output, and only the last point of each task. With 512 such samples a layer
    of 512 units or more is fitted perfectly and decoded badly, so the default uses all points.
    """

    num_fit: int = 512
    num_seen: int = 512
    num_test: int = 1024
    l2: float = 1e-3
    paper: bool = False

    def __post_init__(self):
        check(self, num_fit=2, num_seen=2, num_test=2, l2=0)
        for name in ("num_fit", "num_seen", "num_test"):
            value = getattr(self, name)
            require(value <= MAX_TASKS, f"LinearDecodability.{name} must be at most {MAX_TASKS} tasks, got {value}")
        require(
            self.l2 > 0, "LinearDecodability.l2 must be above 0: a layer with a dead unit has no solution without it"
        )

    @property
    def label(self) -> str:
        """The two variants can be measured side by side."""
        return "LinearDecodability-paper" if self.paper else "LinearDecodability"

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """Scores by layer, side and module. `best` is the hidden layer that scores highest on seen tasks, `deepest`
        the last one."""
        key_train, key_test = jax.random.split(key)
        train = lab.observe(key_train, "train", self.num_fit + self.num_seen)
        fit, seen = jax.tree.map(lambda a: a[: self.num_fit], train), jax.tree.map(lambda a: a[self.num_fit :], train)
        sides = {"seen": seen, "test": lab.observe(key_test, "test", self.num_test)}
        return decoder.scores(fit, sides, None if self.paper else self.l2)
