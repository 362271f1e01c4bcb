"""Storage of recorded activations: in memory up to a limit, then in memory-mapped .npy files."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recombine.basics.errors import InputError


class ActivationStore:
    """Rows of every layer, added batch by batch.

    Beyond `max_memory` bytes, rows go to files in the folder, or in a temporary folder that is
    deleted with the last array that maps its files. If the number of batches is known, memory for
    all rows is reserved with the first batch, so that rows are copied only once.
    """

    def __init__(self, max_memory: int, folder: Path | None = None, num_batches: int | None = None):
        self.max_memory = max_memory
        self.folder = folder
        self.num_batches = num_batches
        self.reserved: dict[str, np.ndarray] = {}
        self.num_filled = 0  # rows of the reserved memory
        self.capacity = 0
        self.batches: dict[str, list[np.ndarray]] = {}  # rows after the reserved memory
        self.widths: dict[str, int] = {}
        self.files: dict[str, Path] = {}
        self.temporary: _TemporaryFolder | None = None
        self.num_bytes = 0  # in memory
        self.num_rows = 0

    def next_rows(self, name: str, shape: Sequence[int]) -> np.ndarray | None:
        """The reserved memory of a layer's next rows, if any; `add` does not copy from it."""
        if name not in self.reserved or shape[1] != self.widths[name]:
            return None
        if self.num_filled + shape[0] > self.capacity:
            return None
        return self.reserved[name][self.num_filled : self.num_filled + shape[0]]

    def check_width(self, name: str, width: int) -> None:
        """Refuse rows of another width than the first ones."""
        first_width = self.widths.setdefault(name, width)
        if width != first_width:
            raise InputError(
                f"layer {name!r} has {first_width} features in one batch and {width} in another: "
                "pool over the axis whose length differs, for example with pool='mean'"
            )

    def add(self, rows: dict[str, np.ndarray]) -> None:
        """Store one batch of all layers."""
        for name, batch in rows.items():
            self.check_width(name, batch.shape[1])
        num_new = len(next(iter(rows.values())))
        if not self.num_rows:
            self._reserve(rows, num_new)
        self.num_rows += num_new
        if self.num_filled + num_new <= self.capacity:
            self._fill_reserved(rows, num_new)
            return
        self.capacity = self.num_filled  # later batches must not go before this one
        for name, batch in rows.items():
            # A batch that is a view shares a block with other layers, which must not stay in
            # memory.
            is_view = isinstance(batch.base, np.ndarray)
            self.batches[name].append(batch.copy() if is_view else batch)
            self.num_bytes += batch.nbytes
        if self.num_bytes > self.max_memory:
            self._write_to_files()

    def arrays(self) -> dict[str, np.ndarray]:
        """All rows so far, by layer: samples x features."""
        if self.files:
            return self._mapped_arrays()
        if self.capacity > 0 and not any(self.batches.values()):
            return {name: memory[: self.num_filled] for name, memory in self.reserved.items()}
        self._release_reserved()
        for name, batches in self.batches.items():  # layer by layer, so that few rows exist twice
            self.batches[name] = [np.concatenate(batches)] if len(batches) > 1 else batches
        return {name: batches[0] for name, batches in self.batches.items()}

    def _reserve(self, rows: dict[str, np.ndarray], batch_size: int) -> None:
        """Reserve memory for all batches, if their number is known and they fit."""
        self.batches = {name: [] for name in rows}
        num_batches = self.num_batches or 0
        needed = sum(batch.nbytes for batch in rows.values()) * num_batches
        if 0 < needed <= self.max_memory:
            self.capacity = batch_size * num_batches
            self.num_bytes = needed
            self.reserved = {
                name: np.empty((self.capacity, batch.shape[1]), np.float32)
                for name, batch in rows.items()
            }

    def _fill_reserved(self, rows: dict[str, np.ndarray], num_new: int) -> None:
        for name, batch in rows.items():
            memory = self.reserved[name][self.num_filled : self.num_filled + num_new]
            if not np.may_share_memory(memory, batch):
                memory[:] = batch
        self.num_filled += num_new

    def _release_reserved(self) -> None:
        """Turn the rows in reserved memory into the first batch."""
        for name, memory in self.reserved.items():
            self.batches[name].insert(0, memory[: self.num_filled])
        self.reserved = {}
        self.capacity = 0

    def _write_to_files(self) -> None:
        """Append all rows in memory to the files."""
        self._release_reserved()
        with _explaining_disk_errors():
            if not self.files:
                self._create_files()
            for name, batches in self.batches.items():
                with self.files[name].open("ab") as file:
                    for batch in batches:
                        file.write(np.ascontiguousarray(batch).data)
                batches.clear()
        self.num_bytes = 0

    def _create_files(self) -> None:
        folder = self.folder
        if folder is None:
            self.temporary = _TemporaryFolder()
            folder = self.temporary.path
        folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(self.batches):
            safe_name = re.sub(r"[^0-9A-Za-z.@_=-]", "_", name)
            path = folder / f"{number:03d}-{safe_name}.npy"
            path.unlink(missing_ok=True)  # arrays that map an older file keep it
            with path.open("wb") as file:
                np.lib.format.write_array_header_1_0(file, _header(0, self.widths[name]))
            self.files[name] = path

    def _mapped_arrays(self) -> dict[str, np.ndarray]:
        self._write_to_files()
        arrays: dict[str, Any] = {}
        with _explaining_disk_errors():
            for name, path in self.files.items():
                header = _header(self.num_rows, self.widths[name])
                with path.open("r+b") as file:
                    np.lib.format.write_array_header_1_0(file, header)
                arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
                arrays[name].temporary_folder = self.temporary  # lives as long as the array
        return arrays


def _header(num_rows: int, width: int) -> dict[str, object]:
    # NumPy leaves space in the header for a growing first axis, so it can be rewritten in place.
    return {"descr": "<f4", "fortran_order": False, "shape": (num_rows, width)}


@contextlib.contextmanager
def _explaining_disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"activations cannot be written to disk ({error.strerror or error}): set another "
            "folder, record fewer layers, or raise max_memory"
        ) from error


class _TemporaryFolder:
    """A folder that is deleted when this object is no longer referenced."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="recombine-activations-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
