"""Libraries of the extra torch, imported where they are used; what to install where one is missing."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from recombine.basics.errors import InputError


def library(name: str) -> Any:
    """A library by name."""
    try:
        found = importlib.import_module(name)
        if name in ("diffusers", "transformers"):
            importlib.import_module("transformers")
            _quieten()
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed: pip install 'recombine[torch]'"
        ) from error
    return found


def _quieten() -> None:
    """Keep to themselves the notices that torchvision is missing: images are then prepared with Pillow, as well."""
    for handler in logging.getLogger("transformers").handlers:
        handler.addFilter(_worth_telling)


def _worth_telling(record: logging.LogRecord) -> bool:
    return "requires torchvision" not in record.getMessage()
