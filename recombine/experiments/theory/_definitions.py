"""Definitions 2.1 and 2.2: what a compositional task family is, and what it is to generalise over one.

2.1  A composition maps a row of module weights to a task. It must be injective: distinct rows give distinct tasks. And
     it must be short: what it takes to write it down grows sub-exponentially with the number of modules, while the
     tasks may grow exponentially. (Otherwise every table of unrelated tasks would count.)
2.2  A learner generalises compositionally if the train tasks that it needs grow sub-exponentially, too.

Assumptions: a task is what it shows, its pairs (x, y). Two tasks are compared under the same random numbers, on finite
samples, so that "distinct" can be shown and "equal" only be suspected: closer than `tolerance`, relative to all pairs.
Answers that are numbers are so far apart as their root mean square over outputs; actions are 0 or 1 apart, and count as
different where the task shows another x, which in episodes follows from another action before (in `GoalGrid`, whose
goals differ in where they are, it may be all that differs). A description is the number of numbers in a world.
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
    """The two tasks that are hardest to tell apart: their numbers, how far apart they are, and how far tasks are in
    the mean over all pairs; `injective` says whether even these two differ by more than the tolerance."""

    first: int
    second: int
    separation: float
    typical: float
    injective: bool


class Growth(NamedTuple):
    """Two laws of growth, a size^power and a exp(rate size), and how far log counts are from each (RMS)."""

    power: float
    rate: float
    from_power: float
    from_exponential: float

    @property
    def exponential(self) -> bool:
        """Whether the exponential is the nearer law."""
        return self.from_exponential < self.from_power


def injective(
    family: Family,
    world: PyTree[Array],
    tasks: Array,
    key: PRNGKeyArray,
    num_points: int,
    tolerance: float,
) -> Closest:
    """Whether weighed tasks of a world are told apart by so many points of each, and the closest pair."""
    return closest(answers(family, world, tasks, key, num_points), tolerance)


def answers(
    family: Family, world: PyTree[Array], tasks: Array, key: PRNGKeyArray, num_points: int
) -> Shaped[np.ndarray, "tasks n *outputs"]:
    """What every task shows under the same random numbers: its outputs; where these are actions, a number for each
    pair (x, y), the same for equal pairs."""
    x, y = _sample(family, world, key, jnp.asarray(tasks), num_points)
    if jnp.issubdtype(y.dtype, jnp.floating):
        return np.asarray(y, np.float64)
    pairs = np.concatenate(
        [np.asarray(x, np.float32).reshape(y.size, -1), np.asarray(y).reshape(y.size, -1)], axis=1
    )
    return np.array([hash(pair.tobytes()) for pair in pairs]).reshape(y.shape)


@functools.partial(jax.jit, static_argnums=(0, 4))
def _sample(family, world, key, tasks, num_points):
    return jax.vmap(lambda task: family.sample(world, key, task, num_points))(tasks)


def distance(one: Any, other: Any) -> Any:
    """How far apart answers are at every input: by the root mean square over outputs; pairs of actions 0 or 1."""
    if np.issubdtype(one.dtype, np.integer):
        return one != other
    return ((one - other) ** 2).mean(axis=-1) ** 0.5


def separations(
    functions: Shaped[np.ndarray, "tasks n *outputs"],
) -> Float[np.ndarray, "tasks tasks"]:
    """How far apart every two tasks are, in the mean over inputs."""
    with jax.enable_x64(True):
        return np.asarray(_separations(jnp.asarray(functions)))


@jax.jit
def _separations(functions):
    return jax.lax.map(lambda one: distance(one, functions).mean(axis=-1, dtype=float), functions)


def closest(functions: Shaped[np.ndarray, "tasks n *outputs"], tolerance: float = 0.0) -> Closest:
    """The closest pair of tasks, by their answers to the same inputs."""
    same = np.eye(len(functions), dtype=bool)
    apart = np.where(same, np.inf, separations(functions))
    typical = float(apart[~same].mean())
    first, second = (int(place) for place in np.unravel_index(apart.argmin(), apart.shape))
    separation = float(apart[first, second])
    return Closest(first, second, separation, typical, separation > tolerance * typical)


def num_tasks(family: Any) -> int:
    """How many rows a family has, listed or not."""
    return (
        khot.count(family.num_modules, family.num_hot)
        if hasattr(family, "num_hot")
        else len(family.tasks())
    )


def description(family: Any) -> int:
    """How many numbers it takes to write a world down: its arrays, or, where every combination has a teacher of its
    own that is drawn when needed, all of these."""
    if hasattr(family, "teacher"):
        task = jnp.zeros(family.num_modules)
        return num_tasks(family) * _size(jax.eval_shape(lambda: family.teacher(new_key(0), task)))
    return _size(jax.eval_shape(lambda: family.init(new_key(0))))


def _size(shapes: PyTree[Any]) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def twinned(world: Any) -> Any:
    """A hyperteacher's world in which the second module is the same as the first: not injective any more."""

    def twin(leaf):
        return leaf.at[1].set(leaf[0])

    return world._replace(
        modules=tuple(map(twin, world.modules)), biases=tuple(map(twin, world.biases))
    )


def weighings(family: Any, key: PRNGKeyArray, times: int) -> Float[np.ndarray, "tasks M"]:
    """Every row of the table with its weights drawn so many times, doubles left out."""
    rows = jnp.asarray(np.repeat(family.tasks(), times, axis=0))
    tasks = np.asarray(jax.jit(jax.vmap(family.weigh))(jax.random.split(key, len(rows)), rows))
    return tasks[np.sort(np.unique(tasks, axis=0, return_index=True)[1])]


def growth(sizes: Any, counts: Any) -> Growth:
    """How counts grow with a size: as a power of it or exponentially, by least squares of their logarithms."""
    sizes, logs = np.asarray(sizes, float), np.log(np.asarray(counts, float))
    slopes, missed = [], []
    for at in (np.log(sizes), sizes):
        line = np.polynomial.Polynomial.fit(at, logs, 1)
        slopes.append(float(line.convert().coef[1]))
        missed.append(float(np.sqrt(np.mean((line(at) - logs) ** 2))))
    return Growth(*slopes, *missed)
