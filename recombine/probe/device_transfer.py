"""Asynchronous copies of activations to the CPU: the network runs while the last batch is copied.

A GPU executes operations, copies into pinned memory included, after Python has queued them. Waiting
for the copy after every batch would leave the GPU idle while Python queues the next batch. So the
rows of a batch are collected after the next batch has been sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

Rows = dict[str, np.ndarray]  # by layer: samples x features


class HostTransfer:
    """Copies batches to the CPU; at most one batch is pending."""

    def __init__(self) -> None:
        self._pending: list[Callable[[], Rows]] = []

    @property
    def is_pending(self) -> bool:
        """Whether a batch was sent that has not been collected."""
        return bool(self._pending)

    def send(self, rows: dict[str, Tensor]) -> Iterator[Rows]:
        """Start to copy a batch; yield the batch before it, and this one if it is on the CPU."""
        names = list(rows)
        by_device = _by_device(rows)
        copies = [_start_copy(device, on_device) for device, on_device in by_device.items()]
        yield from self.finish()
        self._pending = [lambda: _merge(copies, names)]
        if all(device.type == "cpu" for device in by_device):
            yield from self.finish()

    def finish(self) -> Iterator[Rows]:
        """Wait for the pending batch, if there is one, and yield it."""
        while self._pending:
            collect = self._pending.pop()
            yield collect()


def to_cpu(rows: dict[str, Tensor]) -> Rows:
    """Copy one batch and wait for it."""
    transfer = HostTransfer()
    batches = [*transfer.send(rows), *transfer.finish()]
    return batches[0]


def _by_device(rows: dict[str, Tensor]) -> dict[torch.device, dict[str, Tensor]]:
    by_device: dict[torch.device, dict[str, Tensor]] = {}
    for name, row in rows.items():
        by_device.setdefault(row.device, {})[name] = row
    return by_device


def _merge(copies: list[Callable[[], Rows]], names: list[str]) -> Rows:
    """The rows of all devices, in the order of the names."""
    merged: Rows = {}
    for collect in copies:
        merged |= collect()
    return {name: merged[name] for name in names}


def _start_copy(device: torch.device, rows: dict[str, Tensor]) -> Callable[[], Rows]:
    """Start to copy rows of one device as one block; return a function that waits for them."""
    if device.type == "cpu":  # nothing to copy
        return lambda: {name: row.numpy() for name, row in rows.items()}
    flat = torch.cat([row.flatten() for row in rows.values()])
    if device.type == "cuda":
        block = _empty_pinned(flat)
        block.copy_(flat, non_blocking=True)
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(device))
    else:
        block = flat.cpu()
        done = None
    # The function keeps the rows alive: another stream may have made them.
    return lambda: _unpack(block, rows, done)


def _empty_pinned(like: Tensor) -> Tensor:
    """Pinned memory, or ordinary memory if the system has no more."""
    with contextlib.suppress(RuntimeError):
        return torch.empty(like.shape, dtype=like.dtype, device="cpu", pin_memory=True)
    return torch.empty(like.shape, dtype=like.dtype, device="cpu")


def _unpack(block: Tensor, rows: dict[str, Tensor], done: Any) -> Rows:
    """Wait for a block, and cut it into rows of the original shapes."""
    if done is not None:
        done.synchronize()
    ends = np.cumsum([row.numel() for row in rows.values()])
    flat_rows = np.split(block.numpy(), ends[:-1])
    return {
        name: flat.reshape(row.shape)
        for (name, row), flat in zip(rows.items(), flat_rows, strict=True)
    }
