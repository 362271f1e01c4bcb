"""Everything that is printed: lines, durations, progress bars, and the answers of commands.

Answers go to stdout; notes, warnings and progress go to stderr.
"""

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Self

import typer
from rich.console import Console

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of text.")]
PATIENCE = 2.0  # seconds before a `Meter` appears
PAUSE = 2.0  # seconds between two lines of progress where there is no terminal
METER_PAUSE = 10.0  # the same for a `Meter`
_drawn: list["ProgressBar"] = []  # the bars that are on the terminal now


def print_line(text: str, *, stderr: bool = False, style: str | None = None) -> None:
    """Print a line as it is, without markup; on stderr it appears above the progress bar, if there is one."""
    console = _stderr() if stderr else Console()
    console.print(text, style=style, soft_wrap=True, markup=False, highlight=False, emoji=False)


def say(text: str) -> None:
    """Print a note for the user on stderr."""
    print_line(f"recombine: {text}", stderr=True)


def warn(text: str) -> None:
    """Print a yellow line on stderr."""
    print_line(text, stderr=True, style="yellow")


def _stderr() -> Console:
    # What another console prints would be mixed up with the bar.
    return _drawn[-1].bar.console if _drawn else Console(stderr=True)


def _on_terminal() -> bool:
    # Under a bar, rich replaces sys.stderr by a stream of its own, which may not know that it is on a terminal.
    return bool(_drawn) or sys.stderr.isatty()


def duration(seconds: float) -> str:
    """Seconds in words: the two largest units. `templates/watch.html` has the same function in JavaScript."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 1:
        return f"{round(max(seconds, 0.0), 1):g} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


class ProgressBar:
    """Progress on stderr: a bar on a terminal, a line now and then elsewhere (log, notebook), nothing unless `shown`.

    `total` may be unknown (None) and may change on the way. Beside the bar is a percentage, or the count if `counted`.
    Nothing appears in the first `patience` seconds; two lines are at least `pause` seconds apart. A `transient` bar
    is removed at the end, and prints no lines where there is no terminal.
    """

    def __init__(
        self,
        total: float | None = None,
        *,
        shown: bool = True,
        counted: bool = False,
        patience: float = 0.0,
        pause: float = PAUSE,
        transient: bool = False,
    ):
        self.total, self.shown, self.counted = total, shown, counted
        self.patience, self.pause, self.transient = patience, pause, transient
        self.began = time.perf_counter()
        self.last_line = -math.inf  # when it was printed
        self.bar: Any = None  # a `rich.progress.Progress`, once there is something to draw

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def start(self) -> None:
        """Draw an empty bar on a terminal; one with `patience` is drawn by a later update."""
        if self.shown and self.patience == 0 and _on_terminal():
            self._draw("starting", 0)

    def stop(self) -> None:
        """Give the terminal back."""
        if self in _drawn:
            self.bar.stop()
            _drawn.remove(self)

    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.perf_counter() - self.began

    def update(self, text: str, done: float, at_once: bool = False) -> None:
        """Show a text and how much of the total is done; `at_once` prints a line without waiting for the pause."""
        seconds = self.seconds()
        if not self.shown or seconds < self.patience:
            return
        if _on_terminal():
            self._draw(text, done)
        elif not self.transient and (at_once or seconds - self.last_line >= self.pause):
            self.last_line = seconds
            print_line(self._line(text, done), stderr=True)

    def fill(self) -> None:
        """Show on a terminal that all is done."""
        if self.bar is not None:
            self.bar.update(
                self.bar.task_ids[0], completed=self.total, beside=self._beside(self.total or 0)
            )

    def _draw(self, text: str, done: float) -> None:
        bar = self.bar or self._start_bar(text)
        beside = self._beside(done)
        bar.update(
            bar.task_ids[0], description=text, total=self.total, completed=done, beside=beside
        )
        if self.transient:  # it may be gone before rich draws it by itself, ten times a second
            bar.refresh()

    def _start_bar(self, text: str) -> Any:
        from rich.errors import LiveError
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
        )  # slow to import, and --help does without

        left = TextColumn("{task.description}", markup=False)
        right = TextColumn("{task.fields[beside]}", markup=False)
        self.bar = Progress(left, BarColumn(), right, console=_stderr(), transient=self.transient)
        self.bar.add_task(text, total=self.total, beside="")
        with contextlib.suppress(
            LiveError
        ):  # before rich 14.1 a bar inside another one cannot be drawn
            self.bar.start()
            _drawn.append(self)
        return self.bar

    def _beside(self, done: float) -> str:
        """The text beside the bar."""
        if self.counted:
            return f"{done:,.0f}" + (f" of {self.total:,.0f}" if self.total else "")
        return "" if self.total is None else f"{self._fraction(done):.0%}"

    def _line(self, text: str, done: float) -> str:
        """The line that is printed where there is no terminal."""
        return f"{self._fraction(done):4.0%}  {text}"

    def _fraction(self, done: float) -> float:
        return done / max(self.total or 0.0, 1e-9)


class Meter(ProgressBar):
    """Counts the steps of a loop, whose number may not be known, and shows them from two seconds on."""

    def __init__(self, what: str, total: int | None = None, shown: bool = True):
        super().__init__(total, shown=shown, counted=True, patience=PATIENCE, pause=METER_PAUSE)
        self.what, self.done = what, 0

    def advance(self, num: int = 1) -> None:
        """Count further steps that are done."""
        self.done += num
        self.update(self.what, self.done)

    def _beside(self, done: float) -> str:
        count = super()._beside(done)
        if not (self.total and done):
            return count
        return f"{count}, about {duration(self.seconds() / done * (self.total - done))} left"

    def _line(self, text: str, done: float) -> str:
        return f"{text}: {self._beside(done)}"


@contextlib.contextmanager
def command_progress(shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Give a function that shows a command's step, its number and how many there are: on a terminal, until the end."""
    with ProgressBar(shown=shown, transient=True) as bar:

        def show_step(text: str, number: int, total: int) -> None:
            bar.total = total
            bar.update(f"{text}, {number} of {total}", number - 1)

        yield show_step


@contextlib.contextmanager
def leaving() -> Iterator[None]:
    """Ctrl-C is how one leaves."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


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
            print_line(line)
