"""Recombine: a laboratory for compositional generalization. `import recombine as rc`, then `rc.train(rc.Run())`.

Names are resolved on first use, so that the import costs nothing; parts are found in their folders by class name.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Run": "run",
    "sweep": "run",
    "paper": "run",
    "paper_fast": "run",
    "Fast": "recipe",
    "Paper": "recipe",
    "train": "engine",
    "fit": "engine",
    "Fitted": "fitted",
    "Table": "table",
    "InputError": "core",
    "Knob": "core",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"recombine.{_HOMES[name]}"), name)
    if name[:1].isupper():
        from recombine.find import part

        found = part(name)
        if found is not None:
            return found
    raise AttributeError(f"module 'recombine' has no attribute {name!r}")


def __dir__() -> list[str]:
    from recombine.find import parts

    return sorted([*_HOMES, *(name for kind in parts().values() for name in kind), "__version__"])
