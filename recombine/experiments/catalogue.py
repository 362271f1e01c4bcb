"""The experiments: ours by their names, a user's own by the path of its file."""

import functools
import importlib
import pkgutil
from pathlib import Path
from types import ModuleType

from recombine.basics.errors import InputError
from recombine.basics.suggest import nearest
from recombine.basics.user_files import load
from recombine.basics.version import PACKAGE

ROOMS = ("paper", "theory", "limits", "instrument")


@functools.cache
def _modules() -> dict[str, str]:
    """Name -> module of every experiment: a public module of one of the rooms, and `quickstart`."""
    found = {"quickstart": "recombine.experiments.quickstart"}
    for room in ROOMS:
        for info in pkgutil.iter_modules([str(PACKAGE / "experiments" / room)]):
            if not info.ispkg and not info.name.startswith("_"):
                found[info.name] = f"recombine.experiments.{room}.{info.name}"
    return dict(sorted(found.items()))


def experiment_names() -> list[str]:
    """The names of our experiments, without importing them."""
    return list(_modules())


def own_experiment(name: str) -> ModuleType | None:
    """One of our experiments, or None where the name is not that of one."""
    return experiment(name) if name in _modules() else None


def experiment(name: str) -> ModuleType:
    """An experiment of ours by name, or a user's own by the path of its file."""
    if name.endswith(".py") or "/" in name:
        module = load(Path(name))
        if not any(callable(getattr(module, function, None)) for function in ("runs", "cells")):
            raise InputError(
                f"{name} defines no experiment: it needs a function runs(scale) that gives a list of Run"
            )
        return module
    if name not in experiment_names():
        raise InputError(f"there is no experiment {name!r}: {nearest(name, experiment_names())}")
    return importlib.import_module(_modules()[name])
