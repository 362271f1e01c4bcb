"""The best that can be predicted from a code: the posterior mean over all tasks that agree with it.

    E[f_z(x) | code] = mean of f_z(x) over the rows z of the table that the same draw would have given the same code

An encoding is phi(z, r) with a random r, its key: examples that are drawn, weights that are hidden. A row agrees with
a code if encoding it with the same r gives the same code. That is exact where a code shows its r, as all of ours do.
The posterior mean is the best prediction for squared error, on which students are trained, and is scored as they are.
(R2 divides by the spread of a task, which a code may leave open: there a student can be ahead by a little.)

Every row of the table is as likely as the others (`all`): a learner that knew which are train tasks would bet on those
(`train`), which is the best on seen tasks and wrong on test tasks. Where none of them agrees, it too counts all.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from recombine.basics.errors import require
from recombine.parts.field_checks import check
from recombine.parts.protocols import Lab, examples_of

MAX_ROWS = (
    10_000  # that are compared with each code: with 50 examples of 32 numbers, 64 MB at a time
)


@dataclass(frozen=True)
class BayesCeiling:
    """Codes are equal if no number of them differs by more than `tolerance`.

    Only where a row is a task: if weights are drawn (`weights="discrete"`) tasks cannot be listed, and all is NaN.
    """

    num_tasks: int = 1024  # on each side
    num_points: int = 16
    tolerance: float = 1e-3

    def __post_init__(self):
        check(self, num_tasks=1, num_points=2, tolerance=0)

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """The family's scores of both predictions on both sides, and how many rows agree with a code."""
        num_rows = len(lab.table)
        require(
            num_rows <= MAX_ROWS,
            f"BayesCeiling compares each code with all {num_rows:,} tasks: use a table of at most {MAX_ROWS:,}",
        )
        key_encoding, key_weigh, *keys = jax.random.split(key, 4)
        # The encoding's own arrays are drawn anew: what a code can tell does not depend on them.
        params = lab.encoding.init(key_encoding, lab.family)
        tasks = jax.vmap(lambda row: lab.family.weigh(key_weigh, row))(lab.table)
        listed = (tasks == lab.table).all()
        train = (
            jnp.zeros(num_rows, bool)
            .at[lab.split.order]
            .set(jnp.arange(num_rows) < lab.split.num_train)
        )

        def one(args: tuple[PRNGKeyArray, Array]) -> dict[str, Array]:
            (key_code, key_points), row = jax.random.split(args[0]), args[1]

            def tell(
                task,
            ):  # with the same keys for every row: the code and the points that it would have had
                examples = examples_of(lab.family, lab.world, task)
                code = lab.encoding.encode(params, key_code, task, examples)
                return code, lab.family.sample(lab.world, key_points, task, self.num_points)[1]

            codes, answers = jax.vmap(tell)(tasks)
            told = f"BayesCeiling averages answers, and those of {type(lab.family).__name__} are no real numbers"
            require(jnp.issubdtype(answers.dtype, jnp.floating), f"{told}: use diagnostics=()")
            apart = jnp.abs(codes - codes[row]).reshape(num_rows, -1)
            agrees = (apart <= self.tolerance).all(axis=1)
            found = {"num_agree": agrees.sum().astype(jnp.float32)}
            for prior, rows in {"all": agrees, "train": agrees & train}.items():
                rows = jnp.where(rows.any(), rows, agrees)
                mean = jnp.tensordot(rows / rows.sum(), answers, axes=1, precision="highest")
                scores = lab.family.score(mean, answers[row])
                found |= {f"{prior}/{metric}": score for metric, score in scores.items()}
            return found

        scores = {}
        starts = {
            "seen": (0, lab.split.num_train),
            "test": (lab.split.num_train, lab.split.num_test),
        }
        for key_side, (side, (first, count)) in zip(keys, starts.items(), strict=True):
            picked = lab.split.order[first + jnp.arange(self.num_tasks) % count]
            found = jax.lax.map(one, (jax.random.split(key_side, self.num_tasks), picked))
            scores |= {
                f"{side}/{name}": jnp.where(listed, value.mean(), jnp.nan)
                for name, value in found.items()
            }
        return scores
