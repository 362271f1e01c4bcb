"""What a definition in a user's file depends on: the definitions that it uses, there and in other files of the user.

Files are read as syntax trees and never imported. Comments, layout, docstrings, the places of definitions and the names
of files leave no trace.
"""

import ast
import builtins
import importlib.machinery
import importlib.util
import re
import symtable
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from recombine.basics.errors import InputError
from recombine.basics.version import PACKAGE

LIBRARY = tuple(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib"))
INSTALLED = {"site-packages", "dist-packages"}
REACHES_ALL = {
    "globals",
    "locals",
    "vars",
    "eval",
    "exec",
    "__import__",
    "import_module",
    "modules",
}
REACHING = {
    "sys",
    "importlib",
    "builtins",
}  # modules that have them: a family has a method `modules`, too
PURE = set(dir(builtins)) - REACHES_ALL - {"setattr", "delattr"}  # calling them changes nothing
GUARD = re.compile(r"__name__ == '__main__'|'__main__' == __name__|(\w+\.)?TYPE_CHECKING")
DEFINITION = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Source(NamedTuple):
    """One file of the user, cut into statements, and which of them define a name."""

    module: str
    path: Path
    statements: list[ast.stmt]
    defines: dict[str, list[ast.stmt]]

    @property
    def is_package(self) -> bool:
        """Whether it is the file of a package itself."""
        return self.path.name == "__init__.py"


class Closure:
    """Statements of a file and all that they depend on, numbered as they are met; without statements, the whole files
    that it needs. `found` is what to take a hash of, `entered` are the files."""

    def __init__(self, home: Source, start: Iterable[ast.stmt] | None = None) -> None:
        self.home, self.whole = home, start is None
        self.found: list[str | ast.stmt] = []
        self.entered: dict[str, Source] = {}
        self.located: dict[str, Source | None] = {home.module: home}
        self.numbers: dict[int, int] = {}
        self.waiting: list[tuple[Source, ast.stmt]] = []
        self.add(home, start or ())
        for source, statement in self.waiting:  # it grows on the way
            self.tell(source, statement)
        self.found += sorted(map(self.order, self.entered.values()))

    def add(self, source: Source, statements: Iterable[ast.stmt]) -> None:
        """Note that statements of a file are needed, and with them what the file does for whoever imports it."""
        if source.module not in self.entered:
            self.entered[source.module] = source
            package = self.locate(source.module.rpartition(".")[0])
            for other in ([] if package is None else [package]) + (
                [] if self.whole else self.unused(source)
            ):
                self.add(other, ())
            self.add(source, source.statements if self.whole else self.always(source))
        for statement in sorted(
            statements, key=lambda s: s.name if isinstance(s, DEFINITION) else ""
        ):
            if id(statement) not in self.numbers:
                self.numbers[id(statement)] = len(self.numbers)
                self.waiting.append((source, statement))
            self.found.append(str(self.numbers[id(statement)]))

    def order(self, source: Source) -> str:
        """The numbers of a file's statements as they stand there; definitions may stand anywhere."""
        always = {id(statement) for statement in self.always(source)}
        kept = [s for s in source.statements if not isinstance(s, DEFINITION) or id(s) in always]
        return str(
            [self.numbers[id(statement)] for statement in kept if id(statement) in self.numbers]
        )

    def always(self, source: Source) -> list[ast.stmt]:
        """What counts whoever imports the file: statements that may change what others mean."""
        defining = {
            id(statement) for statements in source.defines.values() for statement in statements
        }
        return [s for s in source.statements if id(s) not in defining or self.acts(source, s)]

    def unused(self, source: Source) -> list[Source]:
        """The user's files that are imported under names which nothing uses: for what they do."""
        used = {
            node.id
            for one in source.statements
            for node in ast.walk(one)
            if isinstance(node, ast.Name)
        }
        idle = [
            one for name in sorted(source.defines.keys() - used) for one in source.defines[name]
        ]
        return [home for one in idle for home, _ in self.homes(source, one)]

    def acts(self, source: Source, statement: ast.stmt) -> bool:
        """Whether a definition may do more than define a name: it calls what the user wrote."""
        called: list[ast.expr] = []
        if isinstance(statement, DEFINITION):
            called = statement.decorator_list
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            parts = ast.walk(statement) if not isinstance(statement.value, ast.Lambda) else []
            called = [node.func for node in parts if isinstance(node, ast.Call)]
            # BASE = Run(encoding=Mine()) only makes a value.
            called = [
                node for node in called if not any(self.classes(source, ast.unparse(node), set()))
            ]
        hooked = isinstance(statement, ast.ClassDef) and self.is_hooked(
            source, statement, {id(statement)}
        )
        return hooked or any(self.is_own(source, node) for node in called)

    def is_own(self, source: Source, node: ast.expr) -> bool:
        """Whether the name that an expression begins with is the user's."""
        while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
            node = node.func if isinstance(node, ast.Call) else node.value
        if not isinstance(node, ast.Name):
            return isinstance(node, ast.Lambda | ast.NamedExpr | ast.IfExp | ast.BoolOp)
        found = source.defines.get(node.id, [])
        if not found or not all(
            isinstance(statement, ast.Import | ast.ImportFrom) for statement in found
        ):
            return bool(found) or node.id not in PURE
        return any(self.homes(source, one) for one in found)

    def is_hooked(self, source: Source, cls: ast.ClassDef, seen: set[int]) -> bool:
        """Whether making a class calls what the user wrote: `__init_subclass__` or a metaclass, also of its bases."""
        own = any(
            word.arg == "metaclass" and self.is_own(source, word.value) for word in cls.keywords
        )
        if own or any(
            isinstance(inner, DEFINITION) and inner.name == "__init_subclass__"
            for inner in cls.body
        ):
            return True
        bases = [
            base for node in cls.bases for base in self.classes(source, ast.unparse(node), seen)
        ]
        return any(self.is_hooked(*base, seen) for base in bases)

    def classes(
        self, source: Source, name: str, seen: set[int]
    ) -> Iterator[tuple[Source, ast.ClassDef]]:
        """The user's classes that a dotted name may stand for, each once."""
        top, _, rest = name.partition(".")
        for statement in [one for one in source.defines.get(top, []) if id(one) not in seen]:
            seen.add(id(statement))
            if isinstance(statement, ast.ClassDef):
                yield source, statement
            for home, inner in self.homes(source, statement):
                yield from self.classes(home, rest.rpartition(".")[2] or inner, seen)

    def homes(self, source: Source, statement: ast.AST) -> list[tuple[Source, str]]:
        """The user's files, and the names in them, that an import brings."""
        origins = self.origins(source, statement)
        found = [(self.locate(f"{a}.{b}".rstrip(".")) or self.locate(a), b) for a, b in origins]
        return [(home, name) for home, name in found if home is not None]

    def origins(self, source: Source, statement: ast.AST) -> list[tuple[str, str]]:
        """The modules, and the names in them, that an import brings; none where it is something else."""
        if isinstance(statement, ast.Import):
            return [(alias.name, "") for alias in statement.names]
        if not isinstance(statement, ast.ImportFrom):
            return []
        package = source.module if source.is_package else source.module.rpartition(".")[0]
        try:
            module = importlib.util.resolve_name(
                "." * statement.level + (statement.module or ""), package
            )
        except ImportError:
            return []
        return [(module, alias.name) for alias in statement.names]

    def tell(self, source: Source, statement: ast.stmt) -> None:
        """Write a statement down, and add what it uses."""
        nodes = list(ast.walk(statement))
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        followed = [self.follow(source, node) for node in imports]
        if imports != [statement] or not any(
            followed
        ):  # else a user's file is imported, whatever it is called
            self.found.append(statement)
        for module in _named(nodes):
            self.add_all(module)
        used = _used(statement)
        for name in sorted(source.defines if used & REACHES_ALL else used & set(source.defines)):
            self.found.append(name)
            self.add(source, source.defines[name])

    def follow(self, source: Source, node: ast.Import | ast.ImportFrom) -> bool:
        """Add what an import brings from files of the user; whether it brings anything."""
        if isinstance(node, ast.Import):  # `import a.b` gives a, too
            names = [
                name for a in node.names for name in ([a.name] if a.asname else _prefixes(a.name))
            ]
            followed = [self.add_all(name) for name in names]
        else:
            followed = [self.add_name(module, name) for module, name in self.origins(source, node)]
        return any(followed)

    def add_name(self, module: str, name: str) -> bool:
        """Add one name of a module; whether the module is a file of the user."""
        source = self.locate(module)
        if source is None or name not in source.defines:
            return self.add_all(f"{module}.{name}") or self.add_all(module)
        self.add(source, source.defines[name])
        return True

    def add_all(self, module: str) -> bool:
        """Add a whole module; whether it is a file of the user."""
        source = self.locate(module)
        if source is not None:
            self.add(source, source.statements)
        return source is not None

    def locate(self, module: str) -> Source | None:
        """The file of the user, or of the class's own package, that is imported under this name."""
        if module not in self.located:
            path = _origin(module)
            own = _prefixes(module)[0] == _prefixes(self.home.module)[0]
            followed = path is not None and path.suffix == ".py" and (own or is_users(path))
            self.located[module] = read(module, path) if path is not None and followed else None
        return self.located[module]


def is_users(path: Path) -> bool:
    """Whether a file is the user's: neither Python's, nor installed, nor ours."""
    return not INSTALLED & set(path.parts) and not any(
        map(path.is_relative_to, (PACKAGE, *LIBRARY))
    )


def read(module: str, path: Path) -> Source:
    """Cut a file into its statements."""
    source = Source(module, path, list(_executed(parse(path).body)), {})
    for statement in source.statements:
        for name in _defined(statement):
            source.defines.setdefault(name, []).append(statement)
    return source


def parse(path: Path) -> ast.Module:
    """A file's syntax tree."""
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read any more ({error}): mend it and start again"
        ) from error


def _origin(module: str) -> Path | None:
    """The file of a module; imports nothing."""
    top, *inner = _prefixes(module)
    try:
        spec = importlib.util.find_spec(top) if top else None
    except (ImportError, ValueError):
        return None
    for name in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, spec.submodule_search_locations)
    return (
        Path(spec.origin).resolve()
        if spec is not None and spec.has_location and spec.origin
        else None
    )


def _prefixes(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _executed(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What is executed on import, one statement for each imported name."""
    for statement in body:
        match statement:
            case ast.If() if GUARD.fullmatch(ast.unparse(statement.test)):
                yield from _executed(statement.orelse)
            case ast.Import():
                yield from (ast.Import([alias]) for alias in statement.names)
            case ast.ImportFrom():
                yield from (
                    ast.ImportFrom(statement.module, [alias], statement.level)
                    for alias in statement.names
                )
            case _ if not does_nothing(statement):
                yield statement


def does_nothing(statement: ast.stmt) -> bool:
    """Whether it is a text, like a docstring, or another constant."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _defined(statement: ast.stmt) -> list[str]:
    """The names that a statement defines; none where it may do more than that."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [statement.name]
        case ast.Import() | ast.ImportFrom():
            return [a.asname or a.name.partition(".")[0] for a in statement.names if a.name != "*"]
        case ast.Assign():
            targets = statement.targets
        case ast.AnnAssign() | ast.AugAssign():
            targets = [statement.target]
        case _:
            return []
    nodes = [node for target in targets for node in ast.walk(target)]
    if any(isinstance(node, ast.Attribute | ast.Subscript) for node in nodes):
        return []
    inner = [node.target for node in ast.walk(statement) if isinstance(node, ast.NamedExpr)]
    return [node.id for node in (*nodes, *inner) if isinstance(node, ast.Name)]


def _used(statement: ast.stmt) -> set[str]:
    """The names of its file, or of Python, that a statement uses, however deep inside; no local names."""
    tables = [symtable.symtable(ast.unparse(statement), "", "exec")]
    used = {symbol.get_name() for symbol in tables[0].get_symbols() if symbol.is_referenced()}
    for table in tables:  # it grows on the way
        tables += table.get_children()
        found = table.get_symbols()
        if table.get_type() == "class":  # there, `f = f` takes the file's f
            used |= {symbol.get_name() for symbol in found if symbol.is_referenced()}
        used |= {symbol.get_name() for symbol in found if symbol.is_global()}
    attributes = [node for node in ast.walk(statement) if isinstance(node, ast.Attribute)]
    return used | {node.attr for node in attributes if ast.unparse(node.value) in REACHING}


def _named(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The modules that a call imports whose names are written there."""
    for node in nodes:
        match node:
            case ast.Call(
                ast.Name(called) | ast.Attribute(attr=called), [ast.Constant(str(module)), *_]
            ):
                if called in ("import_module", "__import__"):
                    yield module
