"""What a layer put out, as one row of numbers per sample: the tensor in it, pooled over tokens or over space.

Two axes are samples x features. With three, features come last (samples x tokens x features); with more, they come
second, as convolutions have them (samples x channels x height x width). `channels="first"` or `"last"` says otherwise.
Sums are taken in float32, whatever the layer computes in. Padding is left out where there is an attention mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from recombine.basics.errors import InputError, require

Pool = Literal["mean", "last", "flat"] | Callable[[Tensor], Tensor]
Channels = Literal["first", "last"] | None
FIRST_LOOKED_FOR = (
    "last_hidden_state",
    "sample",
    "hidden_states",
    "logits",
)  # in outputs with names


def pick(output: Any) -> Tensor | None:
    """The tensor of an output: itself, the first one of a tuple, or the state of an output with names."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        named = [output[name] for name in FIRST_LOOKED_FOR if output.get(name) is not None]
        output = [*named, *output.values()]
    if isinstance(output, (tuple, list)):
        return next((found for found in map(pick, output) if found is not None), None)
    return None


def pooled(
    name: str,
    tensor: Tensor,
    pool: Pool,
    channels: Channels = None,
    mask: Tensor | None = None,
    place: Callable[[torch.Size], np.ndarray | None] | None = None,
) -> Tensor:
    """One row of float32 per sample, with memory of its own; `name` is the layer's, for messages.

    Where a copy has to be made it is made where the rows are to stay, if `place` knows that.
    """
    if tensor.is_nested:  # samples of several lengths, without padding
        require(
            pool != "flat",
            f"layer {name!r} has samples of several lengths: pool over them, pool='mean' say",
        )
        return torch.cat(
            [_pooled(name, one[None], pool, channels, None) for one in tensor.unbind()]
        )
    rows = _pooled(name, tensor, pool, channels, mask)
    if pool == "mean" and tensor.ndim > 2:  # never the layer's own memory
        return rows
    # The next layer may write into the memory of this one's output, as an inplace ReLU does.
    if (
        rows.device != tensor.device
        or rows.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    ):
        return rows
    room = place(rows.shape) if place is not None and rows.device.type == "cpu" else None
    return rows.clone() if room is None else torch.from_numpy(room).copy_(rows)


def _pooled(
    name: str, tensor: Tensor, pool: Pool, channels: Channels, mask: Tensor | None
) -> Tensor:
    require(
        tensor.ndim > 0,
        f"layer {name!r} gave a single number: choose a layer with a row for each sample",
    )
    tensor = tensor.detach()
    made: Any = tensor
    if callable(pool):
        with torch.no_grad():
            made = pool(tensor)
    if not isinstance(made, Tensor) or made.ndim == 0:
        told = f"pool made {type(made).__name__} of layer {name!r}"
        raise InputError(f"{told}: it must give a tensor, a row for each sample")
    if made.is_complex():
        raise InputError(
            f"layer {name!r} gave complex numbers: give pool a function that makes them real"
        )
    if callable(pool):
        made = made.detach()
        return made.float().flatten(1) if made.ndim > 1 else made.float()[:, None]
    if tensor.ndim < 3 or pool == "flat":
        return tensor.float().flatten(1) if tensor.ndim > 1 else tensor.float()[:, None]
    first = channels == "first" or (channels is None and tensor.ndim > 3)
    if mask is not None and tensor.ndim == 3 and not first:
        return _masked(name, tensor, pool, mask)
    if pool == "last":
        tokens = tensor.ndim == 3 and not first
        require(tokens, f"layer {name!r} has {tensor.ndim} axes and no last token: use pool='mean'")
        return tensor[:, -1].float()
    axes = range(2, tensor.ndim) if first else range(1, tensor.ndim - 1)
    return tensor.mean(dim=tuple(axes), dtype=torch.float32)


def _masked(name: str, tensor: Tensor, pool: Pool, mask: Tensor) -> Tensor:
    rows, tokens = tensor.shape[:2]
    if mask.shape != (rows, tokens):
        told = f"layer {name!r} has {rows} x {tokens} tokens and the attention mask {' x '.join(map(str, mask.shape))}"
        raise InputError(f"{told}: give pool a function, which is handed the layer's output")
    real = mask.to(tensor.device) != 0
    if pool == "last":
        place = torch.arange(tokens, device=tensor.device) * real
        return tensor[torch.arange(rows, device=tensor.device), place.argmax(dim=1)].float()
    kept = tensor.masked_fill(~real[:, :, None], 0)
    return kept.sum(dim=1, dtype=torch.float32) / real.sum(dim=1, keepdim=True)
