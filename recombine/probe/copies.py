"""Rows on their way to the CPU: while those of one batch are copied, the network goes on with the next.

A GPU is only told what to do, and does it later; a copy into memory that is locked is told in the same way. To wait
for it after every batch would leave the GPU idle while the next batch is told. So the rows of a batch are taken when
those of the next one are sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

Rows = dict[str, np.ndarray]


class Copies:
    """Batches that were sent and not yet taken: at most one."""

    def __init__(self) -> None:
        self._sent: list[Callable[[], Rows]] = []

    @property
    def under_way(self) -> bool:
        """Whether a batch was sent that is not yet taken."""
        return bool(self._sent)

    def send(self, rows: dict[str, Tensor]) -> Iterator[Rows]:
        """Begin to copy a batch; there is now the one before it, and this one too if it is on the CPU already."""
        names, places = list(rows), _places(rows)
        parts = [_begin(place, there) for place, there in places.items()]
        yield from self.rest()
        self._sent = [lambda: _joined(parts, names)]
        if all(place.type == "cpu" for place in places):
            yield from self.rest()

    def rest(self) -> Iterator[Rows]:
        """What is still on its way."""
        while self._sent:
            yield self._sent.pop()()


def to_cpu(rows: dict[str, Tensor]) -> Rows:
    """One batch, waited for."""
    copies = Copies()
    return [*copies.send(rows), *copies.rest()][0]


def _places(rows: dict[str, Tensor]) -> dict[torch.device, dict[str, Tensor]]:
    """The rows by the device that they are on."""
    found: dict[torch.device, dict[str, Tensor]] = {}
    for name, row in rows.items():
        found.setdefault(row.device, {})[name] = row
    return found


def _joined(parts: list[Callable[[], Rows]], names: Iterable[str]) -> Rows:
    found = {name: array for take in parts for name, array in take().items()}
    return {name: found[name] for name in names}


def _begin(device: torch.device, rows: dict[str, Tensor]) -> Callable[[], Rows]:
    """Begin to copy rows that are on one device, as one block: what waits for it and gives them."""
    if device.type == "cpu":  # they are there already
        return lambda: {name: row.numpy() for name, row in rows.items()}
    flat, done = torch.cat([row.flatten() for row in rows.values()]), None
    if device.type == "cuda":
        block, done = _locked(flat), torch.cuda.Event()
        block.copy_(flat, non_blocking=True)
        done.record(torch.cuda.current_stream(device))
    else:
        block = flat.cpu()
    return lambda: _cut(
        block, rows, done
    )  # rows are not freed before: another stream may have made them


def _locked(like: Tensor) -> Tensor:
    """Memory that stays where it is, if the system lets us have it."""
    with contextlib.suppress(RuntimeError):
        return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True)
    return torch.empty(like.shape, dtype=like.dtype, device="cpu")


def _cut(block: Tensor, rows: dict[str, Tensor], done: Any) -> Rows:
    if done is not None:
        done.synchronize()
    parts = np.split(block.numpy(), np.cumsum([row.numel() for row in rows.values()])[:-1])
    return {
        name: part.reshape(row.shape) for (name, row), part in zip(rows.items(), parts, strict=True)
    }
