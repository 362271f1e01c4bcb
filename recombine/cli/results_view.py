"""The answer of a command that trained: the table of its runs, and what came out."""

from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from recombine.basics.console import print_line


def show(rows: Any, result: dict[str, Any]) -> None:
    """The table of a sweep's runs, and what came out."""
    from recombine.basics.suggest import counted
    from recombine.reporting.page import number, results_table, shorten
    from recombine.reporting.unit_activity import summary_line

    console = Console()
    frame = results_table(rows).drop(columns="run")
    table = RichTable(title=result["experiment"])
    for name in map(str, frame.columns):
        table.add_column(
            name.replace("LinearDecodability/deepest/test/r2", "decodability"), overflow="fold"
        )
    for line in frame.head(40).itertuples(index=False):
        table.add_row(
            *(f"{value:.3f}" if isinstance(value, float) else shorten(str(value)) for value in line)
        )
    console.print(table)
    if len(frame) > 40:
        console.print(f"… and {len(frame) - 40} more runs")
    for name, value in result["summary"].items():
        console.print(
            f"  {name}: [bold]{number(value)}[/bold]"
            if isinstance(value, float)
            else f"  {name}: {value}"
        )
    dead_units = summary_line(rows)
    if dead_units is not None:
        print_line(dead_units)
    for warning in result["warnings"]:
        print_line(warning, style="yellow")
    num, programs = result["runs"], result["programs"]
    made = (
        f"{counted(num, 'run')} in {counted(programs, 'program')}"
        if programs
        else counted(num, "cell")
    )
    console.print(f"{made}, {result['seconds']} s")
