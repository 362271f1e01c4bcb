"""The fields of a part in one form, so that equal parts have equal hashes."""

import functools
import typing
from typing import Any, Literal

import numpy as np

from recombine.parts.field_checks import added_fields, field_types


def canonical_fields(part: Any) -> dict[str, Any]:
    """A part's fields by name, where equal values look the same.

    1, 1.0, True and NumPy's numbers become the type that the annotation asks for, and lists become
    tuples. A field that was added later (`added`) is left out where it has its earlier value.
    """
    earlier_values = added_fields(type(part))
    fields = {}
    for name, types in _types_by_field(type(part)).items():
        value = _canonical(getattr(part, name), types)
        if name not in earlier_values or value != earlier_values[name]:
            fields[name] = value
    return fields


def _canonical(value: Any, types: set[type]) -> Any:
    """A value as one of these types, if it equals such a value."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return tuple(_canonical(item, types) for item in value)
    if not isinstance(value, (int, float)):
        return value
    if bool in types and value in (0, 1):
        return bool(value)
    if float in types and float(value) == value:
        return float(value) + 0.0  # -0.0 becomes 0.0
    if isinstance(value, float) and not value.is_integer():
        return value
    return int(value)


@functools.lru_cache
def _types_by_field(cls: type) -> dict[str, set[type]]:
    return {name: _plain_types(hint) for name, hint in field_types(cls).items()}


def _plain_types(hint: Any) -> set[type]:
    """The types in an annotation: `tuple[int, ...] | None` gives `int`, `...` and `None`'s."""
    args = typing.get_args(hint)
    if typing.get_origin(hint) is Literal:
        return {type(value) for value in args}
    if not args:
        return {hint}
    return set[type]().union(*map(_plain_types, args))
