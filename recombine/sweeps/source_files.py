"""The user's Python files: which files are the user's, and which file belongs to a module name.

Files are read as syntax trees. Nothing is imported.
"""

import ast
import importlib.machinery
import importlib.util
import sysconfig
from pathlib import Path
from typing import NamedTuple

from recombine.basics.version import PACKAGE
from recombine.sweeps.syntax import defined_names, executed_on_import, parse_file

PYTHON_FOLDERS = tuple(
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")
)
INSTALL_FOLDERS = {"site-packages", "dist-packages"}


class SourceFile(NamedTuple):
    """One file: the statements that an import executes, and for each name those that define it."""

    module: str
    path: Path
    statements: list[ast.stmt]
    definitions: dict[str, list[ast.stmt]]

    @property
    def is_package(self) -> bool:
        """Whether it is the `__init__.py` of a package."""
        return self.path.name == "__init__.py"


def read_source(module: str, path: Path) -> SourceFile:
    """Read a file that is imported under this module name."""
    statements = list(executed_on_import(parse_file(path).body))
    definitions: dict[str, list[ast.stmt]] = {}
    for statement in statements:
        for name in defined_names(statement):
            definitions.setdefault(name, []).append(statement)
    return SourceFile(module, path, statements, definitions)


def is_user_file(path: Path) -> bool:
    """Whether a file is the user's: not part of Python, of an installed package or of Recombine."""
    if INSTALL_FOLDERS & set(path.parts):
        return False
    return not any(path.is_relative_to(folder) for folder in (PACKAGE, *PYTHON_FOLDERS))


def is_installed(path: Path) -> bool:
    """Whether a file belongs to an installed package."""
    return bool(INSTALL_FOLDERS & set(path.parts))


def module_prefixes(module: str) -> list[str]:
    """`a.b.c` -> `a`, `a.b`, `a.b.c`."""
    names = module.split(".")
    return [".".join(names[: i + 1]) for i in range(len(names))]


def imported_names(source: SourceFile, statement: ast.AST) -> list[tuple[str, str]]:
    """The (module, name) pairs that an import statement brings; none for any other statement."""
    if isinstance(statement, ast.Import):
        return [(alias.name, "") for alias in statement.names]
    if not isinstance(statement, ast.ImportFrom):
        return []
    package = source.module if source.is_package else source.module.rpartition(".")[0]
    relative = "." * statement.level + (statement.module or "")
    try:
        module = importlib.util.resolve_name(relative, package)
    except ImportError:
        return []
    return [(module, alias.name) for alias in statement.names]


class UserFiles:
    """Finds the user's files by module name, each read once.

    Files of the first file's own package count too, even if that package is installed.
    """

    def __init__(self, first: SourceFile) -> None:
        self._package = module_prefixes(first.module)[0]
        self._known: dict[str, SourceFile | None] = {first.module: first}

    def find(self, module: str) -> SourceFile | None:
        """The user's file of a module; None if the module is not the user's."""
        if module not in self._known:
            self._known[module] = self._read(module)
        return self._known[module]

    def _read(self, module: str) -> SourceFile | None:
        path = _module_path(module)
        if path is None or path.suffix != ".py":
            return None
        in_package = module_prefixes(module)[0] == self._package
        return read_source(module, path) if in_package or is_user_file(path) else None

    def imported_by(self, source: SourceFile, statement: ast.AST) -> list[tuple[SourceFile, str]]:
        """The user's files that a statement imports, each with the name that it imports from it."""
        imported = []
        for module, name in imported_names(source, statement):
            file = self.find(f"{module}.{name}".rstrip(".")) or self.find(module)
            if file is not None:
                imported.append((file, name))
        return imported


def _module_path(module: str) -> Path | None:
    """The file of a module, found without importing it or its package."""
    top, *inner = module_prefixes(module)
    try:
        spec = importlib.util.find_spec(top) if top else None
    except (ImportError, ValueError):
        return None
    for name in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, spec.submodule_search_locations)
    if spec is None or not spec.has_location or not spec.origin:
        return None
    return Path(spec.origin).resolve()
