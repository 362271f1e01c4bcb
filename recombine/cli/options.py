"""Options and arguments that several commands share, and the old names of options."""

from pathlib import Path
from typing import Annotated

import typer

Experiment = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT",
        help="Name of a built-in experiment, or a Python file that defines runs(scale).",
    ),
]
Scale = Annotated[
    str,
    typer.Option(help="tiny (seconds), small (minutes on 2 CPU cores) or full (one GPU)."),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Override a field of every run, e.g. model.widths=256,256. Accepts several pairs.",
    ),
]
MoreSettings = Annotated[
    list[str] | None,
    typer.Argument(metavar="FIELD=VALUE", help="More overrides, as for --set."),
]
Seeds = Annotated[
    int | None,
    typer.Option("--seeds", help="Train seeds 0 to N-1 instead of the experiment's own seeds."),
]
Device = Annotated[
    str | None,
    typer.Option(help='Device model, e.g. "NVIDIA H200" or cpu. Default: this machine.'),
]
Folder = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="Output folder or .parquet file of `recombine run`."),
]
Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE.html", help="Also write an HTML report to this file."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of text.")]

# Old name of an option -> its name now. The old names still work and are not in --help.
RENAMED_OPTIONS = {"on": "executor", "finished": "no-train", "hot": "max-active"}


def current_option(name: str) -> str:
    """The name that an option has now, both without dashes; click calls this for every option."""
    return RENAMED_OPTIONS.get(name, name)


def joined(settings: list[str] | None, more: list[str] | None) -> list[str]:
    """All overrides: the values of --set, and the arguments after them."""
    return [*(settings or []), *(more or [])]
