"""What a run's content hash is taken of, besides numbers: code. A user's own part is hashed with all that it uses
(`closure`), or as it is in memory where it was typed into a console or a notebook; our own code as a whole.
"""

import ast
import copy
import functools
import hashlib
import importlib.util
import inspect
import sys
import typing
import weakref
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np

from recombine.basics.version import PACKAGE
from recombine.parts.field_checks import added_fields, hints
from recombine.sweeps.closure import (
    DEFINITION,
    INSTALLED,
    Closure,
    Source,
    does_nothing,
    is_users,
    parse,
    read,
)

# What results depend on; the rest of the package finds, plans, shows and stores them.
RELEVANT = (
    "parts",
    *(
        f"parts/{kind}"
        for kind in ("families", "supports", "encodings", "models", "diagnostics", "recipes")
    ),
    "basics/random_streams",
    "sweeps/run",
    *(f"training/{module}" for module in ("activity", "task_sampler", "program", "trainer")),
)
DOCUMENTED = (ast.Module, *DEFINITION)
SILENT = ("ctx", "kind", "type_comment", "type_ignores")  # fields of a tree that say nothing new
HEAP_TYPE = 1 << 9  # Python's mark of a class that a class statement made


class Known(NamedTuple):
    """The hash of a class from a file, and when it holds: while the files stay, or are not executed again."""

    code: str
    files: dict[Path, tuple[int, int] | None]
    specs: dict[str, Any]  # how the modules were imported; executing one again gives it a new one

    def holds(self) -> bool:
        """Whether what is in memory is still what the hash was taken of."""
        return self.files == _stamps(self.files) or all(
            _spec(name) is spec for name, spec in self.specs.items()
        )


_known: weakref.WeakKeyDictionary[type, Known] = weakref.WeakKeyDictionary()


def of_class(cls: type) -> str:
    """A hash of the code that a class depends on. It cannot see globals that `runs(scale)` sets, docstrings that are
    read, data files, or that a file was edited after it was imported and before the first hash."""
    known = _known.get(cls)
    if known is not None and known.holds():
        return known.code
    home = home_of(cls)
    if home is None:
        return _digest(_class_in_memory(cls, Seen()))
    outer = cls.__qualname__.partition(".")[0]
    closure = Closure(home, home.defines.get(outer, home.statements))
    # A class that a function made, or that was put there from outside, is more than what the file says of it.
    made = "<locals>" in cls.__qualname__ or outer not in home.defines
    code = _digest(*closure.found, *([_class_in_memory(cls, Seen())] if made else []))
    if not made:
        paths = [source.path for source in closure.entered.values()]
        _known[cls] = Known(code, _stamps(paths), {name: _spec(name) for name in closure.entered})
    return code


def _stamps(paths: Iterable[Path]) -> dict[Path, tuple[int, int] | None]:
    """When each file was written and how long it is; None where there is none."""
    found = {path: path.stat() if path.exists() else None for path in paths}
    return {
        path: None if stat is None else (stat.st_mtime_ns, stat.st_size)
        for path, stat in found.items()
    }


def _spec(module: str) -> Any:
    return getattr(sys.modules.get(module), "__spec__", None)


@functools.cache
def of_package() -> str:
    """A hash of our own code, as far as results depend on it."""
    return of_files()


def of_files(more: Iterable[Path] = ()) -> str:
    """A hash of our own code and of more files, ours or a user's."""
    paths = [
        path
        for name in RELEVANT
        for path in (PACKAGE / f"{name}.py", *(PACKAGE / name).glob("*.py"))
    ]
    files = {path.relative_to(PACKAGE).as_posix(): path for path in paths if path.exists()}
    files |= {
        path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else path.name: path
        for path in more
    }
    return _digest(*(part for name in sorted(files) for part in (name, parse(files[name]))))


def dump(node: Any) -> str:
    """A syntax tree without docstrings and places as one line, the same in every version of Python."""
    if isinstance(node, list):
        return f"[{','.join(map(dump, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    told = []
    for name in node._fields:
        value = getattr(node, name, None)
        if name == "body" and isinstance(node, DOCUMENTED) and value and does_nothing(value[0]):
            value = value[1:] or [ast.Pass()]
        if value is not None and value != [] and name not in SILENT:
            told.append(f"{name}={dump(value)}")
    return f"{type(node).__name__}({','.join(told)})"


def files_of(cls: type) -> dict[str, str]:
    """The user's files that are needed to import the class, named as modules are: path -> text. There are none for a
    class that is in no file."""
    home = home_of(cls)
    files = {}
    for source in [] if home is None else Closure(home).entered.values():
        name = source.module.replace(".", "/") + ("/__init__.py" if source.is_package else ".py")
        files[name] = importlib.util.decode_source(source.path.read_bytes())
    return files


def home_of(cls: type) -> Source | None:
    """The file that defines a class, or None for one that was typed into a console or a notebook."""
    name, module = cls.__module__, sys.modules.get(cls.__module__)
    path = Path(getattr(module, "__file__", None) or "").resolve()
    if not path.is_file() or not (is_users(path) or INSTALLED & set(path.parts)):
        return None
    if name == "__main__":  # a script, or what `python -m` was given
        spec = getattr(module, "__spec__", None)
        name = f"recombine_main_{path.stem.replace('.', '_')}" if spec is None else spec.name
    return read(name, path)


def fields(part: Any) -> dict[str, Any]:
    """A part's fields, each in one form: equal values (1, 1.0, True and NumPy's; a list and a tuple) look alike.

    A field that was added later is left out where it has its earlier value (`core.added`).
    """
    found = {name: _plain(getattr(part, name), kinds) for name, kinds in _kinds(type(part)).items()}
    before = added_fields(type(part))
    return {
        name: value for name, value in found.items() if name not in before or value != before[name]
    }


def _plain(value: Any, kinds: set[type]) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item, kinds) for item in value)
    if not isinstance(value, (int, float)):
        return value
    if bool in kinds and value in (0, 1):
        return bool(value)
    if float in kinds and float(value) == value:
        return float(value) + 0.0  # no minus zero
    if isinstance(value, float) and not value.is_integer():
        return value
    return int(value)


@functools.lru_cache
def _kinds(cls: type) -> dict[str, set[type]]:
    return {name: _leaves(hint) for name, hint in hints(cls).items()}


def _leaves(hint: Any) -> set[type]:
    """The plain types in an annotation."""
    args = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return set(map(type, args))
    return set[type]().union(*map(_leaves, args)) if args else {hint}


class Seen(dict[int, int]):
    """The numbers of the functions, classes and objects met so far, and the containers that are being written."""

    inside: tuple[int, ...] = ()


def _class_in_memory(cls: type, seen: Seen) -> str:
    seen[id(cls)] = len(seen)
    # Functions, special ones too; of other special names only Python knows.
    found = {
        name: value
        for name, value in vars(cls).items()
        if isinstance(value, FunctionType | staticmethod | classmethod) or not name.startswith("__")
    }
    return f"class({_in_memory(cls.__bases__, seen)}){_in_memory(found, seen)}"


def _function_in_memory(function: FunctionType, seen: Seen) -> str:
    code, known = function.__code__, function.__globals__
    used = {name: known[name] for name in sorted(_names(code)) if name in known}
    inner = dict(zip(code.co_freevars, map(_content, function.__closure__ or ()), strict=True))
    values = (code, function.__defaults__, function.__kwdefaults__, used, inner)
    return f"function({_in_memory(values, seen)})"


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty still
        return None


def _names(code: CodeType) -> set[str]:
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _constants(code: CodeType) -> tuple[Any, ...]:
    """The constants of compiled code, without its docstring."""
    function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
    told = sys.version_info < (3, 14) or code.co_flags & 0x4000000  # CO_HAS_DOCSTRING
    documented = function and told and isinstance(code.co_consts[0], str)
    return (None, *code.co_consts[1:]) if documented else code.co_consts


def _contained(value: Any, seen: Seen) -> str:
    """A container as text, whatever the order of a set and even if it contains itself."""
    if id(value) in seen.inside:
        return f"^{seen.inside[::-1].index(id(value))}"
    before, seen.inside = seen.inside, (*seen.inside, id(value))

    def alone(item: Any) -> str:
        return _in_memory(item, copy.copy(seen))

    items = value.items() if isinstance(value, dict) else value
    if isinstance(value, dict | set | frozenset):
        items = sorted(
            items, key=alone if isinstance(value, set | frozenset) else lambda item: alone(item[0])
        )
    told = f"{type(value).__name__}({', '.join([_in_memory(item, seen) for item in items])})"
    seen.inside = before
    return told


def _in_memory(value: Any, seen: Seen) -> str:
    """A value as text: plain ones as they are written, functions and classes by their code and all that it uses."""
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes():
            return repr(value)
        case tuple() | list() | dict() | set() | frozenset():
            return _contained(value, seen)
        case CodeType():
            return (
                f"code({value.co_code!r}, {value.co_names}, {_in_memory(_constants(value), seen)})"
            )
        case staticmethod() | classmethod() | MethodType():
            return _in_memory(value.__func__, seen)
        case property():
            return _in_memory((value.fget, value.fset, value.fdel), seen)
        case functools.partial():
            return _in_memory((value.func, value.args, value.keywords), seen)
    if id(value) in seen:
        return f"#{seen[id(value)]}"
    seen[id(value)] = len(seen)
    match value:
        case ModuleType():
            path = Path(getattr(value, "__file__", None) or "").resolve()
            own = path.is_file() and is_users(path)
            return _digest(*Closure(read(value.__name__, path)).found) if own else value.__name__
        case FunctionType() | type() if _is_foreign(value):
            wrapped = _in_memory(getattr(value, "__wrapped__", None), seen)  # it may be the user's
            return f"{value.__module__}.{value.__qualname__}({wrapped})"
        case FunctionType():
            return _function_in_memory(value, seen)
        case type():
            return _class_in_memory(value, seen)
    content = value.tobytes() if hasattr(value, "tobytes") else getattr(value, "__dict__", None)
    return _in_memory((type(value), getattr(value, "__name__", None), content), seen)


def _is_foreign(value: FunctionType | type) -> bool:
    """Whether a function or class is not the user's."""
    if isinstance(value, FunctionType):
        file = value.__code__.co_filename
    elif not value.__flags__ & HEAP_TYPE:
        return True
    else:
        file = (
            None
            if value.__module__ == "__main__"
            else getattr(sys.modules.get(value.__module__), "__file__", None)
        )
    path = Path(file or "")
    return path.is_file() and not is_users(path.resolve())


def _digest(*parts: str | ast.AST) -> str:
    texts = [part if isinstance(part, str) else dump(part) for part in parts]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
