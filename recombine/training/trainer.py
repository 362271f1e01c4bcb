"""One chunk of runs with equal structure -> rows: the host's side of a program.

A chunk is trained in lanes, the runs that share one call: all of them on a GPU, one per core on a CPU.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from recombine.basics.errors import InputError, require
from recombine.parts.prng import new_key
from recombine.sweeps.run import Run, knobs, structure
from recombine.training import device, program
from recombine.training.checkpoint import NONE, Checkpoint
from recombine.training.program import Inputs
from recombine.training.task_sampler import (
    Setting,
    Shared,
    Splits,
    make_shared,
    split_all,
    split_key,
)


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
    """Each run's rows, the networks and settings of all runs stacked along the run axis, and how they were trained:
    the width for each run, and a note where that is not what was asked for."""

    rows: list[list[dict[str, Any]]]
    net: eqx.Module
    setting: Setting
    compile_seconds: float
    seconds: float
    widths: list[int]
    note: str = ""


class Ready(NamedTuple):
    """A chunk of runs whose program is compiled: nothing is left but to train."""

    runs: list[Run]
    width: int
    shared: Shared
    lanes: list[Inputs]
    facts: list[dict[str, Any]]
    program: program.Compiled
    compile_seconds: float


def prepare(runs: list[Run], width: int | None = None, splits: Splits | None = None) -> Ready:
    """Compile the program for runs of one structure padded to `width`; tasks are split here unless they are already."""
    clock = time.perf_counter()
    first, width = runs[0], width or len(runs)
    blank = structure(first)
    require(
        all(structure(run) == blank for run in runs),
        "the runs of one chunk must share their structure",
    )
    shared = make_shared(first.family)
    splits = split_all(runs) if splits is None else splits
    orders, facts = zip(*(splits[split_key(run)] for run in runs), strict=True)
    size = device.lane(width)
    padded = [*range(len(runs)), *[0] * (-len(runs) % size)]
    labels = program.labels_of(shared)
    shared = device.put(shared, stacked=False)
    lanes = []
    for places in (padded[i : i + size] for i in range(0, len(padded), size)):
        keys = jnp.stack([new_key(runs[i].seed) for i in places])
        values = {name: jnp.array([knobs(runs[i])[name] for i in places]) for name in knobs(first)}
        split = jax.tree.map(lambda *leaves: np.stack(leaves), *(orders[i] for i in places))
        lanes.append(device.put(Inputs(keys, values, split), stacked=True))
    leaves, tree = jax.tree.flatten(jax.eval_shape(lambda: (shared, lanes[0])))
    compiled = program.compiled(blank, labels, tuple(leaves), tree)
    return Ready(runs, width, shared, lanes, list(facts), compiled, time.perf_counter() - clock)


def train_chunk(
    runs: list[Run],
    width: int | None = None,
    watch: Watch = lambda _: None,
    ready: Future[Ready] | None = None,
    folder: Path | None = None,
    leave: bool = False,
    splits: Splits | None = None,
) -> Trained:
    """Train runs of one structure side by side, padded to `width`, and give a row per run and evaluation.

    What does not fit in the device's memory is trained in two halves. With a folder, checkpoints are kept there, and
    training goes on from one that is found; with `leave`, also from the end.
    """
    width = width or len(runs)
    watch(Progress("compiling", 0, runs[0].num_steps, len(runs), None, 0.0))
    try:
        prepared = prepare(runs, width, splits) if ready is None else _awaited(ready)
        if width == 1 or device.fits(prepared.program.advance, prepared.program.evaluate):
            return advance(prepared, watch, Checkpoint(folder, runs, width), leave)
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
        return lambda progress: watch(
            progress._replace(fraction=(place + progress.fraction) / len(parts))
        )

    # The rows of both halves are written together: until then, the first one's end is worth keeping.
    halves = [
        train_chunk(part, half, share(place), None, folder, True, splits)
        for place, part in enumerate(parts)
    ]
    return _join(
        halves,
        f"out of memory with {width} runs at once: trained {max(halves[0].widths)} at a time",
    )


def _awaited(ready: Future[Ready]) -> Ready:
    """What another thread prepares; its seconds are those that training waited for it."""
    clock = time.perf_counter()
    return ready.result()._replace(compile_seconds=time.perf_counter() - clock)


def advance(
    ready: Ready, watch: Watch = lambda _: None, checkpoint: Checkpoint = NONE, leave: bool = False
) -> Trained:
    """Train a chunk that is ready, on from where its checkpoint stands; with `leave`, its end is a checkpoint too."""
    first, num_runs = ready.runs[0], len(ready.runs)
    settings, carries = _begin(ready)
    stride, history, at, before = program.stride(first), [], 0, 0.0
    num_strides, between = first.num_steps // stride, first.num_steps // first.num_evals // stride
    found = checkpoint.load(jax.eval_shape(lambda: carries))
    if found is not None:
        at, before, history, saved = found
        carries.clear()  # the device may have no room for both
        carries += [device.put(carry, stacked=True) for carry in saved]
        watch(
            Progress(
                "resuming",
                at * stride,
                first.num_steps,
                num_runs,
                _score(history, num_runs),
                at / num_strides,
            )
        )
    # Calls are short enough for progress and checkpoints; the first ones find out how long a stride takes.
    clock, count, longest = time.perf_counter(), 1, min(10.0, checkpoint.every / 3)
    while at < num_strides:
        count = min(count, between - at % between)
        evaluates = (at + count) % between == 0

        def call(i: int, begin: int = at, count: int = count, evaluates: bool = evaluates):
            given = ready.shared, ready.lanes[i], settings[i]
            carry = ready.program.advance(*given, carries[i], jnp.int32(begin), jnp.int32(count))
            carries[i] = jax.block_until_ready(carry)
            index = jnp.int32(begin // between)
            return (
                jax.device_get(ready.program.evaluate(*given, carries[i], index))
                if evaluates
                else None
            )

        began = time.perf_counter()
        scores = device.side_by_side(call, range(len(carries)))
        at += count
        if evaluates:
            history.append(expand(_stack(scores)))
        count = max(1, min(8 * count, int(count * longest / (time.perf_counter() - began))))
        seconds = before + time.perf_counter() - clock
        if checkpoint.due() if at < num_strides else leave and seconds > checkpoint.every:
            checkpoint.save(at, seconds, history, carries)
        watch(
            Progress(
                "training",
                at * stride,
                first.num_steps,
                num_runs,
                _score(history, num_runs),
                at / num_strides,
            )
        )
    nets = [carry.net if carry.average is None else carry.average for carry in carries]
    stacked = jax.device_get((_stack(nets), _stack(settings)))
    net, setting = jax.tree.map(lambda leaf: leaf[:num_runs], stacked)  # without the padding
    seconds = before + time.perf_counter() - clock
    return Trained(
        _rows(ready, history),
        net,
        setting,
        ready.compile_seconds,
        seconds,
        [ready.width] * num_runs,
    )


def _begin(ready: Ready) -> tuple[list[Any], list[Any]]:
    states = device.side_by_side(
        lambda inputs: ready.program.start(ready.shared, inputs), ready.lanes
    )
    settings, carries = zip(*jax.block_until_ready(states), strict=True)
    return list(settings), list(carries)


def _score(history: list[dict[str, np.ndarray]], num_runs: int) -> float | None:
    if not history:
        return None
    last = history[-1]
    return float(
        np.mean(last.get("test/r2", last.get("test/accuracy", last["test/loss"]))[:num_runs])
    )


def _rows(ready: Ready, history: list[dict[str, np.ndarray]]) -> list[list[dict[str, Any]]]:
    between = ready.runs[0].num_steps // ready.runs[0].num_evals
    return [
        [
            {"step": (index + 1) * between}
            | fact
            | {name: values[i] for name, values in columns.items()}
            for index, columns in enumerate(history)
        ]
        for i, fact in enumerate(ready.facts)
    ]


def _stack(trees: list[Any]) -> Any:
    """Trees that hold some runs each, as one tree that holds them all."""
    return (
        trees[0] if len(trees) == 1 else jax.tree.map(lambda *leaves: _concatenate(leaves), *trees)
    )


def _concatenate(leaves: Sequence[Any]) -> Any:
    is_key = jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key)
    return jnp.concatenate(leaves) if is_key else np.concatenate(leaves)


def _join(halves: list[Trained], note: str) -> Trained:
    rows, widths = (
        [item for half in halves for item in getattr(half, name)] for name in ("rows", "widths")
    )
    net, setting = (_stack([getattr(half, name) for half in halves]) for name in ("net", "setting"))
    compile_seconds, seconds = (
        sum(getattr(half, name) for half in halves) for name in ("compile_seconds", "seconds")
    )
    return Trained(rows, net, setting, compile_seconds, seconds, widths, note)


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
