"""The protocols that every part follows, the few tuples that travel between them, and named random streams.

Every part is a frozen dataclass of plain numbers with pure methods, written for one task; the trainer vmaps over
tasks, then over runs. A frozen dataclass hashes by value, so it is a correct static argument of `jax.jit`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    import equinox as eqx
    from jaxtyping import Array, PRNGKeyArray, PyTree

Knob = Annotated[float, "knob"]  # may differ between runs of one compiled program, which gets it as a traced scalar

Part = Literal["train", "test"]
MAX_LAYERS = 256  # a hundred take seconds to trace


class InputError(ValueError):
    """The user's mistake, in one line that says what to do instead."""

    def __str__(self) -> str:
        line = " ".join(super().__str__().splitlines())  # it may quote whatever the user wrote
        return line if len(line) <= 600 else f"{line[:300]} … {line[-300:]}"


class Batch(NamedTuple):
    """Samples of one task (or, with a leading axis, of several)."""

    x: PyTree[Array]
    y: PyTree[Array]
    code: Array
    task: Array


class Observation(NamedTuple):
    """A batch, and what a network made of it."""

    batch: Batch
    prediction: PyTree[Array]
    activations: dict[str, Array]


class Split(NamedTuple):
    """Rows of the task table in a random order: first the train rows, then the test rows, then the unused ones."""

    order: Array
    num_train: Array
    num_test: Array


class Family(Protocol):
    """What is to be learned: a set of tasks composed of modules. Optional:

    `extrapolation() -> rows`: tasks beyond the table (more active modules, say), scored but never part of a split;
    `horizon`: points are the steps of episodes of this length, so a batch has a multiple of it (`episode.py`);
    `examples(world, key, task, n) -> arrays`: what few-shot codes are made of, where `sample` would be too wide;
    `vocabulary` (words) and `sentence(task) -> numbers of words`: the task as the family itself puts it.
    """

    @property
    def num_modules(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    def tasks(self) -> np.ndarray: ...
    def modules(self, tasks: np.ndarray) -> np.ndarray: ...
    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]: ...
    def init(self, key: PRNGKeyArray) -> PyTree[Array]: ...
    def weigh(self, key: PRNGKeyArray, row: Array) -> Array: ...
    def sample(self, world: PyTree[Array], key: PRNGKeyArray, task: Array, n: int) -> tuple[Any, Any]: ...
    def score(self, prediction: PyTree[Array], y: PyTree[Array]) -> dict[str, Array]: ...


class Support(Protocol):
    """What is trained on. `parts` marks every row of the table: 0 unused, 1 train, 2 test."""

    guarantees: ClassVar[frozenset[str]]

    def parts(self, modules: np.ndarray, rng: np.random.Generator, frac_test: float) -> np.ndarray: ...


class Encoding(Protocol):
    """How a task is told to the model, as a vector, or as a sequence of vectors (for a model that reads sequences).
    `examples(key, n)` draws fresh (x, y) pairs of the task."""

    def num_tokens(self, family: Family) -> int: ...
    def init(self, key: PRNGKeyArray, family: Family) -> PyTree[Array]: ...
    def encode(
        self,
        params: PyTree[Array],
        key: PRNGKeyArray,
        task: Array,
        examples: Callable[[PRNGKeyArray, int], Any],
    ) -> Array: ...


class Model(Protocol):
    """What learns. `init` gives an equinox module called as `net(x, code) -> (prediction, activations)`, one task at
    a time. Optional:

    `loss(net, batch, score)`, where training is more than `score(...)["loss"]`;
    `together = True`, where a point's prediction depends on the points beside it: evaluation then shows as many at a
    time as training did;
    a net's `many`, the same for all tasks of a batch at once;
    a net's `activation`, the name of its nonlinearity ("relu", "gelu", …): unit activity uses it to decide when a unit
    of `hidden0`, … is dead; activations named `feedforward0`, … are measured too, but not probed;
    a net's `mixed_precision = True`, where it works with matrices of a lower type than the rest
    (`weight @ h.astype(weight.dtype)`).
    """

    def init(
        self,
        key: PRNGKeyArray,
        example: Batch,
        num_outputs: int,
        num_tokens: int = 0,
        world: PyTree[Array] | None = None,
    ) -> eqx.Module: ...


class Lab(Protocol):
    """What a diagnostic may look at, inside the compiled program."""

    @property
    def net(self) -> eqx.Module: ...
    @property
    def family(self) -> Family: ...
    @property
    def world(self) -> PyTree[Array]: ...
    @property
    def table(self) -> Array: ...
    @property
    def split(self) -> Split: ...
    @property
    def encoding(self) -> Encoding: ...
    def observe(self, key: PRNGKeyArray, part: Part, n: int, net: eqx.Module | None = None) -> Observation: ...
    def look(self, key: PRNGKeyArray, rows: Array, net: eqx.Module | None = None) -> Observation: ...


class Diagnostic(Protocol):
    """What is measured on the way. Its metrics are stored under its `label`, or its class name where it has none."""

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]: ...


class Recipe(Protocol):
    """How a network is optimised. Optional: `ema`, the decay of a running average that is evaluated in its place;
    `precision`, the type in which matrices are multiplied (`recombine.recipe`)."""

    def optimiser(self, num_steps: int) -> Any: ...


# What tells the kinds of parts apart: the methods that only this kind has. A model is what has nothing but `init`.
MARKS = {
    "family": ("sample", "score", "tasks"),
    "support": ("parts",),
    "encoding": ("encode",),
    "diagnostic": ("measure",),
    "recipe": ("optimiser",),
    "model": ("init",),
}


def kind_of(part: Any) -> str | None:
    """The kind of a part or of its class: "family", "support", … or None."""
    return next((kind for kind, marks in MARKS.items() if all(hasattr(part, mark) for mark in marks)), None)


def examples_of(family: Family, world: PyTree[Array], task: Array) -> Callable[[PRNGKeyArray, int], Any]:
    """The examples of a task that an encoding may draw: the family's own, or else its samples."""
    draw = getattr(family, "examples", family.sample)
    return lambda key, n: draw(world, key, task, n)


def stream(key: PRNGKeyArray, name: str) -> PRNGKeyArray:
    """The key of a named random stream: different names never share random numbers."""
    import jax

    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def generator(seed: int, name: str) -> np.random.Generator:
    """The NumPy counterpart of `stream`, for what is drawn on the host."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])


def require(condition: bool, message: str) -> None:
    """Raise an `InputError` with this message unless the condition holds."""
    if not condition:
        raise InputError(message)


@functools.lru_cache
def hints(cls: type) -> dict[str, Any]:
    """The annotations of a dataclass's init fields, `Annotated` kept."""
    found = typing.get_type_hints(cls, include_extras=True)
    return {field.name: found[field.name] for field in dataclasses.fields(cls) if field.init}


BEFORE = "recombine: value before the field was added"  # in the metadata of a dataclass field


def added(default: Any, before: Any) -> Any:
    """Declare a field that was added to a part after results were stored. `before` is the value that those results were
    trained with: a run with this value keeps its earlier content hash, so that its rows are found."""
    return dataclasses.field(default=default, metadata={BEFORE: before})


@functools.lru_cache
def added_fields(cls: type) -> dict[str, Any]:
    """The fields that were added to a part after rows were stored, with the value that those rows were trained with."""
    return {field.name: field.metadata[BEFORE] for field in dataclasses.fields(cls) if BEFORE in field.metadata}


def is_knob(hint: Any) -> bool:
    """Whether a field annotated so may differ within one compiled program."""
    return "knob" in getattr(hint, "__metadata__", ())


def check(part: Any, **least: float) -> None:
    """Raise an `InputError` unless every field has its annotated type and the named ones are at least so large.

    Called by each part's `__post_init__`. Whole numbers become floats and lists become tuples where the annotation
    says so, which keeps equal parts equal and hashable.
    """
    for name, hint in hints(type(part)).items():
        told, value = f"{type(part).__name__}.{name}", _tidy(getattr(part, name), hint)
        require(_fits(value, hint), f"{told} must be {spell(hint)}, got {_shown(getattr(part, name))}")
        require(_in_range(value), f"{told} must be below 2**63, or below 3.4e38 as a float, got {_shown(value)}")
        object.__setattr__(part, name, value)
    for name, bound in least.items():
        value = getattr(part, name)
        require(value >= bound, f"{type(part).__name__}.{name} must be at least {bound}, got {value!r}")


def check_layers(part: Any, num_layers: int) -> None:
    """Raise an `InputError` where a part has more layers than can be compiled in reasonable time."""
    told = f"{type(part).__name__} with {num_layers} layers would take too long to compile: use at most {MAX_LAYERS}"
    require(num_layers <= MAX_LAYERS, told)


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
    plain = {int: "a whole number", float: "a number", bool: "True or False", str: "text", type(None): "None"}
    name = str(getattr(hint, "__name__", hint))
    return plain.get(hint, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")


def _bare(hint: Any) -> Any:
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _tidy(value: Any, hint: Any) -> Any:
    hint = _bare(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next((_tidy(value, arg) for arg in typing.get_args(hint) if _fits(_tidy(value, arg), arg)), value)
    if hint is float and isinstance(value, (int, np.integer, np.floating)) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # a whole number beyond all floats stays one, and does not fit
            return float(value) + 0.0  # no minus zero: equal parts have equal hashes
    if hint is int and isinstance(value, np.integer):
        return int(value)
    if typing.get_origin(hint) is tuple and isinstance(value, (list, tuple)):
        args = typing.get_args(hint)
        inner = args[:1] * len(value) if args[-1] is Ellipsis else args
        return tuple(_tidy(v, h) for v, h in zip(value, inner, strict=False)) if len(inner) == len(value) else value
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
        return isinstance(value, tuple) and len(inner) == len(value) and all(map(_fits, value, inner))
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(hint, type) and getattr(hint, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(hint) if not name.startswith("_"))
    return isinstance(value, hint) if isinstance(hint, type) else True
