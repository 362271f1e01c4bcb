"""Write recombine/__init__.pyi, the stub that lists the public names of `import recombine as rc`.

    python benchmarks/public_names.py

Editors and type checkers need it because `recombine/__init__.py` imports these names on first use.
"""

from pathlib import Path

import recombine
from recombine.sweeps.discovery import parts

STUB = Path(__file__).parent.parent / "recombine" / "__init__.pyi"
MAX_COLUMNS = 100
HEADER = "# Made by `python benchmarks/public_names.py`. Do not edit.\n\n"


def module_of_names() -> dict[str, str]:
    """The module that defines each public name: name -> dotted path."""
    modules = {name: f"recombine.{module}" for name, module in recombine._MODULES.items()}
    for classes in parts().values():
        for name, cls in classes.items():
            modules[name] = cls.__module__
    return modules


def stub() -> str:
    """The text of the stub: one import per name, sorted and wrapped as ruff does.

    `X as X` marks a name as public.
    """
    text = HEADER
    for module, name in sorted((module, name) for name, module in module_of_names().items()):
        line = f"from {module} import {name} as {name}\n"
        if len(line.rstrip()) > MAX_COLUMNS:
            line = f"from {module} import (\n    {name} as {name},\n)\n"
        text += line
    return text + "\n__version__: str\n"


if __name__ == "__main__":
    STUB.write_text(stub())
