"""What a sweep that trains tells about itself: one small JSON file in its folder, for those who watch.

    {"state": "training", "began": "2026-11-15T18:00:00+00:00", "runs": 40, "reused": 4, "finished": 12,
     "seconds": 33.1, "left": 120.5, "rate": 9500.0, "now": [{"runs": 16, "phase": "training", "step": 400,
     "num_steps": 1000, "score": 0.93}], "failures": [{"runs": ["1f…", …], "reason": "…"}], "notes": ["…"],
     "command": "…", "host": "…"}

`state` is training, finished, failed (some runs were not trained) or stopped (Ctrl-C); `rate` is in training steps of
single runs per second; `left` and `rate` are null while nothing is known. A killed process leaves "training" behind:
`alive` tells whether anybody still writes there.
"""

import contextlib
import datetime
import json
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import Any

from recombine.basics.atomic_io import holder, temporary

NAME = "status.json"
PAUSE = 1.0  # seconds between two writings


class Status:
    """The state of one sweep, written to its folder at most once a second; without a folder it is only kept."""

    def __init__(self, folder: Path | None, runs: int, reused: int):
        self.path = None if folder is None else folder / NAME
        self.clock, self.written = time.perf_counter(), -PAUSE
        self.now: dict[Any, dict[str, Any]] = {}
        self.told: dict[str, Any] = {
            "state": "training",
            "began": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "runs": runs,
            "reused": reused,
            "finished": reused,
            "left": None,
            "rate": None,
            "failures": [],
            "notes": [],
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "host": socket.gethostname(),
        }
        self.write(now=True)

    def write(self, now: bool = False, **changes: Any) -> None:
        """Take over these changes, and write if it is time or must be."""
        self.told |= changes
        seconds = time.perf_counter() - self.clock
        if self.path is None or (not now and seconds - self.written < PAUSE):
            return
        self.written = seconds
        text = json.dumps(
            self.told | {"seconds": round(seconds, 3), "now": list(self.now.values())},
            default=float,
        )
        # Not synced: it is worth nothing after a power cut. A full disk must not stop the sweep.
        with contextlib.suppress(OSError):
            unfinished = temporary(self.path)
            try:
                unfinished.write_text(text)
                unfinished.replace(self.path)
            finally:
                unfinished.unlink(missing_ok=True)


def read(folder: Path) -> dict[str, Any] | None:
    """What the folder's last sweep told about itself, or None."""
    try:
        found = json.loads((folder / NAME).read_text())
    except (OSError, ValueError):
        return None
    known = isinstance(found, dict) and all(
        isinstance(found.get(name), int) for name in ("runs", "reused", "finished")
    )
    return found if known and isinstance(found.get("now"), list) else None


def alive(folder: Path) -> bool:
    """Whether a process trains into the folder at this moment."""
    return holder(folder) is not None
