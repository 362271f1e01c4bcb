"""Progress of a sweep: finished runs, the time left and the current test score.

A chunk counts by its expected seconds (`cost`), so that wide networks count more than narrow ones.
The time left is the expected time of the rest, corrected by how fast the finished part was.
"""

import collections
import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from recombine.basics.console import ProgressBar, duration, print_line, say
from recombine.basics.suggest import counted
from recombine.storage.status import Status
from recombine.sweeps.run import Run, identity, structure

MAX_SILENCE = 60.0  # seconds without news, until a note names what the sweep waits for
RATE_WINDOW = 60  # seconds over which the steps per second are averaged
MAX_REASON_LENGTH = 300  # characters of an error that are printed


class Display:
    """Shows the progress of a sweep, and writes its status file.

    On a terminal it shows a bar, elsewhere plain lines. Unless `show_progress`, it prints only
    notes. Without a `folder` there is no status file.
    """

    def __init__(
        self,
        num_runs: int,
        num_finished: int,
        expected: Mapping[Any, float],
        show_progress: bool,
        folder: Path | None = None,
    ):
        self.num_runs = num_runs
        self.num_finished = num_finished
        self.show_progress = show_progress
        self.expected = expected  # seconds, by chunk
        self.total = sum(expected.values())  # expected seconds of this process
        self.done: dict[Any, float] = {}  # expected seconds that are done, by chunk
        self.trained_steps: dict[Any, int] = {}  # of all runs of a chunk, by chunk
        # What an earlier process had trained of a chunk. It says nothing about our speed.
        self.resumed_fraction: dict[Any, float] = {}
        self.resumed_steps: dict[Any, int] = {}
        self.started = time.perf_counter()
        self.last_news = time.perf_counter()  # when a chunk of this process last made progress
        self.recent_steps = collections.deque([(self.started, 0)])  # (time, steps until then)
        self.status = Status(folder, num_runs, num_finished)
        self.bar = ProgressBar(self.total, visible=show_progress)

    def __enter__(self) -> "Display":
        if self.num_finished and self.show_progress:
            print_line(
                f"{self.num_finished} of {self.num_runs} runs are finished already: reused",
                stderr=True,
            )
        self.bar.start()
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: Any) -> None:
        self.bar.stop()
        if error_type is not None and issubclass(error_type, KeyboardInterrupt):
            state = "stopped"
        elif error_type is not None or self.status.document["failures"]:
            state = "failed"
        else:
            state = "finished"
        self.status.chunks.clear()
        self.status.write(immediately=True, state=state, left=None)

    def note(self, text: str) -> None:
        """Print a note, even if no progress is shown, and keep it for `recombine watch`."""
        say(text)
        self.status.write(immediately=True, notes=[*self.status.document["notes"], text])

    @contextlib.contextmanager
    def noting_silence(self) -> Iterator[None]:
        """Note, from a thread, when the chunks of this process make no progress for a while."""
        ended = threading.Event()

        def watch() -> None:
            silence = MAX_SILENCE
            noted = self.last_news
            while not ended.wait(min(silence / 4, 5.0)):
                if self.last_news != noted:
                    noted, silence = self.last_news, MAX_SILENCE
                if time.perf_counter() - self.last_news > silence:
                    phases = [chunk["phase"] for chunk in list(self.status.chunks.values())]
                    activity = f", which is {phases[-1]}" if phases else ""
                    self.note(
                        f"no progress for {duration(silence)}: waiting for process {os.getpid()} "
                        f"on this machine{activity}"
                    )
                    silence *= 2

        self.last_news = time.perf_counter()
        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def time_left(self, done: float) -> float:
        """The seconds left when `done` of the expected seconds are done."""
        left = self.total - done
        if not done:
            return left
        elapsed = time.perf_counter() - self.started
        # The more is done, the more the measured speed counts against the expected one.
        fraction = done / self.total if self.total else 1.0
        return left * ((1 - fraction) + fraction * elapsed / done)

    def update(self, chunk: Any, progress: Any) -> None:
        """Show the progress of a chunk (`trainer.Progress`)."""
        self.last_news = time.perf_counter()
        num_steps_done = progress.step * progress.num_runs
        self.status.chunks[chunk] = {
            "runs": progress.num_runs,
            "phase": progress.phase,
            "step": progress.step,
            "num_steps": progress.num_steps,
            "score": progress.score,
        }
        if progress.phase == "resuming":
            self.resumed_fraction[chunk] = progress.fraction
            self.resumed_steps[chunk] = num_steps_done
            self.total -= self.expected.get(chunk, 0.0) * progress.fraction
        self.trained_steps[chunk] = num_steps_done
        score = "" if progress.score is None else f", test score {progress.score:.3f}"
        self._show(
            chunk,
            progress.fraction,
            f"{progress.phase} {counted(progress.num_runs, 'run')}, "
            f"step {progress.step:,} of {progress.num_steps:,}{score}",
        )

    def finish(self, chunk: Any, num_new: int) -> None:
        """Count a trained chunk. `num_new` runs of the sweep have been written so far."""
        self.num_finished = self.status.document["reused"] + num_new
        self.status.chunks.pop(chunk, None)
        self.status.document["finished"] = self.num_finished
        if chunk not in self.trained_steps:  # trained elsewhere, without progress on the way
            self.trained_steps[chunk] = sum(run.num_steps for run in chunk.runs)
            self._show(chunk, 1.0, f"{self.num_finished} of {self.num_runs} runs are finished")

    def fail(self, chunk: Any, error: Exception) -> None:
        """Count a chunk that could not be trained."""
        self.status.chunks.pop(chunk, None)
        self.done[chunk] = self.expected.get(chunk, 0.0)
        reason = " ".join(str(error).split()) or type(error).__name__
        if self.show_progress:
            failed = counted(len(chunk.runs), "run")
            say(f"{failed} failed, the others continue: {reason[:MAX_REASON_LENGTH]}")
        failure = {"runs": [identity(run) for run in chunk.runs], "reason": reason}
        self.status.write(immediately=True, failures=[*self.status.document["failures"], failure])

    def steps_trained_here(self) -> int:
        """The training steps of this process, over all runs."""
        return sum(self.trained_steps.values()) - sum(self.resumed_steps.values())

    def _show(self, chunk: Any, fraction: float, text: str) -> None:
        fraction_here = fraction - self.resumed_fraction.get(chunk, 0.0)
        self.done[chunk] = self.expected.get(chunk, 0.0) * fraction_here
        done = sum(self.done.values())
        time_left = self.time_left(done)
        self.bar.total = self.total  # changes when a chunk is resumed
        self.bar.update(f"{text}, {duration(time_left)} left", done, force_line=fraction in (0, 1))
        self.status.write(left=time_left, rate=self._steps_per_second())

    def _steps_per_second(self) -> float | None:
        """The training steps per second of the last minute. None if nothing is known yet."""
        now = time.perf_counter()
        num_steps = self.steps_trained_here()
        recent = self.recent_steps
        if now - recent[-1][0] >= 1:
            recent.append((now, num_steps))
        while len(recent) > 1 and now - recent[1][0] > RATE_WINDOW:
            recent.popleft()
        first_time, first_num_steps = recent[0]
        if num_steps <= first_num_steps or now <= first_time:
            return None
        return (num_steps - first_num_steps) / (now - first_time)


def expected_seconds(chunks: Iterable[Any], cost: Any) -> dict[Any, float]:
    """The expected seconds of each chunk. The first chunk of a structure includes compilation."""
    compiled: set[Run] = set()
    seconds = {}
    for chunk in chunks:
        seconds[chunk] = cost.chunk(chunk.runs, chunk.width)
        chunk_structure = structure(chunk.runs[0])
        if chunk_structure not in compiled:
            seconds[chunk] += cost.compile_seconds
            compiled.add(chunk_structure)
    return seconds
