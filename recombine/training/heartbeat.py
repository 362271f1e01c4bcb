"""Heartbeats: files by which a worker reports that its chunk makes progress.

The worker writes `<run>.heartbeat` beside the checkpoints at each progress of a chunk; `<run>` is
the first run of the chunk. The driver looks whether the file changes. It measures time with its own
clock, since clocks of machines differ. A worker that does not see the driver's folder has none.
"""

import contextlib
import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recombine.basics.atomic_io import temporary_path

SUFFIX = ".heartbeat"
PAUSE = 0.5  # least number of seconds between two writes
MAX_NAME_LENGTH = 200  # of the name of a worker in its file


def heartbeat_path(folder: Path | None, run_hash: str) -> Path | None:
    """The file of the chunk whose first run has this hash."""
    return None if folder is None else folder / f"{run_hash}{SUFFIX}"


def remove(path: Path | None) -> None:
    """Delete a heartbeat, if there is one."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


class Heartbeat:
    """The heartbeat of one chunk, on the worker. Without a path nothing is written."""

    def __init__(self, path: Path | None):
        self.path = path
        self.last_beat = -PAUSE
        self.is_written = False  # by this worker: the file names it

    def beat(self, *_: Any) -> None:
        """Report progress. A full disk must not stop training."""
        now = time.monotonic()
        if self.path is None or now - self.last_beat < PAUSE:
            return
        self.last_beat = now
        with contextlib.suppress(OSError):
            if self.is_written and self.path.exists():
                os.utime(self.path)  # needs no space, so a full disk does not look like silence
                return
            self.path.parent.mkdir(exist_ok=True)
            unfinished = temporary_path(self.path)
            try:
                unfinished.write_text(f"process {os.getpid()} on {socket.gethostname()}")
                unfinished.replace(self.path)
                self.is_written = True
            finally:
                unfinished.unlink(missing_ok=True)


class Observer:
    """Looks at the heartbeats of chunks, on the driver. `paths` has the file of each chunk."""

    def __init__(self, paths: Mapping[Any, Path | None]):
        self.paths = paths
        self.seen: dict[Any, int] = {}  # time of the last change, by the clock of the disk
        self.noted: set[Any] = set()  # chunks whose silence was noted
        self.changed: dict[Any, float] = {}  # when we saw that change, by our clock

    def look(self, chunks: Iterable[Any]) -> bool:
        """Whether any of these chunks made progress since the last look."""
        has_news = False
        for chunk in chunks:
            path = self.paths[chunk]
            with contextlib.suppress(OSError):
                time_of_file = None if path is None else path.stat().st_mtime_ns
                if time_of_file is not None and time_of_file != self.seen.get(chunk):
                    self.seen[chunk] = time_of_file
                    self.changed[chunk] = time.monotonic()
                    self.noted.discard(chunk)
                    has_news = True
        return has_news

    def silence(self, chunk: Any) -> float:
        """The seconds since the last progress of a chunk; 0 if it has not begun."""
        changed = self.changed.get(chunk)
        return 0.0 if changed is None else time.monotonic() - changed

    def note_once(self, chunk: Any) -> bool:
        """Whether the silence of a chunk is new since its last progress."""
        is_new = chunk not in self.noted
        self.noted.add(chunk)
        return is_new

    def worker(self, chunk: Any) -> str:
        """The worker that trains a chunk."""
        path = self.paths[chunk]
        with contextlib.suppress(OSError, ValueError):
            if path is not None:
                return " ".join(path.read_text()[:MAX_NAME_LENGTH].split())
        return "its worker"

    def forget(self, chunk: Any) -> None:
        """Wait for the chunk to begin again."""
        remove(self.paths[chunk])
        self.changed.pop(chunk, None)
        self.seen.pop(chunk, None)
