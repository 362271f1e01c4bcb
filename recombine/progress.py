"""Progress of a sweep in the terminal: runs, expected time left and the current test score. Silent where nobody looks.

A chunk counts by its expected seconds (`cost`), so that wide students weigh more than narrow ones; the time left is
those seconds, corrected by how long the finished part really took.
"""

import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from recombine.run import Run, structure


class Display:
    """Shows a bar on an interactive terminal, plain lines elsewhere, and nothing unless asked."""

    def __init__(self, num_runs: int, num_finished: int, expected: Mapping[Any, float], shown: bool):
        self.num_runs, self.num_finished, self.shown = num_runs, num_finished, shown
        self.expected, self.total, self.done = expected, sum(expected.values()), 0.0
        self.clock = time.perf_counter()
        self.console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f}%"),
            console=self.console,
            disable=not (shown and sys.stderr.isatty()),
        )
        self.task = self.bar.add_task("starting", total=self.total)

    def __enter__(self) -> "Display":
        if self.num_finished and self.shown:
            self.console.print(f"{self.num_finished} of {self.num_runs} runs are finished already: reused")
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def time_left(self, done: float) -> float:
        """Seconds still needed when so many of the expected seconds are done."""
        left, spent = self.total - done, time.perf_counter() - self.clock
        # The measured pace replaces the expected one as it becomes known.
        known = done / self.total if self.total else 1.0
        return left * ((1 - known) + known * spent / done if done else 1.0)

    def update(self, chunk: Any, progress: Any) -> None:
        """Show where a chunk stands."""
        done = self.done + self.expected[chunk] * progress.fraction
        score = "" if progress.score is None else f", test score {progress.score:.3f}"
        text = f"{progress.phase} {progress.num_runs} runs, step {progress.step:,} of {progress.num_steps:,}{score}"
        text += f", {_duration(self.time_left(done))} left"
        self.bar.update(self.task, description=text, completed=done)
        if self.shown and self.bar.disable:
            self.console.print(f"{done / max(self.total, 1e-9):4.0%}  {text}", highlight=False)
        if progress.fraction == 1:
            self.done = done


def expected_seconds(chunks: Iterable[Any], cost: Any) -> dict[Any, float]:
    """What each chunk will take, the compilation of every structure counted with its first chunk."""
    known: set[Run] = set()
    found = {}
    for chunk in chunks:
        kind = structure(chunk.runs[0])
        found[chunk] = cost.chunk(chunk.runs, chunk.width) + (0 if kind in known else cost.compile_seconds)
        known.add(kind)
    return found


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
