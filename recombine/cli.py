"""The command line: quickstart | list | run | check | report | claims. Heavy imports happen inside the commands."""

import json
import math
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from types import ModuleType

app = typer.Typer(
    help="A laboratory for compositional generalization.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of text.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder, or one FILE.parquet. Finished runs there are reused.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="field=value, model.widths=256,256 say; several may follow.")
]
Seeds = Annotated[int | None, typer.Option("--seeds", help="Train seeds 0 to N-1 instead of the experiment's own.")]
SCALES = ("tiny", "small", "full")


@app.command()
def quickstart(json_: Json = False) -> None:
    """Train the first sweep (one to two minutes) and write quickstart.html."""
    out = Path("results/quickstart-small")
    result = _run("quickstart", "small", out, [], None, quiet=json_)
    from recombine import report
    from recombine.table import Table

    page = report.write(Table(out), Path("quickstart.html"))
    _tell(json_, result | {"report": str(page)}, [f"Report: {page}  (open it in a browser; it works offline)"])


@app.command("list")
def list_(json_: Json = False) -> None:
    """Show every family, encoding, support, model, diagnostic, recipe and experiment, with fields and defaults."""
    import importlib

    from recombine import find
    from recombine.core import hints
    from recombine.run import Run, describe

    # Run's own defaults first: they are what --set changes, and its parts are smaller than the parts' own defaults.
    found: dict[str, Any] = {"run": {"Run": describe(Run())}}
    found |= {
        kind: {name: {f: getattr(cls(), f) for f in hints(cls)} for name, cls in classes.items()}
        for kind, classes in find.parts().items()
    }
    modules = {name: importlib.import_module(f"recombine.experiments.{name}") for name in find.names("experiments")}
    found["experiment"] = {name: (module.__doc__ or "").strip().split("\n")[0] for name, module in modules.items()}
    lines = []
    for kind, members in found.items():
        lines.append(f"\n{kind}")
        for name, fields in members.items():
            shown = fields if isinstance(fields, str) else ", ".join(f"{k}={v!r}" for k, v in fields.items())
            lines.append(f"  {name:<20} {shown}")
    _tell(json_, found, lines)


@app.command()
def run(
    experiment: Annotated[str, typer.Argument(help="An experiment's name, or a Python file with runs(scale).")],
    scale: Annotated[str, typer.Option(help="tiny (seconds), small (minutes on 2 cores) or full (one GPU).")] = "small",
    out: Out = None,
    set_: Set = None,
    more: Annotated[list[str] | None, typer.Argument(help="More field=value settings, after --set.")] = None,
    seeds: Seeds = None,
    json_: Json = False,
) -> None:
    """Train an experiment of ours, or your own file; finished runs are skipped."""
    name = Path(experiment).stem
    out = out or Path("results") / f"{name}-{scale}"
    result = _run(experiment, scale, out, [*(set_ or []), *(more or [])], seeds, quiet=json_)
    _tell(json_, result, [f"Rows: {out}  (recombine report {shlex.quote(str(out))} makes a page of them)"])


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="A Python file with parts of your own.")], json_: Json = False
) -> None:
    """Test your own parts against the contracts that ours keep."""
    from recombine import contracts, find
    from recombine.core import InputError

    results = list(contracts.check_module(find.load(file), file))
    if not results:
        raise InputError(
            f"{file} defines no part: a part is a frozen dataclass with the methods of one kind (see docs/design.md)"
        )
    lines = []
    for result in results:
        mark, reason = ("ok    ", "") if result["kept"] else ("BROKEN", f"\n         because: {result['reason']}")
        lines.append(f"{mark}  {result['part']}: {result['promise']}{reason}")
    broken = sum(not result["kept"] for result in results)
    lines.append(f"{len(results)} promises, {broken} broken")
    _tell(json_, {"file": str(file), "results": results, "broken": broken}, lines)
    if broken:
        raise typer.Exit(1)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="The folder or .parquet file that a run wrote.")],
    out: Annotated[Path | None, typer.Option("--out", help="The page to write; DIR/report.html by default.")] = None,
    json_: Json = False,
) -> None:
    """Write one self-contained HTML page with the figures, the table and the command."""
    from recombine import report
    from recombine.table import Table

    default = folder.with_suffix(".html") if folder.suffix == ".parquet" else folder / "report.html"
    page = report.write(Table(folder), out or default)
    _tell(json_, {"report": str(page)}, [f"Report: {page}"])


@app.command()
def claims(
    results: Annotated[Path | None, typer.Option(help="Folder of result tables; docs/results by default.")] = None,
    json_: Json = False,
) -> None:
    """Show every claim with its source, the published number, the measured number and the verdict."""
    from recombine import find
    from recombine.claims import ledger
    from recombine.core import require

    results = results or Path(__file__).parent.parent / "docs" / "results"
    require(results.is_dir(), f"there are no result tables in {results}: name their folder with --results")
    found = ledger({name: find.experiment(name) for name in find.names("experiments")}, results)
    records = json.loads(str(found.to_json(orient="records")))
    lines = []
    for r in records:
        measured = "-" if r["measured"] is None else f"{r['measured']:.3f}"
        lines += [
            f"{r['verdict']:<16}{r['experiment']}/{r['name']}: {r['statement']}",
            f"{'':<16}measured {measured}, published: {r['published']} ({r['source']})",
            f"{'':<16}{r['runs'] or 0} runs, {r['date'] or 'no date'}; again with: {r['command']}\n",
        ]
    _tell(json_, {"claims": records}, lines)


@app.command()
def bench(
    quick: Annotated[bool, typer.Option("--quick", help="The main numbers only, in under a minute.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="A .parquet file for the rows, written as they come.")
    ] = None,
    json_: Json = False,
) -> None:
    """Measure this machine: its ceiling, whole sweeps against a plain loop, compilation, growth."""
    from recombine.bench.suite import Suite, shown, summary
    from recombine.core import InputError, require

    require(out is None or out.parent.is_dir(), f"cannot write {out}: make its folder first, or change --out")
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
    _tell(json_, result | {"cost": suite.cost and suite.cost._asdict()}, [told_last])


def _run(experiment: str, scale: str, out: Path, settings: list[str], seeds: int | None, quiet: bool) -> dict[str, Any]:
    from recombine import find, setting
    from recombine.core import InputError, require
    from recombine.engine import train
    from recombine.run import Run, identity, structure
    from recombine.table import Table

    require(scale in SCALES, f"there is no scale {scale!r}: choose one of {', '.join(SCALES)}")
    module = find.experiment(experiment)
    try:
        runs = list(module.runs(scale))
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{experiment}: runs({scale!r}) failed: {find.where(error, Path(module.__file__ or ''))}"
        ) from error
    require(all(isinstance(one, Run) for one in runs), f"{experiment}: runs({scale!r}) must give a list of Run")
    runs = setting.apply(runs, settings, find.parts_of(module))
    runs = runs if seeds is None else setting.reseed(runs, seeds)
    require(len(runs) > 0, f"{experiment}: runs({scale!r}) gave no run")
    table = Table(out)
    finished = table.finished()
    clock = time.perf_counter()
    try:
        rows = train(runs, out, progress=not quiet)
    except KeyboardInterrupt:
        kept = len(Table(out).finished() & set(map(identity, runs)))
        Console(stderr=True).print(
            f"recombine: stopped; {kept} of {len(runs)} runs are kept in {out}; the same command goes on from there",
            soft_wrap=True,
        )
        raise typer.Exit(130) from None
    result = {
        "experiment": Path(experiment).stem,
        "out": str(out),
        "runs": len(runs),
        "programs": len(set(map(structure, runs))),
        "seconds": round(time.perf_counter() - clock, 1),
        "summary": _of_rows(module, "summary", rows),
        "rows": len(rows),
    }
    _note(table, module, scale, rows, result, trained=not set(map(identity, runs)) <= finished)
    if not quiet:
        _show(rows, result)
    return result


def _note(table: Any, module: "ModuleType", scale: str, rows: Any, result: dict[str, Any], trained: bool) -> None:
    """Keep beside the rows what a report shows: the command, the summary and the figures."""
    from importlib.util import find_spec

    last, shown = rows.iloc[-1], rows["run"].unique().tolist()
    if (
        trained or table.meta().get("shown", shown) != shown
    ):  # else the table keeps the command, the time and the versions of the day when its rows were made
        table.note(
            **{key: result[key] for key in ("experiment", "runs", "programs", "seconds")},
            command=shlex.join(["recombine", *sys.argv[1:]]),
            scale=scale,
            device=last["meta/device"],
            versions={"recombine": last["meta/recombine"], "jax": last["meta/jax"], "python": sys.version.split()[0]},
            date=last["meta/date"],
        )
    title = getattr(module, "TITLE", result["experiment"])
    # The folder may hold other runs too: a report is of the ones shown.
    table.note(title=title, description=(module.__doc__ or "").strip(), summary=result["summary"], shown=shown)
    # A training machine may lack plotly: the same command on another one reuses the rows and draws.
    if find_spec("plotly"):
        table.save_figures({name: figure.to_json() for name, figure in _of_rows(module, "figures", rows).items()})


def _of_rows(module: "ModuleType", name: str, rows: Any) -> dict[str, Any]:
    """What an experiment makes of its rows; where it fails the rows are safe, and the user is told why."""
    from recombine.find import where

    try:
        return getattr(module, name, lambda _: {})(rows)
    except Exception as error:
        told = f"recombine: no {name}, the rows are kept: {where(error, Path(module.__file__ or ''))}"
        Console(stderr=True).print(told, soft_wrap=True, markup=False, highlight=False)
        return {}


def _show(rows: Any, result: dict[str, Any]) -> None:
    from recombine.report import results_table, shorten

    console = Console()
    frame = results_table(rows).drop(columns="run")
    table = RichTable(title=result["experiment"])
    for name in map(str, frame.columns):
        table.add_column(name.replace("LinearDecodability/deepest/test/r2", "decodability"), overflow="fold")
    for line in frame.head(40).itertuples(index=False):
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else shorten(str(value)) for value in line))
    console.print(table)
    if len(frame) > 40:
        console.print(f"… and {len(frame) - 40} more runs")
    for name, value in result["summary"].items():
        console.print(f"  {name}: [bold]{value:.3f}[/bold]" if isinstance(value, float) else f"  {name}: {value}")
    console.print(f"{result['runs']} runs in {result['programs']} programs, {result['seconds']} s")


def _finite(value: Any) -> Any:
    # JSON knows no NaN; a diverged run's number is null.
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _tell(json_: bool, result: dict[str, Any], lines: list[str]) -> None:
    if json_:
        typer.echo(json.dumps(_finite(result), default=str))
    else:
        for line in lines:
            Console(soft_wrap=True).print(line, markup=False, highlight=False)
