"""Batches for a network: splitting, moving to its device, calling it, and explaining errors."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recombine.basics.errors import InputError, require


def split_into_batches(data: Any, batch_size: int) -> tuple[Iterable[Any], int | None]:
    """The batches, and their number or None if it is unknown.

    A tensor, an array or a dict of them is cut into batches of `batch_size`. Any other iterable
    already consists of batches.
    """
    require(batch_size > 0, f"batch_size must be at least 1, got {batch_size}")
    if isinstance(data, (Tensor, np.ndarray, Mapping)):
        total = _common_length(data)
        starts = range(0, total, batch_size)
        batches = (_select_rows(data, slice(start, start + batch_size)) for start in starts)
        return batches, len(starts)
    require(
        isinstance(data, Iterable) and not isinstance(data, (str, bytes)),
        f"batches must be a tensor, a list, a generator or a DataLoader, got {type(data).__name__}",
    )
    iterable: Any = data
    try:
        return iterable, len(iterable)
    except TypeError:  # a generator, or a DataLoader over a stream
        return iterable, None


def _common_length(data: Any) -> int:
    """The number of samples in a tensor or a dict of tensors of equal length."""
    total = num_samples(data)
    if total is None:
        raise InputError(
            "the batch holds no tensor: provide tensors or arrays with one row per sample"
        )
    for tensor in _tensors(data):
        if tensor.ndim and len(tensor) != total:
            raise InputError(
                f"one tensor has {total} rows and another {len(tensor)}: provide one row per "
                "sample in all of them, or a list of batches"
            )
    return total


def num_samples(batch: Any) -> int | None:
    """The length of the first tensor in a batch that is not a single number."""
    return next((len(tensor) for tensor in _tensors(batch) if tensor.ndim), None)


def tensor_devices(batch: Any) -> set[str]:
    """The devices of the tensors in a batch."""
    return {str(tensor.device) for tensor in _tensors(batch) if isinstance(tensor, Tensor)}


class ModelCaller:
    """Calls a network on batches; its device, type and signature are looked up once.

    A batch is moved to the network's device and, with `cast`, to the type of its weights, if all
    have the same. A dict is passed by keyword, a list by position, anything else as a single
    argument.
    """

    def __init__(self, model: nn.Module, cast: bool):
        weights = list(model.parameters())
        types = {weight.dtype for weight in weights if weight.is_floating_point()}
        self.model = model
        self.dtype = types.pop() if cast and len(types) == 1 else None
        self.device = weights[0].device if weights else torch.device("cpu")
        self.signature = inspect.signature(model.forward)

    def prepare(self, batch: Any) -> Any:
        """The batch as tensors on the network's device."""
        if isinstance(batch, np.ndarray) and batch.dtype.kind in "fiub":
            batch = torch.as_tensor(batch)
        if isinstance(batch, Tensor):
            dtype = self.dtype if batch.is_floating_point() else None
            return batch.to(self.device, dtype, non_blocking=True)
        if isinstance(batch, Mapping):
            return {name: self.prepare(value) for name, value in batch.items()}
        if isinstance(batch, (tuple, list)):
            return [self.prepare(value) for value in batch]
        return batch

    def call(self, batch: Any) -> Any:
        """Call the network on a prepared batch."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        if isinstance(batch, dict):
            kwargs = batch
        elif isinstance(batch, list):
            args = batch
        else:
            args = [batch]
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            inputs = ", ".join(kwargs) or f"{len(args)} inputs"
            raise InputError(
                f"the model cannot be called with a batch of {inputs} ({error}): set forward, for "
                "example forward=lambda model, batch: model(batch[0])"
            ) from None
        return self.model(*args, **kwargs)


def explain_error(
    error: BaseException, model: nn.Module, batch_size: int | None, input_devices: set[str]
) -> str | None:
    """What the user can do about an error of the network; None if we do not know."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in text:
        batch = f"a batch of {batch_size} samples" if batch_size else "a batch"
        return f"{batch} does not fit into memory: use smaller batches, or record fewer layers"
    if not isinstance(error, (RuntimeError, NotImplementedError)):
        return None
    weights = {str(weight.device) for weight in [*model.parameters(), *model.buffers()]}
    if weights == {"meta"}:
        return "the model is on the device meta and has no weights yet: load them first"
    if "device" not in text or len(weights | input_devices) < 2:
        return None
    problem = f"the model is on {' and '.join(sorted(weights))}"
    if input_devices:
        problem += f" and its inputs are on {' and '.join(sorted(input_devices))}"
    real_devices = [device for device in sorted(weights, reverse=True) if device != "meta"]
    target = real_devices[0] if real_devices else "cpu"
    return f"{problem}: move everything to one device, for example model.to({target!r})"


def _tensors(batch: Any) -> Iterator[Any]:
    """All tensors and arrays in a batch, at any depth."""
    if isinstance(batch, (Tensor, np.ndarray)):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from _tensors(value)


def _select_rows(data: Any, rows: slice) -> Any:
    """Rows of all tensors in the data; single numbers stay."""
    if isinstance(data, Mapping):
        return {name: _select_rows(value, rows) for name, value in data.items()}
    if isinstance(data, (Tensor, np.ndarray)) and data.ndim:
        return data[rows]
    return data
