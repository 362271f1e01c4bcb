"""Files that are written completely or not at all, and locks against a second writing process."""

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
except ImportError:  # Windows: nothing is locked, and duplicate rows are dropped on reading
    fcntl = None

NUM_LOCK_ATTEMPTS = 10
SECONDS_BETWEEN_ATTEMPTS = 0.02
# If the lock were a symbolic link, opening it would empty another file.
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


def write_atomically(path: Path, data: bytes) -> Path:
    """Write a file completely or not at all, even after a crash or a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = temporary_path(path)
    try:
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return path


def _sync_folder(folder: Path) -> None:
    """Make a new file name in a folder durable."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems refuse it
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def temporary_path(path: Path) -> Path:
    """A unique name beside `path`, for a file that is not finished yet."""
    process = f"{os.getpid()}@{socket.gethostname()}"
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}.{process}.tmp")


def remove_leftovers(*folders: Path) -> None:
    """Remove unfinished files of processes of this machine that were killed.

    Files of other machines stay: their processes may still be writing.
    """
    for folder in folders:
        for path in list(folder.glob(".*.tmp")):
            match = re.fullmatch(r".*\.[0-9a-f]{32}\.(\d+)@(.*)\.tmp", path.name)
            if match and match[2] == socket.gethostname() and not _is_running(int(match[1])):
                path.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs, but belongs to another user
        return True
    return True


@contextlib.contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Be the only process that writes to a folder or file.

    The operating system releases the lock when the process dies. On a file system without locks,
    this does nothing.
    """
    try:
        lock = _acquire(path)
    except OSError as error:
        raise InputError(
            f"cannot write to {path} ({error.strerror}): choose another --out"
        ) from error
    _open_locks.add(lock)
    try:
        yield
    finally:
        _open_locks.discard(lock)
        if lock is not None:
            with contextlib.suppress(OSError):
                # Removed before it is released, so that nobody waits for a removed file.
                _lock_path(path).unlink(missing_ok=True)
            os.close(lock)


_open_locks: set[int | None] = set()  # file descriptors; None where nothing is locked


def _release_in_child() -> None:
    # A forked child would keep the lock after its parent's death.
    for lock in _open_locks - {None}:
        os.close(lock)  # pyright: ignore
    _open_locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)


def lock_owner(path: Path) -> dict[str, Any] | None:
    """The process that holds the write lock (`pid`, `host`, `since`), or None."""
    try:
        lock = os.open(_lock_path(path), os.O_RDONLY | NO_FOLLOW)
    except OSError:
        return None
    try:
        return None if _try_lock(lock, shared=True) else _read_owner(lock)
    finally:
        os.close(lock)


def _acquire(path: Path) -> int | None:
    """Create the lock file, lock it, and write the owner into it; return its descriptor."""
    lock_path = _lock_path(path)
    if fcntl is None:
        return None
    while True:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o644)
        if not _lock_with_retries(lock):
            owner = _read_owner(lock)
            os.close(lock)
            raise InputError(
                f"another process is writing to {path} (process {owner.get('pid', '?')} on "
                f"{owner.get('host', '?')}, since {owner.get('since', '?')}): "
                "wait for it, stop it, or choose another --out"
            )
        # The former owner may have removed the file after we opened it and before we locked it.
        with contextlib.suppress(FileNotFoundError):
            if lock_path.stat().st_ino == os.fstat(lock).st_ino:
                break
        os.close(lock)
    _write_owner(lock)
    return lock


def _lock_with_retries(lock: int) -> bool:
    """Lock an open file; retry for a moment, since `lock_owner` locks it briefly, too."""
    for _ in range(NUM_LOCK_ATTEMPTS):
        if _try_lock(lock):
            return True
        time.sleep(SECONDS_BETWEEN_ATTEMPTS)
    return False


def _try_lock(lock: int, shared: bool = False) -> bool:
    """Lock an open file. False if another process has locked it."""
    if fcntl is None:
        return True
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(lock, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _write_owner(lock: int) -> None:
    since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
    with contextlib.suppress(OSError):  # the lock also holds without a name, e.g. on a full disk
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(owner).encode(), 0)


def _read_owner(lock: int) -> dict[str, Any]:
    """The owner that a lock file names; empty if the file is damaged."""
    with contextlib.suppress(ValueError, OSError, RecursionError):
        owner = json.loads(os.pread(lock, 1000, 0))
        if isinstance(owner, dict):
            return owner
    return {}


def _lock_path(path: Path) -> Path:
    path = path.resolve()  # the same lock for every symbolic link to the path
    return path.parent / f".{path.name}.lock" if path.suffix == ".parquet" else path / ".lock"
