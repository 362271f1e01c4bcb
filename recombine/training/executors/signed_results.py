"""Results of Slurm jobs as signed data: rows as Parquet, other values as JSON, never a pickle.

The secret of a sweep is in a file that only its user may read. A job signs its result with it, and
the driver compares the signature before it reads anything else. So nobody who can only write to the
folder of the jobs can forge a result.
"""

import builtins
import contextlib
import hashlib
import hmac
import json
import os
import secrets
import signal
import threading
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.basics.atomic_io import NO_FOLLOW, write_atomically
from recombine.basics.errors import InputError, require
from recombine.storage import parquet

SIGNATURE_BYTES = 32
# A result begins with its kind and a line break.
ROWS, VALUE, ERROR = b"rows", b"value", b"error"


class Key:
    """The secret of one sweep, in a file of the folder of its jobs until `remove`."""

    def __init__(self, folder: Path):
        self.secret = secrets.token_bytes(32)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder.absolute() / f"{uuid.uuid4().hex}.key"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW
        file = os.open(self.path, flags, 0o600)  # jobs belong to the same user
        try:
            os.write(file, self.secret)
        finally:
            os.close(file)

    def remove(self) -> None:
        """Delete the file. Jobs that still run cannot sign a result any more."""
        self.path.unlink(missing_ok=True)

    def read(self, path: Path) -> tuple[Any, Exception | None]:
        """The value of a call and None, or None and its error. Deletes the file of the result."""
        data = path.read_bytes()
        signature, content = data[:SIGNATURE_BYTES], data[SIGNATURE_BYTES:]
        require(
            hmac.compare_digest(signature, _signature(self.secret, path.name, content)),
            f"{path} was changed, or was not written by a job of this sweep: make sure that nobody "
            "else can write to its folder, and run the same command again",
        )
        kind, _, body = content.partition(b"\n")
        path.unlink(missing_ok=True)
        if kind == ROWS:
            return parquet.decode(body, path), None
        if kind == VALUE:
            return json.loads(body), None
        return None, _to_error(json.loads(body))


class SignedCall:
    """A function to be called in a job. Its result is written to `path` and signed."""

    def __init__(self, key_path: Path, function: Callable[[], Any]):
        self.key_path = key_path
        self.path = key_path.with_name(f"{uuid.uuid4().hex}.result")
        self.function = function

    def __call__(self) -> None:
        """Call the function, and write its result or its error."""
        secret = self.key_path.read_bytes()  # before the call, which may take hours
        _handle_end_of_job()
        try:
            content = _to_bytes(self.function())
        except Exception as error:
            content = ERROR + b"\n" + json.dumps(_describe(error)).encode()
        write_atomically(self.path, _signature(secret, self.path.name, content) + content)


def _signature(secret: bytes, name: str, content: bytes) -> bytes:
    # The name is signed, too: the result of one job cannot take the place of another.
    return hmac.digest(secret, name.encode() + b"\n" + content, hashlib.sha256)


def _to_bytes(result: Any) -> bytes:
    if isinstance(result, pd.DataFrame):
        return ROWS + b"\n" + parquet.encode(result)
    return VALUE + b"\n" + json.dumps(result).encode()


def _describe(error: Exception) -> dict[str, str]:
    return {
        "type": type(error).__name__,
        "text": str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _to_error(description: dict[str, str]) -> Exception:
    """The error of a job: of its own type if that is ours or one of Python's."""
    name, text = description["type"], description["text"]
    known: Any = InputError if name == InputError.__name__ else getattr(builtins, name, None)
    error: Any = None
    with contextlib.suppress(TypeError):  # it is unknown, or needs other arguments
        error = known(text)
    if not isinstance(error, Exception):
        error = RuntimeError(f"{name}: {text}")
    error.add_note(description["traceback"])
    return error


def _handle_end_of_job() -> None:
    """Take over the signals of submitit, which ignores SIGTERM and gives up at SIGUSR2.

    Training then saves a last checkpoint at both (`termination.stop_on_sigterm`).
    """
    is_job = "SUBMITIT_FOLDER" in os.environ
    if is_job and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGUSR2, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
