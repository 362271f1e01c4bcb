"""Train a sweep: plan what is missing in its table, train it chunk by chunk, and write the rows.

The table alone decides what is resumed: a run with rows there is finished. Chunks are made from
the whole sweep, never from the missing runs only, so a resumed sweep runs the same programs as an
uninterrupted one.
"""

import concurrent.futures
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from recombine.basics.console import duration
from recombine.basics.errors import InputError, require
from recombine.basics.suggest import counted
from recombine.storage.table import Table
from recombine.sweeps.code_hash import hash_of_package
from recombine.sweeps.run import Run, generation, identity, structure, with_starts
from recombine.training import (
    cost,
    device,
    heartbeat,
    machine,
    progress,
    termination,
    trainer,
)
from recombine.training.chunk import (
    MAX_WIDTH_CPU,
    Chunk,
    ChunkProgressCallback,
    chunk_rows,
    fit_chunk,
    make_chunks,
    remote_chunk_rows,
)
from recombine.training.executors import remote
from recombine.training.fitted import Fitted, check_folder
from recombine.training.progress import Display, expected_seconds
from recombine.training.row_writer import RowWriter, lock_table
from recombine.training.task_sampler import Splits, split_bytes
from recombine.training.validation import check_runs

# Runs of a chunk on a GPU: enough to fill it (docs/results/bench.md). Halved if they do not fit.
MAX_WIDTH_GPU = 64
LOOK_SECONDS = 1.0  # between two looks at the heartbeats of workers
# Every row has these. A row without one of the other columns about the machine is older.
OLDEST_COLUMNS = {"meta/jax", "meta/code", "meta/device"}
MAX_SPLIT_BYTES = 2**28  # of the splits of all runs, if they are kept while a sweep trains

Mirror = Callable[[pd.DataFrame], None]
OpenExecutor = Callable[[], contextlib.AbstractContextManager[Executor | None]]


class Networks(NamedTuple):
    """The folders of trained networks, which are saved there under the hashes of their runs.

    `keep` gets all networks of the sweep. `starts` has those from which other runs start; `needed`
    are the hashes of the runs from which missing runs start.
    """

    keep: Path | None
    starts: Path | None
    needed: frozenset[str] = frozenset()

    def folder_for(self, chunk: Chunk) -> Path | None:
        """Where the networks of a chunk are saved. None if they are not."""
        is_needed = any(identity(run) in self.needed for run in chunk.runs)
        return self.starts if is_needed else self.keep


class Plan(NamedTuple):
    """What is left to do for a sweep. Runs are given by their hashes."""

    chunks: list[Chunk]  # that have something left to train
    rows: pd.DataFrame  # that the table already has
    written: set[str]  # all runs with rows in the table
    finished: set[str]  # runs of this sweep that need no training
    starts: frozenset[str]  # runs whose networks these chunks start from
    max_width: int


class _Remotely(NamedTuple):
    """Where chunks are trained if not in this process, and what is required of the workers."""

    executor: Executor
    like_workers: bool
    chunk_timeout: float | None = None  # seconds


class Outcome(NamedTuple):
    """The rows of a sweep, in the order of its runs, and how many runs were trained for it."""

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
    like_workers: bool = False,
    chunk_timeout: float | None = None,
) -> pd.DataFrame:
    """Train every run and return its rows: one row per run and evaluation.

    Args:
        runs: A run, or the runs of a sweep. Runs from which they start (`Run.start`) are trained
            first, each once. Their networks are saved in `keep`, or in a folder beside the rows.
        out: A folder or a `.parquet` file. Rows are written there as chunks finish. Finished runs
            are not trained again, and an interrupted chunk continues from its last checkpoint.
        keep: A folder for all trained networks. Load one with `Fitted.load`.
        executor: Trains the chunks elsewhere, see `recombine.training.executors`.
        progress: Show progress. By default it is shown on a terminal.
        max_width: The largest number of runs that one program trains side by side.
        mirror: Is called with rows after they are written, and with rows that are reused.
        about: Notes about the sweep, stored with the rows when training begins.
        like_workers: Refuse workers of the executor that differ from the first one (another device,
            CPU, XLA flags or library versions), since they give slightly other numbers.
        chunk_timeout: Stop a chunk of the executor that makes no progress for so many seconds (more
            than a compilation takes), and train it again. After three times it fails, alone.
    """
    return complete(
        [runs] if isinstance(runs, Run) else list(runs),
        None if out is None else Table(out),
        keep=None if keep is None else _make_folder(keep),
        open_executor=lambda: contextlib.nullcontext(executor),
        show_progress=sys.stderr.isatty() if progress is None else progress,
        max_width=max_width,
        mirror=mirror,
        about=about or {},
        like_workers=like_workers,
        chunk_timeout=chunk_timeout,
    ).rows


def complete(
    runs: list[Run],
    table: Table | None,
    *,
    keep: Path | None = None,
    open_executor: OpenExecutor = contextlib.nullcontext,
    show_progress: bool = False,
    max_width: int | None = None,
    mirror: Mirror | None = None,
    about: Mapping[str, Any],
    like_workers: bool = False,
    chunk_timeout: float | None = None,
) -> Outcome:
    """Train the runs of a sweep that are missing in its table.

    The table is locked until the end and read once. A table that cannot be locked (it is read-only,
    or another process writes to it) can still be used if no run is missing.
    """
    require(len(runs) > 0, "there are no runs to train")
    require(all(isinstance(run, Run) for run in runs), "train takes a Run or a list of Run")
    require(max_width is None or max_width >= 1, f"max_width must be at least 1, got {max_width}")
    with contextlib.ExitStack() as stack:
        splits: Splits | None = None
        executor: Executor | None = None
        is_new = table is None or not table.path.exists()
        if is_new:  # checked before the folder is made, so that a refused sweep leaves none behind
            splits = check_runs(with_starts(runs))
            executor = stack.enter_context(open_executor())
            _check_chunk_timeout(chunk_timeout, executor, table)
        lock_error = None if table is None else lock_table(table, stack)
        networks = Networks(keep, _start_folder(runs, table, keep, stack))
        plan = _plan(runs, table, networks, max_width)
        networks = networks._replace(needed=plan.starts)
        if lock_error is not None and plan.chunks:
            raise lock_error
        writer = RowWriter(table, mirror, plan.written)
        if not plan.chunks:
            if lock_error is None:
                writer.tidy()
            return _finished_outcome(runs, plan, writer, show_progress)
        if not is_new:
            splits = check_runs(run for chunk in plan.chunks for run in chunk.runs)
            executor = stack.enter_context(open_executor())
            _check_chunk_timeout(chunk_timeout, executor, table)
        if table is not None:
            table.check_writable()
            _store_notes(table, {"max_width": plan.max_width} | dict(about))
        with _open_display(runs, table, plan, show_progress) as display:
            reused = [run for run in runs if identity(run) in plan.written]
            if reused:
                _reuse_rows(reused, plan, writer, display)
            writer.tidy()
            plan = plan._replace(rows=pd.DataFrame())  # may be large, and training takes long
            if executor is not None or split_bytes(splits or {}) > MAX_SPLIT_BYTES:
                splits = None  # frees the memory: each chunk splits its tasks again
            workers = executor and _Remotely(executor, like_workers, chunk_timeout)
            with termination.stop_on_sigterm():
                _record(plan, splits, networks, workers, writer, display)
    return _outcome(runs, table, plan, writer)


def _finished_outcome(
    runs: list[Run], plan: Plan, writer: RowWriter, show_progress: bool
) -> Outcome:
    """The rows of a sweep that misses no run."""
    num_runs = len(plan.finished)
    with Display(num_runs, num_runs, {}, show_progress) as display:
        return Outcome(_reuse_rows(runs, plan, writer, display), 0)


def _check_chunk_timeout(
    seconds: float | None, executor: Executor | None, table: Table | None
) -> None:
    if seconds is None:
        return
    require(seconds > 0, f"--chunk-timeout must be a positive number of seconds, got {seconds}")
    require(
        hasattr(executor, "stop") and table is not None,
        "--chunk-timeout needs --executor processes:N or slurm, whose chunks can be stopped, and a "
        "folder for the results",
    )


def _open_display(runs: list[Run], table: Table | None, plan: Plan, show_progress: bool) -> Display:
    missing = [run for chunk in plan.chunks for run in chunk.runs]
    num_runs = len({identity(run) for run in [*runs, *missing]})
    status_folder = None if table is None or table.packed else table.path
    expected = {}
    if show_progress or status_folder is not None:
        expected = expected_seconds(plan.chunks, cost.load())
    return Display(num_runs, len(plan.finished), expected, show_progress, status_folder)


def _outcome(runs: list[Run], table: Table | None, plan: Plan, writer: RowWriter) -> Outcome:
    """The rows of all runs, once everything is trained."""
    rows = _rows_in_order(writer.rows(), runs)
    run_hashes = {identity(run) for run in runs}
    num_missing = len(run_hashes - set(rows["run"]))
    require(
        num_missing == 0,
        f"rows of {counted(num_missing, 'run')} are missing in "
        f"{'' if table is None else table.path}, which was changed during training: "
        "run the same command again",
    )
    return Outcome(rows, len(run_hashes - plan.finished))


def finished_rows(runs: list[Run], table: Table) -> pd.DataFrame:
    """The rows of the runs that are finished in a table. Nothing is trained."""
    rows = table.read()
    if len(rows):
        rows = _rows_in_order(rows, runs)
    require(
        len(rows) > 0,
        f"none of the {len(runs)} runs is finished in {table.path}: "
        "leave out --no-train to train them",
    )
    return rows


def _reuse_rows(runs: list[Run], plan: Plan, writer: RowWriter, display: Display) -> pd.DataFrame:
    """The rows of runs that were finished before. The mirror gets them too."""
    rows = _rows_in_order(plan.rows, runs)
    _note_other_versions(rows, display)
    writer.notify = display.note
    writer.send_to_mirror(rows)
    return rows


def _start_folder(
    runs: list[Run], table: Table | None, keep: Path | None, stack: contextlib.ExitStack
) -> Path | None:
    """The folder for the networks from which runs start: `keep`, or one beside the rows.

    Without a table it is a temporary folder. None if no run starts from another one.
    """
    if keep is not None or all(run.start is None for run in runs):
        return keep
    if table is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="recombine-starts-")))
    path = table.path
    return path.with_name(f".{path.name}.starts") if table.packed else path / "starts"


def _plan(runs: list[Run], table: Table | None, networks: Networks, max_width: int | None) -> Plan:
    """Find what is left of a sweep.

    Chunks are made from all runs and the runs that they start from. Those whose runs are all
    finished are left out. A run that is only needed as a start is trained if its network is needed.
    """
    if table is not None and max_width is None:
        # The last digits of rows depend on the width: a sweep is finished with its first width.
        max_width = table.meta().get("max_width")
    if max_width is None:
        max_width = default_max_width()
    rows = pd.DataFrame({"run": []}) if table is None else table.read()
    written = set(rows["run"]) if len(rows) else set()
    requested = {identity(run) for run in runs}
    finished = written & requested
    if networks.keep is not None:
        # A run whose network is wanted but was not kept is trained again. It keeps its old rows.
        finished -= _unsaved(finished, networks.keep)
    chunks = []
    starts: set[str] = set()
    for chunk in reversed(make_chunks(runs, max_width)):  # the last generation first
        names = {identity(run) for run in chunk.runs}
        missing = (names & requested) - finished
        if networks.starts is not None:
            missing |= _unsaved(names & starts, networks.starts, check=True)
        if missing:
            chunks.insert(0, chunk)
            finished -= missing
            starts |= {identity(run.start) for run in chunk.runs if run.start is not None}
    return Plan(chunks, rows, written, finished, frozenset(starts), max_width)


def _unsaved(names: set[str], folder: Path, check: bool = False) -> set[str]:
    """The runs whose network is not saved in a folder; with `check`, also those with damage."""

    def is_saved(path: Path) -> bool:
        try:
            return (path / "run.json").exists() and (not check or check_folder(path) is not None)
        except InputError:
            return False

    return {name for name in names if not is_saved(folder / name)}


def default_max_width() -> int:
    """The largest number of runs that one program trains side by side on this machine."""
    if device.on_cpu():
        return max(MAX_WIDTH_CPU, device.num_cores())
    return MAX_WIDTH_GPU * device.num_devices()


def _store_notes(table: Table, notes: dict[str, Any]) -> None:
    try:
        table.note(**notes)
    except OSError as error:
        raise InputError(
            f"cannot write results to {table.path} ({error.strerror}): free some space there"
        ) from error


def _make_folder(keep: str | Path) -> Path:
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
    networks: Networks,
    remotely: _Remotely | None,
    writer: RowWriter,
    display: Display,
) -> None:
    """Train the chunks and write their rows. Errors are raised when all others are written."""
    failures: list[tuple[Chunk, Exception]] = []
    machines = _Machines(display)
    with writer.writing(display.note):
        for chunk, outcome in _train_chunks(
            plan.chunks, splits, networks, remotely, writer, display
        ):
            if isinstance(outcome, Exception):
                failures.append((chunk, outcome))
                display.fail(chunk, outcome)
            else:
                machines.add(outcome)
                new_rows = outcome.loc[~outcome["run"].isin(list(plan.written)), :]
                written = writer.add(new_rows, [identity(run) for run in chunk.runs])
                display.finish(chunk, len(written - plan.finished))
    if not failures:
        return
    error = failures[0][1]
    if isinstance(error, InputError) and len(failures) < len(plan.chunks):
        num_failed = sum(len(chunk.runs) for chunk, _ in failures)
        raise InputError(
            f"{counted(num_failed, 'run')} failed, the others are trained: {error}"
        ) from error
    raise error


def _train_chunks(
    chunks: list[Chunk],
    splits: Splits | None,
    networks: Networks,
    remotely: _Remotely | None,
    writer: RowWriter,
    display: Display,
) -> Iterator[tuple[Chunk, pd.DataFrame | Exception]]:
    """Each chunk with its rows or its error, as they finish."""
    folder = writer.checkpoint_folder
    if remotely is not None:
        yield from _train_remotely(chunks, networks, remotely, folder, display)
        return
    # One chunk at a time: its rows are written before the next one begins.
    # `closing`: an exception, such as a second Ctrl-C, passes through instead of being printed.
    prepared = contextlib.closing(_compile_ahead(chunks, splits))
    with display.noting_silence(), prepared as pairs:
        for chunk, compiling in pairs:
            keep = networks.folder_for(chunk)
            arguments = (display.update, compiling, folder, False, splits, networks.starts)
            try:
                outcome = chunk_rows(chunk, keep, *arguments)
            except Exception as error:
                outcome = error
            yield chunk, outcome


def _train_remotely(
    chunks: list[Chunk],
    networks: Networks,
    remotely: _Remotely,
    folder: Path | None,
    display: Display,
) -> Iterator[tuple[Chunk, pd.DataFrame | Exception]]:
    required = None
    if remotely.like_workers:  # the machine of the worker that answers first
        first = remotely.executor.submit(machine.columns)
        for answer in _as_completed([first], remotely, display, "no worker has answered"):
            required = answer.result()
    # Runs wait for the runs from which they start.
    for _, of_generation in itertools.groupby(chunks, lambda chunk: generation(chunk.runs[0])):
        futures = {}
        heartbeats = {}
        for chunk in of_generation:
            packed_runs = remote.pack(chunk.runs, required)
            folders = (networks.folder_for(chunk), folder, networks.starts)
            paths = [None if path is None else str(path.absolute()) for path in folders]
            heartbeat_path = heartbeat.heartbeat_path(folder, identity(chunk.runs[0]))
            # Of a driver that was killed. Removed before the chunk can write a new one.
            heartbeat.remove(heartbeat_path)
            future = remotely.executor.submit(remote_chunk_rows, packed_runs, chunk.width, *paths)
            futures[future] = chunk
            heartbeats[future] = heartbeat_path
        for future in _as_completed(heartbeats, remotely, display):
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error
            yield futures[future], error or future.result()


def _as_completed(
    futures: Iterable[Future] | Mapping[Future, Path | None],
    remotely: _Remotely,
    display: Display,
    silence_text: str = "no chunk was finished",
) -> Iterator[Any]:
    """The futures as they finish. Their heartbeats are files; a future may have none.

    After some time without news, a note names the workers. Chunks that make no progress for longer
    than the timeout are stopped.
    """
    heartbeats = dict(futures) if isinstance(futures, Mapping) else dict.fromkeys(futures)
    waiting = set(heartbeats)
    observer = heartbeat.Observer(heartbeats)
    last_news = time.monotonic()
    silence = progress.MAX_SILENCE
    while waiting:
        timeout = min(max(last_news + silence - time.monotonic(), 0.0), LOOK_SECONDS)
        done, waiting = concurrent.futures.wait(
            waiting, timeout, return_when=concurrent.futures.FIRST_COMPLETED
        )
        has_news = observer.look(waiting) or bool(done)
        if has_news:
            last_news = time.monotonic()
            silence = progress.MAX_SILENCE
        yield from done
        observer.look(waiting)  # handling rows may have taken long: chunks made progress meanwhile
        _handle_silent_chunks(waiting, observer, remotely, display)
        if not has_news and time.monotonic() - last_news >= silence:
            busy = getattr(remotely.executor, "busy_workers", lambda: "")() or "the workers"
            display.note(
                f"{silence_text} for {duration(silence)}: waiting for {busy} with "
                f"{counted(len(waiting), 'chunk')} left"
            )
            silence *= 2


def _handle_silent_chunks(
    waiting: Iterable[Future], observer: heartbeat.Observer, remotely: _Remotely, display: Display
) -> None:
    """Stop the chunks that make no progress for longer than the timeout; note long silence."""
    limit = remotely.chunk_timeout
    stop = getattr(remotely.executor, "stop", lambda *_: False)
    for future in waiting:
        silence = observer.silence(future)
        worker = observer.worker(future) if silence > progress.MAX_SILENCE or limit else ""
        if limit is not None and silence > limit:
            if stop(future, silence):
                display.note(
                    f"{worker} made no progress for {duration(limit)}: it is stopped, and its "
                    "chunk begins again from its last checkpoint"
                )
            observer.forget(future)
        elif silence > progress.MAX_SILENCE and observer.note_once(future):
            display.note(f"{worker} has made no progress for {duration(silence)}: waiting for it")


def _note_other_versions(rows: pd.DataFrame, display: Display) -> None:
    """Note which reused rows were made by another version or on another device."""
    last_rows = rows.groupby("run").tail(1)
    current = machine.columns() | {"meta/code": hash_of_package()}
    for word, column in (machine.COLUMNS | {"code": "meta/code"}).items():
        unknown = pd.Series([None] * len(last_rows), dtype=object)
        values: Any = last_rows.get(column, unknown)
        if column in OLDEST_COLUMNS:
            values = values.fillna("unknown")
        elif column == "meta/cpu" and not device.on_cpu():
            continue
        values = values.dropna().astype(str)
        others = values[values != str(current[column])]
        if len(others):
            display.note(
                f"{len(others)} of {len(last_rows)} reused runs were trained with another {word} "
                f"({', '.join(sorted(set(others)))}; now {current[column]}): they are kept as they "
                "are. To train them again, choose another --out"
            )


class _Machines:
    """Notes each difference between the machines of a sweep once."""

    def __init__(self, display: Display):
        self.display = display
        self.first: dict[str, Any] | None = None
        self.noted: set[str] = set()

    def add(self, rows: pd.DataFrame) -> None:
        """Compare the machine that made these rows with the first one of the sweep."""
        this = rows.iloc[-1].to_dict()
        self.first = self.first or this
        text = ", ".join(machine.differences(self.first, this))
        if text and text not in self.noted:
            self.noted.add(text)
            self.display.note(
                f"the workers are different machines, so their numbers differ slightly: {text}. "
                "The columns meta/… describe the machine of each run; --like-workers refuses "
                "workers that differ from the first one"
            )


def _rows_in_order(rows: pd.DataFrame, runs: list[Run]) -> pd.DataFrame:
    """The rows of these runs, in the order of the runs and then of the steps."""
    position = {identity(run): i for i, run in enumerate(runs)}
    rows = rows.loc[rows["run"].isin(list(position)), :]
    positions = np.array([position[name] for name in rows["run"]])
    order = np.lexsort((rows["step"].to_numpy(), positions))
    return rows.iloc[order].reset_index(drop=True)


def _compile_ahead(
    chunks: list[Chunk], splits: Splits | None
) -> Generator[tuple[Chunk, Future[trainer.PreparedChunk] | None]]:
    """The chunks in order. Other threads compile the programs of later chunks meanwhile.

    The first chunk of each structure comes with the future of its compilation, the others with
    None: their program is in memory by then.
    """
    num_compilers = device.num_compilers()
    pool = concurrent.futures.ThreadPoolExecutor(num_compilers)
    # Threads do not see settings that the caller made with JAX's context managers. If there are
    # any, nothing is compiled ahead.
    same_settings = pool.submit(device.numeric_settings).result() == device.numeric_settings()
    waiting = _first_of_each_structure(chunks) if same_settings else []
    compiling: dict[Chunk, Future[trainer.PreparedChunk]] = {}
    try:
        for chunk in chunks:
            while waiting and len(compiling) < num_compilers + 1:
                following = waiting.pop(0)
                compiling[following] = pool.submit(
                    trainer.prepare, list(following.runs), following.width, splits
                )
            yield chunk, compiling.pop(chunk, None)
    finally:
        pool.shutdown(cancel_futures=True)  # waits for compilations, which cannot be interrupted


def _first_of_each_structure(chunks: list[Chunk]) -> list[Chunk]:
    first_chunks: dict[Run, Chunk] = {}
    for chunk in chunks:
        first_chunks.setdefault(structure(chunk.runs[0]), chunk)
    return list(first_chunks.values())


def fit(run: Run, watch: ChunkProgressCallback | None = None) -> Fitted:
    """Train one run and return its network. `watch` is called with (chunk, progress)."""
    splits = check_runs([run])

    def call_watch(chunk: Chunk, progress: trainer.Progress) -> None:
        try:
            if watch is not None:
                watch(chunk, progress)
        except Exception as error:
            reason = " ".join(str(error).split()) or "no message"
            raise InputError(
                f"the function passed as watch failed ({type(error).__name__}: {reason}): correct "
                "it, or leave it out"
            ) from error

    start_nets = None if run.start is None else [fit(run.start, watch).net]
    return fit_chunk(Chunk((run,), 1), call_watch, splits=splits, start_nets=start_nets)[0]
