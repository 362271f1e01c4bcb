"""Train one chunk, that is runs of one structure: what the host does around the compiled program.

A chunk is divided into lanes. A lane is the runs that share one call of the program: all runs of
the chunk on a GPU, a single run on each core of a CPU.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from recombine.basics.errors import InputError, require
from recombine.parts.prng import new_key
from recombine.sweeps.run import Run, knobs, structure
from recombine.training import device, program, termination
from recombine.training.checkpoint import NO_CHECKPOINT, Checkpoint
from recombine.training.program import Carry, Inputs
from recombine.training.task_sampler import (
    Setting,
    Shared,
    Splits,
    make_shared,
    split_all,
    split_digest,
    split_key,
)

MAX_CALL_SECONDS = 10.0  # of one call of the program: progress and Ctrl-C wait for its end
MAX_CALL_GROWTH = 8  # times as many strides as the call before

Scores = dict[str, np.ndarray]  # the columns of one evaluation, with one value per run


class Progress(NamedTuple):
    """How far a chunk is."""

    phase: str  # "compiling", "resuming" or "training"
    step: int
    num_steps: int
    num_runs: int
    score: float | None  # the mean test score of the last evaluation
    fraction: float  # of the whole chunk


ProgressCallback = Callable[[Progress], None]


class PreparedChunk(NamedTuple):
    """A chunk of runs whose program is compiled. Nothing but training is left to do."""

    runs: list[Run]
    width: int
    shared: Shared
    lanes: list[Inputs]
    split_columns: list[dict[str, Any]]  # of each run: `support/…`, and a hash of its split
    program: program.Program
    compile_seconds: float


class TrainedChunk(NamedTuple):
    """The rows of each run, and the networks and settings of all runs, stacked on the first axis.

    `widths` gives for each run how many runs were trained at once. `note` explains a width that is
    not the requested one.
    """

    rows: list[list[dict[str, Any]]]
    net: eqx.Module
    setting: Setting
    compile_seconds: float
    seconds: float
    widths: list[int]
    note: str = ""


def prepare(
    runs: list[Run], width: int | None = None, splits: Splits | None = None
) -> PreparedChunk:
    """Compile the program for runs of one structure, padded to `width` runs.

    The tasks are split into train and test here, unless the splits are passed.
    """
    started = time.perf_counter()
    width = width or len(runs)
    shared_structure = structure(runs[0])
    require(
        all(structure(run) == shared_structure for run in runs),
        "the runs of one chunk must share their structure",
    )
    if splits is None:
        splits = split_all(runs)
    tables = make_shared(runs[0].family)
    labels = program.labels_of(tables)
    shared = device.put(tables, stacked=False)
    lanes = _make_lanes(runs, device.lane_width(width), splits)
    shapes, tree = jax.tree.flatten(jax.eval_shape(lambda: (shared, lanes[0])))
    compiled = program.compile_program(shared_structure, labels, tuple(shapes), tree)
    split_columns = []
    for run in runs:
        split, facts = splits[split_key(run)]
        split_columns.append(facts | {"meta/split": split_digest(split)})
    seconds = time.perf_counter() - started
    return PreparedChunk(runs, width, shared, lanes, split_columns, compiled, seconds)


def _make_lanes(runs: list[Run], lane_width: int, splits: Splits) -> list[Inputs]:
    """The inputs of every lane. The last lane is padded with copies of the first run."""
    num_padding = -len(runs) % lane_width
    padded = [*runs, *[runs[0]] * num_padding]
    lanes = []
    for first in range(0, len(padded), lane_width):
        lane = padded[first : first + lane_width]
        keys = jnp.stack([new_key(run.seed) for run in lane])
        knob_values = {
            name: jnp.array([knobs(run)[name] for run in lane]) for name in knobs(lane[0])
        }
        lane_splits = [splits[split_key(run)][0] for run in lane]
        stacked_split = jax.tree.map(lambda *leaves: np.stack(leaves), *lane_splits)
        lanes.append(device.put(Inputs(keys, knob_values, stacked_split), stacked=True))
    return lanes


def _ignore_progress(_: Progress) -> None:
    pass


def train_chunk(
    runs: list[Run],
    width: int | None = None,
    on_progress: ProgressCallback = _ignore_progress,
    compiling: Future[PreparedChunk] | None = None,
    folder: Path | None = None,
    keep_last_checkpoint: bool = False,
    splits: Splits | None = None,
    start_nets: Sequence[Any] | None = None,
) -> TrainedChunk:
    """Train runs of one structure side by side, padded to `width` runs.

    Runs that do not fit in the device's memory together are trained in two halves, one after the
    other. `compiling` is the chunk if another thread already prepares it.

    With a `folder`, checkpoints are written there, and training continues from one that exists.
    With `keep_last_checkpoint`, the end of training is a checkpoint too. `start_nets` are the
    networks that the runs start from, one for each run, if they have a `start`.
    """
    width = width or len(runs)
    require(
        (start_nets is None) == (runs[0].start is None),
        "runs that start from other runs need their networks: train them with rc.train or rc.fit",
    )
    on_progress(Progress("compiling", 0, runs[0].num_steps, len(runs), None, 0.0))
    trained = _train_at_once(
        runs, width, on_progress, compiling, folder, keep_last_checkpoint, splits, start_nets
    )
    if trained is not None:
        return trained
    compiling = None  # frees the memory of the failed attempt
    return _train_in_halves(runs, width, on_progress, folder, splits, start_nets)


def _train_at_once(
    runs: list[Run],
    width: int,
    on_progress: ProgressCallback,
    compiling: Future[PreparedChunk] | None,
    folder: Path | None,
    keep_last_checkpoint: bool,
    splits: Splits | None,
    start_nets: Sequence[Any] | None,
) -> TrainedChunk | None:
    """Train all runs of a chunk at once. None if they do not fit in the device's memory."""
    try:
        chunk = prepare(runs, width, splits) if compiling is None else _wait_for(compiling)
        # `fits` may overestimate the memory. A single run cannot be halved, so it is always tried.
        if width == 1 or device.fits(chunk.program.advance, chunk.program.evaluate):
            checkpoint = Checkpoint(folder, runs, width)
            return train_prepared(chunk, on_progress, checkpoint, keep_last_checkpoint, start_nets)
    except Exception as error:
        if not device.is_out_of_memory(error):
            raise
        if width == 1:
            raise InputError(
                "one run does not fit in the device's memory: "
                "lower its widths, num_tasks or num_eval_tasks"
            ) from error
    return None


def _wait_for(compiling: Future[PreparedChunk]) -> PreparedChunk:
    """The chunk that another thread prepares. Its compile time is the time that we wait for it."""
    started = time.perf_counter()
    chunk = compiling.result()
    return chunk._replace(compile_seconds=time.perf_counter() - started)


def _train_in_halves(
    runs: list[Run],
    width: int,
    on_progress: ProgressCallback,
    folder: Path | None,
    splits: Splits | None,
    start_nets: Sequence[Any] | None,
) -> TrainedChunk:
    """Train the two halves of a chunk one after the other, each with half the width."""
    half_width = (width + 1) // 2
    halves = [half for half in (runs[:half_width], runs[half_width:]) if half]
    trained = []
    for number, half in enumerate(halves):
        first = number * half_width
        nets = None if start_nets is None else start_nets[first : first + len(half)]
        # The rows of both halves are written together. Until then the first half needs its last
        # checkpoint, or a kill would lose it.
        trained.append(
            train_chunk(
                half,
                half_width,
                _progress_of_part(on_progress, number, len(halves)),
                folder=folder,
                keep_last_checkpoint=True,
                splits=splits,
                start_nets=nets,
            )
        )
    used_width = max(trained[0].widths)
    note = f"out of memory with {width} runs at once: trained {used_width} at a time"
    return _join(trained, note)


def _progress_of_part(
    on_progress: ProgressCallback, number: int, num_parts: int
) -> ProgressCallback:
    """Report the progress of one of several equal parts as progress of the whole."""

    def on_part_progress(progress: Progress) -> None:
        fraction = (number + progress.fraction) / num_parts
        on_progress(progress._replace(fraction=fraction))

    return on_part_progress


def _join(halves: list[TrainedChunk], note: str) -> TrainedChunk:
    return TrainedChunk(
        rows=[rows for half in halves for rows in half.rows],
        net=_concatenate_runs([half.net for half in halves]),
        setting=_concatenate_runs([half.setting for half in halves]),
        compile_seconds=sum(half.compile_seconds for half in halves),
        seconds=sum(half.seconds for half in halves),
        widths=[width for half in halves for width in half.widths],
        note=note,
    )


def train_prepared(
    chunk: PreparedChunk,
    on_progress: ProgressCallback = _ignore_progress,
    checkpoint: Checkpoint = NO_CHECKPOINT,
    keep_last_checkpoint: bool = False,
    start_nets: Sequence[Any] | None = None,
) -> TrainedChunk:
    """Train a prepared chunk, from its checkpoint if there is one.

    Each call of the program trains a few strides. Between two calls the host reports progress and
    writes checkpoints. With `keep_last_checkpoint`, it also writes one at the end of training.
    """
    training = _Training(chunk, *_start_lanes(chunk, start_nets))
    if training.resume(checkpoint):
        on_progress(training.progress("resuming"))
    started = time.perf_counter()
    max_call_seconds = min(MAX_CALL_SECONDS, checkpoint.interval / 3)
    num_strides = 1  # of the next call: the first calls measure how long a stride takes
    with termination.checked():
        while not training.is_finished():
            num_strides = min(num_strides, training.strides_to_evaluation())
            call_started = time.perf_counter()
            training.train(num_strides)
            call_seconds = time.perf_counter() - call_started
            num_strides_in_time = int(num_strides * max_call_seconds / call_seconds)
            num_strides = max(1, min(MAX_CALL_GROWTH * num_strides, num_strides_in_time))
            seconds = training.seconds_before + time.perf_counter() - started
            _save_if_due(training, checkpoint, seconds, keep_last_checkpoint)
            on_progress(training.progress("training"))
    seconds = training.seconds_before + time.perf_counter() - started
    return training.result(seconds)


def _save_if_due(
    training: "_Training", checkpoint: Checkpoint, seconds: float, keep_last_checkpoint: bool
) -> None:
    """Save a checkpoint if it is time for one, or if the process was asked to end."""
    is_terminated = termination.is_requested() and not training.is_finished()
    if training.is_finished():
        is_due = keep_last_checkpoint and seconds > checkpoint.interval
    else:
        is_due = checkpoint.is_due() or is_terminated
    if is_due:
        checkpoint.save(training.num_done, seconds, training.history, training.carries)
    if is_terminated:
        raise termination.Terminated


def _start_lanes(
    chunk: PreparedChunk, start_nets: Sequence[Any] | None = None
) -> tuple[list[Setting], list[Carry]]:
    """Draw the settings of every lane, and its untrained networks unless there are `start_nets`."""
    arguments: list[tuple[Any, ...]] = [(inputs,) for inputs in chunk.lanes]
    if start_nets is not None:
        arguments = list(zip(chunk.lanes, _nets_of_lanes(chunk, start_nets), strict=True))
    states = device.map_parallel(
        lambda of_lane: chunk.program.start(chunk.shared, *of_lane), arguments
    )
    settings, carries = zip(*jax.block_until_ready(states), strict=True)
    return list(settings), list(carries)


def _nets_of_lanes(chunk: PreparedChunk, start_nets: Sequence[Any]) -> list[Any]:
    """The networks that each lane starts from. The last lane is padded with the first network."""
    lane_width = device.lane_width(chunk.width)
    num_padding = -len(start_nets) % lane_width
    padded = [*start_nets, *[start_nets[0]] * num_padding]
    lanes = []
    for first in range(0, len(padded), lane_width):
        nets = padded[first : first + lane_width]
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *nets)
        lanes.append(device.put(stacked, stacked=True))
    return lanes


@dataclass
class _Training:
    """A chunk in training. Progress is counted in strides: the steps that one scan trains."""

    chunk: PreparedChunk
    settings: list[Setting]  # one per lane
    carries: list[Carry]  # one per lane
    num_done: int = 0  # strides
    seconds_before: float = 0.0  # the training time of an earlier process, from its checkpoint
    history: list[Scores] = field(default_factory=list)  # one entry per evaluation

    def __post_init__(self) -> None:
        run = self.chunk.runs[0]
        self.steps_per_stride = program.steps_per_stride(run)
        self.num_strides = run.num_steps // self.steps_per_stride
        self.strides_per_evaluation = run.num_steps // run.num_evals // self.steps_per_stride

    def is_finished(self) -> bool:
        return self.num_done >= self.num_strides

    def strides_to_evaluation(self) -> int:
        return self.strides_per_evaluation - self.num_done % self.strides_per_evaluation

    def resume(self, checkpoint: Checkpoint) -> bool:
        """Continue from the checkpoint. False if there is none."""
        saved = checkpoint.load(jax.eval_shape(lambda: self.carries))
        if saved is None:
            return False
        self.num_done, self.seconds_before, self.history, carries = saved
        self.carries.clear()  # the device may not have room for both
        self.carries += [device.put(carry, stacked=True) for carry in carries]
        return True

    def train(self, num_strides: int) -> None:
        """Train every lane for some strides, and evaluate it if an evaluation is due then."""
        evaluates = num_strides == self.strides_to_evaluation()
        first = jnp.int32(self.num_done)
        count = jnp.int32(num_strides)
        evaluation_index = jnp.int32(self.num_done // self.strides_per_evaluation)

        def train_lane(i: int) -> dict[str, Any] | None:
            functions = self.chunk.program
            inputs = (self.chunk.shared, self.chunk.lanes[i], self.settings[i])
            carry = functions.advance(*inputs, self.carries[i], first, count)
            self.carries[i] = jax.block_until_ready(carry)
            if not evaluates:
                return None
            return jax.device_get(functions.evaluate(*inputs, self.carries[i], evaluation_index))

        lane_scores = device.map_parallel(train_lane, range(len(self.carries)))
        self.num_done += num_strides
        if evaluates:
            self.history.append(expand_vectors(_concatenate_runs(lane_scores)))

    def progress(self, phase: str) -> Progress:
        return Progress(
            phase=phase,
            step=self.num_done * self.steps_per_stride,
            num_steps=self.chunk.runs[0].num_steps,
            num_runs=len(self.chunk.runs),
            score=self._mean_test_score(),
            fraction=self.num_done / self.num_strides,
        )

    def _mean_test_score(self) -> float | None:
        """The mean over runs of the last evaluation's R2, or else accuracy, or else loss."""
        if not self.history:
            return None
        last = self.history[-1]
        values = last.get("test/r2", last.get("test/accuracy", last["test/loss"]))
        return float(np.mean(values[: len(self.chunk.runs)]))

    def result(self, seconds: float) -> TrainedChunk:
        """What training gives, without the padding."""
        num_runs = len(self.chunk.runs)
        nets = [carry.net if carry.average is None else carry.average for carry in self.carries]
        padded = jax.device_get((_concatenate_runs(nets), _concatenate_runs(self.settings)))
        net, setting = jax.tree.map(lambda leaf: leaf[:num_runs], padded)
        return TrainedChunk(
            rows=[self._rows(i) for i in range(num_runs)],
            net=net,
            setting=setting,
            compile_seconds=self.chunk.compile_seconds,
            seconds=seconds,
            widths=[self.chunk.width] * num_runs,
        )

    def _rows(self, i: int) -> list[dict[str, Any]]:
        """The rows of run i: one per evaluation."""
        run = self.chunk.runs[i]
        steps_per_evaluation = run.num_steps // run.num_evals
        rows = []
        for number, scores in enumerate(self.history, start=1):
            step = {"step": number * steps_per_evaluation}
            own_scores = {name: values[i] for name, values in scores.items()}
            rows.append(step | self.chunk.split_columns[i] | own_scores)
        return rows


def _concatenate_runs(trees: list[Any]) -> Any:
    """Trees that each hold some of the runs, as one tree that holds all of them."""
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *leaves: _concatenate(leaves), *trees)


def _concatenate(leaves: Sequence[Any]) -> Any:
    is_key = jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key)
    return jnp.concatenate(leaves) if is_key else np.concatenate(leaves)


def expand_vectors(scores: Scores) -> Scores:
    """Make one column of every entry of a vector: `module=*` becomes `module=0`, `module=1`, …

    Scores have shape (runs,) or (runs, entries). The column `diverged` is added.
    """
    columns = {}
    for name, values in scores.items():
        if values.ndim == 1:
            columns[name] = values
        elif values.ndim == 2:
            for i in range(values.shape[1]):
                columns[name.replace("*", str(i))] = values[:, i]
    columns["diverged"] = (columns["diverged_at"] >= 0) | ~np.isfinite(columns["test/loss"])
    return columns
