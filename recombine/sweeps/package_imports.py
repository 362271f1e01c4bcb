"""The files of Recombine that a file of Recombine needs: what it imports, and the data it names.

Files are searched as text. Parsing them would take longer than everything else that a command with
cached verdicts does. A match in a docstring adds a file too many, which is harmless.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from recombine.basics.version import PACKAGE

FROM_IMPORT = re.compile(r"^[ \t]*from[ ]+([\w.]+)[ ]+import[ ]+(\([^)]*\)|[^\n#]+)", re.MULTILINE)
PLAIN_IMPORT = re.compile(r"^[ \t]*import[ ]+([^\n#]+)", re.MULTILINE)
DATA_FILE = re.compile(r"""["']([\w-]+\.(?:parquet|json|csv|npz))["']""")


def needed_files(paths: Iterable[Path], package: Path = PACKAGE) -> set[Path]:
    """These files of the package, all that they import of it, and what that imports in turn.

    Imports inside functions count. If a package loads the name on first use, all its files count.
    """
    queue = list(paths)
    needed = set(queue)
    while queue:
        new = imported_files(queue.pop().read_text("utf-8"), package) - needed
        needed |= new
        queue += new
    return needed


def named_data_files(path: Path, folders: Iterable[Path]) -> list[Path]:
    """The data files in these folders whose names occur as constants in a Python file."""
    names = sorted(set(DATA_FILE.findall(path.read_text("utf-8"))))
    files = [folder / name for folder in folders for name in names]
    return [file for file in files if file.is_file()]


def package_file(module: str, package: Path = PACKAGE) -> Path | None:
    """The file of one of our modules or packages; None for any other name."""
    top, _, name = module.partition(".")
    path = package / name.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file if top == PACKAGE.name and file.is_file() else None


@functools.cache  # experiments have most of their imports in common
def imported_files(text: str, package: Path = PACKAGE) -> frozenset[Path]:
    """The files of the package that a Python file with this text imports itself."""
    return frozenset(_imported_files(text, package))


def _imported_files(text: str, package: Path) -> Iterator[Path]:
    for module in PLAIN_IMPORT.findall(text):
        for name in module.split(","):
            yield from _with_parents(name.split()[0], package)
    for module, listed in FROM_IMPORT.findall(text):
        file = package_file(module, package)
        if file is None:
            continue
        yield from _with_parents(module, package)
        if file.name == "__init__.py":
            for name in listed.strip("()\n ").split(","):
                yield from _member_files(module, name, package)


def _member_files(module: str, name: str, package: Path) -> Iterator[Path]:
    """The file of a module in a package, or the whole package for another name."""
    words = name.split()  # `name` or `name as other`
    if not words:
        return
    file = package_file(f"{module}.{words[0]}", package)
    folder = package_file(module, package)
    if file is not None:
        yield file
    elif folder is not None:
        yield from folder.parent.glob("*.py")


def _with_parents(module: str, package: Path) -> Iterator[Path]:
    """The file of a module and of the packages that contain it."""
    names = module.split(".")
    for i in range(len(names)):
        file = package_file(".".join(names[: i + 1]), package)
        if file is not None:
            yield file
