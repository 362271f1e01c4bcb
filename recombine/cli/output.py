"""How commands print their results."""

import contextlib
import json
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from recombine.basics.console import print_line, printable

if TYPE_CHECKING:
    from rich.table import Table as RichTable

MAX_TABLE_ROWS = 40
DECODABILITY = "LinearDecodability/deepest/test/r2"  # this column gets a shorter heading


def print_result(as_json: bool, result: dict[str, Any], lines: list[str]) -> None:
    """Print the result of a command: JSON for a script, lines for a person."""
    if as_json:
        typer.echo(json.dumps(_finite(result), default=str))
        return
    for line in lines:
        print_line(line)


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def short_number(value: Any) -> str:
    """A number with at least three digits and thousands separators; a text unchanged."""
    if isinstance(value, str):
        return value
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


@contextlib.contextmanager
def exit_on_ctrl_c() -> Iterator[None]:
    """Let Ctrl-C end the command with exit code 130 and without a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def print_sweep(rows: Any, result: dict[str, Any]) -> None:
    """Print the table of a sweep's runs, its summary, and its warnings."""
    from rich.console import Console
    from rich.text import Text

    from recombine.reporting import unit_activity, unseen_features
    from recombine.reporting.page import format_number, results_table

    console = Console()
    frame = results_table(rows).drop(columns="run")
    console.print(_runs_table(frame, result["experiment"], console.width))
    if len(frame) > MAX_TABLE_ROWS:
        console.print(f"… and {len(frame) - MAX_TABLE_ROWS} more runs")
    for name, value in result["summary"].items():
        line = Text(printable(f"  {name}: "))
        if isinstance(value, float):
            line.append(format_number(value), style="bold")
        else:
            line.append(printable(str(value)))
        console.print(line)
    for note in (unit_activity.summary_line(rows), unseen_features.summary_line(rows)):
        if note is not None:
            print_line(note)
    for warning in result["warnings"]:
        print_line(warning, style="yellow")
    console.print(f"{_counts(result)}, {result['seconds']} s")


def _runs_table(frame: Any, title: str, max_width: int) -> "RichTable":
    """A line per run. Headings are broken at slashes and underscores if the table is too wide."""
    from rich.table import Table as RichTable
    from rich.text import Text

    names = [str(column).replace(DECODABILITY, "decodability") for column in frame.columns]
    headings = list(map(printable, names))
    rows = [list(map(_cell, row)) for row in frame.head(MAX_TABLE_ROWS).itertuples(index=False)]
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    if sum(widths) + 3 * len(widths) + 1 > max_width:
        headings = [re.sub("([/_])", "\\1\n", heading) for heading in headings]
    table = RichTable(title=Text(printable(title)))
    for heading in headings:
        table.add_column(Text(heading), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _cell(value: Any) -> str:
    from recombine.reporting.page import shorten

    return f"{value:.3f}" if isinstance(value, float) else printable(shorten(str(value)))


def _counts(result: dict[str, Any]) -> str:
    """`4 runs in 1 program`, or `3 cells` for an experiment that is computed."""
    from recombine.basics.suggest import counted

    if not result["programs"]:
        return counted(result["runs"], "cell")
    return f"{counted(result['runs'], 'run')} in {counted(result['programs'], 'program')}"
