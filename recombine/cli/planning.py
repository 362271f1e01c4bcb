"""Commands that estimate and measure compute: cost, bench, plan."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recombine.basics.console import duration
from recombine.basics.suggest import counted
from recombine.cli.options import Device, Experiment, Json, MoreSettings, Scale, Seeds, Set, joined
from recombine.cli.output import print_result, short_number

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table as RichTable


def cost(
    experiment: Experiment,
    scale: Scale = "small",
    set_: Set = None,
    more: MoreSettings = None,
    seeds: Seeds = None,
    device: Device = None,
    workers: Annotated[int, typer.Option(help="Number of devices that train in parallel.")] = 1,
    price: Annotated[float | None, typer.Option(help="Price of one device per hour.")] = None,
    json_: Json = False,
) -> None:
    """Estimate the training time and price of a sweep.

    Nothing is trained: the estimate uses training speeds that were measured on known devices.
    """
    from recombine.experiments.runner import Request, runs_of
    from recombine.planning.estimate import estimate
    from recombine.training.cost import nearest_kind

    _, runs = runs_of(Request(experiment, scale, settings=joined(set_, more), seeds=seeds))
    result = estimate(runs, device or nearest_kind(), workers, price)
    lines = [f"{name.replace('_', ' '):<24}{short_number(value)}" for name, value in result.items()]
    print_result(json_, result, lines)


def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure the main numbers only, in under a minute.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.parquet", help="Save the rows after each section."),
    ] = None,
    json_: Json = False,
) -> None:
    """Benchmark training on this machine.

    Measures the peak throughput, the speed-up of whole sweeps over a plain training loop, the
    compile time, and how training time grows with the size of a sweep.
    """
    from rich.console import Console

    from recombine.basics.errors import require
    from recombine.planning.bench.suite import Suite, summary

    require(
        out is None or out.parent.is_dir(),
        f"cannot write {out}: create its folder first, or change --out",
    )
    suite = Suite(quick)
    stderr = Console(stderr=True)
    console = stderr if json_ else Console()
    for frame in suite.measure(lambda title: stderr.print(f"measuring: {title}", style="dim")):
        console.print(_section_table(frame))
        if out is not None:
            _save_rows(suite.rows, out)
    result = summary(suite.rows)
    line = f"{result['device']}, jax {result['jax']}; {len(result['missed'])} targets missed"
    print_result(json_, result | {"cost": suite.cost and suite.cost._asdict()}, [line])


def _section_table(frame: "pd.DataFrame") -> "RichTable":
    from rich.table import Table as RichTable

    from recombine.planning.bench.suite import format_row

    table = RichTable(title=frame["section"].iloc[0], title_justify="left", show_header=False)
    for row in frame.itertuples():
        table.add_row(*format_row(row))
    return table


def _save_rows(rows: "pd.DataFrame", path: Path) -> None:
    from recombine.basics.errors import InputError

    try:
        rows.to_parquet(path)
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"cannot write {path} ({reason}): choose another file for --out"
        ) from error


def plan(
    modules: Annotated[int, typer.Option(help="Number of modules M.")],
    max_active: Annotated[int, typer.Option(help="Maximum number K of active modules per task.")],
    target: Annotated[
        float, typer.Option(help="R2 to reach on held-out combinations of modules.")
    ] = 0.95,
    seeds: Annotated[int, typer.Option(help="Number of seeds to train.")] = 3,
    device: Device = None,
    json_: Json = False,
) -> None:
    """Estimate how many train tasks a target score needs.

    Also estimates the training time. Both follow from measured scaling results for tasks that
    combine up to K of M modules.
    """
    from recombine.planning import planner
    from recombine.training.cost import nearest_kind

    result = planner.plan(modules, max_active, target, device or nearest_kind(), seeds)
    low, high = result["interval"]
    needed = f"{result['needed']:,} (interval {low:,} to {high:,})"
    time = duration(result["seconds"])
    lines = [
        f"train tasks:   {needed}, {result['share']:.2%} of all {result['tasks']:,} tasks",
        f"basis:         {result['basis']}",
        f"training time: {time} for {counted(seeds, 'seed')} on {result['device']}",
        f"measured with: {result['student']}",
    ]
    if result["why"]:
        label = "extrapolated" if result["basis"] == "extrapolated" else "note"
        lines.append(f"{label}: {result['why']}")
    print_result(json_, result, lines)
