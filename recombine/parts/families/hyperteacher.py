"""The hyperteacher: a linear hypernetwork; the weights of a task's teacher are a sum over modules.

    f_z(x) = Omega^T relu((sum_m z_m Theta_m)^T x + sum_m z_m b_m),   z divided by sqrt(K)

A task z has 1 to K active modules out of M. Source: arXiv 2507.07207, section 2.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from recombine.parts import khot
from recombine.parts.field_checks import check, check_layers


class Teacher(NamedTuple):
    """The hidden teacher: modules and biases of every hidden layer, and the shared readout."""

    modules: tuple[Float[Array, "M _ H"], ...]
    biases: tuple[Float[Array, "M H"], ...]
    readout: Float[Array, "H O"]


@dataclass(frozen=True)
class Hyperteacher:
    """Tasks are mixtures of modules in weight space; the student learns from points (x, f_z(x)).

    - `num_modules`, `num_hot`: M modules, of which 1 to K are active in a task.
    - `d_input`, `d_hidden`, `num_outputs`: the sizes of the teacher's layers.
    - `num_layers`: the number of hidden layers; each is a sum over its own modules.
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
    num_layers: int = 1
    weights: khot.WeightDistribution = "discrete"
    max_tasks: int = 0
    table_seed: int = 0

    def __post_init__(self):
        check(self, d_input=1, d_hidden=1, num_outputs=1, num_layers=1)
        check_layers(self, self.num_layers)
        khot.check_sizes(self)

    def tasks(self) -> Int[np.ndarray, "N M"]:
        """All rows with 1 to K active modules, or `max_tasks` of them."""
        return khot.table(self)

    def extrapolation(self) -> Int[np.ndarray, "E M"]:
        """Rows with K+1 and K+2 active modules."""
        return khot.extrapolation_rows(self)

    def modules(self, tasks: np.ndarray) -> np.ndarray:
        """The rows themselves, which are 0/1 rows of active modules."""
        return tasks

    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]:
        """Scores are also reported by the number of active modules."""
        return khot.groups(tasks)

    def init(self, key: PRNGKeyArray) -> Teacher:
        """Draw a teacher: truncated-normal modules (fan-in, scale sqrt 3), biases in [0, 0.5)."""
        scaled = jax.nn.initializers.variance_scaling
        draw_modules = scaled(math.sqrt(3), "fan_in", "truncated_normal", batch_axis=0)
        draw_readout = scaled(math.sqrt(3), "fan_in", "truncated_normal")
        key_readout, *keys = jax.random.split(key, 1 + 2 * self.num_layers)
        d_inputs = (self.d_input,) + (self.d_hidden,) * (self.num_layers - 1)
        modules = tuple(
            draw_modules(k, (self.num_modules, d, self.d_hidden))
            for k, d in zip(keys[::2], d_inputs, strict=True)
        )
        biases = tuple(
            jax.random.uniform(k, (self.num_modules, self.d_hidden), maxval=0.5) for k in keys[1::2]
        )
        readout = draw_readout(key_readout, (self.d_hidden, self.num_outputs))
        return Teacher(modules, biases, readout)

    def weigh(self, key: PRNGKeyArray, row: Shaped[Array, " M"]) -> Float[Array, " M"]:
        """Draw a weight for every active module of a row."""
        return khot.weigh(key, row, self.weights)

    def sample(
        self, world: Teacher, key: PRNGKeyArray, task: Float[Array, " M"], n: int
    ) -> tuple[Float[Array, "n I"], Float[Array, "n O"]]:
        """Draw n points of one task, with x uniform in [-1, 1]."""
        x = jax.random.uniform(key, (n, self.d_input), minval=-1.0)
        return x, self.teach(world, task, x)

    def teach(
        self, world: Teacher, task: Float[Array, " M"], x: Float[Array, "n I"]
    ) -> Float[Array, "n O"]:
        """The teacher's answers at given points."""
        z = task / math.sqrt(self.num_hot)
        for modules, biases in zip(world.modules, world.biases, strict=True):
            x = jax.nn.relu(x @ jnp.einsum("m,mih->ih", z, modules) + z @ biases)
        return x @ world.readout

    def score(self, prediction: Float[Array, "n O"], y: Float[Array, "n O"]) -> dict[str, Array]:
        """Mean squared error (`loss`), and R2 averaged over outputs (`r2`)."""
        return khot.regression_scores(prediction, y)

    @property
    def num_tasks(self) -> int:
        """The number of tasks of the complete table, whatever `max_tasks`."""
        return khot.count_rows(self.num_modules, self.num_hot)
