"""Imports of optional libraries (extra `torch`), with an error that names the extra to install."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from recombine.basics.errors import InputError


def import_library(name: str) -> Any:
    """Import an optional library by name."""
    try:
        module = importlib.import_module(name)
        if name in ("diffusers", "transformers"):
            importlib.import_module("transformers")
            _hide_torchvision_notices()
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed: run pip install 'recombine[torch]'"
        ) from error
    return module


def _hide_torchvision_notices() -> None:
    """Hide the log messages of transformers that torchvision is missing.

    Without torchvision, transformers prepares images with Pillow.
    """
    for handler in logging.getLogger("transformers").handlers:
        handler.addFilter(_is_no_torchvision_notice)


def _is_no_torchvision_notice(record: logging.LogRecord) -> bool:
    return "requires torchvision" not in record.getMessage()
