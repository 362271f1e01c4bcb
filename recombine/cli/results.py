"""Commands that show results: watch, serve, report, claims."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from recombine.basics.console import command_progress
from recombine.cli.options import Folder, Json
from recombine.cli.output import exit_on_ctrl_c, print_result


def watch(
    folder: Folder,
    once: Annotated[bool, typer.Option("--once", help="Print the status once and exit.")] = False,
    json_: Json = False,
) -> None:
    """Show the progress of a sweep in the terminal.

    Shows the time left, the scores so far, and failed runs. Ctrl-C stops watching; training
    continues.
    """
    from recombine.reporting import watch

    if json_:
        print_result(True, watch.state(folder), [])
        return
    with exit_on_ctrl_c():
        watch.show(folder, once)


def serve(
    folder: Folder,
    port: Annotated[int, typer.Option(help="Port; 0 chooses a free one.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on. The default accepts this machine only.")
    ] = "127.0.0.1",
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.py", help="Draw the figures that your own experiment file defines."
        ),
    ] = None,
) -> None:
    """Show the progress and the figures of a sweep in a browser.

    The page updates itself while the sweep trains. Ctrl-C stops the server; training continues.
    """
    from recombine.experiments.catalogue import built_in_experiment
    from recombine.experiments.plots import figures_of
    from recombine.reporting import serve

    with exit_on_ctrl_c():
        serve.serve(
            folder, host, port, figures=figures, find=built_in_experiment, figures_of=figures_of
        )


def report(
    folder: Folder,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.html", help="The page. Default: FOLDER/report.html."),
    ] = None,
    json_: Json = False,
) -> None:
    """Write an HTML page with the figures and results of a sweep.

    The page is one self-contained file. It also gives the command that trained the sweep.
    """
    from recombine.reporting import page as report
    from recombine.storage.table import Table

    default = folder.with_suffix(".html") if folder.suffix == ".parquet" else folder / "report.html"
    page = report.write(Table(folder), out or default)
    print_result(json_, {"report": str(page)}, [f"Report: {page}"])


def claims(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="EXPERIMENT", help="Experiments to list. Default: all."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(
            metavar="EXPERIMENT", help="Train this experiment or file first, then test its claims."
        ),
    ] = None,
    scale: Annotated[
        str | None, typer.Option(help="Scale for --run: tiny, small (the default) or full.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Folder with the result tables. Default: docs/results.")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.md",
            help="Write a Markdown page with all claims instead of printing them.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """List all claims with measured values and verdicts.

    Each claim has a source and a published value. The measured value is computed from the result
    tables. Nothing is trained without --run.
    """
    from rich.console import Console

    from recombine.experiments import record
    from recombine.experiments.ledger import results_folder

    results = results or results_folder()
    _check_claims_options(names, run, scale, results, page)
    if page is not None:
        with command_progress(not json_) as show_step:
            record.write(results, page, show_step)
        print_result(json_, {"page": str(page)}, [f"Page: {page}"])
        return
    if run is not None:
        ledger = record.run_and_judge(run, scale or "small", json_)
    else:
        with command_progress(not json_) as show_step:
            ledger = record.read(names or (), results, show_step)
    records = json.loads(str(ledger.to_json(orient="records")))
    lines = record.lines(ledger.to_dict("records"), Console().width)
    print_result(json_, {"claims": records}, lines)


def _check_claims_options(
    names: Sequence[str] | None,
    run: str | None,
    scale: str | None,
    results: Path,
    page: Path | None,
) -> None:
    from recombine.basics.errors import require

    num_modes = sum(map(bool, (names, run, page)))
    require(num_modes < 2, "EXPERIMENT, --run and --page exclude each other: give only one of them")
    require(
        run is not None or scale is None,
        "--scale needs --run EXPERIMENT: the scale of existing tables is fixed",
    )
    require(
        bool(run) or results.is_dir(),
        f"there are no result tables in {results}: give their folder with --results",
    )
