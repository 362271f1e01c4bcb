"""Finds parts by scanning folders, and in a user's own file by their shape. There is no registry."""

import dataclasses
import functools
import importlib
import pkgutil
from types import ModuleType

from recombine.basics.version import PACKAGE
from recombine.parts.protocols import kind_of

FOLDERS = {
    "family": "families",
    "support": "supports",
    "encoding": "encodings",
    "model": "models",
    "diagnostic": "diagnostics",
    "recipe": "recipes",
}


def names(folder: str) -> list[str]:
    """The modules in one of the folders of parts, without importing them."""
    return sorted(info.name for info in pkgutil.iter_modules([str(PACKAGE / "parts" / folder)]))


def part(name: str) -> type | None:
    """The part of this class name, importing only its own file."""
    for folder in FOLDERS.values():
        for stem in names(folder):
            if stem.replace("_", "") == name.lower():
                return getattr(
                    importlib.import_module(f"recombine.parts.{folder}.{stem}"), name, None
                )
    return None


@functools.cache
def parts() -> dict[str, dict[str, type]]:
    """Every part of ours: kind -> class name -> class."""
    found = {}
    for kind, folder in FOLDERS.items():
        modules = [
            importlib.import_module(f"recombine.parts.{folder}.{stem}") for stem in names(folder)
        ]
        found[kind] = {
            name: cls
            for module in modules
            for name, cls in parts_of(module).get(kind, {}).items()
            if name.lower() == module.__name__.rpartition(".")[2].replace("_", "")
        }
    return found


def parts_of(module: ModuleType) -> dict[str, dict[str, type]]:
    """The parts that a module defines itself: kind -> class name -> class."""
    found: dict[str, dict[str, type]] = {}
    for name, cls in vars(module).items():
        if (
            isinstance(cls, type)
            and dataclasses.is_dataclass(cls)
            and cls.__module__ == module.__name__
        ):
            kind = kind_of(cls)
            if kind is not None:
                found.setdefault(kind, {})[name] = cls
    return found
