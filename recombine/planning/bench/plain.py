"""The competitor: the loop that a competent JAX user writes, one jitted step called from Python, run after run.

The same student, recipe, batch and teacher as a `Run`; sampling, gradient and update are inside the jitted step,
buffers are donated, nothing is read back. It uses JAX's own random numbers and all cores for one run, as such a loop
does; what it lacks is runs side by side, and no Python between steps.
"""

import functools
import itertools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.protocols import Batch
from recombine.sweeps.run import Run
from recombine.training.program import low_copy
from recombine.training.task_sampler import make_split, predict


def loop(run: Run) -> Callable[[float], float]:
    """The loop on a run of the hyperteacher, compiled: a function from seconds to its steps per second over them."""
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
        return jnp.square(predict(low_copy(run, net) or net, batch)[0] - batch.y).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(net, state, i):
        value, gradient = jax.value_and_grad(loss)(net, sample(jax.random.fold_in(key, i)))
        updates, state = optimiser.update(gradient, state, net)
        return optax.apply_updates(net, updates), state, value

    held, steps = [net, optimiser.init(net)], itertools.count()

    def fifty() -> None:
        for i in itertools.islice(steps, 50):
            held[0], held[1], _ = step(held[0], held[1], i)
        jax.block_until_ready(held)

    def measure(seconds: float) -> float:
        count, clock, now = 0, time.perf_counter(), 0.0
        while count == 0 or now - clock < seconds:
            fifty()
            count, now = count + 50, time.perf_counter()
        return count / (now - clock)

    fifty()  # compiles and warms up
    return measure
