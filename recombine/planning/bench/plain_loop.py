"""The baseline: a training loop as a JAX user would write it, one jitted step called from Python.

It has the same student, recipe, batch and teacher as a `Run`. Sampling, gradient and update are
inside the jitted step, buffers are donated, and nothing is read back. It uses JAX's own random
numbers, and all cores for one run. Unlike our trainer, it trains one run at a time and goes back to
Python after every step.
"""

import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.protocols import Batch
from recombine.sweeps.run import Run
from recombine.training.program import low_precision_copy
from recombine.training.task_sampler import make_split, predict

STEPS_PER_SYNC = 50  # steps between two looks at the clock


def compile_loop(run: Run) -> Callable[[float], float]:
    """Compile the loop for a run of the hyperteacher.

    The result is a function that trains for some seconds and returns the steps per second.
    """
    key_world, key_net, key = jax.random.split(jax.random.key(run.seed), 3)
    sample = _sampler(run, key_world)
    example = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:]), jax.eval_shape(sample, key))
    net = run.model.init(key_net, example, run.family.num_outputs)
    optimizer = run.recipe.optimiser(run.num_steps)

    def loss(net, batch):
        prediction = predict(low_precision_copy(run, net) or net, batch)[0]
        return jnp.square(prediction - batch.y).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(net, optimizer_state, i):
        value, gradient = jax.value_and_grad(loss)(net, sample(jax.random.fold_in(key, i)))
        updates, optimizer_state = optimizer.update(gradient, optimizer_state, net)
        return optax.apply_updates(net, updates), optimizer_state, value

    state = [net, optimizer.init(net)]
    step_numbers = itertools.count()

    def train_some() -> None:
        for i in itertools.islice(step_numbers, STEPS_PER_SYNC):
            state[0], state[1], _ = step(state[0], state[1], i)
        jax.block_until_ready(state)

    def steps_per_second(seconds: float) -> float:
        num_steps = 0
        start = time.perf_counter()
        elapsed = 0.0
        while num_steps == 0 or elapsed < seconds:
            train_some()
            num_steps += STEPS_PER_SYNC
            elapsed = time.perf_counter() - start
        return num_steps / elapsed

    train_some()  # compiles the step
    return steps_per_second


def _sampler(run: Run, key_world: Any) -> Callable[[Any], Batch]:
    """A function that draws a batch of train tasks from a key."""
    family = run.family
    assert isinstance(family, Hyperteacher)
    split = make_split(run, family.tasks())[0]
    train_rows = jnp.asarray(family.tasks()[split.order[: split.num_train]])
    world = family.init(key_world)

    def sample(key):
        key_row, key_weight, key_x = jax.random.split(key, 3)
        row = train_rows[jax.random.randint(key_row, (run.num_tasks,), 0, len(train_rows))]
        task = row * jax.random.randint(key_weight, row.shape, 5, 11) / 10
        shape = (run.num_tasks, run.num_points, family.d_input)
        x = jax.random.uniform(key_x, shape, minval=-1)
        y = jax.vmap(functools.partial(family.teach, world))(task, x)
        return Batch(x, y, task, task)

    return sample
