"""The experiments: built-in ones by name, a user's by the path of its file."""

import functools
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from recombine.basics.errors import InputError
from recombine.basics.suggest import did_you_mean
from recombine.basics.user_files import load
from recombine.basics.version import PACKAGE

EXPERIMENT_FOLDERS = ("paper", "theory", "limits", "instrument")


@functools.cache
def _modules() -> dict[str, str]:
    """The module of every experiment, by name. Modules that begin with `_` are no experiments."""
    modules = {"quickstart": "recombine.experiments.quickstart"}
    for folder in EXPERIMENT_FOLDERS:
        for info in pkgutil.iter_modules([str(PACKAGE / "experiments" / folder)]):
            if not info.ispkg and not info.name.startswith("_"):
                modules[info.name] = f"recombine.experiments.{folder}.{info.name}"
    return dict(sorted(modules.items()))


def experiment_names() -> list[str]:
    """The names of the built-in experiments, without importing them."""
    return list(_modules())


def module_name(name: str) -> str:
    """The module of a built-in experiment, without importing it."""
    return _modules()[name]


def built_in_experiment(name: str) -> ModuleType | None:
    """A built-in experiment, or None if there is none of this name."""
    return experiment(name) if name in _modules() else None


def experiment(name: str) -> ModuleType:
    """A built-in experiment by name, or a user's by the path of its file."""
    if name.endswith(".py") or "/" in name:
        return _user_experiment(name)
    if name not in _modules():
        suggestion = did_you_mean(name, experiment_names())
        raise InputError(f"there is no experiment {name!r}: {suggestion}")
    return importlib.import_module(_modules()[name])


def _user_experiment(path: str) -> ModuleType:
    module = load(Path(path))
    if not any(callable(getattr(module, name, None)) for name in ("runs", "cells")):
        raise InputError(
            f"{path} defines no experiment: add a function runs(scale) that returns a list of Run"
        )
    return module
