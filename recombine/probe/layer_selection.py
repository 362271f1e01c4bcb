"""Selection of a network's modules by names and patterns such as `blocks.*.mlp`.

In a pattern, `*` matches anything within one component of a dotted name, and `**` matches any
number of components.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch import nn

from recombine.basics.errors import InputError, require
from recombine.basics.suggest import did_you_mean


def select_modules(model: nn.Module, layers: str | Iterable[str]) -> dict[str, nn.Module]:
    """The modules that match these names and patterns, by name, in the network's own order."""
    require(
        isinstance(layers, Iterable) and not isinstance(layers, nn.Module),
        f"layers must be names or patterns such as 'blocks.*', got {type(layers).__name__}",
    )
    patterns = [layers] if isinstance(layers, str) else [str(pattern) for pattern in layers]
    require(bool(patterns), "layers is empty: provide names or patterns such as 'blocks.*'")
    modules = {name: module for name, module in model.named_modules() if name}
    selected: set[str] = set()
    for pattern in patterns:
        matching = {name for name in modules if _matches(name, pattern)}
        if not matching:
            _refuse_duplicate(model, modules, pattern)
            raise InputError(f"no layer is called {pattern!r}: {did_you_mean(pattern, modules)}")
        selected |= matching
    return {name: module for name, module in modules.items() if name in selected}


def _refuse_duplicate(model: nn.Module, modules: dict[str, nn.Module], pattern: str) -> None:
    """Refuse a pattern that matches the second name of a module that has two."""
    first_name = {module: name for name, module in modules.items()}
    for name, module in model.named_modules(remove_duplicate=False):
        if name and _matches(name, pattern):
            raise InputError(
                f"layer {name!r} is the same module as {first_name[module]!r}: use that name"
            )


def layers_with_tokens_first(model: nn.Module, names: Iterable[str]) -> set[str]:
    """The subset of these layers with outputs of tokens x samples x features.

    They are PyTorch's own modules without `batch_first`, and the modules inside them.
    """
    containers = {name for name, module in model.named_modules() if _has_tokens_first(module)}
    return {name for name in names if any(_is_inside(name, outer) for outer in containers)}


def _is_inside(name: str, outer: str) -> bool:
    return outer in ("", name) or name.startswith(f"{outer}.")


def _has_tokens_first(module: nn.Module) -> bool:
    if isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        module = module.self_attn
    if isinstance(module, (nn.TransformerEncoder, nn.TransformerDecoder)):
        return all(_has_tokens_first(layer) for layer in module.layers)
    return isinstance(module, (nn.RNNBase, nn.MultiheadAttention)) and not module.batch_first


def block_patterns(model: nn.Module) -> list[str]:
    """Patterns of a network's blocks: the members of its longest module list, or lists.

    Lists inside another list do not count, because a block may hold more experts than the network
    has blocks.
    """
    lengths = {
        name: len(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and name
    }
    nested = {name for name in lengths for other in lengths if name.startswith(f"{other}.")}
    outer = {name: length for name, length in lengths.items() if name not in nested}
    require(
        bool(outer),
        "this model has no list of blocks: name its layers, for example layers='encoder.*'",
    )
    longest = max(outer.values())
    return [f"{name}.*" for name, length in outer.items() if length == longest]


def _matches(name: str, pattern: str) -> bool:
    return _components_match(name.split("."), pattern.split("."))


def _components_match(name: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_components_match(name[i:], pattern[1:]) for i in range(len(name) + 1))
    if not name or not fnmatchcase(name[0], pattern[0]):
        return False
    return _components_match(name[1:], pattern[1:])
