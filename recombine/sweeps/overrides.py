"""`--set model.widths=256,256 encoding=FewShot`: settings as text, applied to every run of a sweep; those of a computed
experiment are arguments of its `cells`."""

import ast
import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from recombine.basics.errors import InputError, require
from recombine.basics.suggest import nearest
from recombine.parts.field_checks import hints
from recombine.sweeps import discovery
from recombine.sweeps.run import Run, put

MAX_RUNS = 100_000  # of a sweep
UNREADABLE = (
    ValueError,
    TypeError,
    SyntaxError,
    MemoryError,
    RecursionError,
)  # as Python's own parser says it


def apply(
    runs: Iterable[Run],
    settings: Iterable[str],
    own: Mapping[str, Mapping[str, type]] | None = None,
) -> list[Run]:
    """Set fields by text in all runs that have them; runs that become equal are kept once."""
    runs = list(runs)
    changes: list[dict[str, Any]] = [{} for _ in runs]
    for setting in settings:
        path, text = _cut(setting, "field=value, model.widths=256,256 say")
        # A sweep over encodings has num_pairs in some runs only: setting it there is what the user means.
        errors = []
        for run, change in zip(runs, changes, strict=True):
            try:
                hint = _hint(run, path, change)
            except InputError as error:
                errors.append(error)
            else:
                change[path] = value(text, hint, own or {})
        if errors and len(errors) == len(runs):
            raise next((error for error in errors if "did you mean" in str(error)), errors[0])
    return list(dict.fromkeys(map(put, runs, changes)))


def arguments(function: Callable[..., Any], settings: Iterable[str], told: str) -> dict[str, Any]:
    """Settings of a computed experiment: the arguments of its `cells(scale, …)` that have a default, by text."""
    found = inspect.signature(function).parameters.items()
    known = {name: one.default for name, one in found if one.default is not one.empty}
    given: dict[str, Any] = {}
    for setting in settings:
        require(
            bool(known), f"{told} is computed, not trained: it has no settings, leave out --set"
        )
        name, text = _cut(setting, "name=value")
        if name not in known:
            raise InputError(f"{told} has no setting {name!r}: {nearest(name, known)}")
        kind = type(known[name])
        read = value(text, kind, {})
        read = float(read) if kind is float and type(read) is int else read
        wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        require(
            type(read) is kind,
            f"{told}: {name} must be {wanted.get(kind, kind.__name__)}, got {text!r}",
        )
        given[name] = read
    return given


def _cut(setting: str, reads: str) -> tuple[str, str]:
    """The name and the text of a setting."""
    name, equals, text = (word.strip() for word in setting.partition("="))
    if not equals or not name:
        raise InputError(f"a setting reads {reads}; got {setting!r}")
    return name, text


def reseed(runs: Iterable[Run], num_seeds: int) -> list[Run]:
    """The same sweep with seeds 0 to num_seeds - 1 in place of its own."""
    if num_seeds < 1:
        raise InputError(f"the number of seeds must be at least 1, got {num_seeds}")
    unseeded = dict.fromkeys(dataclasses.replace(run, seed=0) for run in runs)
    require(
        len(unseeded) * num_seeds <= MAX_RUNS,
        f"{num_seeds} seeds of {len(unseeded)} settings are too many runs: lower --seeds to at most "
        f"{MAX_RUNS // max(len(unseeded), 1)}",
    )
    return [dataclasses.replace(run, seed=seed) for run in unseeded for seed in range(num_seeds)]


def _hint(part: Any, path: str, change: Mapping[str, Any]) -> Any:
    """The annotation of the field at a path, reaching into a part that an earlier setting puts there."""
    name, _, rest = path.partition(".")
    known = hints(type(part)) if dataclasses.is_dataclass(part) else {}
    if name not in known:
        raise InputError(f"{type(part).__name__} has no field {name!r}: {nearest(name, known)}")
    return _hint(change.get(name, getattr(part, name)), rest, {}) if rest else known[name]


def value(text: str, hint: Any, own: Mapping[str, Mapping[str, type]]) -> Any:
    """Read a value as the field's annotation asks for it; the field's own part checks the rest."""
    if getattr(hint, "_is_protocol", False):
        return _part(text, hint.__name__.lower(), own)
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        if getattr(inner, "_is_protocol", False):
            return tuple(value(item, inner, own) for item in _items(text))
        read = _literal(text.replace("x", ",") if re.fullmatch(r"\d+(x\d+)*", text) else text)
        return read if isinstance(read, tuple) else (read,)
    if hint is str:
        return text
    return text.lower() == "true" if text.lower() in ("true", "false") else _literal(text)


def _items(text: str) -> list[str]:
    """`A, B(x=1, y=(2, 3))` cut at its outer commas."""
    try:
        call = _call(text)
        if call.keywords:
            raise SyntaxError
        return [ast.unparse(item) for item in call.args]
    except UNREADABLE:
        raise InputError(f"cannot read {text!r}: write parts with commas between them") from None


def _call(text: str) -> ast.Call:
    """The arguments in a text, as those of a call."""
    call = ast.parse(f"f({text})", mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(
        call.func, ast.Name
    ):  # f(a).b(c) is a call of another thing
        raise SyntaxError
    return call


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except UNREADABLE:
        return text


def _part(text: str, kind: str, own: Mapping[str, Mapping[str, type]]) -> Any:
    """`FewShot` or `FewShot(num_pairs=20)`: a part by its class name, with fields if wanted."""
    known = {**discovery.parts().get(kind, {}), **own.get(kind, {})}
    match = re.fullmatch(r"(\w+)\s*(?:\((.*)\))?", text, re.DOTALL)
    if match is None or match[1] not in known:
        name = match[1] if match else text
        raise InputError(f"there is no {kind} {name!r}: {nearest(name, known)}")
    cls = known[match[1]]
    try:
        call = _call(match[2] or "")
        fields = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        if call.args or len(fields) < len(call.keywords):
            raise SyntaxError
    except UNREADABLE:
        raise InputError(
            f"cannot read {text!r}: write {match[1]}(field=value, …), each field once"
        ) from None
    for name in fields:
        if name not in hints(cls):
            raise InputError(f"{cls.__name__} has no field {name!r}: {nearest(name, hints(cls))}")
    return cls(**fields)  # pyright: ignore[reportCallIssue]
