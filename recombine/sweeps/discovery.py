"""Finds built-in parts by scanning folders, and a user's by their methods. There is no registry."""

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


def module_names(folder: str) -> list[str]:
    """The modules in one of the folders of parts, without importing them."""
    return sorted(info.name for info in pkgutil.iter_modules([str(PACKAGE / "parts" / folder)]))


def find_part(name: str) -> type | None:
    """The built-in part with this class name, or None. Only its file is imported."""
    for folder in FOLDERS.values():
        for module_name in module_names(folder):
            if _holds(module_name, name):
                return getattr(_import(folder, module_name), name, None)
    return None


@functools.cache
def parts() -> dict[str, dict[str, type]]:
    """Every built-in part: kind -> class name -> class."""
    by_kind: dict[str, dict[str, type]] = {}
    for kind, folder in FOLDERS.items():
        by_kind[kind] = {}
        for module_name in module_names(folder):
            classes = parts_of(_import(folder, module_name)).get(kind, {})
            for name, cls in classes.items():
                if _holds(module_name, name):
                    by_kind[kind][name] = cls
    return by_kind


def parts_of(module: ModuleType) -> dict[str, dict[str, type]]:
    """The parts that a module itself defines: kind -> class name -> class."""
    by_kind: dict[str, dict[str, type]] = {}
    for name, cls in vars(module).items():
        if not isinstance(cls, type) or cls.__module__ != module.__name__:
            continue
        kind = kind_of(cls) if dataclasses.is_dataclass(cls) else None
        if kind is not None:
            by_kind.setdefault(kind, {})[name] = cls
    return by_kind


def _holds(module_name: str, class_name: str) -> bool:
    """Whether a module is the one of a part: `few_shot` is the module of `FewShot`."""
    return module_name.replace("_", "") == class_name.lower()


def _import(folder: str, module_name: str) -> ModuleType:
    return importlib.import_module(f"recombine.parts.{folder}.{module_name}")
