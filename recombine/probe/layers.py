"""Which modules of a network are recorded: names and patterns such as `blocks.*.mlp`, in the network's own order.

`*` stands for anything within one part of a dotted name, `**` for any number of parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from recombine.core import InputError, require


def choose(model: nn.Module, layers: str | Iterable[str]) -> dict[str, nn.Module]:
    """The modules that these names and patterns mean, by name."""
    patterns = [layers] if isinstance(layers, str) else list(layers)
    require(bool(patterns), "no layer was named: give names or patterns, 'blocks.*' say")
    modules = {name: module for name, module in model.named_modules() if name}
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for name in modules if _matches(name.split("."), str(pattern).split("."))}
        if not found:
            from recombine.run import nearest  # not above: it needs jax

            raise InputError(f"no layer is called {pattern!r}: {nearest(str(pattern), modules)}")
        chosen |= found
    return {name: module for name, module in modules.items() if name in chosen}


def blocks(model: nn.Module) -> list[str]:
    """Patterns of the blocks that a network stacks: the members of its longest list of modules, or lists.

    Lists within a list do not count: a block may hold more experts than there are blocks.
    """
    lists = {name: len(module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and name}
    outer = {name: num for name, num in lists.items() if not any(name.startswith(f"{other}.") for other in lists)}
    require(bool(outer), "this model has no list of blocks: name layers, layers='encoder.*' say")
    return [f"{name}.*" for name, num in outer.items() if num == max(outer.values())]


def _matches(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
