"""How far a long loop is, told from two seconds on: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

PATIENCE = 2.0  # seconds before anything is told
PAUSE = 10.0  # seconds between two plain lines


class Meter:
    """Counts the steps of a loop, whose number may not be known."""

    def __init__(self, what: str, total: int | None = None, shown: bool = True):
        self.what, self.total, self.shown, self.done = what, total, shown, 0
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        self.clock = time.perf_counter()
        self.lined = -PAUSE

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self, num: int = 1) -> None:
        """So many further steps are done."""
        self.done += num
        spent = time.perf_counter() - self.clock
        if not self.shown or spent < PATIENCE:
            return
        if sys.stderr.isatty():
            self._bar()
        elif spent - self.lined >= PAUSE:
            self.lined = spent
            of = f" of {self.total:,}" if self.total else ""
            left = f", about {spent / self.done * (self.total - self.done):.0f} s left" if self.total else ""
            self.console.print(f"{self.what}: {self.done:,}{of}{left}", highlight=False, markup=False, soft_wrap=True)

    def _bar(self) -> None:
        if self.bar is None:
            columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}")
            self.bar = Progress(*columns, TimeRemainingColumn(), console=self.console)
            self.bar.add_task(self.what, total=self.total)
            self.bar.start()
        self.bar.update(self.bar.task_ids[0], completed=self.done)
