"""Which tokens of a batch are real: the attention masks with which a network, or a part of it, is called.

A layer goes by the mask of the innermost module around it that was called with one, since an encoder and a decoder have
masks of their own. Masks of other shapes than samples x tokens (which attention makes of them) are passed over.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from recombine.basics.errors import require

ARGUMENT = "attention_mask"
BY_NAME = 1 << 30  # a place that no argument has


class Masks:
    """The masks of the forward pass that is under way, for layers of these names."""

    def __init__(self, model: nn.Module, names: Iterable[str]):
        modules = dict(model.named_modules())
        self._places = {name: _place(module) for name, module in modules.items()}
        if self._places[""] is None:
            self._places[""] = BY_NAME  # where it takes whatever it is given, a wrapper say
        self._around = {
            name: [one for one in _outwards(name) if self._places[one] is not None]
            for name in names
        }
        self._modules = {one: modules[one] for around in self._around.values() for one in around}
        self._given: dict[str, Tensor | None] = {}

    def hooks(self) -> list[Any]:
        """Begin to watch: handles that end it."""
        return [
            one.register_forward_pre_hook(self._hook(name), with_kwargs=True)
            for name, one in self._modules.items()
        ]

    def clear(self) -> None:
        """Another forward pass begins."""
        self._given = {}

    def of(self, name: str, shape: torch.Size) -> Tensor | None:
        """The mask of a layer that put out samples x tokens x features; one that does not fit, if there is no other."""
        other = None
        for place in self._around[name] if self._given else ():
            if place in self._given:
                mask = self._given[place]
                if mask is None or mask.shape == shape[:2]:
                    return mask
                other = mask
        return other

    def _hook(self, name: str) -> Callable[..., None]:
        place = self._places[name] or 0

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._given.pop(name, None)
            if ARGUMENT not in kwargs and len(args) <= place:
                return  # it was not told: what is around it knows
            mask = kwargs[ARGUMENT] if ARGUMENT in kwargs else args[place]
            if isinstance(mask, Tensor) and mask.ndim == 2:
                if not any(mask is known for known in self._given.values()):
                    _check(mask)
                self._given[name] = mask
            elif mask is None and name:
                self._given[name] = None

        return hook


def _check(mask: Tensor) -> None:
    empty = torch.nonzero(mask.sum(dim=1) == 0).flatten()
    told = "has no token that is not padding"
    require(
        len(empty) == 0,
        f"sample {int(empty[0]) if len(empty) else 0} of a batch {told}: leave it out",
    )


def _place(module: nn.Module) -> int | None:
    """Where the mask stands among the inputs of a module, if it takes one."""
    try:
        names = list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):  # written in C
        return None
    return names.index(ARGUMENT) if ARGUMENT in names else None


def _outwards(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:num]) for num in range(len(parts), -1, -1)]
