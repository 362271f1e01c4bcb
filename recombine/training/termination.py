"""SIGTERM: the end of a job on a cluster (pre-emption, time limit). Training saves a checkpoint.

`stop_on_sigterm` raises `Terminated` in the main thread. While a chunk trains, the trainer is asked
instead (`is_requested`): it saves a last checkpoint, and raises `Terminated` itself.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

EXIT_CODE_SIGTERM = 143

_requested = threading.Event()
_training = threading.Event()  # a trainer of this process checks `is_requested` between two calls


class Terminated(KeyboardInterrupt):
    """Training was ended by SIGTERM."""


@contextlib.contextmanager
def stop_on_sigterm() -> Iterator[None]:
    """End what runs in this block at SIGTERM, with a last checkpoint. A second one ends it at once.

    Only in the main thread, and only if the program has no handler of its own.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def handle(*_: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _requested.set()
        if not _training.is_set():
            raise Terminated

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _requested.clear()


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """A block that checks `is_requested` often, so that SIGTERM need not interrupt it."""
    _training.set()
    try:
        yield
    finally:
        _training.clear()


def end_training(seconds: float) -> None:
    """Ask a trainer of this process to save a checkpoint and end; wait for it at most so long."""
    _requested.set()
    end = time.monotonic() + seconds
    while _training.is_set() and time.monotonic() < end:
        time.sleep(0.02)


def is_requested() -> bool:
    """Whether training should end now."""
    return _requested.is_set()
