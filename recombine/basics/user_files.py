"""Python files of the user: how they are imported, and what went wrong in them, in one line."""

import importlib.util
import os
import sys
import zlib
from pathlib import Path
from types import ModuleType

from recombine.basics.errors import InputError


def load(path: Path) -> ModuleType:
    """Import a user's file; an error in it becomes one line."""
    try:
        found = path.is_file()
    except (
        OSError,
        ValueError,
    ):  # a name that is too long for the system, or holds what it does not allow
        found = False
    if not found:
        raise InputError(f"there is no file {path}")
    name = f"recombine_user_{path.stem}_{zlib.crc32(os.fsencode(path.resolve()))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their annotations up there
    beside = str(path.resolve().parent)
    if (
        beside not in sys.path
    ):  # as Python itself does for a script: a file may import its neighbours
        sys.path.append(beside)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"{path} could not be read: {where(error, path)}") from error
    return module


def where(error: BaseException, path: Path) -> str:
    """An error as one line: its kind, its message, and the line of the user's file where it arose."""
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == path.name:
            line = trace.tb_lineno
        trace = trace.tb_next
    text = str(error)
    if isinstance(error, SyntaxError) and Path(error.filename or "").name == path.name:
        text = error.msg  # without the file and the line, which are given anyway
    message = " ".join(text.split()) or "no message"
    return f"{type(error).__name__}: {message}" + (f" (line {line})" if line else "")
