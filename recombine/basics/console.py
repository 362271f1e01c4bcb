"""Printing: lines, durations and progress bars.

Results go to stdout; notes, warnings and progress go to stderr.
"""

import contextlib
import math
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:  # rich is imported where something is printed: `recombine --help` needs none
    from rich.console import Console

LINE_INTERVAL = 2.0  # seconds between two lines of progress where there is no terminal
METER_DELAY = 2.0  # seconds before a `Meter` appears
METER_INTERVAL = 10.0  # seconds between two lines of a `Meter` where there is no terminal
# C0 and C1 controls except tab and line feed, changes of direction, lone surrogates.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_visible_bars: list["ProgressBar"] = []  # the bars that are on the terminal now


def printable(text: str) -> str:
    """A text without characters that control a terminal, which become escape sequences.

    Rows and status files may come from elsewhere, and could otherwise rewrite what is on the
    screen.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def print_line(text: str, *, stderr: bool = False, style: str | None = None) -> None:
    """Print a line without interpreting markup. On stderr it appears above a progress bar."""
    from rich.console import Console

    console = _stderr() if stderr else Console()
    text = printable(text)
    console.print(text, style=style, soft_wrap=True, markup=False, highlight=False, emoji=False)


def say(text: str) -> None:
    """Print a note on stderr."""
    print_line(f"recombine: {text}", stderr=True)


def warn(text: str) -> None:
    """Print a yellow line on stderr."""
    print_line(text, stderr=True, style="yellow")


def _stderr() -> "Console":
    from rich.console import Console

    # A second console would print into the bar.
    return _visible_bars[-1].bar.console if _visible_bars else Console(stderr=True)


def _on_terminal() -> bool:
    # While a bar is drawn, rich replaces sys.stderr by a stream whose isatty() may be False.
    return bool(_visible_bars) or sys.stderr.isatty()


def duration(seconds: float) -> str:
    """A duration in its two largest units: `1 h 20 min`, `5 s`.

    `templates/watch.html` has the same function in JavaScript.
    """
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
    """Progress on stderr: a bar on a terminal, a line now and then elsewhere (log, notebook).

    `total` may be None (unknown) and may change later. Beside the bar is a percentage, or with
    `show_count` the number of finished steps. Nothing is printed unless `visible`, and nothing in
    the first `delay` seconds. Two lines are at least `line_interval` seconds apart. A `transient`
    bar is removed at the end, and prints no lines where there is no terminal.
    """

    def __init__(
        self,
        total: float | None = None,
        *,
        visible: bool = True,
        show_count: bool = False,
        delay: float = 0.0,
        line_interval: float = LINE_INTERVAL,
        transient: bool = False,
    ):
        self.total = total
        self.visible = visible
        self.show_count = show_count
        self.delay = delay
        self.line_interval = line_interval
        self.transient = transient
        self.start_time = time.perf_counter()
        self.last_line = -math.inf  # seconds after the start
        self.bar: Any = None  # a `rich.progress.Progress`, created when it is first drawn

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def start(self) -> None:
        """Draw an empty bar on a terminal, unless there is a delay."""
        if self.visible and self.delay == 0 and _on_terminal():
            self._draw("starting", 0)

    def stop(self) -> None:
        """Stop drawing and restore the terminal."""
        if self in _visible_bars:
            self.bar.stop()
            _visible_bars.remove(self)

    def seconds(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self.start_time

    def update(self, text: str, done: float, force_line: bool = False) -> None:
        """Show a text and how much of the total is done.

        `force_line` prints a line even if the last one was less than `line_interval` ago.
        """
        seconds = self.seconds()
        if not self.visible or seconds < self.delay:
            return
        if _on_terminal():
            self._draw(text, done)
        elif not self.transient and (force_line or seconds - self.last_line >= self.line_interval):
            self.last_line = seconds
            print_line(self._line(text, done), stderr=True)

    def fill(self) -> None:
        """Show a full bar, on a terminal."""
        if self.bar is not None:
            amount = self._amount(self.total or 0)
            self.bar.update(self.bar.task_ids[0], completed=self.total, amount=amount)

    def _draw(self, text: str, done: float) -> None:
        bar = self.bar or self._start_bar(text)
        bar.update(
            bar.task_ids[0],
            description=text,
            total=self.total,
            completed=done,
            amount=self._amount(done),
        )
        if self.transient:  # it may end before rich's next automatic refresh
            bar.refresh()

    def _start_bar(self, text: str) -> Any:
        from rich.errors import LiveError
        from rich.progress import BarColumn, Progress, TextColumn

        left = TextColumn("{task.description}", markup=False)
        right = TextColumn("{task.fields[amount]}", markup=False)
        self.bar = Progress(left, BarColumn(), right, console=_stderr(), transient=self.transient)
        self.bar.add_task(text, total=self.total, amount="")
        with contextlib.suppress(LiveError):  # rich < 14.1 cannot draw a bar inside another one
            self.bar.start()
            _visible_bars.append(self)
        return self.bar

    def _amount(self, done: float) -> str:
        """The text beside the bar: a count or a percentage."""
        if self.show_count:
            return f"{done:,.0f}" + (f" of {self.total:,.0f}" if self.total else "")
        return "" if self.total is None else f"{self._fraction(done):.0%}"

    def _line(self, text: str, done: float) -> str:
        """The line that is printed where there is no terminal."""
        return f"{self._fraction(done):4.0%}  {text}"

    def _fraction(self, done: float) -> float:
        return done / max(self.total or 0.0, 1e-9)


class Meter(ProgressBar):
    """Counts the steps of a loop. It appears after `METER_DELAY` seconds.

    `total` is the number of steps, None if it is unknown.
    """

    def __init__(self, text: str, total: int | None = None, visible: bool = True):
        super().__init__(
            total,
            visible=visible,
            show_count=True,
            delay=METER_DELAY,
            line_interval=METER_INTERVAL,
        )
        self.text = text
        self.done = 0

    def advance(self, num_steps: int = 1) -> None:
        """Count further finished steps."""
        self.done += num_steps
        self.update(self.text, self.done)

    def _amount(self, done: float) -> str:
        count = super()._amount(done)
        if not (self.total and done):
            return count
        seconds_left = self.seconds() / done * (self.total - done)
        return f"{count}, about {duration(seconds_left)} left"

    def _line(self, text: str, done: float) -> str:
        return f"{text}: {self._amount(done)}"


@contextlib.contextmanager
def command_progress(visible: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show the steps of a command on a terminal, until the end of the block.

    Gives the function `show_step(text, number, total)`.
    """
    with ProgressBar(visible=visible, transient=True) as bar:

        def show_step(text: str, number: int, total: int) -> None:
            bar.total = total
            bar.update(f"{text}, {number} of {total}", number - 1)

        yield show_step
