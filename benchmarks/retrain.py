"""Train what the committed tables lack, within a given time, on a machine that returns few files.

    python benchmarks/retrain.py                                  list the missing runs
    python benchmarks/retrain.py --train 540 --out FOLDER         train for at most 540 seconds
    python benchmarks/retrain.py --merge FOLDER                   add the rows to the tables

Without an option nothing is trained: the list shows how many runs of each experiment are missing,
and the estimated device time, in the order in which they are trained. An experiment has the scale
of its committed table (full if it has none), unless `--scale` names another. Experiments may be
named; otherwise all count. Computed experiments are listed without an estimate and never trained:
they need a CPU and `recombine run`.

`--train` copies the committed table of the first experiment, trains its missing runs into the copy,
and goes on with the next. A chunk of runs is started only if its expected time, corrected by the
speed of the chunks before, is left. FOLDER has at most `MAX_FILES` files, one packed table per
experiment, and is up to date after every chunk: a killed process loses only the chunk in training.
The same command with the same FOLDER continues.

`--merge` adds the rows of experiments' missing runs to the committed tables. A table shows the new
rows once all runs of the experiment are there; until then it shows the earlier ones.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from recombine.basics.atomic_io import write_atomically
from recombine.basics.console import duration, say
from recombine.basics.errors import InputError, require
from recombine.basics.suggest import counted
from recombine.basics.version import CHECKOUT
from recombine.experiments import catalogue
from recombine.experiments.ledger import device_seconds, results_folder
from recombine.experiments.runner import SCALES, Request, perform
from recombine.planning.estimate import estimate
from recombine.storage.table import Table
from recombine.sweeps.run import Run, identity, structure
from recombine.training import cost
from recombine.training.chunk import Chunk, make_chunks
from recombine.training.computed import Cell, own_code_hash
from recombine.training.progress import expected_seconds
from recombine.training.scheduler import complete, default_max_width

# The order of training; all other experiments follow by name.
ORDER = (
    "information_loss",
    "support_conditions",
    "module_frequency",
    "scaling_depth",
    "memorisation",
    "linear_factors",
    "found_or_built",
    "theorem_41",
    "predicted_failures",
    "more_modules",
    "ambiguity",
    "coverage_advice",
    "quickstart",
    "six_modules",
    "preference_scaling",
    "modularity",
    "transformer_efficiency",
    "goal_scaling",
    "transformer_decodability",
    "variants",
    "scaling_data",
    "scaling_law",
)
MAX_FILES = 8  # in the folder of new rows
MIN_RATE = 0.5  # of measured to expected seconds: a fast start does not promise a fast end


class Sweep(NamedTuple):
    """An experiment with its committed table and the runs or cells of one scale."""

    experiment: str  # a name of ours or the path of a file
    scale: str
    runs: list[Run]  # empty if the experiment is computed
    names: list[str]  # of all runs or cells
    table: Table

    @property
    def name(self) -> str:
        """The name of the experiment and of its table."""
        return Path(self.experiment).stem

    @property
    def missing(self) -> set[str]:
        """The names of the runs or cells that the committed table lacks."""
        return set(self.names) - self.table.finished()


class OutOfTime(KeyboardInterrupt):
    """The next chunk would not end in time. Training stops as with Ctrl-C, between two chunks."""


class TimeLimit:
    """How much time is left, and whether a chunk fits into it."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic):
        self.seconds = seconds
        self.clock = clock
        self.started = clock()
        self.expected = 0.0  # seconds of the chunks that were trained, by the cost model
        self.measured = 0.0

    def add(self, expected: float, measured: float) -> None:
        """Count trained chunks, for the ratio of measured to expected seconds."""
        self.expected += expected
        self.measured += measured

    def left(self) -> float:
        """The seconds that are left."""
        return self.seconds - (self.clock() - self.started)

    def allows(self, expected: float) -> bool:
        """Whether a chunk with these expected seconds would end in time."""
        rate = self.measured / self.expected if self.expected else 1.0
        return expected * max(rate, MIN_RATE) <= self.left()


def sweeps(experiments: Sequence[str], results: Path, scale: str | None = None) -> list[Sweep]:
    """The experiments in the order of training. Those that cannot list their runs are left out."""
    found = []
    for experiment in experiments:
        table = Table(results / f"{Path(experiment).stem}.parquet")
        module = catalogue.experiment(experiment)
        used_scale = scale or table.meta().get("scale", "full")
        try:
            listed = (getattr(module, "cells", None) or module.runs)(used_scale)
        except InputError as error:
            say(f"{experiment} is left out: {error}")
            continue
        names = [_name_of(item, Path(experiment).stem, module) for item in listed]
        runs = [item for item in listed if isinstance(item, Run)]
        found.append(Sweep(experiment, used_scale, runs, names, table))
    return sorted(found, key=lambda sweep: (_position(sweep.name), sweep.name))


def _name_of(item: Any, experiment: str, module: Any) -> str:
    if isinstance(item, Run):
        return identity(item)
    return Cell(experiment, item, own_code_hash(module)).name


def _position(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def overview(listed: Sequence[Sweep], kind: str) -> list[str]:
    """One line per experiment with missing runs, and one with the total."""
    lines = [f"{'experiment':<26}{'scale':<7}{'missing':>8}{'of':>6}  estimated on {kind}"]
    total = 0.0
    for sweep in listed:
        missing = sweep.missing
        if not missing:
            continue
        text = "computed, not trained"
        if sweep.runs:
            runs = [run for run in sweep.runs if identity(run) in missing]
            seconds = estimate(runs, kind)["device_seconds"]
            total += seconds
            text = f"{duration(seconds)}, {duration(total)} so far"
        num_names = len(set(sweep.names))
        lines.append(f"{sweep.name:<26}{sweep.scale:<7}{len(missing):>8}{num_names:>6}  {text}")
    return [*lines, f"all trained experiments together: {duration(total)}"]


def train(listed: Sequence[Sweep], limit: TimeLimit, out: Path) -> None:
    """Train missing runs in order until the time is used. `out` gets one table per experiment."""
    out.mkdir(parents=True, exist_ok=True)
    trained = [sweep for sweep in listed if sweep.runs]
    with tempfile.TemporaryDirectory() as work:
        for sweep in trained:
            is_new = not (out / f"{sweep.name}.parquet").exists()
            if is_new and len(list(out.glob("*.parquet"))) >= MAX_FILES:
                say(f"{out} has {MAX_FILES} files: {sweep.name} is left for the next call")
                continue
            try:
                TimedTraining(sweep, limit, out, Path(work)).run()
            except Exception as error:  # the rows are saved; the next experiment may be fine
                reason = " ".join(str(error).split()) or type(error).__name__
                say(f"{sweep.name} failed, its finished rows are saved: {reason}")


class TimedTraining:
    """The training of one sweep's missing runs, which stops between two chunks if time is up.

    The rows are written to a table in the folder `work`. After every chunk, the finished table is
    copied to the folder `out`: checkpoints and locks stay in `work`.
    """

    def __init__(self, sweep: Sweep, limit: TimeLimit, out: Path, work: Path):
        self.sweep = sweep
        self.limit = limit
        self.out = out / f"{sweep.name}.parquet"
        self.table = Table(work / self.out.name)
        self._copy_earlier_rows()
        self.reused = self.table.finished()
        self.max_width = default_max_width()
        if self.reused & set(sweep.names):  # a sweep is finished with its first width
            self.max_width = self.table.meta().get("max_width", self.max_width)
        self.finished = set(self.reused)
        chunks = make_chunks(sweep.runs, self.max_width)
        waiting = [chunk for chunk in chunks if not names_of(chunk) <= self.finished]
        self.waiting = waiting  # chunks, in the order of training
        self.expected = expected_seconds(waiting, cost.load())

    def run(self) -> None:
        """Train until all runs are finished or the next chunk does not fit into the time."""
        if not self.waiting:
            return
        say(f"{self.sweep.name}: {counted(self._num_waiting(), 'run')} to train")
        try:
            while self.waiting and self._next_fits():
                complete(
                    self.next_runs(),
                    self.table,
                    max_width=self.max_width,
                    mirror=self.after_rows_or_stop,
                    show_progress=True,
                    about={},
                )
        except OutOfTime:
            pass
        finally:
            self._export()
        if self.waiting:
            self._say_what_is_left()

    def next_runs(self) -> list[Run]:
        """The runs that may be trained in the time that is left, in whole programs.

        The tasks of all of them are split before the first one is trained. Chunks are planned for
        each program separately, so they are those of the whole sweep.
        """
        programs: set[Run] = set()
        total = 0.0
        for chunk in self.waiting:
            programs.add(structure(chunk.runs[0]))
            total += self.expected[chunk] * MIN_RATE
            if total > self.limit.left():
                break
        return [run for run in self.sweep.runs if structure(run) in programs]

    def after_rows_or_stop(self, rows: pd.DataFrame) -> None:
        """As `after_rows`. After an error training stops: otherwise it would have no time limit."""
        try:
            self.after_rows(rows)
        except Exception as error:
            say(f"{self.sweep.name}: training stops here, finished rows are saved: {error}")
            raise OutOfTime from error

    def after_rows(self, rows: pd.DataFrame) -> None:
        """Called when rows are in the table: after a chunk copy it, and stop if time is up.

        Before the first chunk it is called with the rows that are reused.
        """
        self._export()
        self.finished |= set(rows["run"])
        is_done = [names_of(chunk) <= self.finished for chunk in self.waiting]
        if not any(is_done):
            return
        num_done = len(is_done) - is_done[::-1].index(True)  # chunks before may have failed
        seconds = sum(self.expected[chunk] for chunk in self.waiting[:num_done])
        self.limit.add(seconds, device_seconds(rows))
        self.waiting = self.waiting[num_done:]
        if self.waiting and not self._next_fits():
            raise OutOfTime

    def _next_fits(self) -> bool:
        return self.limit.allows(self.expected[self.waiting[0]])

    def _copy_earlier_rows(self) -> None:
        """Start from the rows of an earlier call, or from the committed ones."""
        for source in (self.out, self.sweep.table.path):
            if source.exists():
                Table(source).finished()  # raises an error if the file is damaged
                write_atomically(self.table.path, source.read_bytes())
                return

    def _export(self) -> None:
        """Copy the table to `out` if it has new rows. A full disk must not stop the training."""
        if self.table.finished() == self.reused:
            return
        try:
            write_atomically(self.out, self.table.path.read_bytes())
        except OSError as error:
            say(f"cannot write {self.out} ({error.strerror}): the next chunk tries again")

    def _num_waiting(self) -> int:
        waiting = {name for chunk in self.waiting for name in names_of(chunk)}
        return len(waiting - self.finished)

    def _say_what_is_left(self) -> None:
        chunk = duration(self.expected[self.waiting[0]])
        say(
            f"{self.sweep.name}: {counted(self._num_waiting(), 'run')} left, the next chunk needs "
            f"about {chunk} and {duration(max(0.0, self.limit.left()))} are left"
        )


def names_of(chunk: Chunk) -> set[str]:
    """The hashes of the runs of a chunk."""
    return set(map(identity, chunk.runs))


def merge(listed: Sequence[Sweep], folder: Path) -> list[str]:
    """Add the rows of the tables in a folder to the committed ones. Gives a line per table."""
    by_name = {sweep.name: sweep for sweep in listed}
    files = sorted(folder.glob("*.parquet"))
    require(len(files) > 0, f"{folder} has no table: name the folder of --out")
    unknown = [file.name for file in files if file.stem not in by_name]
    require(not unknown, f"{folder}: no experiment is named as {', '.join(unknown)}")
    return [merge_table(by_name[file.stem], Table(file)) for file in files]


def merge_table(sweep: Sweep, new: Table) -> str:
    """Add the rows of missing runs to the committed table, and describe what was added.

    The earlier rows are shown until all runs are there. If the table shows none, the finished runs
    are shown.
    """
    rows = new.read()
    added = rows.loc[rows["run"].isin(list(sweep.missing)), :]
    table = sweep.table
    finished_before = table.finished()
    shown_before = set(table.meta().get("shown", finished_before))
    with table.held():
        if len(added):
            table.append(added)
        if not finished_before & set(sweep.names) and "max_width" in new.meta():
            table.note(max_width=new.meta()["max_width"])  # a later call continues with it
    left = sweep.missing
    num_added = added["run"].nunique()
    text = f"{sweep.name}: {counted(num_added, 'run')} added, {len(left)} still missing"
    shows_only_present_runs = shown_before <= set(sweep.names)
    if num_added and (not left or shows_only_present_runs):
        show_new_rows(sweep)
        return f"{text}; the table shows {'all' if not left else 'the finished'} runs"
    return text


def show_new_rows(sweep: Sweep) -> None:
    """Make a table show the finished runs of its experiment, with the summary and the figures."""
    table = sweep.table
    path = table.path.absolute()
    shown_path = path.relative_to(CHECKOUT) if path.is_relative_to(CHECKOUT) else path
    rows = table.read()
    finished = rows.loc[rows["run"].isin(sweep.names), :]
    with table.held():
        table.note(
            experiment=sweep.name,
            source=sweep.experiment,
            scale=sweep.scale,
            command=f"recombine run {sweep.experiment} --scale {sweep.scale} --out {shown_path}",
            seconds=round(device_seconds(finished), 1),
        )
    request = Request(sweep.experiment, scale=sweep.scale, out=table.path, no_train=True)
    perform(request, quiet=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, and list, train or merge."""
    limit_start = time.monotonic()
    options = _options(arguments)
    listed = sweeps(
        options.experiments or catalogue.experiment_names(), options.results, options.scale
    )
    if options.merge is not None:
        print("\n".join(merge(listed, options.merge)))
        return
    print("\n".join(overview(listed, options.device or cost.nearest_kind())), flush=True)
    if options.train is None:
        return
    limit = TimeLimit(options.train)
    limit.started = limit_start  # listing takes a while, too
    train(listed, limit, options.out)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", nargs="*", help="names or files; all if none is given")
    parser.add_argument("--train", type=float, metavar="SECONDS", help="train for at most so long")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder for the new tables")
    parser.add_argument("--merge", type=Path, metavar="FOLDER", help="a folder that --out made")
    parser.add_argument("--scale", choices=SCALES, help="instead of the scale of each table")
    parser.add_argument("--results", type=Path, default=results_folder(), help="committed tables")
    parser.add_argument("--device", help="the kind of device of the estimates")
    options = parser.parse_args(arguments)
    if (options.train is None) != (options.out is None):
        parser.error("--train and --out belong together")
    if options.train is not None and options.merge is not None:
        parser.error("choose one of --train and --merge")
    return options


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        say(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        say("stopped; finished rows are saved, the same command continues")
        sys.exit(130)
