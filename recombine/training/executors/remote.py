"""How runs travel to another machine: as text, with the files of the user's own parts, and never as a pickle.

{"numerics": 3, "code": "…", "runs": [to_json(run), …], "names": [identity(run), …],
 "parts": {"Doubled": {"module": "mine", "code": "…"}}, "files": {"mine.py": "…", "helper.py": "…"}}
"""

import atexit
import dataclasses
import functools
import importlib
import importlib.util
import json
import shutil
import sys
import tempfile
import threading
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from recombine.basics import user_files
from recombine.basics.errors import InputError, require
from recombine.sweeps import discovery
from recombine.sweeps.code_hash import files_of, home_of, of_class, of_package
from recombine.sweeps.run import NUMERICS, Run, from_json, identity, to_json

# The modules that came in parcels, by the texts of the files: equal classes must be the same, or they compile again.
_loaded: dict[str, dict[str, ModuleType]] = {}
_one_at_a_time = threading.Lock()


def pack(runs: Iterable[Run]) -> str:
    """The runs as text, with all that another machine needs to train them."""
    runs = list(runs)
    classes: dict[str, type] = {}
    for cls in dict.fromkeys(type(part) for run in runs for part in _parts(run)):
        known = classes.setdefault(cls.__name__, cls)
        require(
            _code(known) == _code(cls),
            f"there are two different classes {cls.__name__}, in {known.__module__} and in {cls.__module__}: "
            "give one of them another name",
        )
    parts = {name: _describe(cls, _code(cls)) for name, cls in classes.items() if _code(cls)}
    files: dict[str, str] = {}
    for name, text in (item for _, found in parts.values() for item in found.items()):
        require(
            files.setdefault(name, text) == text,
            f"two different files are called {name}: rename one of them",
        )
    content = {
        "numerics": NUMERICS,
        "code": of_package(),
        "runs": [to_json(run) for run in runs],
        "names": [identity(run) for run in runs],
        "parts": {name: about for name, (about, _) in parts.items()},
        "files": files,
    }
    return json.dumps(content)


def unpack(text: str) -> list[Run]:
    """The runs of a parcel, just as they were sent."""
    content = json.loads(text)
    here, there = (NUMERICS, of_package()), (content["numerics"], content["code"])
    require(
        here == there,
        f"the worker has another version of recombine (code {here[1]}) than the driver (code {there[1]}): "
        "update one of them",
    )
    ours = {name: part for kind in discovery.parts().values() for name, part in kind.items()}
    with _one_at_a_time:
        theirs = _receive(content["parts"], content["files"])
    runs = [from_json(run, {"Run": Run, **ours, **theirs}) for run in content["runs"]]
    for run, name in zip(runs, content["names"], strict=True):
        require(
            identity(run) == name,
            f"the run {name} is another one on the worker: the __post_init__ of {' or '.join(theirs) or 'a part'} "
            "changes values that it has changed before; let it leave them as they are",
        )
    return runs


def _parts(part: Any) -> Iterator[Any]:
    """A run or part and all the parts in it."""
    if isinstance(part, tuple):
        for item in part:
            yield from _parts(item)
    elif dataclasses.is_dataclass(part):
        yield part
        for field in dataclasses.fields(part):
            yield from _parts(getattr(part, field.name))


def _code(cls: type) -> str:
    return "" if cls.__module__.startswith("recombine.") else of_class(cls)


@functools.lru_cache
def _describe(cls: type, code: str) -> tuple[dict[str, str], dict[str, str]]:
    """Where a class is found, and the files that it needs."""
    home, loaded = home_of(cls), getattr(sys.modules.get(cls.__module__), cls.__name__, None)
    if home is None or loaded is not cls:
        raise InputError(
            f"put the class {cls.__name__} into a file, at its top level: other machines cannot see it"
        )
    return {"module": home.module, "code": code}, files_of(cls)


def _receive(parts: dict[str, dict[str, str]], files: dict[str, str]) -> dict[str, type]:
    """The classes of a parcel: those that are here already, or else new ones."""
    key = json.dumps(files, sort_keys=True)
    if key not in _loaded and not _are_here(parts, files):
        _loaded[key] = _load({about["module"] for about in parts.values()}, files)
    sys.modules.update(_loaded.get(key, {}))  # a method may import them only when it is called
    found = {
        name: getattr(sys.modules[about["module"]], name, None) for name, about in parts.items()
    }
    for name, cls in found.items():
        require(
            _is(cls, parts[name]["code"]),
            f"the class {name} of {parts[name]['module']} is another one on the worker: one of the files "
            f"{', '.join(files)} was changed while the sweep started; start again",
        )
    return typing.cast(dict[str, type], found)


def _is(cls: Any, code: str) -> bool:
    return isinstance(cls, type) and of_class(cls) == code


def _are_here(parts: dict[str, dict[str, str]], files: dict[str, str]) -> bool:
    """Whether this process has imported the same classes from the same files."""
    modules = {name: sys.modules.get(about["module"]) for name, about in parts.items()}
    # All of them, while they are what their modules have: their hashes are remembered.
    same = [_is(getattr(modules[name], name, None), about["code"]) for name, about in parts.items()]
    for name, text in files.items():
        path = Path(getattr(sys.modules.get(_module(name)), "__file__", None) or "")
        same.append(not path.is_file() or importlib.util.decode_source(path.read_bytes()) == text)
    return all(same)


def _module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _load(needed: set[str], files: dict[str, str]) -> dict[str, ModuleType]:
    """Import all files that came in a parcel, under the names of their modules; the needed ones must succeed."""
    folder = Path(tempfile.mkdtemp(prefix="recombine-parcel-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        sys.modules.pop(
            _module(name), None
        )  # an older version, or a file of this machine that has the name
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    modules = {}
    for module in sorted(map(_module, files), key=lambda module: module not in needed):
        try:
            modules[module] = importlib.import_module(module)
        except (Exception, SystemExit) as error:
            if module in needed:
                sys.path.remove(str(folder))
                reason = user_files.where(error, Path(module.rpartition(".")[2] + ".py"))
                raise InputError(f"{module} cannot be imported on the worker: {reason}") from error
    return modules
