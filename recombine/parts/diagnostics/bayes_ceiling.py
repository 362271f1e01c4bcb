"""The Bayes-optimal prediction from a code: the posterior mean over all tasks that agree with it.

    E[f_z(x) | code] = mean of f_z(x) over the rows z of the task table that agree with the code

An encoding is a function phi(z, r) of the task and a random key r (which examples are drawn, which
weights are hidden). A row agrees with a code if encoding it with the same r gives the same code.
This is exact if the code reveals r, as the codes of all encodings here do. The posterior mean
minimizes the expected squared error, the loss that students are trained on. (It need not maximize
R2, which is relative to the variance within a task: if the code leaves that variance open, a
student can have a slightly higher R2.)

There are two priors. `all` is uniform over all rows of the table. `train` is uniform over the train
tasks: optimal on seen tasks, wrong on test tasks. If no train task agrees with a code, the prior
`all` is used for it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree

from recombine.basics.errors import require
from recombine.parts.field_checks import check
from recombine.parts.protocols import Lab, example_sampler

MAX_ROWS = 10_000  # each code is compared with all rows, which takes memory for all their codes


@dataclass(frozen=True)
class BayesCeiling:
    """Scores of the Bayes-optimal prediction, on `num_tasks` seen and test tasks each.

    Every task is scored on `num_points` points. Two codes are equal if none of their numbers
    differs by more than `tolerance`. If weights are drawn (`weights="discrete"`), tasks cannot be
    enumerated and all scores are NaN.
    """

    num_tasks: int = 1024
    num_points: int = 16
    tolerance: float = 1e-3

    def __post_init__(self):
        check(self, num_tasks=1, num_points=2, tolerance=0)

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """The family's scores by side and prior, and the number of rows that agree with a code."""
        num_rows = len(lab.table)
        require(
            num_rows <= MAX_ROWS,
            f"BayesCeiling compares each code with all {num_rows:,} tasks: "
            f"use a table of at most {MAX_ROWS:,}",
        )
        key_encoding, key_weigh, *keys = jax.random.split(key, 4)
        # The encoding's arrays are drawn anew: what a code reveals does not depend on them.
        params = lab.encoding.init(key_encoding, lab.family)
        tasks = jax.vmap(lambda row: lab.family.weigh(key_weigh, row))(lab.table)
        rows_are_tasks = (tasks == lab.table).all()
        is_first = jnp.arange(num_rows) < lab.split.num_train
        is_train = jnp.zeros(num_rows, bool).at[lab.split.order].set(is_first)
        score_row = self._row_scorer(lab, params, tasks, is_train)

        result = {}
        windows = {
            "seen": (0, lab.split.num_train),
            "test": (lab.split.num_train, lab.split.num_test),
        }
        for key_side, (side, (start, count)) in zip(keys, windows.items(), strict=True):
            rows = lab.split.order[start + jnp.arange(self.num_tasks) % count]
            scores = jax.lax.map(score_row, (jax.random.split(key_side, self.num_tasks), rows))
            for name, value in scores.items():
                result[f"{side}/{name}"] = jnp.where(rows_are_tasks, value.mean(), jnp.nan)
        return result

    def _row_scorer(
        self,
        lab: Lab,
        params: PyTree[Array],
        tasks: Float[Array, "rows M"],
        is_train: Bool[Array, " rows"],
    ) -> Callable[[tuple[PRNGKeyArray, Array]], dict[str, Array]]:
        """The function from (key, index of a row) to the scores of the prediction for this row."""

        def score_row(args: tuple[PRNGKeyArray, Array]) -> dict[str, Array]:
            key, row = args
            key_code, key_points = jax.random.split(key)

            def code_and_answers(task):
                # The same keys for all tasks: the same random choices and the same points.
                examples = example_sampler(lab.family, lab.world, task)
                code = lab.encoding.encode(params, key_code, task, examples)
                _, answers = lab.family.sample(lab.world, key_points, task, self.num_points)
                return code, answers

            codes, answers = jax.vmap(code_and_answers)(tasks)
            require(
                jnp.issubdtype(answers.dtype, jnp.floating),
                "BayesCeiling averages real-valued answers, which "
                f"{type(lab.family).__name__} does not have: use diagnostics=()",
            )
            difference = jnp.abs(codes - codes[row]).reshape(len(tasks), -1)
            agrees = (difference <= self.tolerance).all(axis=1)
            result = {"num_agree": agrees.sum().astype(jnp.float32)}
            for prior, rows in {"all": agrees, "train": agrees & is_train}.items():
                rows = jnp.where(rows.any(), rows, agrees)
                mean = jnp.tensordot(rows / rows.sum(), answers, axes=1, precision="highest")
                for metric, score in lab.family.score(mean, answers[row]).items():
                    result[f"{prior}/{metric}"] = score
            return result

        return score_row
