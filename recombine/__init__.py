"""Recombine: a laboratory for compositional generalization. `import recombine as rc`, then `rc.train(rc.Run())`.

Names are resolved on first use, so that the import costs nothing; parts are found in their folders by class name.
"""

from importlib import import_module
from typing import Any

from recombine.basics import moved_modules
from recombine.basics.version import __version__ as __version__

moved_modules.install()
_HOMES = {
    "Run": "sweeps.run",
    "sweep": "sweeps.run",
    "paper": "sweeps.run",
    "paper_fast": "sweeps.run",
    "train": "training.scheduler",
    "fit": "training.scheduler",
    "Fitted": "training.fitted",
    "Table": "storage.table",
    "InputError": "basics.errors",
    "Knob": "parts.field_checks",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"recombine.{_HOMES[name]}"), name)
    if name[:1].isupper():
        from recombine.sweeps.discovery import part

        found = part(name)
        if found is not None:
            return found
    raise AttributeError(f"module 'recombine' has no attribute {name!r}")


def __dir__() -> list[str]:
    from recombine.sweeps.discovery import parts

    return sorted([*_HOMES, *(name for kind in parts().values() for name in kind), "__version__"])
