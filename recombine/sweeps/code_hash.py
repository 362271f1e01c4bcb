"""Hashes of the code that a run depends on.

A part of the user is hashed with all the user's code that it depends on (`dependencies`). A class
that is in no file is hashed as it is in memory (`memory_hash`). Recombine's code is hashed as one.
"""

import functools
import importlib.util
import sys
import weakref
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from recombine.basics.version import PACKAGE
from recombine.sweeps.dependencies import dependencies_of, whole_file_dependencies
from recombine.sweeps.memory_hash import class_text
from recombine.sweeps.source_files import SourceFile, is_installed, is_user_file, read_source
from recombine.sweeps.syntax import digest, parse_file

# The modules and folders that training passes through, from a run to its rows: a worker with other
# code there is refused. The other modules find, plan, show and store results.
RELEVANT = (
    "parts",
    "parts/families",
    "parts/supports",
    "parts/encodings",
    "parts/models",
    "parts/diagnostics",
    "parts/recipes",
    "basics/atomic_io",
    "basics/errors",
    "basics/random_streams",
    "sweeps/canonical_fields",
    "sweeps/run",
    "training/activity",
    "training/checkpoint",
    "training/heartbeat",
    "training/chunk",
    "training/device",
    "training/executors/local",
    "training/executors/remote",
    "training/fitted",
    "training/machine",
    "training/program",
    "training/task_sampler",
    "training/termination",
    "training/trainer",
)

FileStamp = tuple[int, int] | None  # time of the last change and size; None for a missing file


class CachedHash(NamedTuple):
    """The hash of a class from a file, with the state of the files that it was computed from."""

    code: str
    stamps: dict[Path, FileStamp]
    specs: dict[str, Any]  # module name -> its `__spec__`; executing a module again makes a new one

    def is_valid(self) -> bool:
        """Whether the code in memory is still the code that was hashed.

        An edited file does not matter until it is executed again.
        """
        if self.stamps == _stamps(self.stamps):
            return True
        return all(_spec(name) is spec for name, spec in self.specs.items())


_cache: weakref.WeakKeyDictionary[type, CachedHash] = weakref.WeakKeyDictionary()


def hash_of_class(cls: type) -> str:
    """A hash of the code that a class depends on.

    It does not see globals that `runs(scale)` sets, docstrings that code uses, data files, or that
    a file was edited after it was imported and before the first hash.
    """
    cached = _cache.get(cls)
    if cached is not None and cached.is_valid():
        return cached.code
    source = source_of(cls)
    if source is None:
        return digest(class_text(cls))
    name = cls.__qualname__.partition(".")[0]
    dependencies = dependencies_of(source, source.definitions.get(name, source.statements))
    # A class that a function made, or that was put into the module, differs from its file.
    if "<locals>" in cls.__qualname__ or name not in source.definitions:
        return digest(*dependencies.hash_parts, class_text(cls))
    code = digest(*dependencies.hash_parts)
    stamps = _stamps(file.path for file in dependencies.files.values())
    specs = {module: _spec(module) for module in dependencies.files}
    _cache[cls] = CachedHash(code, stamps, specs)
    return code


def hash_of_function(module: ModuleType, name: str) -> str:
    """A hash of the code that a function of a user's file depends on, as for a user's part."""
    path = Path(module.__file__ or "").resolve()
    source = read_source(module.__name__, path)
    statements = source.definitions.get(name, source.statements)
    return digest(*dependencies_of(source, statements).hash_parts)


def _stamps(paths: Iterable[Path]) -> dict[Path, FileStamp]:
    stamps: dict[Path, FileStamp] = {}
    for path in paths:
        stat = path.stat() if path.exists() else None
        stamps[path] = None if stat is None else (stat.st_mtime_ns, stat.st_size)
    return stamps


def _spec(module: str) -> Any:
    return getattr(sys.modules.get(module), "__spec__", None)


@functools.cache
def hash_of_package() -> str:
    """A hash of the code of Recombine that results depend on."""
    return hash_of_files()


def hash_of_files(more: Iterable[Path] = ()) -> str:
    """A hash of the code of Recombine that results depend on, and of more files."""
    files: dict[str, Path] = {}
    for name in RELEVANT:
        for path in (PACKAGE / f"{name}.py", *(PACKAGE / name).glob("*.py")):
            if path.exists():
                files[_file_name(path)] = path
    for path in more:
        files[_file_name(path)] = path
    parts = []
    for name in sorted(files):
        parts += [name, parse_file(files[name])]
    return digest(*parts)


def _file_name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix() if path.is_relative_to(PACKAGE) else path.name


def source_files_of(cls: type) -> dict[str, str]:
    """The user's files that are needed to import a class: path from the import root -> text.

    It is empty for a class that is in no file.
    """
    source = source_of(cls)
    if source is None:
        return {}
    files = {}
    for file in whole_file_dependencies(source).files.values():
        ending = "/__init__.py" if file.is_package else ".py"
        text = importlib.util.decode_source(file.path.read_bytes())
        files[file.module.replace(".", "/") + ending] = text
    return files


def source_of(cls: type) -> SourceFile | None:
    """The file that defines a class; None for one of a console, a notebook or Recombine."""
    module = sys.modules.get(cls.__module__)
    path = Path(getattr(module, "__file__", None) or "").resolve()
    if not path.is_file() or not (is_user_file(path) or is_installed(path)):
        return None
    if cls.__module__ != "__main__":
        return read_source(cls.__module__, path)
    spec = getattr(module, "__spec__", None)  # of `python -m name`; a script has none
    script_name = f"recombine_main_{path.stem.replace('.', '_')}"
    return read_source(script_name if spec is None else spec.name, path)
