"""Objects in memory as text to hash: functions and classes by their code and all that it uses.

This is for classes that no file describes: typed into a console or a notebook, or made by a
function. The text is the same in every process: it holds no addresses. Docstrings are left out.
"""

import functools
import inspect
import sys
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from recombine.sweeps.dependencies import whole_file_dependencies
from recombine.sweeps.source_files import is_user_file, read_source
from recombine.sweeps.syntax import digest

MADE_BY_CLASS_STATEMENT = 1 << 9  # Py_TPFLAGS_HEAPTYPE in a class's __flags__
CODE_HAS_DOCSTRING = 0x4000000  # CO_HAS_DOCSTRING in a code object's flags, since Python 3.14


def class_text(cls: type) -> str:
    """A class and all that its methods use, as text."""
    serializer = _Serializer()
    serializer.number(cls)
    return serializer.class_text(cls)


class _Serializer:
    """Writes objects as text. An object that was written before is only referred to.

    `numbers` numbers the functions, classes and other objects written so far, by their id.
    `open_containers` holds the ids of the containers that are being written, outermost first.
    """

    def __init__(
        self, numbers: dict[int, int] | None = None, open_containers: tuple[int, ...] = ()
    ) -> None:
        self.numbers = {} if numbers is None else numbers
        self.open_containers = open_containers

    def text(self, value: Any) -> str:
        """Any value as text."""
        match value:
            case None | bool() | int() | float() | complex() | str() | bytes():
                return repr(value)
            case tuple() | list() | dict() | set() | frozenset():
                return self.container_text(value)
            case CodeType():
                constants = self.text(_constants(value))
                return f"code({value.co_code!r}, {value.co_names}, {constants})"
            case staticmethod() | classmethod() | MethodType():
                return self.text(value.__func__)
            case property():
                return self.text((value.fget, value.fset, value.fdel))
            case functools.partial():
                return self.text((value.func, value.args, value.keywords))
        if id(value) in self.numbers:
            return f"#{self.numbers[id(value)]}"
        self.number(value)
        return self.object_text(value)

    def number(self, value: Any) -> None:
        """Give an object the next number, before it is written: it may refer to itself."""
        self.numbers[id(value)] = len(self.numbers)

    def object_text(self, value: Any) -> str:
        """A module, function, class or instance as text."""
        match value:
            case ModuleType():
                return _module_text(value)
            case FunctionType() | type() if _is_library_code(value):
                wrapped = self.text(getattr(value, "__wrapped__", None))  # it may be the user's
                return f"{value.__module__}.{value.__qualname__}({wrapped})"
            case FunctionType():
                return self.function_text(value)
            case type():
                return self.class_text(value)
        is_array = hasattr(value, "tobytes")
        content = value.tobytes() if is_array else getattr(value, "__dict__", None)
        return self.text((type(value), getattr(value, "__name__", None), content))

    def class_text(self, cls: type) -> str:
        """A class by its bases and members."""
        members = {}
        for name, value in vars(cls).items():
            is_function = isinstance(value, FunctionType | staticmethod | classmethod)
            set_by_python = name.startswith("__") and not is_function
            if not set_by_python:
                members[name] = value
        return f"class({self.text(cls.__bases__)}){self.text(members)}"

    def function_text(self, function: FunctionType) -> str:
        """A function by its code, its defaults, and the global and outer variables it uses."""
        code = function.__code__
        names = sorted(_names(code))
        used_globals = {n: function.__globals__[n] for n in names if n in function.__globals__}
        cells = map(_cell_content, function.__closure__ or ())
        outer_variables = dict(zip(code.co_freevars, cells, strict=True))
        content = (
            code,
            function.__defaults__,
            function.__kwdefaults__,
            used_globals,
            outer_variables,
        )
        return f"function({self.text(content)})"

    def container_text(self, value: Any) -> str:
        """A container by its items; one that contains itself refers to itself by depth."""
        if id(value) in self.open_containers:
            return f"^{self.open_containers[::-1].index(id(value))}"
        outside = self.open_containers
        self.open_containers = (*outside, id(value))
        items = [self.text(item) for item in self._ordered_items(value)]
        self.open_containers = outside
        return f"{type(value).__name__}({', '.join(items)})"

    def _ordered_items(self, value: Any) -> Any:
        """The items of a container; sets and dicts in the order of their texts."""
        if isinstance(value, dict):
            return sorted(value.items(), key=lambda item: self._text_alone(item[0]))
        if isinstance(value, set | frozenset):
            return sorted(value, key=self._text_alone)
        return value

    def _text_alone(self, item: Any) -> str:
        """An item as text, without a number for what it holds."""
        return _Serializer(dict(self.numbers), self.open_containers).text(item)


def _module_text(module: ModuleType) -> str:
    """A user's module by its code, any other by its name."""
    path = Path(getattr(module, "__file__", None) or "").resolve()
    if not path.is_file() or not is_user_file(path):
        return module.__name__
    return digest(*whole_file_dependencies(read_source(module.__name__, path)).hash_parts)


def _cell_content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the outer variable has no value yet
        return None


def _names(code: CodeType) -> set[str]:
    """The names that compiled code uses, functions inside it included."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _constants(code: CodeType) -> tuple[Any, ...]:
    """The constants of compiled code, without its docstring."""
    is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
    # Before Python 3.14, a function's first constant is its docstring or None.
    may_have = sys.version_info < (3, 14) or code.co_flags & CODE_HAS_DOCSTRING
    has_docstring = is_function and may_have and isinstance(code.co_consts[0], str)
    return (None, *code.co_consts[1:]) if has_docstring else code.co_consts


def _is_library_code(value: FunctionType | type) -> bool:
    """Whether a function or class is part of Python, of an installed package or of Recombine."""
    if isinstance(value, FunctionType):
        file = value.__code__.co_filename
    elif not value.__flags__ & MADE_BY_CLASS_STATEMENT:
        return True
    elif value.__module__ == "__main__":
        file = None
    else:
        file = getattr(sys.modules.get(value.__module__), "__file__", None)
    path = Path(file or "")
    return path.is_file() and not is_user_file(path.resolve())
