"""One group of runs with equal structure -> one compiled program -> rows.

The program is one block, `(carry, block) -> (carry, scores)`: many training steps scanned, then an evaluation, vmapped
over runs. The host calls it once per evaluation; progress, Ctrl-C and writing happen in between.
"""

import collections
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from recombine.core import Batch, Split, require, stream
from recombine.laboratory import Laboratory, Setting, Shared, below, make_shared, make_split
from recombine.random import new_key
from recombine.run import Run, knobs, label, restore, structure


class Inputs(NamedTuple):
    """What differs between the runs of a program."""

    key: PRNGKeyArray
    knobs: dict[str, Array]
    split: Split


class Carry(NamedTuple):
    """What training changes. `average` is the running average of the network, or None without one."""

    net: Any
    state: PyTree[Array]
    average: Any
    diverged_at: Array


class Progress(NamedTuple):
    """Where a chunk of runs stands."""

    phase: str
    step: int
    num_steps: int
    num_runs: int
    score: float | None


class Trained(NamedTuple):
    """Each run's rows, and the networks and settings of all runs stacked along the run axis."""

    rows: list[list[dict[str, Any]]]
    net: eqx.Module
    setting: Setting
    compile_seconds: float
    seconds: float


def _start(blank: Run, shared: Shared, inputs: Inputs) -> tuple[Setting, Carry]:
    run = restore(blank, inputs.knobs)
    world = run.family.init(stream(inputs.key, "world"))
    setting = Setting(world, run.encoding.init(stream(inputs.key, "encoding"), run.family))
    lab = Laboratory(run, shared, inputs.split, setting)
    # Only its shapes matter, so nothing is drawn for it.
    shapes = jax.eval_shape(lambda: lab.draw(inputs.key, shared.table[:1], run.num_points))
    example = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), shapes)
    net = run.model.init(
        stream(inputs.key, "model"),
        example,
        run.family.num_outputs,
        run.encoding.num_tokens(run.family),
        world,
    )
    average = net if getattr(run.recipe, "ema", 0) else None
    return setting, Carry(net, run.recipe.optimiser(run.num_steps).init(net), average, jnp.int32(-1))


def fresh(run: Run) -> tuple[Any, Any, Any]:
    """An untrained network, world and encoding of a run: what a saved one is read into."""
    table = run.family.tasks()[:1]
    split = Split(jnp.zeros(1, int), jnp.int32(1), jnp.int32(0))
    inputs = Inputs(new_key(run.seed), {name: jnp.asarray(v) for name, v in knobs(run).items()}, split)
    setting, carry = _start(structure(run), Shared(jnp.asarray(table), {}, jnp.asarray(table), {}), inputs)
    return carry.net, setting.world, setting.encoding


def _block(blank: Run, labels: Any, shared: Shared, inputs: Inputs, setting: Setting, carry: Carry, index: Array):
    run = restore(blank, inputs.knobs)
    lab = Laboratory(run, shared, inputs.split, setting)
    num_steps = run.num_steps // run.num_evals
    steps = index * num_steps + jnp.arange(num_steps)
    carry, losses = jax.lax.scan(functools.partial(_step, lab, stream(inputs.key, "train")), carry, steps)
    lab.net = carry.net if carry.average is None else carry.average
    scores = _scores(lab, labels, jax.random.fold_in(stream(inputs.key, "eval"), index))
    return carry, scores | {"train/loss": losses.mean(), "diverged_at": carry.diverged_at}


def _step(lab: Laboratory, key: PRNGKeyArray, carry: Carry, step: Array) -> tuple[Carry, Array]:
    run = lab.run
    key_pick, key_draw = jax.random.split(jax.random.fold_in(key, step))
    picked = below(key_pick, lab.split.num_train, (run.num_tasks,))
    batch = lab.draw(key_draw, lab.table[lab.split.order[picked]], run.num_points)
    loss, gradient = eqx.filter_value_and_grad(functools.partial(_loss, run))(carry.net, batch)
    updates, state = run.recipe.optimiser(run.num_steps).update(gradient, carry.state, carry.net)
    net = optax.apply_updates(carry.net, updates)
    average = carry.average
    if average is not None:
        average = optax.incremental_update(net, average, 1 - getattr(run.recipe, "ema", 0.0))
    fails = (carry.diverged_at < 0) & ~jnp.isfinite(loss)
    return Carry(net, state, average, jnp.where(fails, step, carry.diverged_at)), loss


def _loss(run: Run, net: Any, batch: Batch) -> Array:
    def one(batch):
        if hasattr(run.model, "loss"):
            return run.model.loss(net, batch, run.family.score)  # pyright: ignore
        prediction, _ = net(batch.x, batch.code)
        return run.family.score(prediction, batch.y)["loss"]

    return jax.vmap(one)(batch).mean()


def _scores(lab: Laboratory, labels: Any, key: PRNGKeyArray) -> dict[str, Array]:
    shared, n = lab.shared, lab.run.num_eval_tasks
    keys = jax.random.split(key, 4)
    sides = {
        "seen": (shared.table, shared.groups, lab.pick(keys[0], "train", n)),
        "test": (shared.table, shared.groups, lab.pick(keys[1], "test", n)),
    }
    if shared.beyond.shape[0]:
        picked = below(keys[2], shared.beyond.shape[0], (n,))
        sides["extrapolation"] = (shared.beyond, shared.beyond_groups, picked)
    # All sides in one draw and one forward pass: a draw is most of what there is to compile.
    rows = jnp.concatenate([table[picked] for table, _, picked in sides.values()])
    seen = lab.look(keys[3], rows)
    scores = {}
    for metric, values in jax.vmap(lab.family.score)(seen.prediction, seen.batch.y).items():
        for (side, (_, groups, picked)), of_side in zip(sides.items(), values.reshape(-1, n), strict=True):
            scores[f"{side}/{metric}"] = of_side.mean()
            for group, value in labels["beyond" if side == "extrapolation" else "table"]:
                member = groups[group][picked] == value
                mean = jnp.where(member, of_side, 0).sum() / member.sum()
                scores[f"{side}/{group}={value}/{metric}"] = mean  # NaN where no such task was picked
                scores[f"{side}/{group}={value}/num_tasks"] = member.sum()
    for diagnostic in lab.run.diagnostics:
        name = label(diagnostic)
        measured = diagnostic.measure(stream(key, f"diagnostic/{name}"), lab)
        scores |= {f"{name}/{metric}": value for metric, value in measured.items()}
    return scores


class Labels(collections.UserDict):
    """The values that each group takes, hashable so that they can be static."""

    def __hash__(self):
        return hash(tuple(sorted(self.data.items())))


def _labels(shared: Shared) -> Labels:
    def pairs(groups):
        return tuple((name, int(value)) for name, values in groups.items() for value in np.unique(values))

    return Labels(table=pairs(shared.groups), beyond=pairs(shared.beyond_groups))


@functools.lru_cache(maxsize=32)
def _compiled(blank: Run, labels: Labels, leaves: tuple[jax.ShapeDtypeStruct, ...], tree: Any):
    """The start and the block of one structure, vmapped over runs and compiled for arguments of such shapes."""
    shared, inputs = jax.tree.unflatten(tree, leaves)
    start = jax.jit(jax.vmap(functools.partial(_start, blank), in_axes=(None, 0)))
    block = jax.jit(jax.vmap(functools.partial(_block, blank, labels), in_axes=(None, 0, 0, 0, None)), donate_argnums=3)
    index = jax.ShapeDtypeStruct((), np.int32)
    lowered = block.lower(shared, inputs, *jax.eval_shape(start, shared, inputs), index)
    return start.lower(shared, inputs).compile(), lowered.compile()


def train_chunk(
    runs: list[Run], width: int | None = None, watch: Callable[[Progress], None] = lambda _: None
) -> Trained:
    """Train runs of one structure side by side, padded to `width`, and give a row per run and evaluation."""
    first, width = runs[0], width or len(runs)
    blank = structure(first)
    require(all(structure(run) == blank for run in runs), "the runs of one chunk must share their structure")
    clock = time.perf_counter()
    watch(Progress("compiling", 0, first.num_steps, len(runs), None))
    shared = make_shared(first.family)
    modules = first.family.modules(np.asarray(shared.table))
    splits, facts = zip(*(make_split(run, modules) for run in runs), strict=True)
    padded = list(range(len(runs))) + [0] * (width - len(runs))
    inputs = Inputs(
        jnp.stack([new_key(runs[i].seed) for i in padded]),
        {name: jnp.array([knobs(runs[i])[name] for i in padded]) for name in knobs(first)},
        jax.tree.map(lambda *leaves: np.stack(leaves), *(splits[i] for i in padded)),
    )
    labels = _labels(shared)
    shared, inputs = jax.device_put((shared, inputs))
    leaves, tree = jax.tree.flatten(jax.eval_shape(lambda: (shared, inputs)))
    start, block = _compiled(blank, labels, tuple(leaves), tree)
    setting, carry = start(shared, inputs)
    compile_seconds, clock = time.perf_counter() - clock, time.perf_counter()
    rows = [[] for _ in runs]
    for index in range(first.num_evals):
        carry, scores = block(shared, inputs, setting, carry, jnp.int32(index))
        step = (index + 1) * first.num_steps // first.num_evals
        columns = expand(jax.device_get(scores))
        for i, fact in enumerate(facts):
            rows[i].append({"step": step} | fact | {name: values[i] for name, values in columns.items()})
        score = columns.get("test/r2", columns.get("test/accuracy", columns["test/loss"]))
        watch(Progress("training", step, first.num_steps, len(runs), float(np.mean(score[: len(runs)]))))
    seconds = time.perf_counter() - clock
    return Trained(rows, carry.net if carry.average is None else carry.average, setting, compile_seconds, seconds)


def expand(scores: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Turn vectors, `module=*`, into one column per entry, `module=0`, …; booleans of divergence included."""
    columns = {}
    for name, values in scores.items():
        if values.ndim == 1:
            columns[name] = values
        for i in range(values.shape[1] if values.ndim == 2 else 0):
            columns[name.replace("*", str(i))] = values[:, i]
    columns["diverged"] = (columns["diverged_at"] >= 0) | ~np.isfinite(columns["test/loss"])
    return columns
