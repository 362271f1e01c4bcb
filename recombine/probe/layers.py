"""Which modules of a network are recorded: names and patterns such as `blocks.*.mlp`, in the network's own order.

`*` stands for anything within one part of a dotted name, `**` for any number of parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from recombine.basics.errors import InputError, require


def choose(model: nn.Module, layers: str | Iterable[str]) -> dict[str, nn.Module]:
    """The modules that these names and patterns mean, by name."""
    fine = isinstance(layers, Iterable) and not isinstance(layers, nn.Module)
    require(fine, f"layers must be names or patterns, 'blocks.*' say, got {type(layers).__name__}")
    patterns = [layers] if isinstance(layers, str) else list(layers)
    require(bool(patterns), "no layer was named: give names or patterns, 'blocks.*' say")
    modules = {name: module for name, module in model.named_modules() if name}
    first = {module: name for name, module in modules.items()}
    chosen: set[str] = set()
    for pattern in patterns:
        found = {name for name in modules if _matches(name.split("."), str(pattern).split("."))}
        if not found:
            others = [
                (name, module)
                for name, module in model.named_modules(remove_duplicate=False)
                if name
            ]
            for name, module in others:
                told = f"layer {name!r} is {first[module]!r} under another name"
                require(
                    not _matches(name.split("."), str(pattern).split(".")), f"{told}: ask for that"
                )
            from recombine.sweeps.run import nearest  # not above: it needs jax

            raise InputError(f"no layer is called {pattern!r}: {nearest(str(pattern), modules)}")
        chosen |= found
    return {name: module for name, module in modules.items() if name in chosen}


def tokens_first(model: nn.Module, names: Iterable[str]) -> set[str]:
    """Which of these layers put out tokens x samples x features: PyTorch's own, where `batch_first` is not set."""
    turned = {name for name, module in model.named_modules() if _turned(module)}
    return {
        name
        for name in names
        if any(name == one or one == "" or name.startswith(f"{one}.") for one in turned)
    }


def _turned(module: nn.Module) -> bool:
    if isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        module = module.self_attn
    if isinstance(module, (nn.TransformerEncoder, nn.TransformerDecoder)):
        return all(_turned(layer) for layer in module.layers)
    return isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and not module.batch_first


def blocks(model: nn.Module) -> list[str]:
    """Patterns of the blocks that a network stacks: the members of its longest list of modules, or lists.

    Lists within a list do not count: a block may hold more experts than there are blocks.
    """
    lists = {
        name: len(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and name
    }
    outer = {
        name: num
        for name, num in lists.items()
        if not any(name.startswith(f"{other}.") for other in lists)
    }
    require(bool(outer), "this model has no list of blocks: name layers, layers='encoder.*' say")
    return [f"{name}.*" for name, num in outer.items() if num == max(outer.values())]


def _matches(parts: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
