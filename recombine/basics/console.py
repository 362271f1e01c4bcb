"""How commands answer in the terminal: tables and lines for a person, one line of JSON for a script."""

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of text.")]


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """Ctrl-C is how one leaves."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


@contextlib.contextmanager
def telling(shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """What tells a person at a terminal which step a command is at, of how many; gone when it is done."""
    from rich.progress import BarColumn, Progress, TextColumn  # slow to import, and --help does without

    columns = TextColumn("{task.description}"), BarColumn()
    hidden = not (shown and sys.stderr.isatty())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=hidden) as bar:
        task = bar.add_task("starting", total=None)

        def tell(text: str, number: int, total: int) -> None:
            told = f"{text}, {number} of {total}"
            bar.update(task, description=told, total=total, completed=number - 1, refresh=True)

        yield tell


def digits(value: Any) -> str:
    """A number in few digits, anything else as it is."""
    if isinstance(value, str):
        return value
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _finite(value: Any) -> Any:
    # JSON knows no NaN; a diverged run's number is null.
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def tell(json_: bool, result: dict[str, Any], lines: list[str]) -> None:
    """A command's answer: JSON for a script, lines for a person."""
    if json_:
        typer.echo(json.dumps(_finite(result), default=str))
    else:
        for line in lines:
            Console(soft_wrap=True).print(line, markup=False, highlight=False)
