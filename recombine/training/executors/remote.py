"""Send runs to another machine: as text, with the files of the user's own parts, never as a pickle.

{"numerics": 3, "code": "…", "machine": {}, "runs": [to_json(run), …], "names": [identity(run), …],
 "parts": {"Doubled": {"module": "mine", "code": "…"}},
 "files": {"mine.py": "…", "helper.py": "…"}}

`pack` makes the text on the driver, `unpack` makes runs of it on the worker.
"""

import atexit
import dataclasses
import functools
import importlib
import importlib.util
import json
import re
import shutil
import socket
import sys
import tempfile
import threading
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from recombine.basics import user_files
from recombine.basics.errors import InputError, require
from recombine.sweeps import discovery
from recombine.sweeps.code_hash import hash_of_class, hash_of_package, source_files_of, source_of
from recombine.sweeps.run import NUMERICS, Run, from_json, identity, to_json
from recombine.training import machine

# A module or a file of a package. No part of the path begins with a dot, so it stays inside.
_NAME = r"[^./\\:\0][^/\\:\0]*"
FILE_NAME = re.compile(rf"({_NAME}/)*{_NAME}\.py")
# The modules that were received, by the contents of their files. A class that is received twice
# must be the same object, or its programs are compiled again.
_received_modules: dict[str, dict[str, ModuleType]] = {}
_receive_lock = threading.Lock()


def pack(runs: Iterable[Run], required_machine: Mapping[str, Any] | None = None) -> str:
    """The runs as text, with everything that another machine needs to train them.

    A worker that differs from the required machine (`machine.columns`) refuses them.
    """
    runs = list(runs)
    user_classes = {name: cls for name, cls in _classes_of(runs).items() if _code_hash(cls)}
    parts = {}
    files: dict[str, str] = {}
    for name, cls in user_classes.items():
        parts[name], part_files = _describe(cls, _code_hash(cls))
        for file_name, text in part_files.items():
            require(
                files.setdefault(file_name, text) == text,
                f"two different files are called {file_name}: rename one of them",
            )
    content = {
        "numerics": NUMERICS,
        "code": hash_of_package(),
        "machine": dict(required_machine or {}),
        "runs": [to_json(run) for run in runs],
        "names": [identity(run) for run in runs],
        "parts": parts,
        "files": files,
    }
    return json.dumps(content)


def unpack(text: str) -> list[Run]:
    """The runs that were packed, with the same hashes."""
    content = json.loads(text)
    worker_code = hash_of_package()
    driver_code = content["code"]
    require(
        content["numerics"] == NUMERICS and worker_code == driver_code,
        f"the worker has another version of recombine (code {worker_code}) than the driver "
        f"(code {driver_code}): update one of them",
    )
    unlike = machine.differences(content.get("machine", {}), machine.columns())
    require(
        not unlike,
        f"the worker on {socket.gethostname()} is unlike the first one: {', '.join(unlike)}. Stop "
        "it and run the same command again, or leave out --like-workers",
    )
    our_parts = {name: part for kind in discovery.parts().values() for name, part in kind.items()}
    with _receive_lock:
        user_parts = _receive(content["parts"], content["files"])
    classes = {"Run": Run} | our_parts | user_parts
    runs = [from_json(run, classes) for run in content["runs"]]
    for run, name in zip(runs, content["names"], strict=True):
        require(
            identity(run) == name,
            f"the hash of run {name} differs on the worker: __post_init__ of "
            f"{' or '.join(user_parts) or 'a part'} must not change values that it has already set",
        )
    return runs


def _classes_of(runs: list[Run]) -> dict[str, type]:
    """The classes of all parts of the runs, by name."""
    classes: dict[str, type] = {}
    for cls in dict.fromkeys(type(part) for run in runs for part in _parts_of(run)):
        other = classes.setdefault(cls.__name__, cls)
        require(
            _code_hash(other) == _code_hash(cls),
            f"there are two different classes {cls.__name__}, in {other.__module__} and in "
            f"{cls.__module__}: rename one of them",
        )
    return classes


def _parts_of(part: Any) -> Iterator[Any]:
    """A run or part, and all parts inside it."""
    if isinstance(part, tuple):
        for item in part:
            yield from _parts_of(item)
    elif dataclasses.is_dataclass(part):
        yield part
        for field in dataclasses.fields(part):
            yield from _parts_of(getattr(part, field.name))


def _code_hash(cls: type) -> str:
    """The hash of a user's class. Empty for a class of ours."""
    return "" if cls.__module__.startswith("recombine.") else hash_of_class(cls)


@functools.lru_cache
def _describe(cls: type, code_hash: str) -> tuple[dict[str, str], dict[str, str]]:
    """The module and hash of a class, and the contents of the files that it needs."""
    source = source_of(cls)
    loaded = getattr(sys.modules.get(cls.__module__), cls.__name__, None)
    if source is None or loaded is not cls:
        raise InputError(
            f"put the class {cls.__name__} at the top level of a file: "
            "other machines cannot see it where it is"
        )
    return {"module": source.module, "code": code_hash}, source_files_of(cls)


def _receive(parts: dict[str, dict[str, str]], files: dict[str, str]) -> dict[str, type]:
    """The classes that were packed. Imports them, unless this process already has them."""
    for file_name in files:
        require(
            FILE_NAME.fullmatch(file_name) is not None,
            f"the driver sent a file {file_name!r}, which is no Python file inside its folder: "
            "the runs are refused",
        )
    key = json.dumps(files, sort_keys=True)
    if key not in _received_modules and not _are_imported(parts, files):
        needed = {part["module"] for part in parts.values()}
        _received_modules[key] = _import_files(needed, files)
    # A method may import a module only when it is called.
    sys.modules.update(_received_modules.get(key, {}))
    classes = {}
    for name, part in parts.items():
        cls = getattr(sys.modules[part["module"]], name, None)
        require(
            _has_hash(cls, part["code"]),
            f"the class {name} of {part['module']} differs on the worker: one of the files "
            f"{', '.join(files)} was changed while the sweep started. Start it again",
        )
        classes[name] = cls
    return typing.cast(dict[str, type], classes)


def _has_hash(cls: Any, code_hash: str) -> bool:
    return isinstance(cls, type) and hash_of_class(cls) == code_hash


def _are_imported(parts: dict[str, dict[str, str]], files: dict[str, str]) -> bool:
    """Whether this process has already imported the same classes from the same files."""
    # Every hash is computed now, while the modules still have these classes: it is remembered.
    checks = []
    for name, part in parts.items():
        cls = getattr(sys.modules.get(part["module"]), name, None)
        checks.append(_has_hash(cls, part["code"]))
    for file_name, text in files.items():
        module = sys.modules.get(_module_name(file_name))
        path = Path(getattr(module, "__file__", None) or "")
        checks.append(not path.is_file() or importlib.util.decode_source(path.read_bytes()) == text)
    return all(checks)


def _module_name(file_name: str) -> str:
    return file_name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _import_files(needed: set[str], files: dict[str, str]) -> dict[str, ModuleType]:
    """Import files that were received, under the names of their modules.

    The `needed` modules must succeed. Others may need packages that the worker does not have.
    """
    folder = Path(tempfile.mkdtemp(prefix="recombine-remote-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for file_name, text in files.items():
        path = folder / file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        # An older version, or a file of this machine with the same name.
        sys.modules.pop(_module_name(file_name), None)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    modules = {}
    for name in sorted(map(_module_name, files), key=lambda name: name not in needed):
        try:
            modules[name] = importlib.import_module(name)
        except (Exception, SystemExit) as error:
            if name in needed:
                sys.path.remove(str(folder))
                file = Path(name.rpartition(".")[2] + ".py")
                reason = user_files.describe_error(error, file)
                raise InputError(f"{name} cannot be imported on the worker: {reason}") from error
    return modules
