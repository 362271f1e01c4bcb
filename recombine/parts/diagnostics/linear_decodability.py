"""Can the task be read linearly from a layer? Ridge regression from activations to module weights (paper, section 4).

    W = argmin sum_i |y_i - b - W h_i|^2 + l2 |W|^2,   h_i a layer's activation at a point, y_i the task's weights

Fitted on train tasks, scored by R2 on fresh train tasks ("seen") and on test tasks, for every layer and every module,
each layer from one factorisation. `code` is the input decoder: the same from the code itself.
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

MAX_TASKS = 1_000_000  # whose activations are in memory all at once


@dataclass(frozen=True)
class LinearDecodability:
    """`l2` is relative to the mean variance of a layer's features, so that scores do not depend on their scale.

    `paper=True` uses the public code's constants instead: l2 = 1 on the sum of squares, the intercept penalised too,
    only features before the ReLU and the output, and only the last point of each task. With 512 such samples a layer
    of 512 units or more is fitted perfectly and decoded badly, so the default uses all points.

    `fit_on="all"` fits on train and test tasks alike, and scores on fresh samples of them. The probe then has equally
    many tasks however few the student was trained on: students that differ in their number of train tasks can be
    compared. It says nothing about whether the probe itself generalizes.

    `by_module=False` leaves out the score of each single module, which makes large tables much smaller.
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
            "LinearDecodability.l2 must be above 0: a layer with a dead unit has no solution without it",
        )

    @property
    def label(self) -> str:
        """The prefix of its columns. Each variant has its own, so that a run can have several."""
        name = "LinearDecodability-paper" if self.paper else "LinearDecodability"
        return name if self.fit_on == "train" else f"{name}-all"

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """Scores by layer, side and module. `best` is the hidden layer that scores highest on seen tasks, `deepest`
        the last one."""
        key_train, key_test = jax.random.split(key)
        if self.fit_on == "train":
            train = lab.observe(key_train, "train", self.num_fit + self.num_seen)
        else:
            rows = jnp.concatenate(
                [_evenly(lab.split, self.num_fit), _evenly(lab.split, self.num_seen)]
            )
            train = lab.look(key_train, lab.table[rows])
        fit, seen = (
            jax.tree.map(lambda a: a[: self.num_fit], train),
            jax.tree.map(lambda a: a[self.num_fit :], train),
        )
        sides = {"seen": seen, "test": lab.observe(key_test, "test", self.num_test)}
        scores = decoder.scores(fit, sides, None if self.paper else self.l2)
        if not self.by_module:
            scores = {name: value for name, value in scores.items() if "/module=" not in name}
        if self.fit_on == "all":  # the best layer would be chosen on test tasks
            scores = {name: value for name, value in scores.items() if not name.startswith("best/")}
        return scores


def _evenly(split: Split, n: int) -> Int[Array, " n"]:
    """n rows of the task table, evenly spaced over train and test tasks; all of them where n is large enough."""
    num_tasks = split.num_train + split.num_test
    step, rest = num_tasks // n, num_tasks % n
    # i * num_tasks // n without large products; exact up to 46,340 rows.
    place = jnp.arange(n)
    return split.order[place * step + place * rest // n]
