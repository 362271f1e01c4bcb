"""What `recombine run` does around `train`: an experiment's runs, their executor, and what is kept beside the rows."""

import contextlib
import functools
import inspect
import shlex
import sys
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
from recombine.basics.console import say
from recombine.basics.errors import InputError, require
from recombine.experiments import catalogue
from recombine.reporting import unit_activity
from recombine.storage import trackers
from recombine.storage.table import Table
from recombine.sweeps import discovery, overrides
from recombine.sweeps.run import Run, identity, structure
from recombine.training import computed, executors
from recombine.training.scheduler import complete, finished

SCALES = ("tiny", "small", "full")
FILES = (  # endings of a file, which no folder of rows gets by mistake; another dot in its name is fine
    *(
        ".arrow",
        ".csv",
        ".feather",
        ".gz",
        ".h5",
        ".html",
        ".json",
        ".jsonl",
        ".log",
        ".md",
        ".npz",
        ".parq",
    ),
    *(
        ".parquet",
        ".pdf",
        ".pkl",
        ".png",
        ".pq",
        ".py",
        ".svg",
        ".tsv",
        ".txt",
        ".xlsx",
        ".yaml",
        ".yml",
        ".zip",
    ),
)
SWEEP = {
    "experiment.json",
    "status.json",
    "rows",
}  # one of them is in every folder that a sweep was written to
BESIDE = {
    "failure.txt",
    "mlruns",
    "slurm",
    "tensorboard",
    "wandb",
    "work",
}  # and these may be there before


@dataclass(frozen=True)
class Order:
    """What a user asks for: an experiment (a name of ours or a file), its size and settings, and where it trains."""

    experiment: str
    scale: str = "small"
    out: Path | None = None
    settings: Sequence[str] = ()
    seeds: int | None = None
    on: str = "here"
    slurm: str = ""
    log: Sequence[str] = ()
    finished: bool = False  # train nothing, and take the runs that are there

    @property
    def name(self) -> str:
        """The experiment's name."""
        return Path(self.experiment).stem

    @property
    def place(self) -> Path:
        """Where the rows go."""
        return self.out or Path("results") / f"{self.name}-{self.scale}"


def runs_of(order: Order) -> tuple[ModuleType, list[Run]]:
    """The experiment and its runs, with the user's settings."""
    module = _module(order)
    require(hasattr(module, "runs"), f"{order.experiment} is computed, not trained: it has no runs")
    told = f"{order.experiment}: runs({order.scale!r})"
    runs = _listed(module, module.runs, order.scale, told)
    require(all(isinstance(one, Run) for one in runs), f"{told} must give a list of Run")
    runs = overrides.apply(runs, order.settings, discovery.parts_of(module))
    runs = runs if order.seeds is None else overrides.reseed(runs, order.seeds)
    require(len(runs) > 0, f"{told} gave no run")
    return module, runs


def _module(order: Order) -> ModuleType:
    require(
        order.scale in SCALES,
        f"there is no scale {order.scale!r}: choose one of {', '.join(SCALES)}",
    )
    return catalogue.experiment(order.experiment)


def _listed(
    module: ModuleType, function: Callable[[str], Iterable[Any]], scale: str, told: str
) -> list[Any]:
    try:
        return list(function(scale))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{told} failed: {user_files.where(error, Path(module.__file__ or ''))}"
        ) from error


def perform(order: Order, quiet: bool = False) -> tuple[dict[str, Any], pd.DataFrame]:
    """Train or compute an experiment and keep what a report shows; the result in numbers, and the rows."""
    clock, table = time.perf_counter(), Table(order.place)
    module = _module(order)
    work, names, programs = (_computing if hasattr(module, "cells") else _training)(
        order, table, quiet
    )
    if not order.finished:
        _check_place(table)
    _tell_taken(order, table)
    with _stopped(table, names):
        try:
            rows, num_new = work()
        except InputError:
            raise
        except Exception as error:
            done = "computing" if hasattr(module, "cells") else "training"
            raise _failure(done, error, table, Path(module.__file__ or "")) from error
    there = set(rows["run"])
    if len(there) < len(set(names)):
        what, done = ("cells", "computed") if hasattr(module, "cells") else ("runs", "trained")
        say(f"{len(there)} of {len(set(names))} {what} are there; the others are not {done}")
    result = {
        "experiment": order.name,
        "out": str(order.place),
        "runs": len(there),
        "programs": len({program for name, program in programs.items() if name in there}),
        "seconds": round(time.perf_counter() - clock, 1),
        "summary": _of_rows(module, "summary", rows),
        "activity": unit_activity.means(rows),
        "warnings": unit_activity.warnings(rows),
        "rows": len(rows),
    }
    for warning in (
        result["warnings"] if quiet else []
    ):  # otherwise the terminal shows it below the summary
        say(warning)
    _keep(table, module, rows, result, _about(module, order, names) if num_new else {})
    return result, rows


def _check_place(table: Table) -> None:
    """Refuse a folder of something else, and a name that is a file's: what is refused is not written to."""
    place = table.path
    try:
        found = (
            {one.name for one in place.iterdir() if not one.name.startswith(".")}
            if place.is_dir()
            else set()
        )
    except OSError:  # whoever writes there says why not
        return
    if table.packed or found & SWEEP:
        return
    told = f"{place} would be a folder: rows go to a folder, {place.with_suffix('')} say, or to one .parquet file"
    require(place.suffix.lower() not in FILES, told)
    told = f"{place} is not empty and holds no sweep: name a new folder with --out, {place / 'sweep'} say"
    require(found <= BESIDE, told)


def _tell_taken(order: Order, table: Table) -> None:
    """Say where the table is another experiment's: its rows stay, and what is shown of them is the new one's."""
    before = table.meta().get("experiment", order.name)
    if before != order.name:
        say(
            f"{order.place} holds {before}: its rows stay, but the report and the figures there will be "
            f"{order.name}'s; name another --out to keep both"
        )


class Work(NamedTuple):
    """What makes the rows (and counts the new runs or cells), the names of these runs or cells, and the program of each
    run."""

    rows: Callable[[], tuple[pd.DataFrame, int]]
    names: list[str]
    programs: dict[str, Run]


def _training(order: Order, table: Table, quiet: bool) -> Work:
    module, runs = runs_of(order)
    names = list(map(identity, runs))

    def rows() -> tuple[pd.DataFrame, int]:
        if order.finished:
            return finished(runs, table), 0
        work = order.place.with_suffix("") if table.packed else order.place
        executor = executors.opened(
            order.on, order.slurm, work
        )  # a name that is none is refused here
        with contextlib.ExitStack() as stack:
            log = (
                stack.enter_context(trackers.open_mirrors(order.log, order.name, order.place))
                if order.log
                else None
            )
            about = _about(module, order, names)
            return complete(
                runs,
                table,
                open_executor=lambda: executor,
                shown=not quiet,
                mirror=log,
                about=about,
            )

    return Work(rows, names, dict(zip(names, map(structure, runs), strict=True)))


def _computing(order: Order, table: Table, quiet: bool) -> Work:
    module = _module(order)
    others = (order.seeds is not None, order.on != "here", order.slurm, order.log)
    told = f"{order.experiment} is computed, not trained: --seeds, --on, --slurm and --log do not apply"
    require(not any(others), told)
    listing = functools.partial(
        module.cells, **overrides.arguments(module.cells, order.settings, order.experiment)
    )
    told = f"{order.experiment}: cells({order.scale!r})"
    cells = computed.cells_of(order.name, told, _listed(module, listing, order.scale, told))
    names = [cell.name for cell in cells]
    one = module.measure
    if (
        "folder" in inspect.signature(one).parameters
    ):  # for what takes long, so that nothing of it is lost
        work = order.place.with_suffix("") if table.packed else order.place
        one = functools.partial(one, folder=work / "work")

    def rows() -> tuple[pd.DataFrame, int]:
        if order.finished:
            return computed.finished(cells, table), 0
        code = computed.code_of(Path(module.__file__ or ""))
        return computed.take(cells, one, table, _about(module, order, names), not quiet, code)

    return Work(rows, names, {})


def _failure(done: str, error: Exception, table: Table, file: Path) -> InputError:
    """What went wrong in training or computing, in one line; the rest is in a file beside the rows."""
    told = "".join(traceback.format_exception(error))
    place = (
        table.path.with_name(f"{table.path.stem}-failure.txt")
        if table.packed
        else table.path / "failure.txt"
    )
    try:
        place.write_text(told)
        more = f"; all of it is in {place}"
    except OSError:
        more = ""
    return InputError(
        f"{done} failed, what is finished is kept: {user_files.where(error, file)}{more}"
    )


def _about(module: ModuleType, order: Order, names: list[str]) -> dict[str, Any]:
    """What is known before the first row is there, for those who watch."""
    ours = order.experiment == order.name
    return {
        "experiment": order.name,
        "source": order.name if ours else str(Path(order.experiment).absolute()),
        "scale": order.scale,
        "command": shlex.join(["recombine", *sys.argv[1:]]),
        "title": getattr(module, "TITLE", order.name),
        "description": (module.__doc__ or "").strip(),
        "shown": list(dict.fromkeys(names)),
    }


@contextlib.contextmanager
def _stopped(table: Table, names: list[str]) -> Iterator[None]:
    """After Ctrl-C, say what is kept, and leave with exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        kept = len(table.finished() & set(names))
        say(
            f"stopped; {kept} of {len(names)} runs are kept in {table.path}; the same command goes on from there"
        )
        raise SystemExit(130) from None


def _keep(
    table: Table,
    module: ModuleType,
    rows: pd.DataFrame,
    result: dict[str, Any],
    about: dict[str, Any],
) -> None:
    """Keep beside the rows what a report shows: the command, the summary and the figures."""
    last, shown = rows.iloc[-1], rows["run"].unique().tolist()
    notes = about | {"title": getattr(module, "TITLE", result["experiment"])}
    # The folder may hold other runs too: a report is of the ones shown.
    notes |= {
        "description": (module.__doc__ or "").strip(),
        "summary": result["summary"],
        "shown": shown,
    }
    if about or table.meta().get("shown", shown) != shown:
        # Otherwise the table keeps the command, the time and the versions of the day when its rows were made.
        told = (
            ("experiment", "runs", "programs", "seconds")
            if about
            else ("experiment", "runs", "programs")
        )
        notes |= {key: result[key] for key in told}
        versions = {
            "recombine": last["meta/recombine"],
            "jax": last["meta/jax"],
            "python": sys.version.split()[0],
        }
        notes |= {"device": last["meta/device"], "versions": versions, "date": last["meta/date"]}
    # A training machine may lack plotly: the same command on another one reuses the rows and draws.
    figures = _of_rows(module, "figures", rows) if find_spec("plotly") else None
    try:
        with table.held():
            table.note(**notes)
            if figures is not None:
                table.save_figures({name: figure.to_json() for name, figure in figures.items()})
    except (OSError, InputError) as error:
        say(f"the rows are kept, but not the command and the figures: {error}")


def _of_rows(module: ModuleType, name: str, rows: pd.DataFrame) -> dict[str, Any]:
    """What an experiment makes of its rows; where it fails the rows are safe, and the user is told why."""
    try:
        return getattr(module, name, lambda _: {})(rows)
    except Exception as error:
        say(f"no {name}, the rows are kept: {user_files.where(error, Path(module.__file__ or ''))}")
        return {}
