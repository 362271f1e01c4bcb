"""Find the bottleneck of training on a family: drawing batches, or learning from them.

The same sweep is measured three times: training as usual, learning from points that cost nothing to
draw, and drawing batches only.
"""

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from recombine.parts.families.preference_grid import PreferenceGrid
from recombine.parts.models.mlp import MLP
from recombine.parts.prng import new_key, stream
from recombine.parts.protocols import Family, Split
from recombine.parts.recipes.paper import Paper
from recombine.planning.bench.speed import Row, measure, row, seeds
from recombine.sweeps.run import Run, paper
from recombine.training import device
from recombine.training.task_sampler import (
    Setting,
    TaskSampler,
    make_shared,
    make_split,
    uniform_ints,
)

# The public code on one H200 with jax 0.11.2, one run at a time.
PUBLIC_STEPS = 689  # training steps per second
PUBLIC_BATCHES = 1103  # batches per second, without training
MIN_STEPS = 6900  # run-steps per second on a GPU


@dataclass(frozen=True)
class Free:
    """A family with the shapes of another one, whose points cost almost nothing to draw."""

    family: Family

    @property
    def num_modules(self) -> int:
        """As in the family."""
        return self.family.num_modules

    @property
    def num_outputs(self) -> int:
        """As in the family."""
        return self.family.num_outputs

    @property
    def horizon(self) -> int:
        """As in the family."""
        return getattr(self.family, "horizon", 1)

    def tasks(self) -> np.ndarray:
        """As in the family."""
        return self.family.tasks()

    def modules(self, tasks: np.ndarray) -> np.ndarray:
        """As in the family."""
        return self.family.modules(tasks)

    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]:
        """As in the family."""
        return self.family.groups(tasks)

    def init(self, key: Any) -> Any:
        """As in the family."""
        return self.family.init(key)

    def weigh(self, key: Any, row: Any) -> Any:
        """As in the family."""
        return self.family.weigh(key, row)

    def score(self, prediction: Any, y: Any) -> dict[str, Any]:
        """As in the family."""
        return self.family.score(prediction, y)

    def sample(self, world: Any, key: Any, task: Any, n: int) -> Any:
        """Points with the family's shapes and types, from one random number."""
        shapes = jax.eval_shape(lambda: self.family.sample(world, key, task, n))
        offset = jax.random.bits(key, ()) % 7

        def fill(leaf):
            # A pattern, not a constant: the compiler would simplify products with constants.
            index = jnp.arange(np.prod(leaf.shape), dtype=jnp.uint32).reshape(leaf.shape)
            return ((index + offset) % 5).astype(leaf.dtype)

        return jax.tree.map(fill, shapes)


def preference(num_steps: int, num_runs: int) -> list[Row]:
    """Measure the preference grid with the paper's student and recipe."""
    on_cpu = device.on_cpu()
    family = PreferenceGrid(observation="compact") if on_cpu else PreferenceGrid()
    widths = (128, 128) if on_cpu else (1024, 1024)
    base = paper(
        family=family,
        model=MLP(widths=widths),
        recipe=Paper(learning_rate=1e-4, weight_decay=0.001, precision="auto"),
        diagnostics=(),
        num_points=8,
        num_eval_points=8,
        num_eval_tasks=64,
        num_steps=num_steps,
        num_evals=1,
    )
    training = _run_steps_per_second(base, num_runs)
    without_drawing = dataclasses.replace(base, family=Free(base.family))
    learning = _run_steps_per_second(without_drawing, num_runs)
    drawing = batches_per_second(base, num_runs, num_steps)
    bottleneck = "learning" if drawing > learning else "drawing batches"
    name = f"{'x'.join(map(str, widths))} student, {num_runs} runs"
    target = "" if on_cpu else f">= {MIN_STEPS}"
    reached = None if on_cpu else training >= MIN_STEPS
    note = f"bottleneck: {bottleneck}; public code: {PUBLIC_STEPS} steps/s on one H200"
    batches_note = f"public code: {PUBLIC_BATCHES:,}"
    return [
        row(name, training, "run-steps/s", target, reached, note),
        row("… learning only, from points that cost nothing", learning, "run-steps/s"),
        row("… drawing batches only", drawing, "batches/s", note=batches_note),
    ]


def _run_steps_per_second(run: Run, num_runs: int) -> float:
    return num_runs * run.num_steps / measure(seeds(run, num_runs)).seconds


def batches_per_second(run: Run, num_runs: int, num_steps: int) -> float:
    """The batches per second that several runs draw side by side, without training."""
    shared = make_shared(run.family)
    modules = run.family.modules(np.asarray(shared.table))
    splits = [make_split(seed_run, modules)[0] for seed_run in seeds(run, num_runs)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *splits)
    table = jax.device_put(shared)

    def draw_batches(key, split):
        setting = Setting(run.family.init(stream(key, "world")), run.encoding.init(key, run.family))
        sampler = TaskSampler(run, table, Split(*split), setting)

        def step(total, i):
            key_tasks, key_points = jax.random.split(jax.random.fold_in(key, i))
            chosen = uniform_ints(key_tasks, sampler.split.num_train, (run.num_tasks,))
            rows = sampler.table[sampler.split.order[chosen]]
            batch = sampler.draw(key_points, rows, run.num_points)
            # The barrier keeps the compiler from removing the batch: it is written to memory.
            batch = jax.lax.optimization_barrier(batch)
            first_values = [leaf.ravel()[0].astype(jnp.float32) for leaf in jax.tree.leaves(batch)]
            return total + sum(first_values), None

        return jax.lax.scan(step, 0.0, jnp.arange(num_steps))[0]

    keys = jnp.stack([new_key(i) for i in range(num_runs)])
    width = device.lane_width(num_runs)
    lanes = [
        jax.tree.map(lambda leaf, i=i: leaf[i : i + width], (keys, stacked))
        for i in range(0, num_runs, width)
    ]
    program = jax.jit(jax.vmap(draw_batches)).lower(*lanes[0]).compile()
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        jax.block_until_ready(device.map_parallel(lambda lane: program(*lane), lanes))
        seconds.append(time.perf_counter() - start)
    return num_runs * num_steps / min(seconds)
