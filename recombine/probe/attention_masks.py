"""The attention masks that a network and its modules are called with: which tokens are not padding.

A layer uses the mask of the innermost module around it that was called with one, because an encoder
and a decoder have different masks. Only masks of samples x tokens are used; the larger masks that
attention derives from them are ignored. Three conventions are known: an `attention_mask` of ones
for tokens and zeros for padding, one that is added to attention scores (0 for tokens, very negative
for padding), and PyTorch's `key_padding_mask`, which is true for padding, or added.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from recombine.basics.errors import InputError

ARGUMENT = "attention_mask"
# The arguments that mark padding, in PyTorch's own modules. The last one counts for an output that
# has the tokens of the target.
PADDING_ARGUMENTS = ("key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask")
MIN_ADDED = -100.0  # what is added to the attention score of padding is far below it
KEYWORD_ONLY = 1 << 30  # a position that no positional argument has


class AttentionMasks:
    """The masks of the current forward pass, for layers of these names."""

    def __init__(self, model: nn.Module, layers: Iterable[str]):
        modules = dict(model.named_modules())
        self._arguments = {name: _mask_argument(module) for name, module in modules.items()}
        if self._arguments[""] is None:  # the model may pass **kwargs on, as wrappers do
            self._arguments[""] = (ARGUMENT, KEYWORD_ONLY)
        self._enclosing = {layer: self._modules_with_masks(layer) for layer in layers}
        self._watched = {
            name: modules[name] for enclosing in self._enclosing.values() for name in enclosing
        }
        self._masks: dict[str, Tensor | None] = {}  # by module; None if called with mask=None

    def register_hooks(self) -> list[Any]:
        """Start to watch the modules' arguments; return the handles that stop it."""
        return [
            module.register_forward_pre_hook(self._hook(name), with_kwargs=True)
            for name, module in self._watched.items()
        ]

    def clear(self) -> None:
        """Forget the masks, before the next forward pass."""
        self._masks = {}

    def mask_of(self, layer: str, shape: torch.Size) -> Tensor | None:
        """The mask of a layer with an output of samples x tokens x features.

        If no mask has this shape, one of another shape is returned, which pooling refuses.
        """
        unfitting = None
        for name in self._enclosing[layer]:
            if name in self._masks:
                mask = self._masks[name]
                if mask is None or mask.shape == shape[:2]:
                    return mask
                unfitting = mask
        return unfitting

    def _modules_with_masks(self, layer: str) -> list[str]:
        """The modules around a layer that take a mask, the innermost first."""
        return [name for name in _enclosing_names(layer) if self._arguments[name] is not None]

    def _hook(self, name: str) -> Callable[..., None]:
        argument, position = self._arguments[name] or (ARGUMENT, KEYWORD_ONLY)

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._masks.pop(name, None)
            if isinstance(module, nn.MultiheadAttention) and not _is_self_attention(args, kwargs):
                return  # the mask is that of the keys, and the output has the queries' tokens
            if argument in kwargs:
                mask = kwargs[argument]
            elif len(args) > position:
                mask = args[position]
            else:
                return  # called without the argument: the mask of an outer module applies
            if isinstance(mask, Tensor) and mask.ndim == 2:
                self._masks[name] = _is_token(mask, argument)
            elif mask is None and name:
                self._masks[name] = None

        return hook


def _is_token(mask: Tensor, argument: str) -> Tensor:
    """True for tokens and false for padding."""
    is_added = mask.is_floating_point() and (argument != ARGUMENT or bool((mask <= 0).all()))
    if is_added:
        is_token = mask > MIN_ADDED
    else:
        is_token = mask == 0 if argument in PADDING_ARGUMENTS else mask != 0
    _refuse_empty_samples(is_token)
    return is_token


def _is_self_attention(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    inputs = dict(zip(("query", "key"), args, strict=False)) | kwargs
    return inputs.get("query") is inputs.get("key")


def _refuse_empty_samples(mask: Tensor) -> None:
    empty = torch.nonzero(mask.sum(dim=1) == 0).flatten()
    if len(empty):
        raise InputError(f"sample {int(empty[0])} of a batch has only padding tokens: leave it out")


def _mask_argument(module: nn.Module) -> tuple[str, int] | None:
    """The argument with the mask of a module's output, and its position, if there is one."""
    try:
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):  # written in C
        return None
    known = [name for name in (*PADDING_ARGUMENTS, ARGUMENT) if name in names]
    return (known[-1], names.index(known[-1])) if known else None


def _enclosing_names(name: str) -> list[str]:
    """The names of a module and of all modules around it, the innermost first."""
    components = name.split(".")
    return [".".join(components[:num]) for num in range(len(components), -1, -1)]
