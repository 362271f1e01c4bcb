"""Prove that no test combination was trained: `recombine verify --split`.

Every run's split is computed again from the columns of its rows, and compared with the hash of the
split that the trainer received (`meta/split`). Then no test task may be a train task. A task is one
combination of modules, or one sequence of modules: two sequences may share their set of modules.
Rows of older versions have no hash: their splits are compared by the columns `support/…`.
"""

from __future__ import annotations

import ast
import itertools
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require
from recombine.basics.suggest import counted
from recombine.parts.field_checks import added_fields, field_types
from recombine.sweeps import discovery
from recombine.training.task_sampler import make_split, split_digest

MAX_ORDER = 3  # coverage is reported for up to so many modules at a time
SPLIT_COLUMNS = ("family", "support", "frac_test", "seed")


class SplitProof(NamedTuple):
    """The result of `prove`.

    `coverage` is by k: the fraction of the k-combinations of modules in test tasks that occur in
    some train task, on average over splits.
    """

    num_splits: int
    num_runs: int
    num_hashed: int  # runs whose rows have the hash of their split
    coverage: dict[int, float]
    problems: list[str]


def prove(
    rows: pd.DataFrame,
    user_parts: Iterable[type] = (),
    show_step: Callable[[str, int, int], None] = lambda *_: None,
) -> SplitProof:
    """Compute the splits of all runs again, and compare them with what was trained."""
    missing = [name for name in SPLIT_COLUMNS if name not in rows]
    require(
        not missing, f"the rows have no column {', '.join(missing)}: only trained runs have a split"
    )
    last = rows.drop_duplicates("run", keep="last")
    columns = [
        name
        for name in last
        if name in SPLIT_COLUMNS or str(name).startswith(("family.", "support."))
    ]
    classes = _classes(user_parts)
    problems: list[str] = []
    coverages: list[dict[int, float]] = []
    groups = list(last.groupby(columns, dropna=False, sort=False))
    for number, (_, group) in enumerate(groups, start=1):
        show_step("checking splits", number, len(groups))
        first = {str(name): value for name, value in group.iloc[0].items()}
        try:
            run = _run_of(first, classes)
            tasks = np.asarray(run.family.tasks())
            modules = np.asarray(run.family.modules(tasks))
            split, facts = make_split(typing.cast(Any, run), modules)
        except InputError as error:
            problems.append(f"the split of run {first['run']} cannot be computed again: {error}")
            continue
        problems += _differences(group, split_digest(split), facts)
        train_indices = split.order[: split.num_train]
        test_indices = split.order[split.num_train : split.num_train + split.num_test]
        train = modules[train_indices]
        test = modules[test_indices]
        num_leaked = _num_leaked(tasks[train_indices], tasks[test_indices])
        if num_leaked:
            problems.append(
                f"{num_leaked} of {len(test)} test tasks of {counted(len(group), 'run')} such as "
                f"{first['run']} are train tasks, too"
            )
        coverages.append(coverage(train, test))
    hashed: Any = last["meta/split"].notna().sum() if "meta/split" in last else 0
    return SplitProof(len(groups), len(last), int(hashed), _mean(coverages), problems)


def _differences(group: pd.DataFrame, digest: str, facts: Mapping[str, Any]) -> list[str]:
    """Runs whose rows say that another split was trained than the one computed now."""
    others = []
    for row in group.to_dict("records"):
        recorded = row.get("meta/split")
        if isinstance(recorded, str):
            is_same = recorded == digest
        else:
            known = [name for name in facts if _is_known(row.get(name))]
            values = [(float(row[name]), float(facts[name])) for name in known]
            is_same = bool(known) and all(np.isclose(*pair) for pair in values)
        if not is_same:
            others.append(row["run"])
    if not others:
        return []
    return [
        f"{counted(len(others), 'run')} such as {others[0]}: the trained split differs from "
        "that of the family, support, frac_test and seed in the row"
    ]


def _is_known(value: Any) -> bool:
    """Whether a row has a value in a column."""
    is_missing: Any = pd.isna(value)
    return not is_missing


def coverage(train: np.ndarray, test: np.ndarray) -> dict[int, float]:
    """By k: the fraction of the k-combinations of modules in test tasks that some train task has.

    Both are 0/1 tables of tasks, of shape (tasks, modules).
    """
    fractions = {}
    for k in range(1, min(MAX_ORDER, int(test.astype(bool).sum(1).max())) + 1):
        needed = _combinations(test, k)
        if needed:
            fractions[k] = len(needed & _combinations(train, k)) / len(needed)
    return fractions


def _combinations(tasks: np.ndarray, k: int) -> set[tuple[int, ...]]:
    """All sets of k modules that occur together in some task."""
    combinations: set[tuple[int, ...]] = set()
    for task in np.unique(tasks.astype(bool), axis=0):
        combinations.update(itertools.combinations(map(int, np.flatnonzero(task)), k))
    return combinations


def _num_leaked(train: np.ndarray, test: np.ndarray) -> int:
    """How many test tasks are also train tasks. Both are rows of the family's table."""
    trained = set(map(bytes, np.ascontiguousarray(train)))
    return sum(bytes(task) in trained for task in np.ascontiguousarray(test))


def _mean(coverages: list[dict[int, float]]) -> dict[int, float]:
    orders = sorted(set().union(*coverages)) if coverages else []
    return {
        k: float(np.mean([fractions[k] for fractions in coverages if k in fractions]))
        for k in orders
    }


def _classes(user_parts: Iterable[type]) -> dict[str, type]:
    ours = {name: cls for kind in discovery.parts().values() for name, cls in kind.items()}
    return ours | {cls.__name__: cls for cls in user_parts}


def _run_of(row: Mapping[str, Any], classes: Mapping[str, type]) -> Any:
    """What a split depends on, from the columns of a row."""
    return types.SimpleNamespace(
        family=_part("family", row, classes),
        support=_part("support", row, classes),
        frac_test=float(row["frac_test"]),
        seed=int(row["seed"]),
    )


def _part(path: str, row: Mapping[str, Any], classes: Mapping[str, type]) -> Any:
    """A part from the columns that `describe` made of it."""
    name = row[path]
    require(name in classes, f"unknown part {name!r}: pass its file with --parts FILE.py")
    cls = classes[name]
    values = dict(added_fields(cls))  # rows from before a field was added lack its column
    for field, hint in field_types(cls).items():
        column = f"{path}.{field}"
        value = row.get(column)
        if not _is_known(value):
            if column in row and type(None) in typing.get_args(hint):
                values[field] = None
            continue
        is_part = isinstance(value, str) and value in classes and hint is not str
        values[field] = _part(column, row, classes) if is_part else _value(value, hint)
    return cls(**values)


def _value(value: Any, hint: Any) -> Any:
    """A field's value from its column: 3x4 is a tuple, and 2.0 a whole number where one belongs."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str) and "tuple" in str(hint):
        if value.startswith("("):
            return ast.literal_eval(value)
        return tuple(int(item) for item in value.split("x") if item)
    is_whole = isinstance(value, float) and value.is_integer()
    return int(value) if is_whole and "float" not in str(hint) else value
