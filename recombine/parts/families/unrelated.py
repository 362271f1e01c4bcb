"""Tasks without common parts: the hyperteacher's control. Every combination of modules has a teacher of its own.

    f_z(x) = Omega_S^T relu((sum_m z_m Theta_S,m)^T x + sum_m z_m b_S,m),   S the active modules, z divided by sqrt(K)

Codes, points, the size of teachers, their laws and the score are the hyperteacher's. Only that modules and readout are
drawn anew for each combination S: from one combination nothing follows for another, so a student can only memorise.
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
    """Tasks look like a hyperteacher's, but no two combinations of modules have anything in common."""

    num_modules: int = 16
    num_hot: int = 3
    d_input: int = 16
    d_hidden: int = 16
    num_outputs: int = 16
    weights: khot.Law = "discrete"
    max_tasks: int = (
        0  # 0: list every task; otherwise at most so many unique rows, drawn once with table_seed
    )
    table_seed: int = 0

    def __post_init__(self):
        check(self, d_input=1, d_hidden=1, num_outputs=1)
        khot.check_sizes(self)

    def tasks(self) -> Int[np.ndarray, "N M"]:
        """All rows with 1 to K active modules, or `max_tasks` of them."""
        return khot.table(self)

    def modules(self, tasks: np.ndarray) -> np.ndarray:
        """The rows are already the modules."""
        return tasks

    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]:
        """Scores are also given by the number of active modules."""
        return khot.groups(tasks)

    def init(self, key: PRNGKeyArray) -> UInt32[Array, " words"]:
        """The key from which every combination draws its teacher: all of them would not fit into memory."""
        return jax.random.key_data(key)

    def weigh(self, key: PRNGKeyArray, row: Shaped[Array, " M"]) -> Float[Array, " M"]:
        """Give every active module of a row a weight, by the family's law."""
        return khot.weigh(key, row, self.weights)

    def sample(
        self, world: UInt32[Array, " words"], key: PRNGKeyArray, task: Float[Array, " M"], n: int
    ) -> tuple[Float[Array, "n I"], Float[Array, "n O"]]:
        """Draw n points of one task, x uniform in [-1, 1]."""
        x = jax.random.uniform(key, (n, self.d_input), minval=-1.0)
        modules, biases, readout = self.teacher(
            jax.random.wrap_key_data(world, impl=jax.random.key_impl(key)), task
        )
        z = task[jnp.argsort(task <= 0)[: self.num_hot]] / math.sqrt(
            self.num_hot
        )  # active modules, in their order
        return x, jax.nn.relu(x @ jnp.einsum("k,kih->ih", z, modules) + z @ biases) @ readout

    def teacher(
        self, key: PRNGKeyArray, task: Float[Array, " M"]
    ) -> tuple[Float[Array, "K I H"], Float[Array, "K H"], Float[Array, "H O"]]:
        """The modules, biases and readout of a task's combination, whatever its weights: by the hyperteacher's laws."""
        stamps = conditions.stamps(self.num_modules).view(np.uint32).reshape(self.num_modules, -1)
        for word in jnp.where(task[:, None] > 0, stamps, np.uint32(0)).sum(
            axis=0, dtype=jnp.uint32
        ):
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
        """Mean squared error, and R2 per output against the task's own mean, averaged over outputs."""
        return khot.regression(prediction, y)
