"""A run: everything that one training run is, as one frozen value. Sweeps are cartesian products of such values.

Two runs share a compiled program when their `structure` is equal; what may differ inside one program is the seed, the
support, the held-out fraction and every field annotated `Knob`.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recombine.basics.errors import InputError, require
from recombine.basics.suggest import nearest
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.encodings.identity import Identity
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.field_checks import Knob, added_fields, check, hints, is_knob
from recombine.parts.models.mlp import MLP
from recombine.parts.protocols import Diagnostic, Encoding, Family, Model, Recipe, Support, kind_of
from recombine.parts.recipes.fast import Fast
from recombine.parts.recipes.paper import Paper
from recombine.parts.supports.random import Random
from recombine.sweeps.code_hash import fields, of_class

NUMERICS = 3  # raise it when a change to the trainer changes results: older rows are then never taken for new ones


@dataclass(frozen=True)
class Run:
    """One training run. `Run()` takes seconds on a laptop; `paper()` is the paper's."""

    family: Family = Hyperteacher(num_modules=8)
    support: Support = Random()
    encoding: Encoding = Identity()
    model: Model = MLP(widths=(128, 128, 128))
    recipe: Recipe = Fast(
        0.04, 0.1, vector_rate=0.2
    )  # a higher rate suits small networks and short runs
    diagnostics: tuple[Diagnostic, ...] = (LinearDecodability(),)
    frac_test: Knob = 0.25
    seed: int = 0
    num_steps: int = 1000
    num_evals: int = 4
    num_tasks: int = 64  # tasks in a batch
    num_points: int = 8  # points of each task in a batch
    num_eval_tasks: int = 512  # on each side
    num_eval_points: int = (
        16  # the paper's; with fewer, R2 against a task's own mean is biased downwards
    )

    def __post_init__(self):
        check(
            self,
            seed=0,
            num_steps=1,
            num_evals=1,
            num_tasks=1,
            num_points=1,
            num_eval_tasks=1,
            num_eval_points=2,
        )
        require(
            0 < self.frac_test < 1,  # also refuses NaN
            f"frac_test must lie strictly between 0 and 1, got {self.frac_test}: 0.25 holds out a quarter of the tasks",
        )
        require(self.seed < 2**32, f"seed must be below 2**32, got {self.seed}")
        require(
            self.num_steps % self.num_evals == 0,
            f"num_steps={self.num_steps} must be a multiple of num_evals={self.num_evals}",
        )
        horizon = getattr(self.family, "horizon", 1)
        for name in ("num_points", "num_eval_points"):
            value = getattr(self, name)
            require(
                value % horizon == 0,
                f"{name}={value} must be a multiple of {horizon}: {type(self.family).__name__}'s points come in "
                f"episodes of {horizon} steps; set num_points={horizon} and num_eval_points={horizon}, say",
            )
        require(
            not getattr(self.model, "together", False)
            or self.num_eval_points % self.num_points == 0,
            f"num_eval_points={self.num_eval_points} must be a multiple of num_points={self.num_points}: "
            f"{type(self.model).__name__} sees the points of a task together, as many at a time as in training",
        )
        for kind in ("family", "support", "encoding", "model", "recipe"):
            part = getattr(self, kind)
            frozen = getattr(type(part), "__dataclass_params__", None)
            require(
                frozen is not None and frozen.frozen,
                f"Run.{kind} must be a frozen dataclass's instance, {kind}=Name() and not {kind}=Name; got {part!r}",
            )
            require(
                kind_of(part) == kind,
                f"Run.{kind} must be a {kind}, got {part!r}, a {kind_of(part)}",
            )
        labels = [label(diagnostic) for diagnostic in self.diagnostics]
        require(
            len(set(labels)) == len(labels),
            f"two diagnostics would write to the same columns: {labels}",
        )


def paper(**changes: Any) -> Run:
    """The paper's default: M=16, K=3, a 4x1024 MLP, AdamW for 300,000 steps of 128 tasks x 16 points."""
    return dataclasses.replace(
        Run(
            family=Hyperteacher(),
            model=MLP(),
            recipe=Paper(),
            diagnostics=(LinearDecodability(), LinearDecodability(paper=True)),
            num_steps=300_000,
            num_evals=10,
            num_tasks=128,
            num_points=16,
            num_eval_tasks=1024,
        ),
        **changes,
    )


def paper_fast(**changes: Any) -> Run:
    """The architecture and tasks of `paper()` with the fast recipe: 8,000 steps of 512 tasks x 4 points.

    It reaches the score of `paper()` with a similar network: experiment `faithful_recipe`. With
    `paper_fast(encoding=FewShot())` there are 16,000 steps at a lower rate; `sweep(paper_fast(), encoding=[…])` does
    not know that, so call it once for each encoding.
    """
    recipe = Fast(0.02, 0.05, vector_rate=0.1)
    num_steps = 8000
    if isinstance(changes.get("encoding"), FewShot):
        recipe = Fast(0.015, 0.02, vector_rate=0.1)
        num_steps = 16_000
    run = paper(recipe=recipe, num_steps=num_steps, num_evals=1, num_tasks=512, num_points=4)
    return dataclasses.replace(run, **changes)


def sweep(base: Run, **axes: Iterable[Any]) -> list[Run]:
    """The cartesian product of the axes, the last one fastest. `model__widths=[…]` reaches a part's field."""
    paths = [name.replace("__", ".") for name in axes]
    for name, values in axes.items():
        require(isinstance(values, Iterable), f"an axis of a sweep is a list: {name}=[{values!r}]")
    return [
        put(base, dict(zip(paths, values, strict=True)))
        for values in itertools.product(*axes.values())
    ]


def put(part: Any, changes: Mapping[str, Any]) -> Any:
    """The same run (or part) with the fields at dotted paths replaced, all at once: only the result must be valid."""
    known = hints(type(part)) if dataclasses.is_dataclass(type(part)) else {}
    values: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        if name not in known:
            raise InputError(f"{type(part).__name__} has no field {name!r}: {nearest(name, known)}")
        if rest:
            inner.setdefault(name, {})[rest] = value
        else:
            values[name] = value
    # A part first and then its fields, so that both can be changed together.
    values |= {
        name: put(values.get(name, getattr(part, name)), deeper) for name, deeper in inner.items()
    }
    return dataclasses.replace(part, **values)  # pyright: ignore[reportArgumentType]


def label(diagnostic: Diagnostic) -> str:
    """The name under which a diagnostic's metrics are stored."""
    return getattr(diagnostic, "label", type(diagnostic).__name__)


def structure(run: Run) -> Run:
    """The run with everything blanked that may differ within one compiled program."""
    blank = _map_fields(run, lambda path, hint, value: None if is_knob(hint) else value)
    return _with(blank, seed=None, support=None)


def knobs(run: Run) -> dict[str, float]:
    """The values that `structure` blanks and the program needs, by dotted path."""
    found = {}

    def note(path, hint, value):
        if is_knob(hint):
            found[path] = value
        return value

    _map_fields(
        _with(run, support=None), note
    )  # supports and fractions are spent on the host, in the split
    del found["frac_test"]
    return found


def restore(blank: Run, values: Mapping[str, Any]) -> Run:
    """A structure with its knobs put back, as numbers or as traced scalars."""
    return _map_fields(
        blank, lambda path, hint, value: values.get(path, value) if is_knob(hint) else value
    )


def describe(run: Run) -> dict[str, Any]:
    """The run as flat columns: class names of its parts and every field under its dotted path."""
    columns: dict[str, Any] = {}

    def visit(prefix: str, part: Any) -> None:
        for name in hints(type(part)):
            value = getattr(part, name)
            if isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
                columns[prefix + name] = ", ".join(type(item).__name__ for item in value)
            elif dataclasses.is_dataclass(value):
                columns[prefix + name] = type(value).__name__
                visit(f"{prefix}{name}.", value)
            else:
                columns[prefix + name] = _plain(value)

    visit("", run)
    return columns


def to_json(part: Any) -> Any:
    """A run or part as plain JSON values, just as they are: what travels, and what is saved beside a network."""
    return _to_json(part, lambda part: {name: getattr(part, name) for name in hints(type(part))})


def from_json(value: Any, parts: Mapping[str, type]) -> Any:
    """Rebuild what `to_json` wrote from the classes given by name; never imports anything."""
    if isinstance(value, list):
        return tuple(from_json(item, parts) for item in value)
    if not isinstance(value, dict):
        return value
    name = value["part"]
    if name not in parts:
        raise InputError(f"the part {name!r} is not known here: pass its class in parts=[…]")
    fields = {k: from_json(v, parts) for k, v in value.items() if k in hints(parts[name])}
    return parts[name](
        **(added_fields(parts[name]) | fields)
    )  # a text from before a field was added lacks it


def identity(run: Run) -> str:
    """The run's content hash: equal for equal runs, different whenever something that changes results differs."""
    text = json.dumps([NUMERICS, _to_json(run, fields)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _to_json(part: Any, values_of: Callable[[Any], dict[str, Any]]) -> Any:
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        cls, values = type(part), values_of(part)
        own = {} if cls.__module__.startswith("recombine.") else {"code": of_class(cls)}
        taken = {"part", "code"} & values.keys()
        require(
            not taken,
            f"{cls.__name__} has a field {' and '.join(taken)}, a name that is taken: call it otherwise",
        )
        return (
            {"part": cls.__name__}
            | own
            | {name: _to_json(value, values_of) for name, value in values.items()}
        )
    if isinstance(part, (tuple, list)):
        return [_to_json(item, values_of) for item in part]
    part = part.item() if isinstance(part, np.generic) else part
    told = (
        f"a part's fields are numbers, texts, None, tuples of these and other parts, got {part!r}"
    )
    require(part is None or isinstance(part, (bool, int, float, str)), told)
    return part


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return (
            "x".join(str(item) for item in value)
            if all(isinstance(v, int) for v in value)
            else repr(value)
        )
    return value


def _map_fields(part: Any, change: Any, prefix: str = "") -> Any:
    values = {}
    for name, hint in hints(type(part)).items():
        value = getattr(part, name)
        if dataclasses.is_dataclass(value):
            values[name] = _map_fields(value, change, f"{prefix}{name}.")
        elif isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)):
            items = enumerate(value)
            values[name] = tuple(
                _map_fields(item, change, f"{prefix}{name}.{i}.") for i, item in items
            )
        else:
            values[name] = change(prefix + name, hint, value)
    return _with(part, **values)


def _with(part: Any, **values: Any) -> Any:
    # Not dataclasses.replace: blanks and traced scalars would not pass the checks of __post_init__.
    new = object.__new__(type(part))
    for name in hints(type(part)):
        object.__setattr__(new, name, values.get(name, getattr(part, name)))
    return new
