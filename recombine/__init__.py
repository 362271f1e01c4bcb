"""A laboratory for compositional generalization.

Start with `import recombine as rc` and `rc.train(rc.Run())`. Public names are imported on first
use, so that `import recombine` is fast. Parts are found by their class name, in the folders of
`recombine/parts`.
"""

from importlib import import_module
from typing import Any

from recombine.basics import moved_modules
from recombine.basics.version import __version__ as __version__

moved_modules.install()
_MODULES = {  # public name -> its module
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
    if name in _MODULES:
        return getattr(import_module(f"recombine.{_MODULES[name]}"), name)
    if name[:1].isupper():
        from recombine.sweeps.discovery import find_part

        part_class = find_part(name)
        if part_class is not None:
            return part_class
    raise AttributeError(f"module 'recombine' has no attribute {name!r}")


def __dir__() -> list[str]:
    from recombine.sweeps.discovery import parts

    names = [*_MODULES, "__version__"]
    for classes in parts().values():
        names += classes
    return sorted(names)
