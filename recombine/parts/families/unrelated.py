"""The control of the hyperteacher: every combination of modules has an independent teacher.

    f_z(x) = Omega_S^T relu((sum_m z_m Theta_S,m)^T x + sum_m z_m b_S,m),   z divided by sqrt(K)

S is the set of active modules. Tasks, points, distributions and scores are those of the
hyperteacher, but modules and readout are drawn anew for each combination S. One combination says
nothing about another, so a student can only memorize.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped, UInt32

from recombine.parts import conditions, khot
from recombine.parts.field_checks import check


@dataclass(frozen=True)
class Unrelated:
    """Tasks look like those of a `Hyperteacher`, but combinations of modules share nothing.

    - `num_modules`, `num_hot`: M modules, of which 1 to K are active in a task.
    - `d_input`, `d_hidden`, `num_outputs`: the sizes of the teachers' layers.
    - `weights`: how the weights of active modules are drawn: `"khot"` are all 1, `"discrete"` are
      in {0.5, 0.6, …, 1.0}, `"continuous"` are in [0.5, 1] (`khot.weigh`).
    - `max_tasks`: 0 lists every task; otherwise the table has at most this many distinct rows,
      drawn with the seed `table_seed`.
    """

    num_modules: int = 16
    num_hot: int = 3
    d_input: int = 16
    d_hidden: int = 16
    num_outputs: int = 16
    weights: khot.WeightDistribution = "discrete"
    max_tasks: int = 0
    table_seed: int = 0

    def __post_init__(self):
        check(self, d_input=1, d_hidden=1, num_outputs=1)
        khot.check_sizes(self)

    def tasks(self) -> Int[np.ndarray, "N M"]:
        """All rows with 1 to K active modules, or `max_tasks` of them."""
        return khot.table(self)

    def modules(self, tasks: np.ndarray) -> np.ndarray:
        """The rows themselves, which are 0/1 rows of active modules."""
        return tasks

    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]:
        """Scores are also reported by the number of active modules."""
        return khot.groups(tasks)

    def init(self, key: PRNGKeyArray) -> UInt32[Array, " words"]:
        """The key from which teachers are drawn when needed: they would not all fit in memory."""
        return jax.random.key_data(key)

    def weigh(self, key: PRNGKeyArray, row: Shaped[Array, " M"]) -> Float[Array, " M"]:
        """Draw a weight for every active module of a row."""
        return khot.weigh(key, row, self.weights)

    def sample(
        self, world: UInt32[Array, " words"], key: PRNGKeyArray, task: Float[Array, " M"], n: int
    ) -> tuple[Float[Array, "n I"], Float[Array, "n O"]]:
        """Draw n points of one task, with x uniform in [-1, 1]."""
        x = jax.random.uniform(key, (n, self.d_input), minval=-1.0)
        teacher_key = jax.random.wrap_key_data(world, impl=jax.random.key_impl(key))
        modules, biases, readout = self.teacher(teacher_key, task)
        active_first = jnp.argsort(task <= 0)[: self.num_hot]
        z = task[active_first] / math.sqrt(self.num_hot)
        return x, jax.nn.relu(x @ jnp.einsum("k,kih->ih", z, modules) + z @ biases) @ readout

    def teacher(
        self, key: PRNGKeyArray, task: Float[Array, " M"]
    ) -> tuple[Float[Array, "K I H"], Float[Array, "K H"], Float[Array, "H O"]]:
        """The modules, biases and readout of a task's combination of modules.

        They do not depend on the task's weights. Distributions are those of the hyperteacher.
        """
        stamps = conditions.stamps(self.num_modules).view(np.uint32).reshape(self.num_modules, -1)
        active_stamps = jnp.where(task[:, None] > 0, stamps, np.uint32(0))
        for word in active_stamps.sum(axis=0, dtype=jnp.uint32):
            key = jax.random.fold_in(key, word)
        key_modules, key_biases, key_readout = jax.random.split(key, 3)
        scaled = jax.nn.initializers.variance_scaling
        draw_modules = scaled(math.sqrt(3), "fan_in", "truncated_normal", batch_axis=0)
        draw_readout = scaled(math.sqrt(3), "fan_in", "truncated_normal")
        return (
            draw_modules(key_modules, (self.num_hot, self.d_input, self.d_hidden)),
            jax.random.uniform(key_biases, (self.num_hot, self.d_hidden), maxval=0.5),
            draw_readout(key_readout, (self.d_hidden, self.num_outputs)),
        )

    def score(self, prediction: Float[Array, "n O"], y: Float[Array, "n O"]) -> dict[str, Array]:
        """Mean squared error (`loss`), and R2 averaged over outputs (`r2`)."""
        return khot.regression_scores(prediction, y)
