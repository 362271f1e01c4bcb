"""Settings given as text, as in `--set model.widths=256,256 encoding=FewShot`.

They change fields of every run of a sweep, or arguments of `cells` in a computed experiment.
"""

import ast
import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from recombine.basics.errors import InputError, require
from recombine.basics.suggest import did_you_mean
from recombine.parts.field_checks import field_types
from recombine.sweeps import discovery
from recombine.sweeps.run import Run, replace_fields

PartsByKind = Mapping[str, Mapping[str, type]]  # kind -> class name -> class

MAX_RUNS = 100_000  # of a sweep
# What Python's parser may raise for a text that is not a literal or a call.
PARSE_ERRORS = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)
EXPECTED_VALUES = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def apply(
    runs: Iterable[Run], settings: Iterable[str], user_parts: PartsByKind | None = None
) -> list[Run]:
    """Change fields in all runs that have them. Runs that become equal are kept once."""
    runs = list(runs)
    changes: list[dict[str, Any]] = [{} for _ in runs]
    for setting in settings:
        path, text = _split(setting, "field=value, for example model.widths=256,256")
        # In a sweep over encodings only some runs have num_pairs: the others keep their fields.
        errors = []
        for run, changes_of_run in zip(runs, changes, strict=True):
            try:
                hint = _field_hint(run, path, changes_of_run)
            except InputError as error:
                errors.append(error)
            else:
                changes_of_run[path] = parse_value(text, hint, user_parts or {})
        if errors and len(errors) == len(runs):
            raise next((error for error in errors if "did you mean" in str(error)), errors[0])
    changed = map(replace_fields, runs, changes)
    return list(dict.fromkeys(changed))


def cell_arguments(
    cells: Callable[..., Any], settings: Iterable[str], experiment: str
) -> dict[str, Any]:
    """The arguments of a computed experiment's `cells(scale, …)` that these settings change.

    An argument can be set if it has a default; its value must have the default's type.
    """
    defaults: dict[str, Any] = {}
    for name, parameter in inspect.signature(cells).parameters.items():
        if parameter.default is not parameter.empty:
            defaults[name] = parameter.default
    arguments: dict[str, Any] = {}
    for setting in settings:
        require(
            bool(defaults),
            f"{experiment} is computed, not trained, and has no settings: leave out --set",
        )
        name, text = _split(setting, "name=value")
        if name not in defaults:
            raise InputError(
                f"{experiment} has no setting {name!r}: {did_you_mean(name, defaults)}"
            )
        kind = type(defaults[name])
        value = parse_value(text, kind, {})
        if kind is float and type(value) is int:
            value = float(value)
        expected = EXPECTED_VALUES.get(kind, kind.__name__)
        require(type(value) is kind, f"{experiment}: {name} must be {expected}, got {text!r}")
        arguments[name] = value
    return arguments


def _split(setting: str, expected: str) -> tuple[str, str]:
    """The name and the value of a setting, both as text."""
    name, equals, text = (word.strip() for word in setting.partition("="))
    if not equals or not name:
        raise InputError(f"a setting must have the form {expected}; got {setting!r}")
    return name, text


def reseed(runs: Iterable[Run], num_seeds: int) -> list[Run]:
    """The same sweep with the seeds 0 to num_seeds - 1 in place of its own."""
    if num_seeds < 1:
        raise InputError(f"the number of seeds must be at least 1, got {num_seeds}")
    unseeded = dict.fromkeys(_with_seed(run, 0) for run in runs)
    max_seeds = MAX_RUNS // max(len(unseeded), 1)
    require(
        len(unseeded) * num_seeds <= MAX_RUNS,
        f"{num_seeds} seeds make {len(unseeded) * num_seeds} runs, more than {MAX_RUNS}: "
        f"use at most --seeds {max_seeds}",
    )
    return [_with_seed(run, seed) for run in unseeded for seed in range(num_seeds)]


def _with_seed(run: Run, seed: int) -> Run:
    """The run with another seed. The run that it starts from gets it too, if both had the same."""
    start = run.start
    if start is not None and start.seed == run.seed:
        start = _with_seed(start, seed)
    return dataclasses.replace(run, seed=seed, start=start)


def _field_hint(part: Any, path: str, changes: Mapping[str, Any]) -> Any:
    """The annotation of the field at a dotted path, after the changes of earlier settings."""
    name, _, rest = path.partition(".")
    known = field_types(type(part)) if dataclasses.is_dataclass(part) else {}
    if name not in known:
        raise InputError(
            f"{type(part).__name__} has no field {name!r}: {did_you_mean(name, known)}"
        )
    if not rest:
        return known[name]
    inner_part = changes.get(name, getattr(part, name))
    return _field_hint(inner_part, rest, {})


def parse_value(text: str, hint: Any, user_parts: PartsByKind) -> Any:
    """A value of the type that a field is annotated with. The part checks the value later."""
    if _is_protocol(hint):
        return _parse_part(text, hint.__name__.lower(), user_parts)
    if typing.get_origin(hint) is tuple:
        return _parse_tuple(text, typing.get_args(hint)[0], user_parts)
    if hint is str:
        return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return _parse_literal(text)


def _is_protocol(hint: Any) -> bool:
    return getattr(hint, "_is_protocol", False)


def _parse_tuple(text: str, item_hint: Any, user_parts: PartsByKind) -> tuple[Any, ...]:
    """`256,256`, `256x256` or, for a tuple of parts, `LinearDecodability, Distance`."""
    if _is_protocol(item_hint):
        return tuple(parse_value(item, item_hint, user_parts) for item in _split_at_commas(text))
    if re.fullmatch(r"\d+(x\d+)*", text):
        text = text.replace("x", ",")
    value = _parse_literal(text)
    return value if isinstance(value, tuple) else (value,)


def _split_at_commas(text: str) -> list[str]:
    """`A, B(x=1, y=(2, 3))` split at its outer commas."""
    try:
        call = _parse_call(text)
        if call.keywords:
            raise SyntaxError
        return [ast.unparse(item) for item in call.args]
    except PARSE_ERRORS:
        raise InputError(f"cannot parse {text!r}: separate the parts with commas") from None


def _parse_call(arguments: str) -> ast.Call:
    """The syntax tree of a call with these arguments."""
    call = ast.parse(f"f({arguments})", mode="eval").body
    # A text such as `a).b(c` would make a call of something else.
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise SyntaxError
    return call


def _parse_literal(text: str) -> Any:
    """A number, tuple or other literal; the text itself if it is none."""
    try:
        return ast.literal_eval(text)
    except PARSE_ERRORS:
        return text


def _parse_part(text: str, kind: str, user_parts: PartsByKind) -> Any:
    """A part from its class name and optional fields: `FewShot` or `FewShot(num_pairs=20)`."""
    known = {**discovery.parts().get(kind, {}), **user_parts.get(kind, {})}
    match = re.fullmatch(r"(\w+)\s*(?:\((.*)\))?", text, re.DOTALL)
    class_name = match[1] if match else text
    if match is None or class_name not in known:
        raise InputError(f"there is no {kind} {class_name!r}: {did_you_mean(class_name, known)}")
    cls = known[class_name]
    try:
        call = _parse_call(match[2] or "")
        fields = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        if call.args or len(fields) < len(call.keywords):
            raise SyntaxError
    except PARSE_ERRORS:
        raise InputError(
            f"cannot parse {text!r}: write {class_name}(field=value, …) with each field once"
        ) from None
    for name in fields:
        if name not in field_types(cls):
            raise InputError(
                f"{class_name} has no field {name!r}: {did_you_mean(name, field_types(cls))}"
            )
    return cls(**fields)  # pyright: ignore[reportCallIssue]
