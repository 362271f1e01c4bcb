"""The command line: quickstart | list | run | cost | watch | serve | check | report | claims | bench, and those of
`instrument`: probe | coverage | plan.

Heavy imports happen inside the commands.
"""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from recombine.basics.console import Json, command_progress, digits, leaving, tell
from recombine.cli import instrument
from recombine.cli.results_view import show
from recombine.experiments import catalogue

if TYPE_CHECKING:
    from recombine.experiments.runner import Order

app = typer.Typer(
    help="A laboratory for compositional generalization.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Folder, or one FILE.parquet. Finished runs there are reused."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="field=value, model.widths=256,256 say; several may follow."),
]
Experiment = Annotated[
    str, typer.Argument(help="An experiment's name, or a Python file with runs(scale).")
]
Scale = Annotated[
    str, typer.Option(help="tiny (seconds), small (minutes on 2 cores) or full (one GPU).")
]
More = Annotated[list[str] | None, typer.Argument(help="More field=value settings, after --set.")]
Seeds = Annotated[
    int | None,
    typer.Option("--seeds", help="Train seeds 0 to N-1 instead of the experiment's own."),
]
On = Annotated[
    str,
    typer.Option(
        "--on", help="Where to train: here, processes:N, dask-local:N, dask://HOST:PORT or slurm."
    ),
]
Slurm = Annotated[
    str,
    typer.Option("--slurm", help="Options of --on slurm: partition=gpu,gres=gpu:1,timeout_min=60."),
]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", help="Mirror the rows to wandb, tensorboard or mlflow; may be repeated."),
]
Folder = Annotated[Path, typer.Argument(help="The folder (or .parquet file) that a run writes.")]


def _version(asked: bool) -> None:
    if asked:
        from recombine.basics.version import __version__

        typer.echo(f"recombine {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """A laboratory for compositional generalization."""


@app.command()
def quickstart(json_: Json = False) -> None:
    """Train the first sweep (one to two minutes) and write quickstart.html."""
    from recombine.experiments.runner import Order
    from recombine.reporting import page as report
    from recombine.storage.table import Table

    order = Order("quickstart")
    result = _perform(order, quiet=json_)
    page = report.write(Table(order.place), Path("quickstart.html"))
    tell(
        json_,
        result | {"report": str(page)},
        [f"Report: {page}  (open it in a browser; it works offline)"],
    )


@app.command("list")
def list_(json_: Json = False) -> None:
    """Show every family, encoding, support, model, diagnostic, recipe and experiment, with fields and defaults."""
    from recombine.parts.field_checks import hints
    from recombine.sweeps import discovery
    from recombine.sweeps.run import Run, describe

    # Run's own defaults first: they are what --set changes, and its parts are smaller than the parts' own defaults.
    found: dict[str, Any] = {"run": {"Run": describe(Run())}}
    found |= {
        kind: {name: {f: getattr(cls(), f) for f in hints(cls)} for name, cls in classes.items()}
        for kind, classes in discovery.parts().items()
    }
    modules = {name: catalogue.experiment(name) for name in catalogue.experiment_names()}
    found["experiment"] = {
        name: (module.__doc__ or "").strip().split("\n")[0] for name, module in modules.items()
    }
    lines = []
    for kind, members in found.items():
        lines.append(f"\n{kind}")
        for name, fields in members.items():
            shown = (
                fields
                if isinstance(fields, str)
                else ", ".join(f"{k}={v!r}" for k, v in fields.items())
            )
            lines.append(f"  {name:<20} {shown}")
    tell(json_, found, lines)


@app.command()
def run(
    experiment: Experiment,
    scale: Scale = "small",
    out: Out = None,
    set_: Set = None,
    more: More = None,
    seeds: Seeds = None,
    on: On = "here",
    slurm: Slurm = "",
    log: Log = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="Train nothing: tell of the runs that are there.")
    ] = False,
    json_: Json = False,
) -> None:
    """Train an experiment of ours, or your own file; finished runs are skipped."""
    from recombine.experiments.runner import Order

    order = Order(
        experiment,
        scale,
        out,
        [*(set_ or []), *(more or [])],
        seeds,
        on,
        slurm,
        log or [],
        finished,
    )
    result, place = _perform(order, quiet=json_), order.place
    tell(
        json_,
        result,
        [f"Rows: {place}  (recombine report {shlex.quote(str(place))} makes a page of them)"],
    )


@app.command()
def cost(
    experiment: Experiment,
    scale: Scale = "small",
    set_: Set = None,
    more: More = None,
    seeds: Seeds = None,
    device: Annotated[
        str | None, typer.Option(help='"NVIDIA H200" or cpu, say; this machine\'s by default.')
    ] = None,
    workers: Annotated[int, typer.Option(help="How many such devices train at a time.")] = 1,
    price: Annotated[float | None, typer.Option(help="What an hour of one device costs.")] = None,
    json_: Json = False,
) -> None:
    """Tell what a sweep would cost before it is trained: seconds, and money at a price per hour."""
    from recombine.experiments.runner import Order, runs_of
    from recombine.planning.estimate import estimate
    from recombine.training.cost import known_kind

    _, runs = runs_of(Order(experiment, scale, None, [*(set_ or []), *(more or [])], seeds))
    found = estimate(runs, device or known_kind(), workers, price)
    lines = [f"{name.replace('_', ' '):<24}{digits(value)}" for name, value in found.items()]
    tell(json_, found, lines)


@app.command()
def watch(
    folder: Folder,
    once: Annotated[bool, typer.Option("--once", help="Show how it stands and leave.")] = False,
    json_: Json = False,
) -> None:
    """Watch a sweep in the terminal while it trains: progress, time left, scores, and what failed."""
    from recombine.reporting import watch

    if json_:
        return tell(True, watch.state(folder), [])
    with leaving():
        watch.show(folder, once)


@app.command()
def serve(
    folder: Folder,
    port: Annotated[int, typer.Option(help="The port; 0 for any free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="The address to serve on; this machine only by default.")
    ] = "127.0.0.1",
    figures: Annotated[
        Path | None,
        typer.Option(help="Your experiment's file, to draw its figures as they fill in."),
    ] = None,
) -> None:
    """Watch a sweep in a browser while it trains, with its figures as they fill in."""
    from recombine.experiments.catalogue import own_experiment
    from recombine.reporting import serve

    with leaving():
        serve.serve(folder, host, port, figures=figures, find=own_experiment)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A Python file with parts of your own.")],
    json_: Json = False,
) -> None:
    """Test your own parts against the contracts that ours keep."""
    from recombine.basics import user_files
    from recombine.basics.errors import InputError
    from recombine.training import contracts

    results = list(contracts.check_module(user_files.load(file), file))
    if not results:
        raise InputError(
            f"{file} defines no part: a part is a frozen dataclass with the methods of one kind (see docs/design.md)"
        )
    lines = []
    for result in results:
        mark, reason = (
            ("ok    ", "")
            if result["kept"]
            else ("BROKEN", f"\n         because: {result['reason']}")
        )
        lines.append(f"{mark}  {result['part']}: {result['promise']}{reason}")
    broken = sum(not result["kept"] for result in results)
    lines.append(f"{len(results)} promises, {broken} broken")
    tell(json_, {"file": str(file), "results": results, "broken": broken}, lines)
    if broken:
        raise typer.Exit(1)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder or .parquet file that a run wrote.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="The page to write; DIR/report.html by default.")
    ] = None,
    json_: Json = False,
) -> None:
    """Write one self-contained HTML page with the figures, the table and the command."""
    from recombine.reporting import page as report
    from recombine.storage.table import Table

    default = folder.with_suffix(".html") if folder.suffix == ".parquet" else folder / "report.html"
    page = report.write(Table(folder), out or default)
    tell(json_, {"report": str(page)}, [f"Report: {page}"])


@app.command()
def claims(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these experiments; all of them by default.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="Train this experiment (or file) first; judge its rows.")
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="Of --run: tiny, small (the default) or full.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder of result tables; docs/results by default.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write all of it to this Markdown file instead.")
    ] = None,
    json_: Json = False,
) -> None:
    """Show every claim with its source, the published number, the measured number and the verdict."""
    from recombine.basics.errors import require
    from recombine.experiments import record
    from recombine.experiments.claim import results_folder

    require(
        sum(map(bool, (names, run, page))) < 2,
        "names, --run and --page do not go together: give one of them",
    )
    require(
        run is not None or scale is None,
        "--scale is for --run NAME: tables that are there have their own scale",
    )
    results = results or results_folder()
    require(
        bool(run) or results.is_dir(),
        f"there are no result tables in {results}: name their folder with --results",
    )
    if page is not None:
        with command_progress(not json_) as step:
            record.write(results, page, step)
        return tell(json_, {"page": str(page)}, [f"Page: {page}"])
    with command_progress(not json_ and run is None) as step:
        found = (
            record.run_and_judge(run, scale or "small", json_)
            if run
            else record.read(names or (), results, step)
        )
    told = json.loads(str(found.to_json(orient="records")))
    tell(json_, {"claims": told}, record.lines(found.to_dict("records"), Console().width))


@app.command()
def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="The main numbers only, in under a minute.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="A .parquet file for the rows, written as they come."),
    ] = None,
    json_: Json = False,
) -> None:
    """Measure this machine: its ceiling, whole sweeps against a plain loop, compilation, growth."""
    from recombine.basics.errors import InputError, require
    from recombine.planning.bench.suite import Suite, shown, summary

    require(
        out is None or out.parent.is_dir(),
        f"cannot write {out}: make its folder first, or change --out",
    )
    suite, told = Suite(quick), Console(stderr=True)
    for frame in suite.measure(lambda title: told.print(f"measuring: {title}", style="dim")):
        table = RichTable(title=frame["section"].iloc[0], title_justify="left", show_header=False)
        for row in frame.itertuples():
            table.add_row(*shown(row))
        (told if json_ else Console()).print(table)
        if out is not None:
            try:
                suite.rows.to_parquet(out)
            except OSError as error:
                raise InputError(
                    f"cannot write {out} ({error.strerror or error}): name another file with --out"
                ) from error
    result = summary(suite.rows)
    told_last = f"{result['device']}, jax {result['jax']}; {len(result['missed'])} targets missed"
    tell(json_, result | {"cost": suite.cost and suite.cost._asdict()}, [told_last])


instrument.add(app)


def _perform(order: "Order", quiet: bool) -> dict[str, Any]:
    from recombine.experiments.runner import perform

    result, rows = perform(order, quiet)
    if not quiet:
        show(rows, result)
    return result
