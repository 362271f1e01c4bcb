"""Runs -> groups of equal structure -> chunks -> any executor of `concurrent.futures` shape -> table.

Resumption comes from the table alone: a run that has rows there is finished. Chunks are planned from the whole sweep,
never from what is left of it, so a resumed sweep runs the very programs that an uninterrupted one would have run.
"""

import concurrent.futures
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require
from recombine.basics.suggest import counted
from recombine.storage.table import Table
from recombine.sweeps.code_hash import of_package
from recombine.sweeps.run import Run, identity, structure
from recombine.training import cost, device, trainer
from recombine.training.chunk import (
    MAX_WIDTH,
    Chunk,
    Watch,
    chunk_rows,
    cut,
    fit_chunk,
    remote_rows,
)
from recombine.training.executors import remote
from recombine.training.fitted import Fitted
from recombine.training.progress import Display, expected_seconds
from recombine.training.row_writer import Writer, hold
from recombine.training.task_sampler import Splits, split_bytes
from recombine.training.validation import check_runs

MAX_WIDTH_GPU = 64  # enough to fill the device at any size (docs/results/bench.md); halved where memory is short
Mirror = Callable[[pd.DataFrame], None]
MAX_SPLIT_BYTES = 2**28  # splits of all runs that are kept while a sweep trains
OpenExecutor = Callable[[], contextlib.AbstractContextManager[Executor | None]]


class Plan(NamedTuple):
    """What a sweep still needs: its chunks, the rows that are there, the runs that have rows, and those of the sweep
    that need nothing more."""

    chunks: list[Chunk]
    rows: pd.DataFrame
    written: set[str]
    finished: set[str]
    max_width: int


class Outcome(NamedTuple):
    """The rows of a sweep, in the order of its runs, and how many of the runs were trained for it."""

    rows: pd.DataFrame
    num_trained: int


def train(
    runs: Run | Iterable[Run],
    out: str | Path | None = None,
    *,
    keep: str | Path | None = None,
    executor: Executor | None = None,
    progress: bool | None = None,
    max_width: int | None = None,
    mirror: Mirror | None = None,
    about: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Train every run and give its rows: one line per run and evaluation.

    With `out`, a folder or a `.parquet` file, rows are written as chunks finish, finished runs are not trained again,
    and a chunk that was stopped goes on where it was a minute before. With `keep`, every trained network is saved in
    that folder, to be read with `Fitted.load`. Progress is shown on a terminal, or always or never. At most
    `max_width` runs share a program. `mirror` is called with all rows once they are written; what `about` says of the
    sweep is noted beside them when it begins.
    """
    return complete(
        [runs] if isinstance(runs, Run) else list(runs),
        None if out is None else Table(out),
        keep=None if keep is None else _folder(keep),
        open_executor=lambda: contextlib.nullcontext(executor),
        shown=sys.stderr.isatty() if progress is None else progress,
        max_width=max_width,
        mirror=mirror,
        about=about or {},
    ).rows


def complete(
    runs: list[Run],
    table: Table | None,
    *,
    keep: Path | None = None,
    open_executor: OpenExecutor = contextlib.nullcontext,
    shown: bool = False,
    max_width: int | None = None,
    mirror: Mirror | None = None,
    about: Mapping[str, Any],
) -> Outcome:
    """Train those runs of a sweep that the table lacks.

    The table is held from here on, and read once. Where it cannot be held (it is read-only, or another process writes
    to it) a sweep that is finished is still answered from it.
    """
    require(len(runs) > 0, "there are no runs to train")
    require(all(isinstance(run, Run) for run in runs), "train takes a Run or a list of Run")
    require(max_width is None or max_width >= 1, f"max_width must be at least 1, got {max_width}")
    with contextlib.ExitStack() as stack:
        splits = executor = None
        new = table is None or not table.path.exists()
        if new:  # all runs are checked and the executor is opened first: what is refused leaves no folder behind
            splits, executor = check_runs(runs), stack.enter_context(open_executor())
        problem = None if table is None else hold(table, stack)
        plan = _plan(runs, table, keep, max_width)
        if problem is not None and plan.chunks:
            raise problem
        writer = Writer(table, mirror, plan.written)
        if not plan.chunks:
            if problem is None:
                writer.tidy()
            with Display(
                len(plan.finished), len(plan.finished), {}, shown
            ) as display:  # says that all is there
                return Outcome(_reused(runs, plan, writer, display), 0)
        if not new:
            splits = check_runs(run for chunk in plan.chunks for run in chunk.runs)
            executor = stack.enter_context(open_executor())
        if table is not None:
            table.check_writable()
            _note(table, {"max_width": plan.max_width} | dict(about))
        names = {identity(run) for run in runs}
        folder = None if table is None or table.packed else table.path
        expected = expected_seconds(plan.chunks, cost.load()) if shown or folder else {}
        display = stack.enter_context(
            Display(len(names), len(names & plan.finished), expected, shown, folder)
        )
        if names & plan.written:
            _reused([run for run in runs if identity(run) in plan.written], plan, writer, display)
        writer.tidy()
        plan = plan._replace(rows=pd.DataFrame())  # they may be large, and training takes long
        if executor is not None or split_bytes(splits or {}) > MAX_SPLIT_BYTES:
            splits = None  # each chunk splits its own tasks again, where it is trained
        _record(plan, splits, keep, executor, writer, display)
    rows = _ordered(writer.rows(), runs)
    missing = len(names - set(rows["run"]))
    place = "" if table is None else table.path
    require(
        missing == 0,
        f"{missing} runs are not in {place}: it was changed meanwhile; run the same command again",
    )
    return Outcome(rows, len(names - plan.finished))


def finished(runs: list[Run], table: Table) -> pd.DataFrame:
    """The rows of those of these runs that are finished in a table; nothing is trained."""
    rows = table.read()
    rows = _ordered(rows, runs) if len(rows) else rows
    message = f"none of the {len(runs)} runs is finished in {table.path}: leave out --finished to train them"
    require(len(rows) > 0, message)
    return rows


def _reused(runs: list[Run], plan: Plan, writer: Writer, display: Display) -> pd.DataFrame:
    """The rows of runs that were finished before; what is strange about them is told, and mirrors get them too."""
    rows = _ordered(plan.rows, runs)
    _tell_mixed(rows, display)
    writer.tell = display.note
    writer.copy(rows)
    return rows


def _plan(runs: list[Run], table: Table | None, keep: Path | None, max_width: int | None) -> Plan:
    """What is left of a sweep. Chunks are cut from all its runs; those without anything left are not among them."""
    if table is not None and max_width is None:
        # Rows depend on the width in their last digits: what was begun with one width is finished with it.
        max_width = table.meta().get("max_width")
    if max_width is None:
        max_width = (
            max(MAX_WIDTH, device.num_cores())
            if device.on_cpu()
            else MAX_WIDTH_GPU * device.num_devices()
        )
    rows = pd.DataFrame({"run": []}) if table is None else table.read()
    written = set(rows["run"]) if len(rows) else set()
    # A run whose network is wanted but was not kept is trained again; its rows stay the ones that it has.
    finished = {name for name in written if keep is None or (keep / name / "run.json").exists()}
    chunks = [c for c in cut(runs, max_width) if not {identity(run) for run in c.runs} <= finished]
    return Plan(chunks, rows, written, finished & {identity(run) for run in runs}, max_width)


def _note(table: Table, notes: dict[str, Any]) -> None:
    try:
        table.note(**notes)
    except OSError as error:
        raise InputError(
            f"cannot write results to {table.path} ({error.strerror}): free some space there"
        ) from error


def _folder(keep: str | Path) -> Path:
    try:
        Path(keep).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot keep networks in {keep} ({error.strerror}): name another folder"
        ) from error
    return Path(keep).absolute()


def _record(
    plan: Plan,
    splits: Splits | None,
    keep: Path | None,
    executor: Executor | None,
    writer: Writer,
    display: Display,
) -> None:
    """Write the rows of chunks as they come; errors are raised at the end, so that the rest is written first."""
    failed: list[tuple[Chunk, Exception]] = []
    with writer.writing(display.note):
        for chunk, outcome in _outcomes(
            plan.chunks, splits, keep, executor, writer.checkpoints, display.update
        ):
            if isinstance(outcome, Exception):
                failed.append((chunk, outcome))
                display.fail(chunk, outcome)
            else:
                new = outcome.loc[~outcome["run"].isin(list(plan.written)), :]
                written = writer.add(new, [identity(run) for run in chunk.runs])
                display.finish(chunk, len(written - plan.finished))
    for _, error in failed:
        if len(failed) < len(plan.chunks) and isinstance(error, InputError):
            num_runs = sum(len(chunk.runs) for chunk, _ in failed)
            raise InputError(
                f"{counted(num_runs, 'run')} failed, the others are trained: {error}"
            ) from error
        raise error


def _outcomes(
    chunks: list[Chunk],
    splits: Splits | None,
    keep: Path | None,
    executor: Executor | None,
    folder: Path | None,
    watch: Watch,
) -> Iterator[tuple[Chunk, pd.DataFrame | Exception]]:
    """Each chunk with its rows or its error, as they come."""
    if executor is None:  # one at a time, so that each is written before the next begins
        for chunk, ready in _prepared(chunks, splits):
            try:
                outcome = chunk_rows(chunk, keep, watch, ready, folder, False, splits)
            except Exception as error:
                outcome = error
            yield chunk, outcome
        return
    places = (None if path is None else str(path.absolute()) for path in (keep, folder))
    keep_, folder_ = places
    futures = {
        executor.submit(remote_rows, remote.pack(chunk.runs), chunk.width, keep_, folder_): chunk
        for chunk in chunks
    }
    for future in concurrent.futures.as_completed(futures):
        error = future.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        yield futures[future], error or future.result()


def _tell_mixed(rows: pd.DataFrame, display: Display) -> None:
    """Say where reused rows were made by another version or device: they are kept, but never silently."""
    last = rows.groupby("run").tail(1)
    now = {"JAX": jax.__version__, "code": of_package(), "device": jax.devices()[0].device_kind}
    for word, value in now.items():
        name = f"meta/{word.lower()}"
        made = (
            last[name].fillna("unknown").astype(str)
            if name in last
            else pd.Series(["unknown"] * len(last))
        )
        others = made[made != value]
        if len(others):
            display.note(
                f"{len(others)} of {len(last)} reused runs were made with another {word} "
                f"({', '.join(sorted(set(others)))}; now {value}): they are kept as they are; name another --out to "
                "train them again"
            )


def _ordered(rows: pd.DataFrame, runs: list[Run]) -> pd.DataFrame:
    place = {identity(run): i for i, run in enumerate(runs)}
    rows = rows.loc[rows["run"].isin(list(place)), :]
    order = np.lexsort((rows["step"].to_numpy(), np.array([place[name] for name in rows["run"]])))
    return rows.iloc[order].reset_index(drop=True)


def _prepared(
    chunks: list[Chunk], splits: Splits | None
) -> Iterator[tuple[Chunk, Future[trainer.Ready] | None]]:
    """The chunks in order, each structure's program compiled before, while earlier ones train."""
    num_compilers = device.num_compilers()
    pool = concurrent.futures.ThreadPoolExecutor(num_compilers)
    # A thread does not see what the caller set by JAX's context managers: such a caller compiles for himself.
    alike = pool.submit(device.settings).result() == device.settings()
    firsts = {structure(chunk.runs[0]): chunk for chunk in reversed(chunks)}
    waiting = [chunk for chunk in chunks if alike and chunk is firsts[structure(chunk.runs[0])]]
    ready: dict[Chunk, Future[trainer.Ready]] = {}
    try:
        for chunk in chunks:
            count = num_compilers + 1 - len(ready)
            following, waiting = waiting[:count], waiting[count:]
            ready |= {
                each: pool.submit(trainer.prepare, list(each.runs), each.width, splits)
                for each in following
            }
            yield chunk, ready.pop(chunk, None)
    finally:
        pool.shutdown(cancel_futures=True)  # one that compiles is waited for: it cannot be stopped


def fit(run: Run, watch: Watch | None = None) -> Fitted:
    """Train one run and give its network."""
    return fit_chunk(Chunk((run,), 1), watch, splits=check_runs([run]))[0]
