"""Definitions 2.1 and 2.2: compositional task families, and generalization over them.

2.1  A composition maps module weights to a task. It must be injective: distinct weights give
     distinct tasks. Its description must be short: the length grows sub-exponentially with the
     number of modules, while the number of tasks may grow exponentially. (Otherwise every table of
     unrelated tasks would count.)
2.2  A learner generalizes compositionally if the number of train tasks that it needs grows
     sub-exponentially, too.

Assumptions. A task is defined by its pairs (x, y). Two tasks are compared on finite samples with
the same random numbers. So "distinct" can be shown, but "equal" only be suspected: two tasks count
as equal if their distance, relative to the mean of all pairs, is below a tolerance. The distance of
two numeric answers is their root mean square difference over outputs. The distance of two actions
is 0 or 1; actions also count as different if the tasks have different inputs x, which in episodes
follow from earlier actions. (Goals of `GoalGrid` may differ in nothing else.) The length of a
description is the number of numbers in a world.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

from recombine.parts import khot
from recombine.parts.prng import new_key
from recombine.parts.protocols import Family


class Closest(NamedTuple):
    """The indices of the two closest tasks, their distance, and the mean distance of all pairs.

    `injective` is true if even these two tasks differ by more than the tolerance.
    """

    first: int
    second: int
    separation: float
    typical: float
    injective: bool


class Growth(NamedTuple):
    """Two laws of growth, a size^power and a exp(rate size), and their RMS errors in log counts."""

    power: float
    rate: float
    power_error: float
    exponential_error: float

    @property
    def is_exponential(self) -> bool:
        """Whether the exponential fits better."""
        return self.exponential_error < self.power_error


def closest_tasks(
    family: Family,
    world: PyTree[Array],
    tasks: Array,
    key: PRNGKeyArray,
    num_points: int,
    tolerance: float,
) -> Closest:
    """The closest pair of these tasks of a world, compared at `num_points` points each."""
    return closest(answers(family, world, tasks, key, num_points), tolerance)


def answers(
    family: Family, world: PyTree[Array], tasks: Array, key: PRNGKeyArray, num_points: int
) -> Shaped[np.ndarray, "tasks n *outputs"]:
    """The outputs of every task for the same random numbers.

    If outputs are actions, each pair (x, y) gives an integer that is the same for equal pairs.
    """
    x, y = _sample(family, world, key, jnp.asarray(tasks), num_points)
    if jnp.issubdtype(y.dtype, jnp.floating):
        return np.asarray(y, np.float64)
    inputs = np.asarray(x, np.float32).reshape(y.size, -1)
    actions = np.asarray(y).reshape(y.size, -1)
    pairs = np.concatenate([inputs, actions], axis=1)
    return np.array([hash(pair.tobytes()) for pair in pairs]).reshape(y.shape)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _sample(family, world, key, tasks, num_points):
    return jax.vmap(lambda task: family.sample(world, key, task, num_points))(tasks)


def distance(first: Any, second: Any) -> Any:
    """The distance of two answers at every input: RMS over outputs; 0 or 1 for actions."""
    if np.issubdtype(first.dtype, np.integer):
        return first != second
    return ((first - second) ** 2).mean(axis=-1) ** 0.5


def pairwise_distances(
    functions: Shaped[np.ndarray, "tasks n *outputs"],
) -> Float[np.ndarray, "tasks tasks"]:
    """The distance of every two tasks, averaged over inputs."""
    with jax.enable_x64(True):
        return np.asarray(_pairwise_distances(jnp.asarray(functions)))


@jax.jit
def _pairwise_distances(functions):
    def to_all(function):
        return distance(function, functions).mean(axis=-1, dtype=float)

    return jax.lax.map(to_all, functions)


def closest(functions: Shaped[np.ndarray, "tasks n *outputs"], tolerance: float = 0.0) -> Closest:
    """The closest pair of tasks, by their answers to the same inputs."""
    is_same = np.eye(len(functions), dtype=bool)
    distances = np.where(is_same, np.inf, pairwise_distances(functions))
    typical = float(distances[~is_same].mean())
    first, second = map(int, np.unravel_index(distances.argmin(), distances.shape))
    separation = float(distances[first, second])
    return Closest(first, second, separation, typical, separation > tolerance * typical)


def num_tasks(family: Any) -> int:
    """The number of tasks of a family; they need not be listed."""
    if hasattr(family, "num_hot"):
        return khot.count_rows(family.num_modules, family.num_hot)
    return len(family.tasks())


def description_length(family: Any) -> int:
    """The number of numbers in a world.

    If every combination has a teacher of its own, drawn on demand, all teachers count.
    """
    if hasattr(family, "teacher"):
        task = jnp.zeros(family.num_modules)
        return num_tasks(family) * _size(jax.eval_shape(lambda: family.teacher(new_key(0), task)))
    return _size(jax.eval_shape(lambda: family.init(new_key(0))))


def _size(shapes: PyTree[Any]) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def with_equal_modules(world: Any) -> Any:
    """A hyperteacher's world whose second module equals the first, so it is not injective."""

    def copy_first(leaf):
        return leaf.at[1].set(leaf[0])

    modules = tuple(map(copy_first, world.modules))
    biases = tuple(map(copy_first, world.biases))
    return world._replace(modules=modules, biases=biases)


def weighted_tasks(family: Any, key: PRNGKeyArray, num_draws: int) -> Float[np.ndarray, "tasks M"]:
    """Every task of a family with weights drawn `num_draws` times, without duplicates."""
    rows = jnp.asarray(np.repeat(family.tasks(), num_draws, axis=0))
    keys = jax.random.split(key, len(rows))
    tasks = np.asarray(jax.jit(jax.vmap(family.weigh))(keys, rows))
    first_indices = np.unique(tasks, axis=0, return_index=True)[1]
    return tasks[np.sort(first_indices)]


def growth(sizes: Any, counts: Any) -> Growth:
    """Fit the growth of counts with a size by a power and by an exponential.

    Both are fitted by least squares of log counts.
    """
    sizes = np.asarray(sizes, float)
    logs = np.log(np.asarray(counts, float))
    power, power_error = _fit_line(np.log(sizes), logs)
    rate, exponential_error = _fit_line(sizes, logs)
    return Growth(power, rate, power_error, exponential_error)


def _fit_line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The slope of the least squares line and its RMS error."""
    line = np.polynomial.Polynomial.fit(x, y, 1)
    return float(line.convert().coef[1]), float(np.sqrt(np.mean((line(x) - y) ** 2)))
