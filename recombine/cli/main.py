"""Assembles the command line from the commands in this folder."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from recombine.cli import instrument, options, planning, results, run, verify

# Heading in --help -> its commands by name. Both are in the order of --help.
COMMANDS = {
    "Experiments": {
        "quickstart": run.quickstart,
        "list": run.list_,
        "run": run.run,
        "cost": planning.cost,
        "watch": results.watch,
        "serve": results.serve,
        "check": run.check,
        "verify": verify.verify,
        "report": results.report,
        "claims": results.claims,
        "bench": planning.bench,
    },
    "Your own model, data and sweep": {
        "probe": instrument.probe,
        "coverage": instrument.coverage,
        "plan": planning.plan,
    },
}


class CommandPanels(TyperGroup):
    """Lists commands under the heading that their `rich_help_panel` names.

    Typer itself does so only in rich's boxes, which it then also draws around every error.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one section per heading, in the order in which commands were added."""
        name_width = max(map(len, self.commands))
        help_width = formatter.width - name_width - 6  # as in click
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            line = (name.ljust(name_width), command.get_short_help_str(help_width))
            panels.setdefault(heading, []).append(line)
        for heading, lines in panels.items():
            with formatter.section(heading):
                formatter.write_dl(lines)


app = typer.Typer(
    cls=CommandPanels,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"token_normalize_func": options.current_option},
)


def _print_version(requested: bool) -> None:
    if requested:
        from recombine.basics.version import __version__

        typer.echo(f"recombine {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """A laboratory for compositional generalization.

    Train models on some combinations of known parts, and measure how well they handle combinations
    that they never saw. Start with `recombine quickstart`. `recombine COMMAND --help` explains a
    command.
    """


for panel, commands in COMMANDS.items():
    for command_name, function in commands.items():
        app.command(command_name, rich_help_panel=panel)(function)
