"""Fields of parts: their annotations, what they may hold, and fields that were added after results were stored."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
from typing import Annotated, Any, Literal

import numpy as np

from recombine.basics.errors import require

Knob = Annotated[
    float, "knob"
]  # may differ between runs of one compiled program, which gets it as a traced scalar


MAX_LAYERS = 256  # a hundred take seconds to trace


BEFORE = "recombine: value before the field was added"  # in the metadata of a dataclass field


@functools.lru_cache
def hints(cls: type) -> dict[str, Any]:
    """The annotations of a dataclass's init fields, `Annotated` kept."""
    found = typing.get_type_hints(cls, include_extras=True)
    return {field.name: found[field.name] for field in dataclasses.fields(cls) if field.init}


def added(default: Any, before: Any) -> Any:
    """Declare a field that was added to a part after results were stored. `before` is the value that those results were
    trained with: a run with this value keeps its earlier content hash, so that its rows are found."""
    return dataclasses.field(default=default, metadata={BEFORE: before})


@functools.lru_cache
def added_fields(cls: type) -> dict[str, Any]:
    """The fields that were added to a part after rows were stored, with the value that those rows were trained with."""
    return {
        field.name: field.metadata[BEFORE]
        for field in dataclasses.fields(cls)
        if BEFORE in field.metadata
    }


def is_knob(hint: Any) -> bool:
    """Whether a field annotated so may differ within one compiled program."""
    return "knob" in getattr(hint, "__metadata__", ())


def check(part: Any, **least: float) -> None:
    """Raise an `InputError` unless every field has its annotated type and the named ones are at least so large.

    Called by each part's `__post_init__`. Whole numbers become floats and lists become tuples where the annotation
    says so, which keeps equal parts equal and hashable.
    """
    for name, hint in hints(type(part)).items():
        field, value = f"{type(part).__name__}.{name}", _tidy(getattr(part, name), hint)
        require(
            _fits(value, hint), f"{field} must be {spell(hint)}, got {_shown(getattr(part, name))}"
        )
        require(
            _in_range(value),
            f"{field} must be below 2**63, or below 3.4e38 as a float, got {_shown(value)}",
        )
        object.__setattr__(part, name, value)
    for name, bound in least.items():
        value = getattr(part, name)
        require(
            value >= bound, f"{type(part).__name__}.{name} must be at least {bound}, got {value!r}"
        )


def check_layers(part: Any, num_layers: int) -> None:
    """Raise an `InputError` where a part has more layers than can be compiled in reasonable time."""
    message = f"{type(part).__name__} with {num_layers} layers would take too long to compile: use at most {MAX_LAYERS}"
    require(num_layers <= MAX_LAYERS, message)


def spell(hint: Any) -> str:
    """An annotation in words, for error messages and listings."""
    hint = _bare(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, args))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(spell(arg) for arg in args)
    if origin is tuple:
        return "whole numbers, 128,128 say" if args[0] is int else f"a tuple of {spell(args[0])}"
    plain = {
        int: "a whole number",
        float: "a number",
        bool: "True or False",
        str: "text",
        type(None): "None",
    }
    name = str(getattr(hint, "__name__", hint))
    return plain.get(hint, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")


def _bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _tidy(value: Any, hint: Any) -> Any:
    hint = _bare(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next(
            (_tidy(value, arg) for arg in typing.get_args(hint) if _fits(_tidy(value, arg), arg)),
            value,
        )
    if (
        hint is float
        and isinstance(value, (int, np.integer, np.floating))
        and not isinstance(value, bool)
    ):
        with contextlib.suppress(
            OverflowError
        ):  # a whole number beyond all floats stays one, and does not fit
            return float(value) + 0.0  # no minus zero: equal parts have equal hashes
    if hint is int and isinstance(value, np.integer):
        return int(value)
    if typing.get_origin(hint) is tuple and isinstance(value, (list, tuple)):
        args = typing.get_args(hint)
        inner = args[:1] * len(value) if args[-1] is Ellipsis else args
        return (
            tuple(_tidy(v, h) for v, h in zip(value, inner, strict=False))
            if len(inner) == len(value)
            else value
        )
    return value


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # Python writes no number of more than 4300 digits
        return "a number of thousands of digits"


def _in_range(value: Any) -> bool:
    if isinstance(value, float):
        return not 3.4e38 <= abs(value) < float("inf")  # programs compute in 32 bits
    if isinstance(value, int):
        return abs(value) < 2**63  # rows have 64
    return not isinstance(value, tuple) or all(map(_in_range, value))


def _fits(value: Any, hint: Any) -> bool:
    hint = _bare(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in args
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, arg) for arg in args)
    if origin is tuple:
        inner = args[:1] * len(value) if isinstance(value, tuple) and args[-1] is Ellipsis else args
        return (
            isinstance(value, tuple) and len(inner) == len(value) and all(map(_fits, value, inner))
        )
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(hint, type) and getattr(hint, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(hint) if not name.startswith("_"))
    return isinstance(value, hint) if isinstance(hint, type) else True
