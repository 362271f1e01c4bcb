"""Finds parts and experiments by scanning folders, and in a user's own file by their shape. There is no registry."""

import dataclasses
import functools
import importlib
import importlib.util
import os
import pkgutil
import sys
import zlib
from pathlib import Path
from types import ModuleType

from recombine.core import InputError, kind_of

FOLDERS = {
    "family": "families",
    "support": "supports",
    "encoding": "encodings",
    "model": "models",
    "diagnostic": "diagnostics",
}


def names(folder: str) -> list[str]:
    """The modules in one of the package's folders, without importing them."""
    return sorted(info.name for info in pkgutil.iter_modules([str(Path(__file__).parent / folder)]))


def part(name: str) -> type | None:
    """The part of this class name, importing only its own file."""
    for folder in FOLDERS.values():
        for stem in names(folder):
            if stem.replace("_", "") == name.lower():
                return getattr(importlib.import_module(f"recombine.{folder}.{stem}"), name, None)
    return None


@functools.cache
def parts() -> dict[str, dict[str, type]]:
    """Every part of ours: kind -> class name -> class."""
    found = {}
    for kind, folder in FOLDERS.items():
        modules = [importlib.import_module(f"recombine.{folder}.{stem}") for stem in names(folder)]
        found[kind] = {
            name: cls
            for module in modules
            for name, cls in parts_of(module).get(kind, {}).items()
            if name.lower() == module.__name__.rpartition(".")[2].replace("_", "")
        }
    found["recipe"] = parts_of(importlib.import_module("recombine.recipe"))["recipe"]
    return found


def parts_of(module: ModuleType) -> dict[str, dict[str, type]]:
    """The parts that a module defines itself: kind -> class name -> class."""
    found: dict[str, dict[str, type]] = {}
    for name, cls in vars(module).items():
        if isinstance(cls, type) and dataclasses.is_dataclass(cls) and cls.__module__ == module.__name__:
            kind = kind_of(cls)
            if kind is not None:
                found.setdefault(kind, {})[name] = cls
    return found


def experiment(name: str) -> ModuleType:
    """An experiment of ours by name, or a user's own by the path of its file."""
    from recombine.hint import nearest

    if name.endswith(".py") or "/" in name:
        module = load(Path(name))
        if not any(callable(getattr(module, function, None)) for function in ("runs", "cells")):
            raise InputError(f"{name} defines no experiment: it needs a function runs(scale) that gives a list of Run")
        return module
    if name not in names("experiments"):
        raise InputError(f"there is no experiment {name!r}: {nearest(name, names('experiments'))}")
    return importlib.import_module(f"recombine.experiments.{name}")


def load(path: Path) -> ModuleType:
    """Import a user's file; whatever goes wrong in it is told in one line."""
    try:
        found = path.is_file()
    except (OSError, ValueError):  # a name that is too long for the system, or holds what it does not allow
        found = False
    if not found:
        raise InputError(f"there is no file {path}")
    name = f"recombine_user_{path.stem}_{zlib.crc32(os.fsencode(path.resolve()))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their annotations up there
    beside = str(path.resolve().parent)
    if beside not in sys.path:  # as Python itself does for a script: a file may import its neighbours
        sys.path.append(beside)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"{path} could not be read: {where(error, path)}") from error
    return module


def where(error: BaseException, path: Path) -> str:
    """An error as one line: its kind, its message, and the line of the user's file where it arose."""
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == path.name:
            line = trace.tb_lineno
        trace = trace.tb_next
    told = str(error)
    if isinstance(error, SyntaxError) and Path(error.filename or "").name == path.name:
        told = error.msg  # without the file and the line, which are told anyway
    message = " ".join(told.split()) or "no message"
    return f"{type(error).__name__}: {message}" + (f" (line {line})" if line else "")
