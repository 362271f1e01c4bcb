"""Where a chunk of runs stands, on disk: what makes a killed sweep lose a minute of a long chunk and not all of it.

One file per chunk: a checksum, a line of JSON (strides done, seconds), then the equinox leaves of every carry and of
the scores so far, written atomically. It is found again only by the same runs at the same width, with the same code,
JAX and device, so nothing half-trained by one version is ever finished by another; a damaged one is as good as none.
"""

import contextlib
import hashlib
import io
import json
import os
import time
import zlib
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from recombine.basics.atomic_io import replace, sweep_up
from recombine.basics.errors import InputError
from recombine.sweeps.code_hash import of_package
from recombine.sweeps.run import NUMERICS, Run, identity
from recombine.training import device

EVERY = 30.0  # seconds between checkpoints, `$RECOMBINE_CHECKPOINT` if set
PRICE = 0.1  # of the time, at most, goes into writing them: large ones are written more seldom


class Checkpoint:
    """The checkpoint of one chunk; without a folder it is never due and never there."""

    def __init__(self, folder: Path | None, runs: Sequence[Run], width: int):
        self.every, self.written = EVERY if folder is None else every(), time.perf_counter()
        self.path = None
        if folder is not None:
            kind = jax.devices()[0].device_kind
            versions = [
                NUMERICS,
                of_package(),
                *map(version, ("jax", "jaxlib", "optax", "equinox")),
            ]
            versions += [kind, device.num_devices(), *device.settings()]
            names = [identity(run) for run in runs]
            text = json.dumps([names, width, *versions], default=str)
            self.path = folder / f"{names[0]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.eqx"

    def due(self) -> bool:
        """Whether enough time has passed since the last one."""
        return self.path is not None and time.perf_counter() - self.written > self.every

    def save(
        self, at: int, seconds: float, history: list[dict[str, np.ndarray]], carries: list[Any]
    ) -> None:
        """Write the strides done, the seconds that they took, the scores so far and all that training changes.

        Whatever goes wrong stops no training: after a full disk the next one is tried later, and a state that cannot be
        written (a random key in an optimiser, say) is not tried again.
        """
        if self.path is None:
            return
        clock = time.perf_counter()
        try:
            self._write(at, seconds, history, carries)
        except OSError:
            pass
        except Exception:
            self.path = None
        self.written = time.perf_counter()
        self.every = max(every(), (self.written - clock) / PRICE)

    def _write(
        self, at: int, seconds: float, history: list[dict[str, np.ndarray]], carries: list[Any]
    ) -> None:
        assert self.path is not None
        body = io.BytesIO()
        eqx.tree_serialise_leaves(body, (jax.device_get(carries), history))
        columns = [
            [name, str(values.dtype), values.shape] for name, values in (history or [{}])[0].items()
        ]
        head = {"at": at, "seconds": seconds, "evals": len(history), "columns": columns}
        data = json.dumps(head).encode() + b"\n" + body.getvalue()
        replace(self.path, _seal(data) + data)

    def load(
        self, carries: Any
    ) -> tuple[int, float, list[dict[str, np.ndarray]], list[Any]] | None:
        """What was saved, arrays shaped like the given ones; None where there is nothing, or nothing whole."""
        try:
            assert self.path is not None
            data = self.path.read_bytes()
            assert data[:9] == _seal(data[9:])
            head, _, body = data[9:].partition(b"\n")
            about = json.loads(head)
            blank = {name: np.empty(shape, dtype) for name, dtype, shape in about["columns"]}
            # On the host: the device may have no room for them beside others.
            like = (
                jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), carries),
                [blank] * about["evals"],
            )
            carries, history = eqx.tree_deserialise_leaves(io.BytesIO(body), like)
            history = [
                {name: scores[name] for name in blank} for scores in history
            ]  # a tree sorts its names
            return about["at"], about["seconds"], history, carries
        except (AssertionError, OSError, ValueError, KeyError, TypeError, RuntimeError):
            return None


def _seal(data: bytes) -> bytes:
    return b"%08x\n" % zlib.crc32(data)


NONE = Checkpoint(None, (), 0)


def forget(folder: Path | None, names: Iterable[str]) -> None:
    """Remove the checkpoints of runs, by their hashes, whose rows are written, and the folder with the last one."""
    if folder is None or not folder.is_dir():
        return
    names = set(names)
    with contextlib.suppress(OSError):
        for path in folder.glob("*.eqx"):
            if path.name.split("-")[0] in names:
                path.unlink(missing_ok=True)
        sweep_up(folder)
        folder.rmdir()  # unless another chunk's are still there


def every() -> float:
    """The seconds between two checkpoints."""
    text = os.environ.get("RECOMBINE_CHECKPOINT", "")
    try:
        return float(text or EVERY)
    except ValueError:
        raise InputError(f"RECOMBINE_CHECKPOINT={text} must be a number of seconds") from None
