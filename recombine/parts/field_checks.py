"""Checks of the fields of parts: types, ranges, and fields added after results were stored."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
from typing import Annotated, Any, Literal

import numpy as np

from recombine.basics.errors import require

# A field of this type may differ between runs of one compiled program, which gets it as a traced
# scalar.
Knob = Annotated[float, "knob"]

MAX_LAYERS = 256  # more layers take too long to trace
MAX_FLOAT = 3.4e38  # programs compute in 32 bits
MAX_INT = 2**63  # rows store integers in 64 bits

BEFORE = "recombine: value before the field was added"  # key in the metadata of a dataclass field


@functools.lru_cache
def field_types(cls: type) -> dict[str, Any]:
    """The annotated types of a dataclass's init fields, including `Annotated`."""
    all_types = typing.get_type_hints(cls, include_extras=True)
    return {field.name: all_types[field.name] for field in dataclasses.fields(cls) if field.init}


def added(default: Any, before: Any) -> Any:
    """Declare a field that was added to a part after results were stored.

    `before` is the value with which the stored results were trained. A run with this value keeps
    its earlier content hash, so its stored rows are still found.
    """
    return dataclasses.field(default=default, metadata={BEFORE: before})


@functools.lru_cache
def added_fields(cls: type) -> dict[str, Any]:
    """The fields of a part that are declared with `added`, each with its value `before`."""
    return {
        field.name: field.metadata[BEFORE]
        for field in dataclasses.fields(cls)
        if BEFORE in field.metadata
    }


def is_knob(field_type: Any) -> bool:
    """Whether a field of this type may differ within one compiled program."""
    return "knob" in getattr(field_type, "__metadata__", ())


def check(part: Any, **minimums: float) -> None:
    """Raise an `InputError` unless every field has its annotated type and is at least its minimum.

    The `__post_init__` of every part calls it. Where the annotation says so, integers become floats
    and lists become tuples: equal parts are then equal and hashable.
    """
    class_name = type(part).__name__
    for name, field_type in field_types(type(part)).items():
        original = getattr(part, name)
        value = _convert(original, field_type)
        require(
            _has_type(value, field_type),
            f"{class_name}.{name} must be {describe_type(field_type)}, got {_repr(original)}",
        )
        require(
            _in_range(value),
            f"{class_name}.{name} must be below 2**63, or below 3.4e38 as a float, "
            f"got {_repr(value)}",
        )
        object.__setattr__(part, name, value)
    for name, minimum in minimums.items():
        value = getattr(part, name)
        require(value >= minimum, f"{class_name}.{name} must be at least {minimum}, got {value!r}")


def check_layers(part: Any, num_layers: int) -> None:
    """Raise an `InputError` if a part has too many layers to compile in reasonable time."""
    require(
        num_layers <= MAX_LAYERS,
        f"{type(part).__name__} with {num_layers} layers would take too long to compile: "
        f"use at most {MAX_LAYERS}",
    )


def describe_type(field_type: Any) -> str:
    """A type in words, for error messages."""
    field_type = _without_annotation(field_type)
    origin = typing.get_origin(field_type)
    args = typing.get_args(field_type)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, args))
    if _is_union(origin):
        return " or ".join(describe_type(arg) for arg in args)
    if origin is tuple and args[0] is int:
        return "a tuple of whole numbers, for example (128, 128) or, in --set, 128,128"
    if origin is tuple:
        return f"a tuple in which every item is {describe_type(args[0])}"
    plain_words = {
        int: "a whole number",
        float: "a number",
        bool: "True or False",
        str: "text",
        type(None): "None",
    }
    if field_type in plain_words:
        return plain_words[field_type]
    name = str(getattr(field_type, "__name__", field_type))
    article = "an" if name[0] in "AEIOU" else "a"
    if getattr(field_type, "_is_protocol", False):
        return f"{article} {name.lower()} object"
    return f"{article} {name}"


def _without_annotation(field_type: Any) -> Any:
    if typing.get_origin(field_type) is Annotated:
        return typing.get_args(field_type)[0]
    return field_type


def _is_union(origin: Any) -> bool:
    return origin in (typing.Union, types.UnionType)


def _convert(value: Any, field_type: Any) -> Any:
    """The value as plain Python of the annotated type, or unchanged if that is impossible."""
    field_type = _without_annotation(field_type)
    origin = typing.get_origin(field_type)
    if _is_union(origin):
        return _convert_to_union(value, typing.get_args(field_type))
    if field_type is float and _is_number(value):
        # An integer beyond the range of floats stays an integer and is reported.
        with contextlib.suppress(OverflowError):
            return float(value) + 0.0  # turns -0.0 into 0.0: equal parts have equal hashes
    if field_type is int and isinstance(value, np.integer):
        return int(value)
    if origin is tuple and isinstance(value, (list, tuple)):
        element_types = _element_types(field_type, len(value))
        if len(element_types) == len(value):
            return tuple(map(_convert, value, element_types))
    return value


def _convert_to_union(value: Any, options: tuple[Any, ...]) -> Any:
    for option in options:
        converted = _convert(value, option)
        if _has_type(converted, option):
            return converted
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, np.integer, np.floating)) and not isinstance(value, bool)


def _element_types(tuple_type: Any, length: int) -> tuple[Any, ...]:
    """The types of the elements of a tuple; `tuple[int, ...]` has as many as needed."""
    args = typing.get_args(tuple_type)
    return args[:1] * length if args[-1] is Ellipsis else args


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # Python refuses to print a number of more than 4300 digits
        return "a number of thousands of digits"


def _in_range(value: Any) -> bool:
    if isinstance(value, float):
        return not MAX_FLOAT <= abs(value) < float("inf")
    if isinstance(value, int):
        return abs(value) < MAX_INT
    if isinstance(value, tuple):
        return all(map(_in_range, value))
    return True


def _has_type(value: Any, field_type: Any) -> bool:
    field_type = _without_annotation(field_type)
    origin = typing.get_origin(field_type)
    args = typing.get_args(field_type)
    if origin is Literal:
        return value in args
    if _is_union(origin):
        return any(_has_type(value, arg) for arg in args)
    if origin is tuple:
        return _has_tuple_type(value, field_type)
    if field_type is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if not isinstance(field_type, type):
        return True
    if getattr(field_type, "_is_protocol", False):
        methods = [name for name in vars(field_type) if not name.startswith("_")]
        return all(hasattr(value, name) for name in methods)
    return isinstance(value, field_type)


def _has_tuple_type(value: Any, tuple_type: Any) -> bool:
    if not isinstance(value, tuple):
        return False
    element_types = _element_types(tuple_type, len(value))
    return len(element_types) == len(value) and all(map(_has_type, value, element_types))


hints = field_types  # the earlier name, which works until the next release
