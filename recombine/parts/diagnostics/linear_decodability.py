"""Linear decodability: can the task be decoded linearly from a layer's activations?

    W = argmin sum_i |y_i - b - W h_i|^2 + l2 |W|^2

h_i is a layer's activation at a point and y_i the module weights of the point's task. The ridge
regression is fitted on train tasks and scored by R2 on fresh samples of train tasks ("seen") and on
test tasks, for every layer and every module. `code` is the decoder from the code itself. Source:
arXiv 2507.07207, section 4.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from recombine.basics.errors import require
from recombine.parts import decoder
from recombine.parts.field_checks import added, check
from recombine.parts.protocols import Lab, Split

MAX_TASKS = 1_000_000  # the activations of all of them are in memory at once


@dataclass(frozen=True)
class LinearDecodability:
    """R2 of ridge regressions from every layer to the module weights.

    Decoders are fitted on `num_fit` tasks and scored on `num_seen` train and `num_test` test tasks.
    `l2` is relative to the mean variance of a layer's features, so scores do not depend on their
    scale.

    `paper=True` does what the public code does: a penalty of 1 on the sum of squares, the intercept
    included, only the output and features before the ReLU, and only the last point of each task.
    With 512 such samples, a layer of 512 or more units is fitted perfectly but decoded badly. The
    default therefore uses all points.

    `fit_on="all"` fits on train and test tasks alike and scores on fresh samples of them. The
    number of tasks in the fit then does not depend on the number of train tasks, so students with
    different numbers of train tasks can be compared. It does not measure whether the decoder
    generalizes.

    `by_module=False` leaves out the scores of single modules, which makes tables much smaller.
    """

    num_fit: int = 512
    num_seen: int = 512
    num_test: int = 1024
    l2: float = 1e-3
    paper: bool = False
    fit_on: Literal["train", "all"] = added("train", before="train")
    by_module: bool = added(True, before=True)

    def __post_init__(self):
        check(self, num_fit=2, num_seen=2, num_test=2, l2=0)
        for name in ("num_fit", "num_seen", "num_test"):
            value = getattr(self, name)
            require(
                value <= MAX_TASKS,
                f"LinearDecodability.{name} must be at most {MAX_TASKS} tasks, got {value}",
            )
        require(
            self.l2 > 0,
            "LinearDecodability.l2 must be above 0: "
            "otherwise the probe of a layer with dead units has no solution",
        )

    @property
    def label(self) -> str:
        """The prefix of the columns; every variant has its own, so a run can have several."""
        name = "LinearDecodability-paper" if self.paper else "LinearDecodability"
        return name if self.fit_on == "train" else f"{name}-all"

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """R2 by layer, side and module.

        The layer `best` is the hidden layer with the highest R2 on seen tasks, `deepest` the last
        hidden layer.
        """
        key_train, key_test = jax.random.split(key)
        if self.fit_on == "train":
            observed = lab.observe(key_train, "train", self.num_fit + self.num_seen)
        else:
            fit_rows = _evenly_spaced(lab.split, self.num_fit)
            seen_rows = _evenly_spaced(lab.split, self.num_seen)
            rows = jnp.concatenate([fit_rows, seen_rows])
            observed = lab.look(key_train, lab.table[rows])
        fit = jax.tree.map(lambda a: a[: self.num_fit], observed)
        seen = jax.tree.map(lambda a: a[self.num_fit :], observed)
        sides = {"seen": seen, "test": lab.observe(key_test, "test", self.num_test)}
        scores = decoder.scores(fit, sides, None if self.paper else self.l2)
        if not self.by_module:
            scores = {name: value for name, value in scores.items() if "/module=" not in name}
        if self.fit_on == "all":  # the best layer would be chosen on test tasks
            scores = {name: value for name, value in scores.items() if not name.startswith("best/")}
        return scores


def _evenly_spaced(split: Split, n: int) -> Int[Array, " n"]:
    """n rows of the task table, evenly spaced over train and test tasks.

    If n is large enough, all tasks are included.
    """
    num_tasks = split.num_train + split.num_test
    step = num_tasks // n
    remainder = num_tasks % n
    # i * num_tasks // n without large products: exact for up to 46,340 rows.
    i = jnp.arange(n)
    return split.order[i * step + i * remainder // n]
