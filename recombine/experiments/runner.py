"""`recombine run`: list the runs of an experiment, train them, and save what a report shows beside
the rows.
"""

import contextlib
import functools
import inspect
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pandas as pd

from recombine.basics import user_files
from recombine.basics.atomic_io import write_atomically
from recombine.basics.console import say
from recombine.basics.errors import InputError, require
from recombine.experiments import catalogue, plots
from recombine.reporting import unit_activity
from recombine.reporting.page import mixtures
from recombine.storage import trackers
from recombine.storage.table import Table
from recombine.sweeps import discovery, overrides
from recombine.sweeps.code_hash import hash_of_package
from recombine.sweeps.run import Run, identity, structure
from recombine.training import computed, executors
from recombine.training.scheduler import complete, finished_rows
from recombine.training.termination import EXIT_CODE_SIGTERM, Terminated

SCALES = ("tiny", "small", "full")
# A folder of rows must not have one of these suffixes: the name was meant for a file.
FILE_SUFFIXES = {
    f".{suffix}"
    for suffix in [
        "arrow",
        "csv",
        "feather",
        "gz",
        "h5",
        "html",
        "json",
        "jsonl",
        "log",
        "md",
        "npz",
        "parq",
        "parquet",
        "pdf",
        "pkl",
        "png",
        "pq",
        "py",
        "svg",
        "tsv",
        "txt",
        "xlsx",
        "yaml",
        "yml",
        "zip",
    ]
}
SWEEP_FILES = {"experiment.json", "status.json", "rows"}  # every folder of a sweep has one of these
EXTRA_FILES = {"failure.txt", "mlruns", "slurm", "tensorboard", "wandb", "work"}  # allowed before


@dataclass(frozen=True)
class Request:
    """What the user asked for: an experiment (a name or a file), its options and its output."""

    experiment: str
    scale: str = "small"
    out: Path | None = None
    settings: Sequence[str] = ()
    seeds: int | None = None
    executor: str = "here"
    slurm: str = ""
    log: Sequence[str] = ()
    no_train: bool = False  # use the finished runs only
    like_workers: bool = False
    chunk_timeout: float | None = None  # seconds

    @property
    def name(self) -> str:
        """The name of the experiment."""
        return Path(self.experiment).stem

    @property
    def path(self) -> Path:
        """The folder or file of the rows."""
        return self.out or Path("results") / f"{self.name}-{self.scale}"


class Job(NamedTuple):
    """How to make the rows: a function that gives them and the number of new runs, and the names of
    the runs.

    `programs` has the structure of each run; it is empty if the experiment is computed.
    """

    make_rows: Callable[[], tuple[pd.DataFrame, int]]
    names: list[str]
    programs: dict[str, Run]
    code: str  # a hash of our code that makes the rows now


def runs_of(request: Request) -> tuple[ModuleType, list[Run]]:
    """The module of an experiment and its runs, with the user's settings."""
    module = _module(request)
    is_trained = hasattr(module, "runs")
    require(is_trained, f"{request.experiment} is computed, not trained: it has no runs")
    call = f"{request.experiment}: runs({request.scale!r})"
    runs = _listed(module, module.runs, request.scale, call)
    require(all(isinstance(run, Run) for run in runs), f"{call} must return a list of Run")
    runs = overrides.apply(runs, request.settings, discovery.parts_of(module))
    if request.seeds is not None:
        runs = overrides.reseed(runs, request.seeds)
    require(len(runs) > 0, f"{call} returned no run")
    return module, runs


def _module(request: Request) -> ModuleType:
    message = f"there is no scale {request.scale!r}: choose one of {', '.join(SCALES)}"
    require(request.scale in SCALES, message)
    return catalogue.experiment(request.experiment)


def _listed(
    module: ModuleType, function: Callable[[str], Iterable[Any]], scale: str, call: str
) -> list[Any]:
    try:
        return list(function(scale))
    except InputError:
        raise
    except Exception as error:
        reason = user_files.describe_error(error, Path(module.__file__ or ""))
        raise InputError(f"{call} failed: {reason}") from error


def perform(request: Request, quiet: bool = False) -> tuple[dict[str, Any], pd.DataFrame]:
    """Train or compute an experiment, and save what a report shows. Returns the result and the
    rows.
    """
    start = time.perf_counter()
    table = Table(request.path)
    module = _module(request)
    is_computed = hasattr(module, "cells")
    prepare_job = _computing_job if is_computed else _training_job
    job = prepare_job(request, table, quiet)
    if not request.no_train:
        _check_output(table)
    _warn_if_other_experiment(request, table)
    rows, num_new = _make_rows(job, module, table)
    finished = set(rows["run"])
    num_wanted = len(set(job.names))
    if len(finished) < num_wanted:
        kind = "cells" if is_computed else "runs"
        say(f"{len(finished)} of {num_wanted} {kind} are finished; the others are missing")
    programs = {program for name, program in job.programs.items() if name in finished}
    result = {
        "experiment": request.name,
        "out": str(request.path),
        "runs": len(finished),
        "programs": len(programs),
        "seconds": round(time.perf_counter() - start, 1),
        "summary": _of_rows(module, _summary, "summary", rows),
        "activity": unit_activity.means(rows),
        "warnings": unit_activity.warnings(rows),
        "rows": len(rows),
        "mixed": mixtures(rows),
        "other_code": computed.num_other_code(rows, job.code),
    }
    if quiet:  # otherwise the terminal shows the warnings below the summary
        for warning in result["warnings"]:
            say(warning)
    about = _about(module, request, job.names) if num_new else {}
    _save_report(table, module, rows, result, about)
    return result, rows


def _make_rows(job: Job, module: ModuleType, table: Table) -> tuple[pd.DataFrame, int]:
    with _explain_interrupt(table, job.names):
        try:
            return job.make_rows()
        except InputError:
            raise
        except Exception as error:
            raise _failure(module, error, table) from error


def _check_output(table: Table) -> None:
    """Refuse a folder with other contents, and a folder that has the name of a file."""
    path = table.path
    try:
        names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    except OSError:  # writing to it will give the reason
        return
    names = {name for name in names if not name.startswith(".")}
    if table.packed or names & SWEEP_FILES:
        return
    require(
        path.suffix.lower() not in FILE_SUFFIXES,
        f"--out {path} looks like a file, but results go into a folder or a .parquet file: name "
        f"one, such as {path.with_suffix('')}",
    )
    require(
        names <= EXTRA_FILES,
        f"{path} is not empty and has no results of a sweep: give a new folder with --out, "
        f"such as {path / 'sweep'}",
    )


def _warn_if_other_experiment(request: Request, table: Table) -> None:
    experiment = table.meta().get("experiment", request.name)
    if experiment != request.name:
        say(
            f"{request.path} has results of {experiment}. Its rows stay, but the report and the "
            f"figures there become those of {request.name}: choose another --out to keep both"
        )


def _training_job(request: Request, table: Table, quiet: bool) -> Job:
    module, runs = runs_of(request)
    names = list(map(identity, runs))

    def make_rows() -> tuple[pd.DataFrame, int]:
        if request.no_train:
            return finished_rows(runs, table), 0
        # Opened first, so that an unknown executor is refused before anything is written.
        executor = executors.open_executor(request.executor, request.slurm, _work_folder(table))
        with contextlib.ExitStack() as stack:
            log = None
            if request.log:
                log = trackers.open_trackers(request.log, request.name, request.path)
                log = stack.enter_context(log)
            return complete(
                runs,
                table,
                open_executor=lambda: executor,
                show_progress=not quiet,
                mirror=log,
                about=_about(module, request, names),
                like_workers=request.like_workers,
                chunk_timeout=request.chunk_timeout,
            )

    return Job(
        make_rows, names, dict(zip(names, map(structure, runs), strict=True)), hash_of_package()
    )


def _computing_job(request: Request, table: Table, quiet: bool) -> Job:
    module = _module(request)
    has_training_option = (
        request.seeds is not None or request.executor != "here" or request.chunk_timeout is not None
    )
    require(
        not (has_training_option or request.slurm or request.log),
        f"{request.experiment} is computed, not trained: --seeds, --executor, --slurm, --log "
        "and --chunk-timeout do not apply",
    )
    arguments = overrides.cell_arguments(module.cells, request.settings, request.experiment)
    call = f"{request.experiment}: cells({request.scale!r})"
    listed = _listed(module, functools.partial(module.cells, **arguments), request.scale, call)
    own_code = computed.own_code_hash(module)
    cells = computed.check_cells(request.name, call, listed, own_code)
    names = [cell.name for cell in cells]
    measure = module.measure
    if "folder" in inspect.signature(measure).parameters:  # long measurements save their progress
        # Other code of the user's must not continue from there.
        folder = _work_folder(table) / "work" / own_code
        measure = functools.partial(measure, folder=folder)
    code = computed.experiment_code_hash(Path(module.__file__ or ""))

    def make_rows() -> tuple[pd.DataFrame, int]:
        if request.no_train:
            return computed.finished_rows(cells, table), 0
        about = _about(module, request, names)
        return computed.compute_cells(cells, measure, table, about, not quiet, code)

    return Job(make_rows, names, {}, code)


def _work_folder(table: Table) -> Path:
    return table.path.with_suffix("") if table.packed else table.path


def _failure(module: ModuleType, error: Exception, table: Table) -> InputError:
    """A one-line error; the traceback is written to a file beside the rows."""
    activity = "computing" if hasattr(module, "cells") else "training"
    if table.packed:
        path = table.path.with_name(f"{table.path.stem}-failure.txt")
    else:
        path = table.path / "failure.txt"
    try:
        text = "".join(traceback.format_exception(error))
        write_atomically(path, text.encode("utf-8", "backslashreplace"))  # follows no link
        traceback_hint = f"; the traceback is in {path}"
    except OSError:
        traceback_hint = ""
    reason = user_files.describe_error(error, Path(module.__file__ or ""))
    return InputError(f"{activity} failed, finished rows are saved: {reason}{traceback_hint}")


def _about(module: ModuleType, request: Request, names: list[str]) -> dict[str, Any]:
    """The metadata that is known before the first row."""
    is_ours = request.experiment == request.name
    return {
        "experiment": request.name,
        "source": request.name if is_ours else str(Path(request.experiment).absolute()),
        "scale": request.scale,
        "command": shlex.join(["recombine", *sys.argv[1:]]),
        "title": getattr(module, "TITLE", request.name),
        "description": (module.__doc__ or "").strip(),
        "shown": list(dict.fromkeys(names)),
    }


@contextlib.contextmanager
def _ignore_ctrl_c() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def _explain_interrupt(table: Table, names: list[str]) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, say what is saved and exit with code 130 or 143."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        num_finished = len(table.finished() & set(names))
        with _ignore_ctrl_c():  # a second one adds no second line
            say(
                f"stopped; {num_finished} of {len(names)} runs are saved in {table.path}; "
                "run the same command to continue"
            )
        is_terminated = isinstance(interrupt, Terminated)
        raise SystemExit(EXIT_CODE_SIGTERM if is_terminated else 130) from None


def _save_report(
    table: Table,
    module: ModuleType,
    rows: pd.DataFrame,
    result: dict[str, Any],
    about: dict[str, Any],
) -> None:
    """Save beside the rows what a report shows: the command, the summary and the figures.

    `about` is empty if no run is new. The table then keeps the command, the time and the versions
    of the day when its rows were made.
    """
    last = rows.iloc[-1]
    run_hashes = rows["run"].unique().tolist()  # the table may hold other runs, too
    notes = about | {
        "title": getattr(module, "TITLE", result["experiment"]),
        "description": (module.__doc__ or "").strip(),
        "summary": result["summary"],
        "shown": run_hashes,
    }
    if about or table.meta().get("shown", run_hashes) != run_hashes:
        notes |= {key: result[key] for key in ("experiment", "runs", "programs")}
        notes["versions"] = {
            "recombine": last["meta/recombine"],
            "jax": last["meta/jax"],
            "python": sys.version.split()[0],
        }
        notes |= {"device": last["meta/device"], "date": last["meta/date"]}
    if about:
        notes["seconds"] = result["seconds"]
    # Without plotly no figures are saved; the same command on another machine adds them.
    figures = _figures_as_json(module, rows) if find_spec("plotly") else None
    try:
        with table.held():
            table.note(**notes)
            if figures is not None:
                table.save_figures(figures)
    except (OSError, InputError) as error:
        say(f"the rows are saved, but not the command and the figures: {error}")


def _summary(module: ModuleType, rows: pd.DataFrame) -> dict[str, Any]:
    return module.summary(rows) if hasattr(module, "summary") else {}


def _figures_as_json(module: ModuleType, rows: pd.DataFrame) -> dict[str, str]:
    figures = _of_rows(module, plots.figures_of, "figures", rows)
    wrong = [name for name, figure in figures.items() if not hasattr(figure, "to_json")]
    if wrong:
        say(f"the figures {', '.join(map(str, wrong))} are not saved: they are no Plotly figures")
    return {str(name): figures[name].to_json() for name in figures if name not in wrong}


def _of_rows(
    module: ModuleType,
    function: Callable[[ModuleType, pd.DataFrame], dict[str, Any]],
    name: str,
    rows: pd.DataFrame,
) -> dict[str, Any]:
    """The summary or the figures of an experiment. If they fail, say why: the rows are safe."""
    try:
        values = function(module, rows)
    except Exception as error:
        reason = user_files.describe_error(error, Path(module.__file__ or ""))
        say(f"cannot compute the {name}, but the rows are saved: {reason}")
        return {}
    if not isinstance(values, dict):
        kind = type(values).__name__
        say(f"the rows are saved, but {name}(rows) must return a dict by name, got {kind}")
        return {}
    return values
