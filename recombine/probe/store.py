"""Rows of activations as they come in: in memory up to a limit, beyond it in plain .npy files that are mapped."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recombine.basics.errors import InputError


class Store:
    """Rows of every layer, a batch at a time. Without a folder, files are gone with the arrays that map them.

    Where the number of batches is known, room is made for all of them at the first, so that rows are copied once.
    """

    def __init__(self, max_memory: int, folder: Path | None = None, num_batches: int | None = None):
        self.max_memory, self.folder, self.num_batches = max_memory, folder, num_batches
        self.room: dict[str, np.ndarray] = {}
        self.filled = self.capacity = 0  # rows of the room
        self.parts: dict[str, list[np.ndarray]] = {}  # what came after it was full
        self.widths: dict[str, int] = {}
        self.files: dict[str, Path] = {}
        self.keeper: _Temporary | None = None
        self.in_memory = self.num_rows = 0

    def place(self, name: str, shape: Sequence[int]) -> np.ndarray | None:
        """Where rows of this shape come next, if there is room: what stands there already is not copied by `add`."""
        if (
            name not in self.room
            or self.filled + shape[0] > self.capacity
            or shape[1] != self.widths[name]
        ):
            return None
        return self.room[name][self.filled : self.filled + shape[0]]

    def check(self, name: str, width: int) -> None:
        """Refuse rows of another width than the first ones had."""
        known = self.widths.setdefault(name, width)
        if width != known:
            told = f"layer {name!r} has {known} features in one batch and {width} in another"
            raise InputError(f"{told}: pool over what differs in length, pool='mean' say")

    def add(self, rows: dict[str, np.ndarray]) -> None:
        """Keep one batch of all layers."""
        for name, part in rows.items():
            self.check(name, part.shape[1])
        num = len(next(iter(rows.values())))
        if not self.num_rows:
            self._make_room(rows, num)
        self.num_rows += num
        if self.filled + num <= self.capacity:
            for name, part in rows.items():
                room = self.room[name][self.filled : self.filled + num]
                if not np.may_share_memory(room, part):
                    room[:] = part
            self.filled += num
            return
        self.capacity = self.filled  # what comes now comes after it
        for name, part in rows.items():
            shared = isinstance(
                part.base, np.ndarray
            )  # with other layers, in a block that is not to be kept
            self.parts[name].append(part.copy() if shared else part)
            self.in_memory += part.nbytes
        if self.in_memory > self.max_memory:
            self._spill()

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything so far, by layer: samples x features."""
        if not self.files:
            if self.capacity > 0 and not any(self.parts.values()):
                return {name: room[: self.filled] for name, room in self.room.items()}
            self._leave_room()
            for (
                name,
                parts,
            ) in self.parts.items():  # one layer at a time, so that few rows are there twice
                self.parts[name] = [np.concatenate(parts)] if len(parts) > 1 else parts
            return {name: parts[0] for name, parts in self.parts.items()}
        self._spill()
        with self._telling():
            found: dict[str, Any] = {}
            for name, path in self.files.items():
                with path.open("r+b") as file:
                    np.lib.format.write_array_header_1_0(
                        file, _header(self.num_rows, self.widths[name])
                    )
                found[name] = np.load(path, mmap_mode="r", allow_pickle=False)
                found[name].keeper = self.keeper
        return found

    def _make_room(self, rows: dict[str, np.ndarray], num: int) -> None:
        self.parts = {name: [] for name in rows}
        needed = sum(part.nbytes for part in rows.values()) * (self.num_batches or 0)
        if 0 < needed <= self.max_memory:
            self.capacity, self.in_memory = num * (self.num_batches or 0), needed
            self.room = {
                name: np.empty((self.capacity, part.shape[1]), np.float32)
                for name, part in rows.items()
            }

    def _leave_room(self) -> None:
        """Take what is in the room as the first part."""
        for name, room in self.room.items():
            self.parts[name].insert(0, room[: self.filled])
        self.room, self.capacity = {}, 0

    def _spill(self) -> None:
        """Put at the end of the files what is in memory."""
        self._leave_room()
        with self._telling():
            if not self.files:
                folder = self.folder
                if folder is None:
                    self.keeper = _Temporary()
                    folder = self.keeper.path
                folder.mkdir(parents=True, exist_ok=True)
                for number, name in enumerate(self.parts):
                    self.files[name] = (
                        folder / f"{number:03d}-{re.sub(r'[^0-9A-Za-z.@_=-]', '_', name)}.npy"
                    )
                    self.files[name].unlink(missing_ok=True)  # what maps an older one keeps it
                    with self.files[name].open("wb") as file:
                        np.lib.format.write_array_header_1_0(file, _header(0, self.widths[name]))
            for name, parts in self.parts.items():
                with self.files[name].open("ab") as file:
                    for part in parts:
                        file.write(np.ascontiguousarray(part).data)
                parts.clear()
        self.in_memory = 0

    @contextlib.contextmanager
    def _telling(self):
        try:
            yield
        except OSError as error:
            told = f"activations cannot be kept on disk ({error.strerror or error})"
            raise InputError(
                f"{told}: name another folder, record fewer layers, or raise max_memory"
            ) from error


def _header(num_rows: int, width: int) -> dict[str, object]:
    # NumPy leaves room in the header for a growing first axis, so that it can be written again in place.
    return {"descr": "<f4", "fortran_order": False, "shape": (num_rows, width)}


class _Temporary:
    """A folder that lives as long as someone holds on to it."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="recombine-activations-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
