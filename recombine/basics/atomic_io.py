"""Files that are there whole or not at all, whatever is killed, and places that one process writes at a time."""

import contextlib
import datetime
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recombine.basics.errors import InputError

try:
    import fcntl
except (
    ImportError
):  # not on Windows: there, two processes are not kept apart, and equal rows are dropped on reading
    fcntl = None


def replace(path: Path, data: bytes) -> Path:
    """Write a file so that it is there whole or not at all, even after a crash or a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = temporary(path)
    try:
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # the new name itself is safe only once its folder is synced
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some network file systems refuse it
                os.fsync(folder)
        finally:
            os.close(folder)
    return path


def temporary(path: Path) -> Path:
    """A name that nobody else uses, for a file while it is not finished."""
    return path.with_name(
        f".{path.name}.{uuid.uuid4().hex}.{os.getpid()}@{socket.gethostname()}.tmp"
    )


def sweep_up(*folders: Path) -> None:
    """Remove the unfinished files of this machine's processes that were killed; others may still be at work."""
    for left in [left for folder in folders for left in folder.glob(".*.tmp")]:
        match = re.fullmatch(r".*\.[0-9a-f]{32}\.(\d+)@(.*)\.tmp", left.name)
        if match and match[2] == socket.gethostname() and not _lives(int(match[1])):
            left.unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@contextlib.contextmanager
def held(place: Path) -> Iterator[None]:
    """Be the only process that writes to a folder or file; the system lets go of it when the process dies.

    Where the file system knows no locks, everybody may write.
    """
    try:
        file = _acquire(place)
    except OSError as error:
        raise InputError(
            f"cannot write to {place} ({error.strerror}): name another --out"
        ) from error
    _held.add(file)
    try:
        yield
    finally:
        _held.discard(file)
        if file is not None:
            with contextlib.suppress(OSError):
                _lock_of(place).unlink(
                    missing_ok=True
                )  # first, so that nobody waits for a file that is gone
            os.close(file)


_held: set[int | None] = set()


def _let_go() -> None:
    # A forked child would hold the place on after its parent's death.
    for file in _held - {None}:
        os.close(file)  # pyright: ignore
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def holder(place: Path) -> dict[str, Any] | None:
    """Who writes to a place at this moment (`pid`, `host`, `since`), or None."""
    try:
        file = os.open(_lock_of(place), os.O_RDONLY)
    except OSError:
        return None
    try:
        return _who(file) if not _taken(file, shared=True) else None
    finally:
        os.close(file)


def _acquire(place: Path) -> int | None:
    path = _lock_of(place)
    if fcntl is None:
        return None
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not any(
            _taken(file) or time.sleep(0.02) for _ in range(10)
        ):  # who only asks holds it for a moment
            who = _who(file)
            os.close(file)
            raise InputError(
                f"another process writes to {place} (process {who.get('pid', '?')} on {who.get('host', '?')}, since "
                f"{who.get('since', '?')}): wait for it, stop it, or name another --out"
            )
        # The former holder may have removed the file between our opening and our locking it.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file).st_ino:
                break
        os.close(file)
    since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    who = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
    with contextlib.suppress(OSError):  # on a full disk it is held all the same
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(who).encode(), 0)
    return file


def _taken(file: int, shared: bool = False) -> bool:
    """Lock an open file; whether that worked, or would not matter."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _who(file: int) -> dict[str, Any]:
    with contextlib.suppress(ValueError, OSError):
        return json.loads(os.pread(file, 1000, 0))
    return {}


def _lock_of(place: Path) -> Path:
    place = place.resolve()  # one lock, whatever links lead there
    return place.parent / f".{place.name}.lock" if place.suffix == ".parquet" else place / ".lock"
