"""Checkpoints of a chunk in training, so that a killed sweep loses seconds of training, not hours.

There is one file per chunk, written atomically: a checksum, a line of JSON (its key, its runs, the
strides done, the seconds), then the equinox leaves of every carry and of the scores so far.

A checkpoint is found again only by the same runs at the same width, with the same code, on
a machine that computes the same numbers (`machine.py`), so that no chunk is
continued by other code or on another machine. A damaged file is ignored.
"""

import contextlib
import hashlib
import io
import json
import os
import time
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from recombine.basics.atomic_io import remove_leftovers, write_atomically
from recombine.basics.errors import InputError
from recombine.sweeps.code_hash import hash_of_package
from recombine.sweeps.run import NUMERICS, Run, identity
from recombine.training import heartbeat, machine

DEFAULT_INTERVAL = 30.0  # seconds between checkpoints, unless `$RECOMBINE_CHECKPOINT` is set
MAX_TIME_FRACTION = 0.1  # of the training time, for writing checkpoints

Scores = dict[str, np.ndarray]


class Checkpoint:
    """The checkpoint of one chunk. Without a folder nothing is saved or loaded."""

    def __init__(self, folder: Path | None, runs: Sequence[Run], width: int):
        self.interval = DEFAULT_INTERVAL if folder is None else min_interval()
        self.last_saved = time.perf_counter()
        self.run_hashes = [identity(run) for run in runs]
        self.path = None
        self.key = ""
        if folder is not None:
            self.key = _key(self.run_hashes, width)
            self.path = folder / _file_name(self.run_hashes, self.key)

    def is_due(self) -> bool:
        """Whether enough time has passed since the last checkpoint."""
        return self.path is not None and time.perf_counter() - self.last_saved > self.interval

    def save(
        self, num_strides: int, seconds: float, history: list[Scores], carries: list[Any]
    ) -> None:
        """Save the strides done, their training time, the scores so far and the carry of each lane.

        An error here does not stop training. After an `OSError` (a full disk), saving is tried
        again later. A state that cannot be serialized (with random keys in an optimizer, for
        example) is not tried again.
        """
        if self.path is None:
            return
        started = time.perf_counter()
        try:
            owner = {"key": self.key, "runs": self.run_hashes}
            write_atomically(self.path, _to_bytes(owner, num_strides, seconds, history, carries))
        except OSError:
            pass
        except Exception:
            self.path = None
        self.last_saved = time.perf_counter()
        # A large checkpoint takes long to write, and so is written less often.
        self.interval = max(min_interval(), (self.last_saved - started) / MAX_TIME_FRACTION)

    def load(self, carries: Any) -> tuple[int, float, list[Scores], list[Any]] | None:
        """Load what `save` saved. The shapes are those of `carries`.

        None if there is no checkpoint, or if it is damaged or has the key of another one.
        """
        if self.path is None:
            return None
        try:
            data = self.path.read_bytes()
            if read_header(data)["key"] != self.key:
                return None
            return _from_bytes(data, carries)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError):
            return None


NO_CHECKPOINT = Checkpoint(None, (), 0)


def _key(run_hashes: list[str], width: int) -> str:
    """A hash of everything that a checkpoint depends on."""
    depends_on = [run_hashes, width, NUMERICS, hash_of_package(), machine.key()]
    text = json.dumps(depends_on, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _file_name(run_hashes: list[str], key: str) -> str:
    return f"{run_hashes[0]}-{key}.eqx"


def problem_of(path: Path) -> str | None:
    """What is wrong with a checkpoint file, in one line; None if it is whole and has its name."""
    try:
        header = read_header(path.read_bytes())
        if path.name == _file_name(header["runs"], header["key"]):
            return None
        reason = f"it is the checkpoint of another chunk, {header['runs'][0]}"
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        reason = str(error) if isinstance(error, OSError | ValueError) else "its head is not valid"
    return f"{path} is not a usable checkpoint ({reason}): it will be ignored; delete it"


def _to_bytes(
    owner: dict[str, Any],
    num_strides: int,
    seconds: float,
    history: list[Scores],
    carries: list[Any],
) -> bytes:
    leaves = io.BytesIO()
    eqx.tree_serialise_leaves(leaves, (jax.device_get(carries), history))
    first_scores = history[0] if history else {}
    columns = [[name, str(values.dtype), values.shape] for name, values in first_scores.items()]
    header = owner | {
        "at": num_strides,
        "seconds": seconds,
        "evals": len(history),
        "columns": columns,
    }
    content = json.dumps(header).encode() + b"\n" + leaves.getvalue()
    return _checksum(content) + content


def read_header(data: bytes) -> dict[str, Any]:
    """The head of a checkpoint. A `ValueError` if any byte of the file is damaged."""
    checksum_size = len(_checksum(b""))
    content = data[checksum_size:]
    if data[:checksum_size] != _checksum(content):
        raise ValueError("the checksum is wrong")
    header = json.loads(content.partition(b"\n")[0])
    if not isinstance(header, dict):
        raise ValueError("its head is not a JSON object")
    return header


def _from_bytes(data: bytes, carries: Any) -> tuple[int, float, list[Scores], list[Any]]:
    """What `_to_bytes` was given, without the owner. A `ValueError` if the data are damaged."""
    header = read_header(data)
    leaves = data[len(_checksum(b"")) :].partition(b"\n")[2]
    scores = {name: np.empty(shape, dtype) for name, dtype, shape in header["columns"]}
    # Arrays of the host: the device may not have room for them beside others.
    empty_carries = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), carries)
    like = (empty_carries, [scores] * header["evals"])
    carries, history = eqx.tree_deserialise_leaves(io.BytesIO(leaves), like)
    # A tree sorts the names of a dict. Here they get their order back.
    history = [{name: loaded[name] for name in scores} for loaded in history]
    return header["at"], header["seconds"], history, carries


def _checksum(content: bytes) -> bytes:
    return b"%08x\n" % zlib.crc32(content)


def remove_checkpoints(folder: Path | None, run_hashes: Iterable[str]) -> None:
    """Remove the checkpoints of these runs, and the folder when it is empty."""
    if folder is None or not folder.is_dir():
        return
    run_hashes = set(run_hashes)
    with contextlib.suppress(OSError):
        for path in folder.glob("*.eqx"):
            if path.name.split("-")[0] in run_hashes:
                path.unlink(missing_ok=True)
        for path in folder.glob(f"*{heartbeat.SUFFIX}"):
            if path.stem in run_hashes:
                path.unlink(missing_ok=True)
        remove_leftovers(folder)
        folder.rmdir()  # fails if another chunk has a checkpoint there


def drop_all(folder: Path | None) -> bool:
    """Delete all checkpoints of a folder. False if there is none."""
    paths = [] if folder is None else list(folder.glob("*.eqx"))
    with contextlib.suppress(OSError):
        for path in paths:
            path.unlink(missing_ok=True)
    return bool(paths)


def min_interval() -> float:
    """The shortest time between checkpoints in seconds: `$RECOMBINE_CHECKPOINT` if it is set."""
    text = os.environ.get("RECOMBINE_CHECKPOINT", "")
    try:
        return float(text or DEFAULT_INTERVAL)
    except ValueError:
        raise InputError(f"RECOMBINE_CHECKPOINT={text} must be a number of seconds") from None
