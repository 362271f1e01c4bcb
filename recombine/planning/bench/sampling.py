"""Which bounds the training of a family: drawing its batches, or learning from them?

Three rates of the same sweep: training; learning alone, with points that cost nothing; and drawing alone.
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
from recombine.training.task_sampler import Laboratory, Setting, below, make_shared, make_split

# The public code on one H200 with jax 0.11.2, one run at a time: training, and generating its data alone.
PUBLIC_STEPS, PUBLIC_BATCHES = 689, 1103


@dataclass(frozen=True)
class Free:
    """A family's stand-in with points of the same shapes that cost next to nothing to draw."""

    family: Family

    @property
    def num_modules(self) -> int:
        """As the family."""
        return self.family.num_modules

    @property
    def num_outputs(self) -> int:
        """As the family."""
        return self.family.num_outputs

    @property
    def horizon(self) -> int:
        """As the family."""
        return getattr(self.family, "horizon", 1)

    def tasks(self) -> np.ndarray:
        """As the family."""
        return self.family.tasks()

    def modules(self, tasks: np.ndarray) -> np.ndarray:
        """As the family."""
        return self.family.modules(tasks)

    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]:
        """As the family."""
        return self.family.groups(tasks)

    def init(self, key: Any) -> Any:
        """As the family."""
        return self.family.init(key)

    def weigh(self, key: Any, row: Any) -> Any:
        """As the family."""
        return self.family.weigh(key, row)

    def score(self, prediction: Any, y: Any) -> dict[str, Any]:
        """As the family."""
        return self.family.score(prediction, y)

    def sample(self, world: Any, key: Any, task: Any, n: int) -> Any:
        """Points made of one random number."""
        shapes = jax.eval_shape(lambda: self.family.sample(world, key, task, n))
        noise = jax.random.bits(key, ()) % 7

        def cheap(leaf):
            # A pattern, not a constant: products with constants would be simplified away.
            pattern = (
                jnp.arange(np.prod(leaf.shape), dtype=jnp.uint32).reshape(leaf.shape) + noise
            ) % 5
            return pattern.astype(leaf.dtype)

        return jax.tree.map(cheap, shapes)


def preference(num_steps: int, num_runs: int) -> list[Row]:
    """The preference grid with the paper's student and recipe: what bounds its training?"""
    base = paper(
        family=PreferenceGrid(),
        model=MLP(widths=(1024, 1024)),
        recipe=Paper(learning_rate=1e-4, weight_decay=0.001, precision="auto"),
        diagnostics=(),
        num_points=8,
        num_eval_points=8,
        num_eval_tasks=64,
        num_steps=num_steps,
        num_evals=1,
    )
    if device.on_cpu():
        base = dataclasses.replace(
            base, family=PreferenceGrid(observation="compact"), model=MLP(widths=(128, 128))
        )
    name = f"{'x'.join(map(str, base.model.widths))} student, {num_runs} runs"  # pyright: ignore
    trained = _rate(base, num_runs)
    learned = _rate(dataclasses.replace(base, family=Free(base.family)), num_runs)
    drawn = draws(base, num_runs, num_steps)
    bound = "learning" if drawn > learned else "drawing"
    target, met = ("", None) if device.on_cpu() else (">= 6900", trained >= 6900)
    note = f"{bound} bounds it; the public code: {PUBLIC_STEPS} steps/s on one H200"
    return [
        row(name, trained, "run-steps/s", target, met, note),
        row("… learning alone, with points that cost nothing", learned, "run-steps/s"),
        row("… drawing alone", drawn, "batches/s", note=f"the public code: {PUBLIC_BATCHES:,}"),
    ]


def _rate(run: Run, num_runs: int) -> float:
    return num_runs * run.num_steps / measure(seeds(run, num_runs)).seconds


def draws(run: Run, num_runs: int, num_steps: int) -> float:
    """Batches per second that runs side by side draw when they do nothing else."""
    shared = make_shared(run.family)
    modules = run.family.modules(np.asarray(shared.table))
    splits = [make_split(one, modules)[0] for one in seeds(run, num_runs)]
    split = jax.tree.map(lambda *leaves: jnp.stack(leaves), *splits)
    table = jax.device_put(shared)

    def one(key, split):
        setting = Setting(run.family.init(stream(key, "world")), run.encoding.init(key, run.family))
        lab = Laboratory(run, table, Split(*split), setting)

        def step(total, step):
            key_pick, key_draw = jax.random.split(jax.random.fold_in(key, step))
            picked = below(key_pick, lab.split.num_train, (run.num_tasks,))
            batch = lab.draw(key_draw, lab.table[lab.split.order[picked]], run.num_points)
            # Kept from being optimised away, and written to memory as training would have it.
            batch = jax.lax.optimization_barrier(batch)
            return total + sum(
                leaf.ravel()[0].astype(jnp.float32) for leaf in jax.tree.leaves(batch)
            ), None

        return jax.lax.scan(step, 0.0, jnp.arange(num_steps))[0]

    keys, size = jnp.stack([new_key(i) for i in range(num_runs)]), device.lane(num_runs)
    lanes = [
        jax.tree.map(lambda a, i=i: a[i : i + size], (keys, split))
        for i in range(0, num_runs, size)
    ]
    program = jax.jit(jax.vmap(one)).lower(*lanes[0]).compile()
    seconds = []
    for _ in range(2):
        clock = time.perf_counter()
        jax.block_until_ready(device.side_by_side(lambda lane: program(*lane), lanes))
        seconds.append(time.perf_counter() - clock)
    return num_runs * num_steps / min(seconds)
