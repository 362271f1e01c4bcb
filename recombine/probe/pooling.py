"""Pooling of a layer's output to one row of numbers per sample, over tokens or over space.

Two axes are samples x features. With three axes, features are last (samples x tokens x features).
With more, features are second, as in convolutions (samples x channels x height x width). The option
`channels="first"` or `"last"` overrides this. Sums are computed in float32, whatever the layer's
type. Padding is left out where there is an attention mask.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from recombine.basics.errors import InputError, require

EVERY = "every"
PoolName = Literal["mean", "first", "last", "flat", "every"]
Pool = PoolName | int | tuple[int, int] | Callable[[Tensor], Tensor]
Channels = Literal["first", "last"] | None
# A function from the shape of rows to the memory where they will be stored, None if that is
# unknown.
FindMemory = Callable[[torch.Size], np.ndarray | None]
PREFERRED_OUTPUTS = ("last_hidden_state", "sample", "hidden_states", "logits")


def find_tensor(output: Any) -> Tensor | None:
    """The tensor of a layer's output.

    The output itself, the first tensor of a tuple, or the preferred entry of a dict of outputs.
    """
    if isinstance(output, Tensor):
        return output
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        fields = dataclasses.fields(output)
        output = {field.name: getattr(output, field.name, None) for field in fields}
    if isinstance(output, Mapping):
        preferred = [output[name] for name in PREFERRED_OUTPUTS if output.get(name) is not None]
        output = [*preferred, *output.values()]
    if isinstance(output, (tuple, list)):
        for item in output:
            tensor = find_tensor(item)
            if tensor is not None:
                return tensor
    return None


def is_position(pool: Any) -> bool:
    """Whether this chooses tokens: the index of one, or a span of two indices."""
    if isinstance(pool, tuple):
        return len(pool) == 2 and all(_is_index(bound) for bound in pool)
    return _is_index(pool)


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def count_rows(name: str, tensor: Tensor, mask: Tensor | None) -> Tensor:
    """The number of rows of every sample with `pool="every"`: that of its tokens, or 1."""
    if tensor.is_nested:
        return torch.tensor([len(sample) for sample in tensor.unbind()])
    if tensor.ndim < 3:
        return torch.ones(len(tensor) if tensor.ndim else 1, dtype=torch.long)
    return _real_tokens(name, tensor, mask).sum(dim=1).cpu()


def pool_output(
    name: str,
    tensor: Tensor,
    pool: Pool,
    channels: Channels = None,
    mask: Tensor | None = None,
    find_memory: FindMemory | None = None,
) -> Tensor:
    """One row of float32 per sample, in memory that the network does not write to.

    `name` is the layer's, for error messages. If the rows have to be copied, the copy goes to the
    memory that `find_memory` returns, if any.
    """
    if tensor.is_nested:  # samples of several lengths, without padding
        require(
            pool != "flat",
            f"layer {name!r} has samples of different lengths: pool over them, for example with "
            "pool='mean'",
        )
        rows = [_pool(name, sample[None], pool, channels, None) for sample in tensor.unbind()]
        return torch.cat(rows)
    rows = _pool(name, tensor, pool, channels, mask)
    if pool == "mean" and tensor.ndim > 2:  # a mean is a new tensor
        return rows
    # The next layer may write into this layer's output, as an inplace ReLU does.
    if not _shares_storage(rows, tensor):
        return rows
    memory = None
    if find_memory is not None and rows.device.type == "cpu":
        memory = find_memory(rows.shape)
    return rows.clone() if memory is None else torch.from_numpy(memory).copy_(rows)


def _shares_storage(rows: Tensor, tensor: Tensor) -> bool:
    if rows.device != tensor.device:
        return False
    return rows.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


def _pool(name: str, tensor: Tensor, pool: Pool, channels: Channels, mask: Tensor | None) -> Tensor:
    require(
        tensor.ndim > 0,
        f"layer {name!r} returned a single number: choose a layer with one row per sample",
    )
    tensor = tensor.detach()
    if callable(pool):
        return _pool_by_function(name, tensor, pool)
    _require_real(name, tensor)
    if tensor.ndim < 3 or pool == "flat":
        return _as_rows(tensor)
    channels_first = channels == "first" or (channels is None and tensor.ndim > 3)
    has_tokens = tensor.ndim == 3 and not channels_first
    if mask is not None and has_tokens:
        return _pool_masked(name, tensor, pool, mask)
    if pool != "mean":
        require(
            has_tokens,
            f"layer {name!r} has {tensor.ndim} axes and no {_token_name(pool)}: use pool='mean'",
        )
        return _pool_masked(name, tensor, pool, None)
    axes = range(2, tensor.ndim) if channels_first else range(1, tensor.ndim - 1)
    return tensor.mean(dim=tuple(axes), dtype=torch.float32)


def _token_name(pool: Any) -> str:
    if pool == EVERY:
        return "tokens"
    return f"{pool} token" if isinstance(pool, str) else f"token {pool}"


def _chosen_tokens(name: str, is_real: Tensor, pool: Any) -> Tensor:
    """The tokens of a position or span, counted without padding: samples x tokens."""
    span: Any = {"first": 0, "last": -1}.get(pool, pool) if isinstance(pool, str) else pool
    start, stop = span if isinstance(span, tuple) else (span, span + 1)
    length = is_real.sum(dim=1, keepdim=True)
    from_end = start < 0
    first = start + length if from_end else torch.full_like(length, start)
    end = torch.full_like(length, stop)
    if stop < 0 or (from_end and stop == 0):
        end = stop + length
    number = is_real.cumsum(dim=1) - 1
    chosen = is_real & (number >= first) & (number < end)
    empty = torch.nonzero(~chosen.any(dim=1)).flatten()
    if len(empty):
        raise InputError(
            f"layer {name!r} has {int(length[empty[0]])} tokens in sample {int(empty[0])} of a "
            f"batch, and pool={pool!r} chooses none of them"
        )
    return chosen


def _pool_by_function(name: str, tensor: Tensor, pool: Callable[[Tensor], Any]) -> Tensor:
    with torch.no_grad():
        rows = pool(tensor)
    if not isinstance(rows, Tensor) or rows.ndim == 0:
        raise InputError(
            f"pool returned {type(rows).__name__} for layer {name!r}: it must return a tensor with "
            "one row per sample"
        )
    _require_real(name, rows)
    return _as_rows(rows.detach())


def _require_real(name: str, tensor: Tensor) -> None:
    require(
        not tensor.is_complex(),
        f"layer {name!r} returned complex numbers: set pool to a function that makes them real",
    )


def _as_rows(tensor: Tensor) -> Tensor:
    return tensor.float().flatten(1) if tensor.ndim > 1 else tensor.float()[:, None]


def _real_tokens(name: str, tensor: Tensor, mask: Tensor | None) -> Tensor:
    """Which tokens are not padding: samples x tokens."""
    num_samples, num_tokens = tensor.shape[:2]
    if mask is None:
        return torch.ones((num_samples, num_tokens), dtype=torch.bool, device=tensor.device)
    if mask.shape != (num_samples, num_tokens):
        mask_shape = " x ".join(map(str, mask.shape))
        raise InputError(
            f"layer {name!r} has {num_samples} x {num_tokens} tokens and the attention mask "
            f"{mask_shape}: set pool to a function of the layer's output"
        )
    return mask.to(tensor.device) != 0


def _pool_masked(name: str, tensor: Tensor, pool: Pool, mask: Tensor | None) -> Tensor:
    """Pool over the tokens that are not padding."""
    num_samples = len(tensor)
    is_real = _real_tokens(name, tensor, mask)
    if pool == EVERY:
        return tensor[is_real].float()
    if pool != "mean":
        is_real = _chosen_tokens(name, is_real, pool)
    if pool != "mean" and not isinstance(pool, tuple):
        sample = torch.arange(num_samples, device=tensor.device)
        return tensor[sample, is_real.int().argmax(dim=1)].float()
    without_padding = tensor.masked_fill(~is_real[:, :, None], 0)
    return without_padding.sum(dim=1, dtype=torch.float32) / is_real.sum(dim=1, keepdim=True)
