"""Syntax trees of Python code: the names that a statement defines and uses, and hashes of trees.

Comments, layout, docstrings and line numbers never change a hash.
"""

import ast
import hashlib
import re
import symtable
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from recombine.basics.errors import InputError

DEFINITION = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
HAS_DOCSTRING = (ast.Module, *DEFINITION)
# Code that uses one of these can reach every name of its file.
DYNAMIC_ACCESS = {
    "globals",
    "locals",
    "vars",
    "eval",
    "exec",
    "__import__",
    "import_module",
    "modules",
}
# As attributes they count only of these modules: a task family has a method `modules`, too.
DYNAMIC_MODULES = {"sys", "importlib", "builtins"}
# Bodies of such an `if` are not executed when the file is imported.
NOT_ON_IMPORT = re.compile(r"__name__ == '__main__'|'__main__' == __name__|(\w+\.)?TYPE_CHECKING")
# Fields of a syntax tree that repeat what others say, or that differ between versions of Python.
IGNORED_FIELDS = ("ctx", "kind", "type_comment", "type_ignores")


def parse_file(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except (OSError, SyntaxError, ValueError) as error:
        message = f"cannot parse {path}: {error}. Fix the file and run the command again"
        raise InputError(message) from error


def digest(*parts: str | ast.AST) -> str:
    """A hash of texts and syntax trees, in this order."""
    texts = [part if isinstance(part, str) else tree_text(part) for part in parts]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def tree_text(node: Any) -> str:
    """A syntax tree as one line of text, the same in every version of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(tree_text, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name in node._fields:
        value = getattr(node, name, None)
        if name == "body" and isinstance(node, HAS_DOCSTRING):
            value = _without_docstring(value)
        if value is not None and value != [] and name not in IGNORED_FIELDS:
            fields.append(f"{name}={tree_text(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


def _without_docstring(body: Any) -> Any:
    if body and is_constant(body[0]):
        return body[1:] or [ast.Pass()]
    return body


def is_constant(statement: ast.stmt) -> bool:
    """Whether a statement is only a constant, for example a docstring."""
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def executed_on_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that an import executes. Imports are split: one statement for each name."""
    for statement in body:
        match statement:
            case ast.If() if NOT_ON_IMPORT.fullmatch(ast.unparse(statement.test)):
                yield from executed_on_import(statement.orelse)
            case ast.Import():
                for alias in statement.names:
                    yield ast.Import([alias])
            case ast.ImportFrom():
                for alias in statement.names:
                    yield ast.ImportFrom(statement.module, [alias], statement.level)
            case _ if not is_constant(statement):
                yield statement


def defined_names(statement: ast.stmt) -> list[str]:
    """The names that a statement defines; none if the statement may do more than that."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [statement.name]
        case ast.Import() | ast.ImportFrom():
            aliases = [alias for alias in statement.names if alias.name != "*"]
            return [alias.asname or alias.name.partition(".")[0] for alias in aliases]
        case ast.Assign():
            return _assigned_names(statement, statement.targets)
        case ast.AnnAssign() | ast.AugAssign():
            return _assigned_names(statement, [statement.target])
        case _:
            return []


def _assigned_names(statement: ast.stmt, targets: list[ast.expr]) -> list[str]:
    nodes = [node for target in targets for node in ast.walk(target)]
    if any(isinstance(node, ast.Attribute | ast.Subscript) for node in nodes):
        return []  # it changes an object instead of defining a name
    for node in ast.walk(statement):
        if isinstance(node, ast.NamedExpr):
            nodes.append(node.target)
    return [node.id for node in nodes if isinstance(node, ast.Name)]


def used_names(statement: ast.stmt) -> set[str]:
    """The names of its file, or of Python, that a statement uses at any depth; not local names."""
    top = symtable.symtable(ast.unparse(statement), "", "exec")
    used = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    for table in _all_scopes(top):
        # In the body of a class, `f = f` uses the file's f.
        in_class = table.get_type() == "class"
        for symbol in table.get_symbols():
            if symbol.is_global() or (in_class and symbol.is_referenced()):
                used.add(symbol.get_name())
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in DYNAMIC_MODULES:
            used.add(node.attr)
    return used


def _all_scopes(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _all_scopes(child)


def modules_imported_by_calls(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The modules that calls such as `import_module("name")` import."""
    for node in nodes:
        match node:
            case ast.Call(
                ast.Name(function) | ast.Attribute(attr=function),
                [ast.Constant(str(module)), *_],
            ):
                if function in ("import_module", "__import__"):
                    yield module
