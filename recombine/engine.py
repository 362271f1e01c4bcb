"""Runs -> groups of equal structure -> chunks -> any executor of `concurrent.futures` shape -> table.

Resumption comes from the table alone: a run that has rows there is finished. Chunks are planned from the whole sweep,
never from what is left of it, so a resumed sweep runs the very programs that an uninterrupted one would have run.
"""

import concurrent.futures
import datetime
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pandas as pd

import recombine
from recombine import cost, device, program, trainer
from recombine.core import InputError, require
from recombine.fitted import Fitted
from recombine.laboratory import make_split
from recombine.progress import Display, expected_seconds
from recombine.recipe import multiplied_in
from recombine.run import Run, describe, identity, structure
from recombine.table import Table


class Chunk(NamedTuple):
    """Runs that train side by side in one program of the given width."""

    runs: tuple[Run, ...]
    width: int


Watch = Callable[[Chunk, trainer.Progress], None]
MAX_WIDTH = 16  # runs in a chunk on a CPU, whose rows are written together
MAX_WIDTH_GPU = 64  # enough to fill the device at any size (docs/results/bench.md); halved where memory is short


# What to lower when memory is short; the keys are those of `program.least_bytes`.
REMEDIES = {
    "the network and its optimiser": "the model's widths, or the length of the code (num_pairs of FewShot)",
    "a batch of tasks": "num_tasks, num_points, or the width of the observation or of the code",
    "the tasks of an evaluation": "num_eval_tasks, num_eval_points, or the width of the observation or of the code",
}


class Here(concurrent.futures.Executor):
    """Runs everything at once, in this process."""

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """Call the function now; its result or its error is in the future."""
        future = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def plan(runs: Iterable[Run], max_width: int = MAX_WIDTH) -> list[Chunk]:
    """Cut a sweep into chunks: equal runs once, equal structures together, chunks of a structure equally wide."""
    require(max_width >= 1, f"max_width must be at least 1, got {max_width}")
    groups: dict[Run, dict[Run, None]] = {}
    for run in runs:
        groups.setdefault(structure(run), {})[run] = None
    chunks = []
    for group in map(list, groups.values()):
        width = math.ceil(len(group) / math.ceil(len(group) / max_width))
        chunks += [Chunk(tuple(group[i : i + width]), width) for i in range(0, len(group), width)]
    return chunks


def train(
    runs: Run | Iterable[Run],
    out: str | Path | None = None,
    *,
    keep: str | Path | None = None,
    executor: concurrent.futures.Executor | None = None,
    progress: bool | None = None,
    max_width: int | None = None,
) -> pd.DataFrame:
    """Train every run and give its rows: one line per run and evaluation.

    With `out`, a folder or a `.parquet` file, rows are written as chunks finish and finished runs are not trained
    again. With `keep`, every trained network is saved in that folder, to be read with `Fitted.load`. Progress is
    shown on a terminal, or always or never. At most `max_width` runs share a program.
    """
    runs = [runs] if isinstance(runs, Run) else list(runs)
    require(len(runs) > 0, "there are no runs to train")
    require(all(isinstance(run, Run) for run in runs), "train takes a Run or a list of Run")
    table = None if out is None else Table(out)
    if keep is not None:
        try:
            Path(keep).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot keep networks in {keep} ({error.strerror}): name another folder") from error
    if table is not None:
        # Rows depend on the width in their last digits: what was begun with one width is finished with it.
        max_width = table.meta().get("max_width") if max_width is None else max_width
    if max_width is None:
        max_width = max(MAX_WIDTH, device.num_cores()) if device.on_cpu() else MAX_WIDTH_GPU
    written = set() if table is None else table.finished()
    # A run whose network is wanted but was not kept is trained again; its rows stay the ones that it has.
    finished = {name for name in written if keep is None or (Path(keep) / name / "run.json").exists()}
    chunks = [c for c in plan(runs, max_width) if not {identity(run) for run in c.runs} <= finished]
    check_runs(run for chunk in chunks for run in chunk.runs)
    if table is not None:
        table.check_writable()
        table.note(max_width=max_width)
    frames = []
    shown = sys.stderr.isatty() if progress is None else progress
    names = {identity(run) for run in runs}
    expected = expected_seconds(chunks, cost.load()) if shown and executor is None else {}
    with Display(len(names), len(names & finished), expected, shown) as display:
        for frame in _trained(chunks, keep, executor, display.update if expected else None):
            frames.append(frame[~frame["run"].isin(list(written))])
            if table is not None and len(frames[-1]):
                table.append(frames[-1])
    rows = pd.concat(frames, ignore_index=True) if table is None else table.read()
    rows = rows.drop_duplicates(["run", "step"])  # two processes may have trained the same run
    place = {identity(run): i for i, run in enumerate(runs)}
    rows = rows[rows["run"].isin(place)].assign(place=lambda frame: frame["run"].map(place))
    return rows.sort_values(["place", "step"]).drop(columns="place").reset_index(drop=True)


def _trained(chunks: list[Chunk], keep: Any, executor: concurrent.futures.Executor | None, watch: Watch | None):
    if executor is None:  # one at a time, so that each is written before the next begins
        for chunk, ready in _prepared(chunks):
            yield Here().submit(train_chunk, chunk, keep, watch, ready).result()
    else:
        futures = [executor.submit(train_chunk, chunk, keep) for chunk in chunks]
        failed = []
        for future in concurrent.futures.as_completed(futures):
            if future.exception() is None:
                yield future.result()
            else:  # told at the end, so that what others finished is written first
                failed.append(future)
        for future in failed:
            future.result()


def _prepared(chunks: list[Chunk]) -> Iterator[tuple[Chunk, Future[trainer.Ready] | None]]:
    """The chunks in order, each structure's program compiled while earlier ones train, where the device allows it."""
    pool = concurrent.futures.ThreadPoolExecutor(max(device.num_compilers(), 1))
    # A thread does not see what the caller set by JAX's context managers: such a caller compiles for himself.
    ahead = device.num_compilers() if pool.submit(_settings).result() == _settings() else 0
    firsts = {structure(chunk.runs[0]): chunk for chunk in reversed(chunks)}
    waiting = [chunk for chunk in chunks if chunk is firsts[structure(chunk.runs[0])]] if ahead else []
    ready: dict[Chunk, Future[trainer.Ready]] = {}
    try:
        for chunk in chunks:
            while waiting and len(ready) <= ahead:
                following = waiting.pop(0)
                ready[following] = pool.submit(trainer.prepare, list(following.runs), following.width)
            yield chunk, ready.pop(chunk, None)
    finally:
        pool.shutdown(cancel_futures=True)  # one that compiles is waited for: it cannot be stopped


def _settings() -> tuple[Any, ...]:
    names = ("default_matmul_precision", "enable_x64", "default_device", "default_prng_impl", "numpy_dtype_promotion")
    return tuple(getattr(jax.config, f"jax_{name}", None) for name in names)


def train_chunk(
    chunk: Chunk,
    keep: str | Path | None = None,
    watch: Watch | None = None,
    ready: Future[trainer.Ready] | None = None,
) -> pd.DataFrame:
    """Train one chunk and give its rows; with `keep`, save its networks."""
    fitted = fit_chunk(chunk, watch, ready)
    if keep is not None:
        for one in fitted:
            one.save(Path(keep) / identity(one.run))
    return pd.concat([one.rows for one in fitted], ignore_index=True)


def fit(run: Run, watch: Watch | None = None) -> Fitted:
    """Train one run and give its network."""
    check_runs([run])
    return fit_chunk(Chunk((run,), 1), watch)[0]


def fit_chunk(chunk: Chunk, watch: Watch | None = None, ready: Future[trainer.Ready] | None = None) -> list[Fitted]:
    """Train one chunk and give its networks, each with its rows."""
    trained = trainer.train_chunk(list(chunk.runs), chunk.width, lambda p: watch(chunk, p) if watch else None, ready)
    low = getattr(trained.net, "mixed_precision", False)
    precision: Any = getattr(chunk.runs[0].recipe, "precision", "float32") if low else "float32"
    stamp = {
        "meta/width": trained.width,
        "meta/seconds": trained.seconds / len(chunk.runs),
        "meta/compile_seconds": trained.compile_seconds,
        "meta/device": jax.devices()[0].device_kind,
        "meta/precision": jnp.dtype(multiplied_in(precision)).name,
        "meta/jax": jax.__version__,
        "meta/recombine": recombine.__version__,
        "meta/date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    fitted = []
    for i, run in enumerate(chunk.runs):
        about = {"run": identity(run)} | describe(run)
        rows = pd.DataFrame([about | row | stamp for row in trained.rows[i]])
        net, setting = jax.tree.map(lambda leaf, i=i: jnp.asarray(leaf[i]), (trained.net, trained.setting))
        fitted.append(Fitted(run, net, setting.world, setting.encoding, rows))
    return fitted


def check_runs(runs: Iterable[Run]) -> None:
    """Refuse a sweep with parts that do not go together, before anything is compiled: a code that the model cannot
    read, arrays beyond the memory, a support that cannot be satisfied."""
    runs = list(runs)
    for run in {structure(run): run for run in runs}.values():
        try:
            needs, limit = program.least_bytes(run), device.total_bytes()
        except InputError:
            raise
        except Exception as error:
            names = ", ".join(type(part).__name__ for part in (run.family, run.encoding, run.model))
            raise InputError(
                f"{names} do not work together ({type(error).__name__}: {' '.join(str(error).split())[:200]}): "
                "`recombine check FILE` tells which promise a part of your own breaks"
            ) from error
        most = max(needs, key=lambda what: needs[what])
        require(
            limit is None or sum(needs.values()) <= limit,
            f"one run needs at least {sum(needs.values()) / 1e9:.3g} GB, most of it for {most}, and there are only "
            f"{(limit or 0) / 1e9:.3g} GB: lower {REMEDIES[most]}",
        )
    kinds = {(run.family, run.support, run.frac_test, run.seed): run for run in runs}
    modules = {family: family.modules(family.tasks()) for family in {run.family for run in kinds.values()}}
    for run in kinds.values():
        make_split(run, modules[run.family])
