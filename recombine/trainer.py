"""One chunk of runs with equal structure -> rows: the host's side of a program.

A chunk is trained in lanes, the runs that share one call: all of them on a GPU, one per core on a CPU.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from recombine import device, program
from recombine.core import InputError, require
from recombine.laboratory import Setting, Shared, make_shared, make_split
from recombine.program import Inputs
from recombine.random import new_key
from recombine.run import Run, knobs, structure


class Progress(NamedTuple):
    """Where a chunk of runs stands."""

    phase: str
    step: int
    num_steps: int
    num_runs: int
    score: float | None
    fraction: float  # of the whole chunk


Watch = Callable[[Progress], None]


class Trained(NamedTuple):
    """Each run's rows, the networks and settings of all runs stacked along the run axis, and how they were trained."""

    rows: list[list[dict[str, Any]]]
    net: eqx.Module
    setting: Setting
    compile_seconds: float
    seconds: float
    width: int


class Ready(NamedTuple):
    """A chunk of runs whose program is compiled: nothing is left but to train."""

    runs: list[Run]
    width: int
    shared: Shared
    lanes: list[Inputs]
    facts: list[dict[str, Any]]
    start: Any
    block: Any
    compile_seconds: float


def prepare(runs: list[Run], width: int | None = None) -> Ready:
    """Split the tasks of every run and compile the program, for runs of one structure padded to `width`."""
    clock = time.perf_counter()
    first, width = runs[0], width or len(runs)
    blank = structure(first)
    require(all(structure(run) == blank for run in runs), "the runs of one chunk must share their structure")
    shared = make_shared(first.family)
    modules = first.family.modules(np.asarray(shared.table))
    splits, facts = zip(*(make_split(run, modules) for run in runs), strict=True)
    size = device.lane(width)
    padded = [*range(len(runs)), *[0] * (-len(runs) % size)]
    labels = program.labels_of(shared)
    shared = jax.device_put(shared)
    lanes = []
    for places in (padded[i : i + size] for i in range(0, len(padded), size)):
        keys = jnp.stack([new_key(runs[i].seed) for i in places])
        values = {name: jnp.array([knobs(runs[i])[name] for i in places]) for name in knobs(first)}
        split = jax.tree.map(lambda *leaves: np.stack(leaves), *(splits[i] for i in places))
        lanes.append(jax.device_put(Inputs(keys, values, split)))
    leaves, tree = jax.tree.flatten(jax.eval_shape(lambda: (shared, lanes[0])))
    start, block = program.compiled(blank, labels, tuple(leaves), tree)
    return Ready(runs, width, shared, lanes, list(facts), start, block, time.perf_counter() - clock)


def train_chunk(
    runs: list[Run], width: int | None = None, watch: Watch = lambda _: None, ready: Future[Ready] | None = None
) -> Trained:
    """Train runs of one structure side by side, padded to `width`, and give a row per run and evaluation.

    What does not fit in the device's memory is trained in two halves.
    """
    width = width or len(runs)
    watch(Progress("compiling", 0, runs[0].num_steps, len(runs), None, 0.0))
    try:
        prepared = prepare(runs, width) if ready is None else ready.result()
        if width == 1 or device.fits(prepared.block):
            return train(prepared, watch)
    except Exception as error:
        if not device.out_of_memory(error):
            raise
        message = "one run does not fit in the device's memory: lower its widths, num_tasks or num_eval_tasks"
        if width == 1:
            raise InputError(message) from error
    prepared = ready = None  # nothing may hold on to the memory of the failed attempt
    half = (width + 1) // 2
    parts = [part for part in (runs[:half], runs[half:]) if part]

    def share(place: int) -> Watch:
        return lambda progress: watch(progress._replace(fraction=(place + progress.fraction) / len(parts)))

    return _join([train_chunk(part, half, share(place)) for place, part in enumerate(parts)])


def train(ready: Ready, watch: Watch = lambda _: None) -> Trained:
    """Train a chunk that is ready."""
    first, num_runs = ready.runs[0], len(ready.runs)
    states = device.side_by_side(lambda inputs: ready.start(ready.shared, inputs), ready.lanes)
    jax.block_until_ready(states)
    clock = time.perf_counter()
    rows = [[] for _ in ready.runs]
    for index in range(first.num_evals):

        def block(i: int, index: int = index):
            setting, carry = states[i]
            carry, scores = ready.block(ready.shared, ready.lanes[i], setting, carry, jnp.int32(index))
            states[i] = setting, carry
            return jax.device_get(scores)

        scores = device.side_by_side(block, range(len(states)))
        columns = expand(_stack(scores))
        step = (index + 1) * first.num_steps // first.num_evals
        for i, fact in enumerate(ready.facts):
            rows[i].append({"step": step} | fact | {name: values[i] for name, values in columns.items()})
        score = columns.get("test/r2", columns.get("test/accuracy", columns["test/loss"]))
        mean = float(np.mean(score[:num_runs]))
        watch(Progress("training", step, first.num_steps, num_runs, mean, (index + 1) / first.num_evals))
    seconds = time.perf_counter() - clock
    nets = [carry.net if carry.average is None else carry.average for _, carry in states]
    stacked = jax.device_get((_stack(nets), _stack([setting for setting, _ in states])))
    net, setting = jax.tree.map(lambda leaf: leaf[:num_runs], stacked)  # without the padding
    return Trained(rows, net, setting, ready.compile_seconds, seconds, ready.width)


def _stack(trees: list[Any]) -> Any:
    """Trees that hold some runs each, as one tree that holds them all."""
    return trees[0] if len(trees) == 1 else jax.tree.map(lambda *leaves: _concatenate(leaves), *trees)


def _concatenate(leaves: Sequence[Any]) -> Any:
    is_key = jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key)
    return jnp.concatenate(leaves) if is_key else np.concatenate(leaves)


def _join(halves: list[Trained]) -> Trained:
    rows = [row for half in halves for row in half.rows]
    net, setting = (_stack([getattr(half, name) for half in halves]) for name in ("net", "setting"))
    compile_seconds, seconds = (sum(getattr(half, name) for half in halves) for name in ("compile_seconds", "seconds"))
    return Trained(rows, net, setting, compile_seconds, seconds, halves[0].width)


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
