"""The competitor: the loop that a competent JAX user writes, one jitted step called from Python, run after run.

The same student, recipe, batch and teacher as a `Run`; sampling, gradient and update are inside the jitted step,
buffers are donated, nothing is read back. What it lacks: runs side by side, and no Python between steps.
"""

import functools
import time

import jax
import jax.numpy as jnp
import optax

from recombine.core import Batch
from recombine.families.hyperteacher import Hyperteacher
from recombine.laboratory import make_split, predict
from recombine.run import Run


def steps_per_second(run: Run, seconds: float) -> float:
    """The speed of the loop on a run of the hyperteacher over some seconds, compilation not counted."""
    family, split = run.family, make_split(run, run.family.tasks())[0]
    assert isinstance(family, Hyperteacher)
    rows = jnp.asarray(family.tasks()[split.order[: split.num_train]])
    key_world, key_net, key = jax.random.split(jax.random.key(run.seed), 3)
    world = family.init(key_world)

    def sample(key):
        keys = jax.random.split(key, 3)
        row = rows[jax.random.randint(keys[0], (run.num_tasks,), 0, len(rows))]
        task = row * jax.random.randint(keys[1], row.shape, 5, 11) / 10
        x = jax.random.uniform(keys[2], (run.num_tasks, run.num_points, family.d_input), minval=-1)
        return Batch(x, jax.vmap(functools.partial(family.teach, world))(task, x), task, task)

    example = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:]), jax.eval_shape(sample, key))
    net = run.model.init(key_net, example, family.num_outputs)
    optimiser = run.recipe.optimiser(run.num_steps)

    def loss(net, batch):
        return jnp.square(predict(net, batch)[0] - batch.y).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(net, state, key):
        value, gradient = jax.value_and_grad(loss)(net, sample(key))
        updates, state = optimiser.update(gradient, state, net)
        return optax.apply_updates(net, updates), state, value

    state, count, clock = optimiser.init(net), 0, 0.0
    while count == 0 or time.perf_counter() - clock < seconds:
        for i in range(50):
            net, state, _ = step(net, state, jax.random.fold_in(key, count + i))
        jax.block_until_ready(net)
        # The first fifty compile and warm up.
        count, clock = (count + 50, clock) if clock else (0, time.perf_counter())
    return count / (time.perf_counter() - clock)
