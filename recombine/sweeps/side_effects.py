"""Whether a definition may do more than define its name: executing it may call the user's code.

A decorator may register a function, a base class may note its subclasses, and the value of an
assignment may come from a function that changes something.
"""

import ast
import builtins
from collections.abc import Iterator

from recombine.sweeps.source_files import SourceFile, UserFiles
from recombine.sweeps.syntax import DEFINITION, DYNAMIC_ACCESS

# Calling any other built-in function changes nothing.
HARMLESS_BUILTINS = set(dir(builtins)) - DYNAMIC_ACCESS - {"setattr", "delattr"}


class SideEffects:
    """Answers for statements of the user's files whether executing them may have a side effect."""

    def __init__(self, files: UserFiles) -> None:
        self._files = files

    def in_file(self, source: SourceFile) -> list[ast.stmt]:
        """The statements of a file that count even if no name that they define is used."""
        defining = {id(s) for statements in source.definitions.values() for s in statements}
        return [s for s in source.statements if id(s) not in defining or self.may_occur(source, s)]

    def may_occur(self, source: SourceFile, definition: ast.stmt) -> bool:
        """Whether executing a definition may call the user's code."""
        is_class = isinstance(definition, ast.ClassDef)
        if is_class and self._runs_class_hook(source, definition, {id(definition)}):
            return True
        called = self._called(source, definition)
        return any(self._is_users(source, function) for function in called)

    def _called(self, source: SourceFile, definition: ast.stmt) -> list[ast.expr]:
        """The functions that a definition calls, as expressions; decorators included."""
        if isinstance(definition, DEFINITION):
            return definition.decorator_list
        if not isinstance(definition, ast.Assign | ast.AnnAssign | ast.AugAssign):
            return []
        if isinstance(definition.value, ast.Lambda):
            return []
        called = [node.func for node in ast.walk(definition) if isinstance(node, ast.Call)]
        # BASE = Run(encoding=Mine()) only makes a value: calling a class is no side effect.
        return [function for function in called if not self._is_class(source, function)]

    def _is_class(self, source: SourceFile, function: ast.expr) -> bool:
        return any(self._classes(source, ast.unparse(function), set()))

    def _is_users(self, source: SourceFile, function: ast.expr) -> bool:
        """Whether a called expression may be the user's code; its first name decides."""
        first = _first_operand(function)
        if not isinstance(first, ast.Name):
            return isinstance(first, ast.Lambda | ast.NamedExpr | ast.IfExp | ast.BoolOp)
        definitions = source.definitions.get(first.id, [])
        if not definitions:
            return first.id not in HARMLESS_BUILTINS
        if all(isinstance(definition, ast.Import | ast.ImportFrom) for definition in definitions):
            return any(self._files.imported_by(source, definition) for definition in definitions)
        return True

    def _runs_class_hook(self, source: SourceFile, cls: ast.ClassDef, seen: set[int]) -> bool:
        """Whether making a class calls a metaclass or an `__init_subclass__` of the user."""
        for keyword in cls.keywords:
            if keyword.arg == "metaclass" and self._is_users(source, keyword.value):
                return True
        for member in cls.body:
            if isinstance(member, DEFINITION) and member.name == "__init_subclass__":
                return True
        bases: list[tuple[SourceFile, ast.ClassDef]] = []
        for base in cls.bases:
            bases += self._classes(source, ast.unparse(base), seen)
        return any(self._runs_class_hook(file, base, seen) for file, base in bases)

    def _classes(
        self, source: SourceFile, name: str, seen: set[int]
    ) -> Iterator[tuple[SourceFile, ast.ClassDef]]:
        """The user's classes that a dotted name may refer to.

        `seen` holds the ids of statements met before: files may import each other.
        """
        first, _, rest = name.partition(".")
        definitions = [
            definition
            for definition in source.definitions.get(first, [])
            if id(definition) not in seen
        ]
        for definition in definitions:
            seen.add(id(definition))
            if isinstance(definition, ast.ClassDef):
                yield source, definition
            for file, imported_name in self._files.imported_by(source, definition):
                yield from self._classes(file, rest.rpartition(".")[2] or imported_name, seen)


def _first_operand(node: ast.expr) -> ast.expr:
    """The `a` of an expression such as `a.b[c](d)`."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node
