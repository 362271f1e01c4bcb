"""Rows that are committed are still found: every run that the record shows is one that its
experiment lists today, and every stored run has the identity that its row names.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from recombine.experiments import catalogue
from recombine.experiments.instrument import predicted_failures
from recombine.experiments.theory import theorem_41
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.field_checks import added_fields, field_types
from recombine.parts.recipes.fast import Fast
from recombine.storage.table import Table
from recombine.sweeps import run as run_module
from recombine.sweeps.canonical_fields import canonical_fields
from recombine.sweeps.run import NUMERICS, Run, identity
from recombine.training import split_verification
from recombine.training.computed import Cell

RESULTS = Path(__file__).parents[2] / "docs" / "results"
NAMES = [name for name in catalogue.experiment_names() if (RESULTS / f"{name}.parquet").exists()]
# Tables of an earlier recipe, which wait for a GPU: the record says so.
OTHER_SETTINGS = {
    "ambiguity",
    "coverage_advice",
    "information_loss",
    "memorisation",
    "modularity",
    "module_frequency",
    "more_modules",
    "preference_scaling",
    "quickstart",
    "scaling_data",
    "scaling_depth",
    "scaling_law",
    "six_modules",
    "support_conditions",
    "transformer_efficiency",
}
TRAINED = [name for name in NAMES if not hasattr(catalogue.experiment(name), "cells")]
# Two tables were trained before `NUMERICS` became 2, when parts had fewer fields. Their rows are
# never reused; their identities are still those of the runs in their columns.
FIRST_NUMERICS = {"quickstart", "six_modules"}
LATER_FIELDS = {"precision", "activation", "normalisation", "residual"}


@pytest.mark.parametrize("name", NAMES)
def test_every_committed_run_is_found_by_its_identity(name):
    assert NUMERICS == 3, (
        "after a change of NUMERICS no committed row is found: all tables must be trained again"
    )
    module = catalogue.experiment(name)
    table = Table(RESULTS / f"{name}.parquet")
    meta = table.meta()
    listed = getattr(module, "cells", None) or module.runs
    names = {
        Cell(name, listed_run).name if isinstance(listed_run, dict) else identity(listed_run)
        for listed_run in listed(meta["scale"])
    }
    last_runs = set(meta["shown"])
    assert last_runs <= table.finished()
    if name in OTHER_SETTINGS:
        assert not last_runs & names, f"{name} was trained again: take it off the list"
    else:
        assert last_runs <= names


def rebuild(row: Mapping[str, Any], diagnostics: tuple, classes: Mapping[str, type]) -> Run:
    """The run of a row, from its columns. Of diagnostics, a row names the classes only."""
    values: dict[str, Any] = {"diagnostics": diagnostics}
    for field, hint in field_types(Run).items():
        if field == "diagnostics" or field not in row:  # rows without `start` have no such column
            continue
        if isinstance(row[field], str):
            values[field] = split_verification._part(field, row, classes)
        else:
            values[field] = split_verification._value(row[field], hint)
    return Run(**values)


def first_identity(run: Run) -> str:
    """The identity of a run when `NUMERICS` was 1."""

    def fields_of(part: Any) -> dict[str, Any]:
        fields = canonical_fields(part)
        return {name: value for name, value in fields.items() if name not in LATER_FIELDS}

    text = json.dumps([1, run_module._to_json(run, fields_of)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def diagnostics_of(name: str) -> dict[str, set[tuple]]:
    """The diagnostics of an experiment at all scales, by the names of their classes."""
    used: dict[str, set[tuple]] = {}
    for scale in ("tiny", "small", "full"):
        for run in catalogue.experiment(name).runs(scale):
            names = ", ".join(type(diagnostic).__name__ for diagnostic in run.diagnostics)
            used.setdefault(names, set()).add(run.diagnostics)
    return used


def lost_runs(name: str, rows: list[dict], identity_of: Callable[[Run], str]) -> list[str]:
    """The rows whose run has another identity now than when it was trained."""
    classes = split_verification._classes(())
    used = diagnostics_of(name)
    lost = []
    for row in rows:
        candidates = used.get(row["diagnostics"], set())
        identities = {identity_of(rebuild(row, candidate, classes)) for candidate in candidates}
        if row["run"] not in identities:
            lost.append(row["run"])
    return lost


@pytest.mark.parametrize("name", TRAINED)
def test_every_stored_run_has_its_identity(name):
    last = Table(RESULTS / f"{name}.parquet").read().drop_duplicates("run", keep="last")
    assert len(last)
    identity_of = first_identity if name in FIRST_NUMERICS else identity
    assert lost_runs(name, last.to_dict("records"), identity_of) == []


def test_a_new_field_without_an_earlier_value_loses_rows(monkeypatch):
    # Control: `vector_rate` was added to the recipe after these rows were trained.
    last = Table(RESULTS / "ambiguity.parquet").read().drop_duplicates("run", keep="last")
    rows = last.to_dict("records")[:3]
    assert lost_runs("ambiguity", rows, identity) == []
    monkeypatch.delitem(added_fields(Fast), "vector_rate")
    assert len(lost_runs("ambiguity", rows, identity)) == 3


def test_computed_rows_were_trained_with_the_recipe_that_is_named():
    # Cells are found by their values, which do not name the recipe: another one would reuse these
    # rows silently.
    recipe = Fast(0.04, 0.1, vector_rate=0.2)
    assert recipe == Run().recipe
    assert theorem_41.SIZES["small"] == {"family": Hyperteacher(8, 3, 8, 8, 8), "num_steps": 1500}
    student = predicted_failures.student("small", "Hyperteacher", 64, 0.25, 0)
    assert (student.recipe, student.num_steps) == (recipe, 1500)
    acting = predicted_failures.student("small", "PreferenceGrid", 64, 0.25, 0)
    assert acting.recipe == Fast(0.02, 0.05, vector_rate=0.2)
