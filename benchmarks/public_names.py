"""Make recombine/__init__.pyi, from which editors and type checkers know the names of `import recombine as rc`.

    python benchmarks/public_names.py

`recombine/__init__.py` finds these names only when they are used, which an editor cannot follow.
"""

from pathlib import Path

import recombine
from recombine.sweeps.discovery import parts

STUB = Path(__file__).parent.parent / "recombine" / "__init__.pyi"
HEADER = "# Made by `python benchmarks/public_names.py`. Do not edit.\n\n"


def modules() -> dict[str, str]:
    """The module that defines each public name: name -> dotted path."""
    found = {name: f"recombine.{module}" for name, module in recombine._HOMES.items()}
    for classes in parts().values():
        for name, cls in classes.items():
            found[name] = cls.__module__
    return found


def stub() -> str:
    """The text of the stub: one import per name (`X as X` makes it public), in the order that ruff wants."""
    imports = sorted((module, name) for name, module in modules().items())
    lines = [f"from {module} import {name} as {name}\n" for module, name in imports]
    return HEADER + "".join(lines) + "\n__version__: str\n"


if __name__ == "__main__":
    STUB.write_text(stub())
