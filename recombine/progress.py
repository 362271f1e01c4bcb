"""Progress of a sweep in the terminal: steps, runs, time left and the current test score. Silent where nobody looks."""

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from recombine.run import Run, identity


class Display:
    """Shows a bar on an interactive terminal, plain lines elsewhere, and nothing unless asked."""

    def __init__(self, runs: Iterable[Run], finished: set[str], shown: bool):
        steps = {identity(run): run.num_steps for run in runs}
        self.todo = {name: num_steps for name, num_steps in steps.items() if name not in finished}
        self.skipped = len(steps) - len(self.todo)
        self.shown, self.done = shown, 0
        self.console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:.0f}%"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not (shown and sys.stderr.isatty()),
        )
        self.task = self.bar.add_task("starting", total=sum(self.todo.values()))

    def __enter__(self) -> "Display":
        if self.skipped and self.shown:
            self.console.print(f"{self.skipped} of {self.skipped + len(self.todo)} runs are finished already: reused")
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def update(self, chunk: Any, progress: Any) -> None:
        """Show where the current chunk stands."""
        new = sum(identity(run) in self.todo for run in chunk.runs)
        done = self.done + new * progress.step
        total = sum(self.todo.values())
        score = "" if progress.score is None else f", test score {progress.score:.3f}"
        text = f"{progress.phase} {progress.num_runs} runs, step {progress.step:,} of {progress.num_steps:,}{score}"
        self.bar.update(self.task, description=text, completed=done)
        if self.shown and self.bar.disable:
            self.console.print(f"{done / max(total, 1):4.0%}  {text}", highlight=False)
        if progress.step == progress.num_steps:
            self.done = done
