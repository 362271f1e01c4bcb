"""Progress of a sweep in the terminal: runs, expected time left and the current test score. Silent where nobody looks.

A chunk counts by its expected seconds (`cost`), so that wide students weigh more than narrow ones; the time left is
those seconds, corrected by how long the finished part really took.
"""

import collections
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recombine.basics.console import ProgressBar, duration, print_line, say
from recombine.basics.suggest import counted
from recombine.storage.status import Status
from recombine.sweeps.run import Run, identity, structure

WINDOW = 60  # seconds over which the throughput is told


class Display:
    """Shows a bar on an interactive terminal, plain lines elsewhere, and nothing unless asked; keeps the status."""

    def __init__(
        self,
        num_runs: int,
        num_finished: int,
        expected: Mapping[Any, float],
        shown: bool,
        folder: Path | None = None,
    ):
        self.num_runs, self.num_finished, self.shown = num_runs, num_finished, shown
        self.expected, self.total = expected, sum(expected.values())
        self.done: dict[Any, float] = {}  # of each chunk's expected seconds
        self.before: dict[Any, float] = {}  # the part of a chunk that another process had trained
        self.steps: dict[
            Any, int
        ] = {}  # of all runs of each chunk together: less those of another process
        self.trained: dict[Any, int] = {}  # and those that are trained
        self.clock = time.perf_counter()
        self.paces = collections.deque([(self.clock, 0)])
        self.status = Status(folder, num_runs, num_finished)
        self.bar = ProgressBar(self.total, shown=shown)

    def __enter__(self) -> "Display":
        if self.num_finished and self.shown:
            print_line(
                f"{self.num_finished} of {self.num_runs} runs are finished already: reused",
                stderr=True,
            )
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self.bar.stop()
        failed = kind is not None or bool(self.status.told["failures"])
        state = "failed" if failed else "finished"
        self.status.now.clear()
        self.status.write(
            now=True, state="stopped" if kind is KeyboardInterrupt else state, left=None
        )

    def note(self, text: str) -> None:
        """Print a note, also where no progress is shown, and keep it for `recombine watch`."""
        say(text)
        self.status.write(now=True, notes=[*self.status.told["notes"], text])

    def time_left(self, done: float) -> float:
        """Seconds still needed when so many of the expected seconds are done."""
        left, spent = self.total - done, time.perf_counter() - self.clock
        # The measured pace replaces the expected one as it becomes known.
        known = done / self.total if self.total else 1.0
        return left * ((1 - known) + known * spent / done if done else 1.0)

    def update(self, chunk: Any, progress: Any) -> None:
        """Show where a chunk stands."""
        score = "" if progress.score is None else f", test score {progress.score:.3f}"
        text = f"{progress.phase} {counted(progress.num_runs, 'run')}, step {progress.step:,} of "
        text += f"{progress.num_steps:,}{score}"
        self.status.now[chunk] = {
            "runs": progress.num_runs,
            "phase": progress.phase,
            "step": progress.step,
            "num_steps": progress.num_steps,
            "score": progress.score,
        }
        if (
            progress.phase == "resuming"
        ):  # what another process did says nothing about this one's pace
            self.before[chunk] = progress.fraction
            self.steps[chunk] = -progress.step * progress.num_runs
            self.total -= self.expected.get(chunk, 0.0) * progress.fraction
        self.steps.setdefault(chunk, 0)
        self.trained[chunk] = progress.step * progress.num_runs
        self._show(chunk, progress.fraction, text)

    def finish(self, chunk: Any, num_new: int) -> None:
        """Count a chunk that is trained: so many runs have been written by now."""
        self.num_finished = self.status.told["reused"] + num_new
        self.status.now.pop(chunk, None)
        self.status.told["finished"] = self.num_finished
        if chunk not in self.trained:  # nobody told how it went along
            self.trained[chunk] = sum(run.num_steps for run in chunk.runs)
            self._show(chunk, 1.0, f"{self.num_finished} of {self.num_runs} runs are finished")

    def fail(self, chunk: Any, error: Exception) -> None:
        """Count a chunk that could not be trained."""
        self.status.now.pop(chunk, None)
        self.done[chunk] = self.expected.get(chunk, 0.0)
        reason = " ".join(str(error).split()) or type(error).__name__
        if self.shown:
            say(f"{counted(len(chunk.runs), 'run')} failed, the others go on: {reason[:300]}")
        failure = {"runs": [identity(run) for run in chunk.runs], "reason": reason}
        self.status.write(now=True, failures=[*self.status.told["failures"], failure])

    def _show(self, chunk: Any, fraction: float, text: str) -> None:
        self.done[chunk] = self.expected.get(chunk, 0.0) * (fraction - self.before.get(chunk, 0.0))
        done, now = sum(self.done.values()), time.perf_counter()
        self.bar.total = self.total  # it changes when a chunk is resumed
        self.bar.update(
            f"{text}, {duration(self.time_left(done))} left", done, at_once=fraction in (0, 1)
        )
        steps = sum(self.steps.values()) + sum(self.trained.values())
        if now - self.paces[-1][0] >= 1:
            self.paces.append((now, steps))
        while len(self.paces) > 1 and now - self.paces[1][0] > WINDOW:
            self.paces.popleft()
        (begin, before), rate = self.paces[0], None
        if steps > before and now > begin:
            rate = (steps - before) / (now - begin)
        self.status.write(left=self.time_left(done), rate=rate)


def expected_seconds(chunks: Iterable[Any], cost: Any) -> dict[Any, float]:
    """What each chunk will take, the compilation of every structure counted with its first chunk."""
    known: set[Run] = set()
    found = {}
    for chunk in chunks:
        kind = structure(chunk.runs[0])
        found[chunk] = cost.chunk(chunk.runs, chunk.width) + (
            0 if kind in known else cost.compile_seconds
        )
        known.add(kind)
    return found
