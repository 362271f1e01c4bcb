"""Adapt networks to other tasks of their family by Adam, in any parametrization.

A parametrization is a function of parameters that gives a network. The identity is full
fine-tuning. All networks have `Identity` codes: the code of a task is its module weights. Tasks are
given as rows of active modules.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from recombine.experiments.limits._subnetworks import relative_error

NetOf = Callable[[Any], Any]  # parameters -> network


class Budget(NamedTuple):
    """Steps of Adam, its learning rate, and the size of batches."""

    num_steps: int
    learning_rate: float = 3e-3
    num_tasks: int = 16
    num_points: int = 8

    @property
    def samples_per_step(self) -> int:
        """The points (x, y) that a step sees."""
        return self.num_tasks * self.num_points


def rows_with(family: Any, module: int, others: list[int]) -> np.ndarray:
    """The rows of a family's table with this module and, beside it, only `others`."""
    table = family.tasks()
    allowed = np.zeros(table.shape[1], bool)
    allowed[[module, *others]] = True
    return table[(table[:, module] > 0) & ~(table[:, ~allowed] > 0).any(axis=1)]


def draw(family: Any, world: Any, key: Any, rows: Any, num_points: int) -> Any:
    """Samples of the given rows: points, answers and codes, one task for each row."""

    def draw_task(key, row):
        key_weights, key_points = jax.random.split(key)
        task = family.weigh(key_weights, row)
        return (*family.sample(world, key_points, task, num_points), task)

    return jax.vmap(draw_task)(jax.random.split(key, len(rows)), jnp.asarray(rows))


def score(family: Any, world: Any, net: Any, key: Any, rows: Any, num_points: int = 32) -> Array:
    """R2 of a network on tasks with these rows, relative to the mean over all of them."""
    x, y, code = draw(family, world, key, rows, num_points)
    return 1 - relative_error(net.many(x, code)[0], y)


def adapt(
    family: Any,
    world: Any,
    net_of: NetOf,
    params: Any,
    rows: Any,
    key: Any,
    budget: Budget,
) -> Any:
    """Train parameters on tasks with these rows. Returns the parameters after the last step."""
    adam = optax.adam(budget.learning_rate)
    rows = jnp.asarray(rows)

    def loss(params, x, y, code):
        return relative_error(net_of(params).many(x, code)[0], y)

    def step(carry, key):
        params, state = carry
        key_rows, key_draw = jax.random.split(key)
        picked = rows[jax.random.randint(key_rows, (budget.num_tasks,), 0, len(rows))]
        batch = draw(family, world, key_draw, picked, budget.num_points)
        updates, state = adam.update(jax.grad(loss)(params, *batch), state)
        return (optax.apply_updates(params, updates), state), None

    keys = jax.random.split(key, budget.num_steps)
    (params, _), _ = jax.lax.scan(step, (params, adam.init(params)), keys)
    return params


def learning_curve(
    family: Any,
    world: Any,
    net: Any,
    rows: Any,
    test_rows: Any,
    key: Any,
    budget: Budget,
    num_scores: int,
) -> Array:
    """Train all weights on `rows`; R2 on `test_rows` before, and `num_scores` times on the way.

    Each part of `num_steps / num_scores` steps has new moments of Adam.
    """
    part = budget._replace(num_steps=budget.num_steps // num_scores)
    key_score, key_train = jax.random.split(key)

    def train_part(net, key):
        net = adapt(family, world, lambda net: net, net, rows, key, part)
        return net, score(family, world, net, key_score, test_rows)

    first = score(family, world, net, key_score, test_rows)
    _, scores = jax.lax.scan(train_part, net, jax.random.split(key_train, num_scores))
    return jnp.concatenate([first[None], scores])


def samples_needed(curve: Any, target: float, samples_per_score: int) -> float:
    """The samples until a learning curve first reaches a target.

    If it never does, the samples of the whole curve: a lower bound.
    """
    reached = np.flatnonzero(np.asarray(curve) >= target)
    index = int(reached[0]) if len(reached) else len(curve) - 1
    return float(index * samples_per_score)
