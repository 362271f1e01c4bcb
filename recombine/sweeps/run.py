"""A run: the complete description of one training run, as a frozen dataclass.

A sweep is a list of runs. Two runs share a compiled program if their `structure` is equal. Within a
program, runs may differ in the seed, the support, `frac_test` and every field annotated `Knob`.
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
from recombine.basics.suggest import did_you_mean
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.encodings.identity import Identity
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.field_checks import (
    Knob,
    added,
    added_fields,
    check,
    field_types,
    is_knob,
)
from recombine.parts.models.mlp import MLP
from recombine.parts.protocols import (
    Diagnostic,
    Encoding,
    Family,
    Model,
    Recipe,
    Support,
    has_graph,
    kind_of,
)
from recombine.parts.recipes.fast import Fast
from recombine.parts.recipes.paper import Paper
from recombine.parts.supports.random import Random
from recombine.sweeps.canonical_fields import canonical_fields
from recombine.sweeps.code_hash import hash_of_class

# Raise it when a change to the trainer changes results. Rows from before are then never reused.
NUMERICS = 3


@dataclass(frozen=True)
class Run:
    """One training run. `Run()` takes seconds on a laptop; `paper()` is the setup of the paper."""

    family: Family = Hyperteacher(num_modules=8)
    support: Support = Random()
    encoding: Encoding = Identity()
    model: Model = MLP(widths=(128, 128, 128))
    # Small networks and short runs need higher learning rates than the recipe's defaults.
    recipe: Recipe = Fast(0.04, 0.1, vector_rate=0.2)
    diagnostics: tuple[Diagnostic, ...] = (LinearDecodability(),)
    frac_test: Knob = 0.25
    seed: int = 0
    num_steps: int = 1000
    num_evals: int = 4
    num_tasks: int = 64  # tasks in a batch
    num_points: int = 8  # points of each task in a batch
    num_eval_tasks: int = 512  # of each side of the split
    # As in the paper. With fewer points, R2 against a task's own mean is biased downwards.
    num_eval_points: int = 16
    # Training begins with the trained network of this run, not with a random one.
    start: "Run | None" = added(None, before=None)

    def __post_init__(self):
        check(
            self,
            seed=0,
            num_steps=1,
            num_evals=1,
            num_tasks=1,
            num_points=1,
            num_eval_tasks=1,
            num_eval_points=1 if getattr(self.family, "deterministic", False) else 2,
        )
        require(
            0 < self.frac_test < 1,  # also refuses NaN
            f"frac_test must be greater than 0 and less than 1, got {self.frac_test}; "
            "for example, 0.25 holds out a quarter of the tasks",
        )
        require(self.seed < 2**32, f"seed must be below 2**32, got {self.seed}")
        require(
            self.num_steps % self.num_evals == 0,
            f"num_steps={self.num_steps} must be a multiple of num_evals={self.num_evals}, so that "
            "evaluations are evenly spaced: change one of the two",
        )
        require(
            self.start is None or self.start.family == self.family,
            "Run.start must have the family of the run, because its network continues to train: "
            f"set the field family of both runs to the same value, got {self.family} and "
            f"{getattr(self.start, 'family', None)}",
        )
        self._check_points()
        self._check_parts()

    def _check_points(self) -> None:
        """Raise an `InputError` if the points do not fit whole episodes or the model's context."""
        horizon = getattr(self.family, "horizon", 1)
        for name in ("num_points", "num_eval_points"):
            value = getattr(self, name)
            require(
                value % horizon == 0,
                f"{name}={value} must be a multiple of {horizon}, the length of an episode of "
                f"{type(self.family).__name__}; for example, set num_points={horizon} and "
                f"num_eval_points={horizon}",
            )
        uses_points_together = getattr(self.model, "together", False)
        require(
            not uses_points_together or self.num_eval_points % self.num_points == 0,
            f"num_eval_points={self.num_eval_points} must be a multiple of "
            f"num_points={self.num_points}: {type(self.model).__name__} sees the points of a task "
            "together, as many in evaluation as in training",
        )

    def _check_parts(self) -> None:
        """Raise an `InputError` if a part is not frozen, of another kind, or shares its columns."""
        for kind in ("family", "support", "encoding", "model", "recipe"):
            part = getattr(self, kind)
            dataclass_params = getattr(type(part), "__dataclass_params__", None)
            require(
                dataclass_params is not None and dataclass_params.frozen,
                f"Run.{kind} must be an instance of a frozen dataclass, as in {kind}=Name(); "
                f"got {part!r}",
            )
            require(
                kind_of(part) == kind,
                f"Run.{kind} must be a {kind}, got {part!r}, which is a {kind_of(part)}",
            )
        self._check_graph()
        labels = [label(diagnostic) for diagnostic in self.diagnostics]
        require(
            len(set(labels)) == len(labels),
            f"two diagnostics would write to the same columns: {', '.join(labels)}",
        )

    def _check_graph(self) -> None:
        """Raise an `InputError` if a part needs a computation graph that the family lacks."""
        needing = [part for part in self.diagnostics if getattr(part, "needs_graph", False)]
        needing += [self.model] if getattr(self.model, "needs_nodes", False) else []
        for part in needing:
            require(
                has_graph(self.family),
                f"{type(part).__name__} needs the steps of a computation, but "
                f"{type(self.family).__name__} has no graph: choose a family with one, such as "
                "Chain",
            )


def paper(**changes: Any) -> Run:
    """The default setup of the paper: 16 modules, up to 3 of them active, and a 4x1024 MLP.

    It trains with AdamW for 300,000 steps of 128 tasks x 16 points.
    """
    run = Run(
        family=Hyperteacher(),
        model=MLP(),
        recipe=Paper(),
        diagnostics=(LinearDecodability(), LinearDecodability(paper=True)),
        num_steps=300_000,
        num_evals=10,
        num_tasks=128,
        num_points=16,
        num_eval_tasks=1024,
    )
    return dataclasses.replace(run, **changes)


def paper_fast(**changes: Any) -> Run:
    """The family and model of `paper()` with the fast recipe: 8,000 steps of 512 tasks x 4 points.

    Experiment `faithful_recipe` compares its scores with those of `paper()`. With a `FewShot`
    encoding it has 16,000 steps and a lower learning rate. `sweep(paper_fast(), encoding=[…])` does
    not change these two, so call `paper_fast` once for each encoding.
    """
    recipe = Fast(0.02, 0.05, vector_rate=0.1)
    num_steps = 8000
    if isinstance(changes.get("encoding"), FewShot):
        recipe = Fast(0.015, 0.02, vector_rate=0.1)
        num_steps = 16_000
    run = paper(recipe=recipe, num_steps=num_steps, num_evals=1, num_tasks=512, num_points=4)
    return dataclasses.replace(run, **changes)


def sweep(base: Run, **axes: Iterable[Any]) -> list[Run]:
    """A run for every combination of the given values of fields; the last field varies fastest.

    `sweep(Run(), model__widths=[(32,), (64,)], seed=range(3))` gives six runs. A double underscore
    leads to a field of a part.
    """
    require(
        isinstance(base, Run),
        f"a sweep starts from a Run, got {base!r}: for example, sweep(Run(), seed=range(3))",
    )
    for name, values in axes.items():
        require(
            isinstance(values, Iterable),
            f"the values of a field in a sweep must be a list, for example {name}=[{values!r}]",
        )
    paths = [name.replace("__", ".") for name in axes]
    return [
        replace_fields(base, dict(zip(paths, values, strict=True)))
        for values in itertools.product(*axes.values())
    ]


def replace_fields(part: Any, changes: Mapping[str, Any]) -> Any:
    """A copy of a run or part with other values at dotted paths such as `model.widths`.

    All changes are made at once, so only the result must be valid.
    """
    known = field_types(type(part)) if dataclasses.is_dataclass(type(part)) else {}
    values: dict[str, Any] = {}
    changes_of_parts: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        if name not in known:
            raise InputError(
                f"{type(part).__name__} has no field {name!r}: {did_you_mean(name, known)}"
            )
        if rest:
            changes_of_parts.setdefault(name, {})[rest] = value
        else:
            values[name] = value
    # A new part first, then its fields, so that both can be changed together.
    for name, inner_changes in changes_of_parts.items():
        inner_part = values.get(name, getattr(part, name))
        values[name] = replace_fields(inner_part, inner_changes)
    return dataclasses.replace(part, **values)  # pyright: ignore[reportArgumentType]


put = replace_fields  # its earlier name, for one release


def label(diagnostic: Diagnostic) -> str:
    """The prefix of a diagnostic's columns."""
    return getattr(diagnostic, "label", type(diagnostic).__name__)


def generation(run: Run) -> int:
    """How many runs must be trained one after the other before this one can start."""
    return 0 if run.start is None else 1 + generation(run.start)


def with_starts(runs: Iterable[Run]) -> list[Run]:
    """The runs and all runs that they start from, each once, in the order of generations."""
    found: dict[Run, None] = {}
    for run in runs:
        ancestor: Run | None = run
        while ancestor is not None:
            found.setdefault(ancestor)
            ancestor = ancestor.start
    return sorted(found, key=generation)


def structure(run: Run) -> Run:
    """The run with None in place of everything that may differ within one compiled program.

    `start` is True for a run that starts from another one: which one it is may differ.
    """
    alone = _with(run, start=None)
    blank = _map_fields(alone, lambda path, hint, value: None if is_knob(hint) else value)
    return _with(blank, seed=None, support=None, start=None if run.start is None else True)


def knobs(run: Run) -> dict[str, float]:
    """The values that `structure` removes and the program needs, by dotted path."""
    values = {}

    def collect(path: str, hint: Any, value: Any) -> Any:
        if is_knob(hint):
            values[path] = value
        return value

    # The host uses the support and frac_test to split the tasks, and loads the network of `start`;
    # the program needs none of them.
    _map_fields(_with(run, support=None, start=None), collect)
    del values["frac_test"]
    return values


def restore_knobs(blank: Run, values: Mapping[str, Any]) -> Run:
    """A structure with the values of its knobs, as numbers or as traced scalars."""
    return _map_fields(
        blank, lambda path, hint, value: values.get(path, value) if is_knob(hint) else value
    )


def describe(run: Run) -> dict[str, Any]:
    """The run as flat columns: class names of its parts, and every field by its dotted path.

    If the run starts from another one, `start` is the hash of that run, and `start.…` are its
    fields. Otherwise there are no such columns.
    """
    columns: dict[str, Any] = {}

    def visit(prefix: str, part: Any) -> None:
        for name in field_types(type(part)):
            value = getattr(part, name)
            if _is_tuple_of_parts(value):
                columns[prefix + name] = ", ".join(type(item).__name__ for item in value)
            elif isinstance(value, Run):
                columns[prefix + name] = identity(value)
                visit(f"{prefix}{name}.", value)
            elif isinstance(part, Run) and name == "start":
                continue
            elif dataclasses.is_dataclass(value):
                columns[prefix + name] = type(value).__name__
                visit(f"{prefix}{name}.", value)
            else:
                columns[prefix + name] = _column_value(value)

    visit("", run)
    return columns


def _column_value(value: Any) -> Any:
    """A field's value as it is stored in a column; widths (128, 128) become 128x128."""
    if not isinstance(value, tuple):
        return value
    if all(isinstance(item, int) for item in value):
        return "x".join(str(item) for item in value)
    return repr(value)


def to_json(part: Any) -> Any:
    """A run or part as JSON values, with all its fields, for workers and for saved networks."""
    return _to_json(part, _all_fields)


def _all_fields(part: Any) -> dict[str, Any]:
    return {name: getattr(part, name) for name in field_types(type(part))}


def from_json(value: Any, parts: Mapping[str, type]) -> Any:
    """Rebuild what `to_json` wrote, from classes given by name. Nothing is imported."""
    if isinstance(value, list):
        return tuple(from_json(item, parts) for item in value)
    if not isinstance(value, dict):
        return value
    name = value["part"]
    if name not in parts:
        raise InputError(f"unknown part {name!r}: pass its class in parts=[…]")
    cls = parts[name]
    values = dict(added_fields(cls))  # JSON from before a field was added lacks it
    for field in field_types(cls):
        if field in value:
            values[field] = from_json(value[field], parts)
    return cls(**values)


def identity(run: Run) -> str:
    """The run's content hash: equal for equal runs, different if anything changes the results."""
    text = json.dumps([NUMERICS, _to_json(run, canonical_fields)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _to_json(value: Any, fields_of: Callable[[Any], dict[str, Any]]) -> Any:
    """A run, a part or a field's value as JSON values; `fields_of` gives the fields of a part."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _part_to_json(value, fields_of)
    if isinstance(value, (tuple, list)):
        return [_to_json(item, fields_of) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    require(
        value is None or isinstance(value, (bool, int, float, str)),
        "a field of a part must be a number, text, None, another part or a tuple of these, "
        f"got {value!r}",
    )
    return value


def _part_to_json(part: Any, fields_of: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """A part as its class name, the hash of its code if it is the user's, and its fields."""
    cls = type(part)
    result: dict[str, Any] = {"part": cls.__name__}
    if not cls.__module__.startswith("recombine."):
        result["code"] = hash_of_class(cls)
    for name, value in fields_of(part).items():
        require(
            name not in ("part", "code"),
            f"{cls.__name__} has a field {name!r}, which is a reserved name: rename the field",
        )
        result[name] = _to_json(value, fields_of)
    return result


def _map_fields(part: Any, change: Callable[[str, Any, Any], Any], prefix: str = "") -> Any:
    """A copy of a part with `change(path, hint, value)` for every field of it and of its parts."""
    values = {}
    for name, hint in field_types(type(part)).items():
        value = getattr(part, name)
        path = prefix + name
        if dataclasses.is_dataclass(value):
            values[name] = _map_fields(value, change, f"{path}.")
        elif _is_tuple_of_parts(value):
            values[name] = tuple(
                _map_fields(item, change, f"{path}.{i}.") for i, item in enumerate(value)
            )
        else:
            values[name] = change(path, hint, value)
    return _with(part, **values)


def _is_tuple_of_parts(value: Any) -> bool:
    return isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value))


def _with(part: Any, **values: Any) -> Any:
    """A copy of a part with other values, which are not checked.

    `dataclasses.replace` would refuse None and traced scalars in `__post_init__`.
    """
    new = object.__new__(type(part))
    for name in field_types(type(part)):
        object.__setattr__(new, name, values.get(name, getattr(part, name)))
    return new
