"""What a network is given: batches cut, moved to its device, handed over; and what went wrong, in words."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recombine.basics.errors import InputError, require


def pieces(batches: Any, batch_size: int) -> tuple[Iterable[Any], int | None]:
    """Batches one by one, and how many there are, None where that is not known."""
    require(batch_size > 0, f"batch_size must be at least 1, got {batch_size}")
    if isinstance(batches, (Tensor, np.ndarray, Mapping)):
        num = size(batches)
        require(
            num is not None,
            "the batch holds no tensor: give tensors or arrays with a row for each sample",
        )
        other = next((len(one) for one in _tensors(batches) if one.ndim and len(one) != num), None)
        told = f"of the tensors that were given, one has {num} rows and another {other}"
        require(
            other is None,
            f"{told}: give a row for each sample in all of them, or a list of batches",
        )
        starts = range(0, num or 0, batch_size)
        return (_part(batches, slice(start, start + batch_size)) for start in starts), len(starts)
    fine = isinstance(batches, Iterable) and not isinstance(batches, (str, bytes))
    require(
        fine,
        f"batches must be a tensor, a list, a generator or a DataLoader, got {type(batches).__name__}",
    )
    many: Any = batches
    try:
        return many, len(many)
    except TypeError:  # a generator, or a DataLoader over a stream
        return many, None


def size(given: Any) -> int | None:
    """How many samples there are, by the first tensor in it that is more than a number."""
    return next((len(tensor) for tensor in _tensors(given) if tensor.ndim), None)


def devices(given: Any) -> set[str]:
    """Where the tensors in it are."""
    return {str(tensor.device) for tensor in _tensors(given) if isinstance(tensor, Tensor)}


class Home:
    """Where a network is and what it takes, looked up once for all batches.

    A batch is moved to its device and, with `cast`, to the type of its weights, if they have one type. A dict is handed
    over by name, a list in order, anything else as it is.
    """

    def __init__(self, model: nn.Module, cast: bool):
        self.model, weights = model, list(model.parameters())
        types = {weight.dtype for weight in weights if weight.is_floating_point()}
        self.kind = types.pop() if cast and len(types) == 1 else None
        self.device = weights[0].device if weights else torch.device("cpu")
        self.signature = inspect.signature(model.forward)

    def move(self, item: Any) -> Any:
        """The batch as the network takes it."""
        if isinstance(item, np.ndarray) and item.dtype.kind in "fiub":
            item = torch.as_tensor(item)
        if isinstance(item, Tensor):
            return item.to(
                self.device, self.kind if item.is_floating_point() else None, non_blocking=True
            )
        if isinstance(item, Mapping):
            return {name: self.move(value) for name, value in item.items()}
        if isinstance(item, (tuple, list)):
            return [self.move(value) for value in item]
        return item

    def call(self, piece: Any) -> Any:
        """Call the network on a batch."""
        args = piece if isinstance(piece, list) else [] if isinstance(piece, dict) else [piece]
        kwargs = piece if isinstance(piece, dict) else {}
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            given = ", ".join(kwargs) or f"{len(args)} inputs"
            told = f"the model cannot be called with a batch of {given} ({error})"
            raise InputError(
                f"{told}: say how, forward=lambda model, batch: model(batch[0]) for instance"
            ) from None
        return self.model(*args, **kwargs)


def explain(
    error: BaseException, model: nn.Module, num: int | None, inputs: set[str]
) -> str | None:
    """What the user can do about an error while the network ran; None where we know no better."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text:
        batch = f"a batch of {num} samples" if num else "a batch"
        return f"{batch} does not fit into memory: give smaller batches, half as large say, or record fewer layers"
    if not isinstance(error, (RuntimeError, NotImplementedError)):
        return None
    weights = {str(weight.device) for weight in [*model.parameters(), *model.buffers()]}
    if weights == {"meta"}:
        return "the model has no weights yet, it is on the device meta: load them first"
    if len(weights | inputs) > 1 and "device" in text:
        where = " and ".join(sorted(weights))
        home = next((one for one in sorted(weights, reverse=True) if one != "meta"), "cpu")
        told = f"the model is on {where}" + (
            f" and its inputs are on {' and '.join(sorted(inputs))}" if inputs else ""
        )
        return f"{told}: move all to one device, model.to({home!r}) say"
    return None


def _tensors(given: Any) -> Iterator[Any]:
    if isinstance(given, (Tensor, np.ndarray)):
        yield given
    values = (
        given.values()
        if isinstance(given, Mapping)
        else given
        if isinstance(given, (tuple, list))
        else ()
    )
    for value in values:
        yield from _tensors(value)


def _part(given: Any, rows: slice) -> Any:
    if isinstance(given, Mapping):
        return {name: _part(value, rows) for name, value in given.items()}
    return given[rows] if isinstance(given, (Tensor, np.ndarray)) and given.ndim else given
