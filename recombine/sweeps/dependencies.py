"""All code that a definition in a user's file depends on, in that file and in others of the user.

The walk starts from some statements. A statement needs the definitions of every name that it uses.
A file that is reached also needs its package, and its statements that may have side effects.
"""

import ast
from collections.abc import Iterable
from typing import NamedTuple

from recombine.sweeps.side_effects import SideEffects
from recombine.sweeps.source_files import SourceFile, UserFiles, imported_names, module_prefixes
from recombine.sweeps.syntax import (
    DEFINITION,
    DYNAMIC_ACCESS,
    modules_imported_by_calls,
    used_names,
)


class Dependencies(NamedTuple):
    """What a walk has reached: the parts to hash, in order, and the files by module name."""

    hash_parts: list[str | ast.stmt]
    files: dict[str, SourceFile]


def dependencies_of(source: SourceFile, statements: Iterable[ast.stmt]) -> Dependencies:
    """The definitions that these statements of a file depend on."""
    walk = _Walk(source, whole_files=False)
    walk.need(source, statements)
    return walk.finish()


def whole_file_dependencies(source: SourceFile) -> Dependencies:
    """All of a file, and all of each file that is needed to import it."""
    walk = _Walk(source, whole_files=True)
    walk.need(source, ())
    return walk.finish()


class _Walk:
    """A walk over the statements of the user's files, breadth first.

    Every statement gets a number when it is first needed, and the hash refers to it by this number.
    So it does not matter where a definition is in its file, nor what the file is called.
    """

    def __init__(self, start: SourceFile, whole_files: bool) -> None:
        self.user_files = UserFiles(start)
        self.side_effects = SideEffects(self.user_files)
        self.whole_files = whole_files
        self.hash_parts: list[str | ast.stmt] = []
        self.reached: dict[str, SourceFile] = {}
        self.numbers: dict[int, int] = {}  # id of a statement -> its number
        self.queue: list[tuple[SourceFile, ast.stmt]] = []

    def finish(self) -> Dependencies:
        """Visit every statement that is needed, and give what was reached."""
        for source, statement in self.queue:  # visiting makes the queue longer
            self.visit(source, statement)
        self.hash_parts += sorted(self.execution_order(source) for source in self.reached.values())
        return Dependencies(self.hash_parts, self.reached)

    def need(self, source: SourceFile, statements: Iterable[ast.stmt]) -> None:
        """Add statements of a file, and on the first time what the file itself needs."""
        if source.module not in self.reached:
            self.reached[source.module] = source
            self.need_on_import(source)
        # Definitions in the order of their names: moving one in its file changes nothing.
        for statement in sorted(statements, key=_definition_name):
            if id(statement) not in self.numbers:
                self.numbers[id(statement)] = len(self.numbers)
                self.queue.append((source, statement))
            self.hash_parts.append(str(self.numbers[id(statement)]))

    def need_on_import(self, source: SourceFile) -> None:
        """Add what every import of a file executes."""
        package = self.user_files.find(source.module.rpartition(".")[0])
        if package is not None:
            self.need(package, ())
        if self.whole_files:
            self.need(source, source.statements)
            return
        for other in self.imported_for_side_effects(source):
            self.need(other, ())
        self.need(source, self.side_effects.in_file(source))

    def imported_for_side_effects(self, source: SourceFile) -> list[SourceFile]:
        """The user's files that a file imports under names that it never uses."""
        used = set()
        for statement in source.statements:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name):
                    used.add(node.id)
        files = []
        for name in sorted(source.definitions.keys() - used):
            for statement in source.definitions[name]:
                for file, _ in self.user_files.imported_by(source, statement):
                    files.append(file)
        return files

    def visit(self, source: SourceFile, statement: ast.stmt) -> None:
        """Add a statement to the hash, and need what it imports and uses."""
        nodes = list(ast.walk(statement))
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        from_user_file = [self.need_imported(source, node) for node in imports]
        # The hash leaves out an import of a user's file: what it brings counts, not its name.
        only_imports_user_file = imports == [statement] and any(from_user_file)
        if not only_imports_user_file:
            self.hash_parts.append(statement)
        for module in modules_imported_by_calls(nodes):
            self.need_module(module)
        used = used_names(statement)
        reaches_every_name = bool(used & DYNAMIC_ACCESS)
        for name in sorted(source.definitions):
            if reaches_every_name or name in used:
                self.hash_parts.append(name)
                self.need(source, source.definitions[name])

    def need_imported(self, source: SourceFile, node: ast.Import | ast.ImportFrom) -> bool:
        """Add what an import brings; whether any of it is from a user's file."""
        if isinstance(node, ast.ImportFrom):
            pairs = imported_names(source, node)
            from_user_file = [self.need_name(module, name) for module, name in pairs]
            return any(from_user_file)
        modules: list[str] = []
        for alias in node.names:  # `import a.b` imports a, too
            modules += [alias.name] if alias.asname else module_prefixes(alias.name)
        from_user_file = [self.need_module(module) for module in modules]
        return any(from_user_file)

    def need_name(self, module: str, name: str) -> bool:
        """Add the definitions of one name of a module; whether the module is a user's file."""
        source = self.user_files.find(module)
        if source is None or name not in source.definitions:
            return self.need_module(f"{module}.{name}") or self.need_module(module)
        self.need(source, source.definitions[name])
        return True

    def need_module(self, module: str) -> bool:
        """Add a whole module; whether it is a user's file."""
        source = self.user_files.find(module)
        if source is None:
            return False
        self.need(source, source.statements)
        return True

    def execution_order(self, source: SourceFile) -> str:
        """The numbers of a file's statements in the order of the file.

        Definitions without side effects are left out: they may be anywhere.
        """
        with_effect = {id(statement) for statement in self.side_effects.in_file(source)}
        numbers = []
        for statement in source.statements:
            ordered = not isinstance(statement, DEFINITION) or id(statement) in with_effect
            if ordered and id(statement) in self.numbers:
                numbers.append(self.numbers[id(statement)])
        return str(numbers)


def _definition_name(statement: ast.stmt) -> str:
    return statement.name if isinstance(statement, DEFINITION) else ""
