"""Import of the user's Python files, and one-line descriptions of errors in them."""

import errno
import importlib.util
import os
import sys
import zlib
from pathlib import Path
from types import ModuleType

from recombine.basics.errors import InputError


def load(path: Path) -> ModuleType:
    """Import a user's file. Any error in it becomes an `InputError` of one line."""
    if not is_file(path):
        raise InputError(f"there is no file {path}")
    name = f"recombine_user_{path.stem}_{zlib.crc32(os.fsencode(path.resolve()))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up annotations there
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # the file may import its neighbors, as in a script
        sys.path.append(folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InputError(f"cannot import {path}: {describe_error(error, path)}") from error
    return module


def is_file(path: Path) -> bool:
    """Whether a path is a file. A path that the system does not accept is an `InputError`."""
    try:
        return path.is_file()
    except (OSError, ValueError) as error:
        is_too_long = getattr(error, "errno", None) == errno.ENAMETOOLONG
        reason = getattr(error, "strerror", None) or str(error)
        remedy = "choose a shorter one" if is_too_long else "choose another one"
        raise InputError(f"cannot use the path {path} ({reason}): {remedy}") from error


def describe_error(error: BaseException, path: Path) -> str:
    """The type and message of an error, and the line of the user's file that raised it."""
    line = getattr(error, "lineno", None)
    trace = error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == path.name:
            line = trace.tb_lineno
        trace = trace.tb_next
    text = str(error)
    if isinstance(error, SyntaxError) and Path(error.filename or "").name == path.name:
        text = error.msg  # without the file and line, which are given anyway
    message = " ".join(text.split()) or "no message"
    return f"{type(error).__name__}: {message}" + (f" (line {line})" if line else "")
