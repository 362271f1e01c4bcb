"""The hyperteacher: a linear hypernetwork whose tasks are weighted sums of weight matrices (paper, section 2).

    f_z(x) = Omega^T relu((sum_m z_m Theta_m)^T x + sum_m z_m b_m),   z divided by sqrt(K)

A task z has 1 to K of M active modules. With `num_layers` > 1 every hidden layer is such a sum of its own modules.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from recombine.core import check, generator, require

MAX_LISTED = 5_000_000  # rows; a longer table has to be sampled through max_tasks
NUM_EXTRAPOLATION = 512  # rows with K+1 active modules, and as many with K+2
CHUNK = 4096  # rows drawn at a time, so that sampling a table needs little memory


class Teacher(NamedTuple):
    """The hidden network: modules and biases of every hidden layer, and the shared readout."""

    modules: tuple[Float[Array, "M _ H"], ...]
    biases: tuple[Float[Array, "M H"], ...]
    readout: Float[Array, "H O"]


@dataclass(frozen=True)
class Hyperteacher:
    """Tasks are mixtures of modules in weight space; the student sees points (x, f_z(x))."""

    num_modules: int = 16
    num_hot: int = 3
    d_input: int = 16
    d_hidden: int = 16
    num_outputs: int = 16
    num_layers: int = 1
    weights: Literal["discrete", "khot", "continuous"] = "discrete"
    max_tasks: int = 0  # 0: list every task; otherwise at most so many unique rows, drawn once with table_seed
    table_seed: int = 0

    def __post_init__(self):
        check(self, num_modules=1, num_hot=1, d_input=1, d_hidden=1, num_outputs=1, num_layers=1)
        check(self, max_tasks=0, table_seed=0)
        require(
            self.num_hot <= self.num_modules,
            f"num_hot={self.num_hot} active modules are more than num_modules={self.num_modules}: lower num_hot",
        )
        require(
            bool(self.max_tasks) or self.num_tasks <= MAX_LISTED,
            f"{self.num_tasks:,} tasks are too many to list: set max_tasks, to 100000 say",
        )

    def tasks(self) -> Int[np.ndarray, "N M"]:
        """All rows with 1 to K active modules, or `max_tasks` unique ones drawn uniformly from them."""
        total = self.num_tasks
        if self.max_tasks and self.max_tasks < total:
            rng = generator(self.table_seed, "table")
            if total <= MAX_LISTED:
                return self._listed()[np.sort(rng.choice(total, self.max_tasks, replace=False))]
            return self._drawn(rng, range(1, self.num_hot + 1), self.max_tasks)
        return self._listed()

    def extrapolation(self) -> Int[np.ndarray, "E M"]:
        """Rows with K+1 and K+2 active modules: more than any task of the table has."""
        rng = generator(self.table_seed, "extrapolation")
        rows = [np.zeros((0, self.num_modules), np.int8)]
        for num_hot in (self.num_hot + 1, self.num_hot + 2):
            if num_hot <= self.num_modules:
                most = min(NUM_EXTRAPOLATION, math.comb(self.num_modules, num_hot))
                rows.append(self._drawn(rng, [num_hot], most))
        return np.concatenate(rows)

    def modules(self, tasks: np.ndarray) -> np.ndarray:
        """A hyperteacher's rows are already its modules."""
        return tasks

    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]:
        """Scores are also given by the number of active modules."""
        return {"num_hot": tasks.sum(axis=1, dtype=np.int32)}

    def init(self, key: PRNGKeyArray) -> Teacher:
        """Draw a teacher: truncated-normal modules (fan-in, scale sqrt 3), biases uniform in [0, 0.5)."""
        scaled = jax.nn.initializers.variance_scaling
        draw_modules = scaled(math.sqrt(3), "fan_in", "truncated_normal", batch_axis=0)
        draw_readout = scaled(math.sqrt(3), "fan_in", "truncated_normal")
        key_readout, *keys = jax.random.split(key, 1 + 2 * self.num_layers)
        d_inputs = (self.d_input,) + (self.d_hidden,) * (self.num_layers - 1)
        modules = tuple(
            draw_modules(k, (self.num_modules, d, self.d_hidden)) for k, d in zip(keys[::2], d_inputs, strict=True)
        )
        biases = tuple(jax.random.uniform(k, (self.num_modules, self.d_hidden), maxval=0.5) for k in keys[1::2])
        return Teacher(modules, biases, draw_readout(key_readout, (self.d_hidden, self.num_outputs)))

    def weigh(self, key: PRNGKeyArray, row: Shaped[Array, " M"]) -> Float[Array, " M"]:
        """Give every active module of a row a weight, by the family's law."""
        row = row.astype(jnp.float32)
        if self.weights == "khot":
            return row
        if self.weights == "discrete":
            return row * (5 + jax.random.bits(key, row.shape) % 6).astype(jnp.float32) / 10
        # Uniform on {w >= 0, sum w <= 1} over the active modules (normalised exponentials, one of them slack), then
        # shifted to [0.5, 1] so that no active module fades out. (The public code has 1 in place of the slack.)
        exponential = jax.random.exponential(key, (self.num_modules + 1,))
        active = exponential[:-1] * row
        return (0.5 + 0.5 * active / (active.sum() + exponential[-1])) * row

    def sample(
        self, world: Teacher, key: PRNGKeyArray, task: Float[Array, " M"], n: int
    ) -> tuple[Float[Array, "n I"], Float[Array, "n O"]]:
        """Draw n points of one task, x uniform in [-1, 1]."""
        x = jax.random.uniform(key, (n, self.d_input), minval=-1.0)
        return x, self.teach(world, task, x)

    def teach(self, world: Teacher, task: Float[Array, " M"], x: Float[Array, "n I"]) -> Float[Array, "n O"]:
        """The teacher's answers at given points."""
        z = task / math.sqrt(self.num_hot)
        for modules, biases in zip(world.modules, world.biases, strict=True):
            x = jax.nn.relu(x @ jnp.einsum("m,mih->ih", z, modules) + z @ biases)
        return x @ world.readout

    def score(self, prediction: Float[Array, "n O"], y: Float[Array, "n O"]) -> dict[str, Array]:
        """Mean squared error, and R2 per output against the task's own mean, averaged over outputs.

        Outputs whose targets are constant have no R2 and are left out; a task with no other output scores 0.
        """
        error = jnp.square(prediction - y)
        spread = jnp.square(y - y.mean(axis=0)).mean(axis=0)
        varies = spread > 1e-6 * jnp.square(y).mean() + 1e-12
        r2 = jnp.where(varies, 1 - error.mean(axis=0) / jnp.where(varies, spread, 1.0), 0.0)
        return {"loss": error.mean(), "r2": r2.sum() / jnp.maximum(varies.sum(), 1)}

    @property
    def num_tasks(self) -> int:
        """How many tasks there are, listed or not."""
        return sum(math.comb(self.num_modules, k) for k in range(1, self.num_hot + 1))

    def _listed(self) -> np.ndarray:
        rows = []
        for k in range(1, self.num_hot + 1):
            count = math.comb(self.num_modules, k)
            flat = itertools.chain.from_iterable(itertools.combinations(range(self.num_modules), k))
            active = np.fromiter(flat, np.intp, count * k).reshape(count, k)
            block = np.zeros((count, self.num_modules), np.int8)
            np.put_along_axis(block, active, 1, axis=1)
            rows.append(block)
        return np.concatenate(rows)

    def _drawn(self, rng: np.random.Generator, num_hots: "range | list[int]", count: int) -> np.ndarray:
        """`count` distinct rows, uniform over all rows with such numbers of active modules."""
        sizes = np.array([math.comb(self.num_modules, k) for k in num_hots], dtype=np.float64)
        found = np.zeros((0, self.num_modules), np.int8)
        while len(found) < count:
            drawn = [found]
            # All that is missing before looking for doubles: to sort the table after every chunk would be quadratic.
            for _ in range(-(-(count - len(found)) // CHUNK)):
                hot = rng.choice(list(num_hots), size=CHUNK, p=sizes / sizes.sum())
                ranks = rng.random((CHUNK, self.num_modules)).argsort(axis=1)
                drawn.append((ranks < hot[:, None]).astype(np.int8))
            found = np.concatenate(drawn)
            # Distinct rows in the order of their first appearance are a uniform draw without replacement.
            packed = np.packbits(found, axis=1)
            first = np.unique(packed.view([("", packed.dtype)] * packed.shape[1]), return_index=True)[1]
            found = found[np.sort(first)]
        return found[:count]
