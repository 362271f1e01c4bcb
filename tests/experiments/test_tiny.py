"""Every experiment at tiny scale, end to end: rows, claims, figures and summary.

An experiment's own test file may have two functions. `check_tiny(rows)` checks on the same rows
what is special about it, so every tiny sweep is trained once. `prepare_tiny(monkeypatch)` replaces
what would take long.
"""

import functools
import importlib
import inspect
import numbers
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments import catalogue, claim
from recombine.experiments.plots import figures_of
from recombine.storage.table import Table
from recombine.sweeps.run import identity
from recombine.training import computed

# Two experiments run their tiny scale in their own test files: `quickstart` in `make test`, and
# `image_concepts` on the command line.
ELSEWHERE = ("quickstart", "image_concepts")
NAMES = [name for name in catalogue.experiment_names() if name not in ELSEWHERE]
# The part of a tiny scale that is computed here: the rest differs in the encoding, the size or the
# seed alone, and takes as long again.
PARTS: dict[str, Callable[[Any], bool]] = {
    "definitions": lambda cell: cell.get("seed", 0) == 0,
    "depth_or_width": lambda run: (
        getattr(run.family, "max_length", 0) == 2
        and len(getattr(run.model, "widths", ())) != 2
        and getattr(run.model, "num_layers", 1) == 1
    ),
    "encodings": lambda run: isinstance(run.encoding, rc.Identity | rc.FewShot),
    "predicted_failures": lambda cell: cell["family"] == "Hyperteacher",
    "scaling_depth": lambda run: isinstance(run.encoding, rc.Orthogonal),
    "scaling_law": lambda run: run.family.num_modules == 5,
    "scaling_width": lambda run: isinstance(run.encoding, rc.Language | rc.FewShot),
    "theorem_41": lambda cell: (
        cell["tau"] in (0.25, 0.9) and (cell.get("encoding") != "Identity" or cell["seed"] == 0)
    ),
}

# The same by position.
POSITIONS: dict[str, tuple[int, ...]] = {
    "expert_vectors": (0,),
    "fractured": (-1,),
    "pretraining_modularity": (0, 1),
    "recursion_ablation": (0, 1),
    "recursion_depth": (0, 2, -1),
    "subnetworks": (0, 4),
}


def chosen_part(name: str, listed: list[Any]) -> list[Any]:
    """The runs or cells of a tiny scale that are computed here."""
    if name in POSITIONS:
        return [listed[position] for position in POSITIONS[name]]
    return list(filter(PARTS.get(name), listed))


def trained_rows(name: str, module: Any) -> pd.DataFrame:
    runs = chosen_part(name, module.runs("tiny"))
    rows = rc.train(runs, progress=False)
    assert set(rows["run"]) == set(map(identity, runs))
    assert not rows["diverged"].any()
    assert_measured(rows, rows.filter(regex=r"^test/[a-z_0-9]+$"))
    return rows


def computed_rows(name: str, module: Any, folder: Any) -> pd.DataFrame:
    chosen = chosen_part(name, module.cells("tiny"))
    cells = computed.check_cells(name, f"{name}: cells('tiny')", chosen)
    measure = module.measure
    if "folder" in inspect.signature(measure).parameters:
        measure = functools.partial(measure, folder=folder / "work")
    rows, num_computed = computed.compute_cells(cells, measure, Table(folder), {}, False, "code")
    assert num_computed == len(cells) == rows["run"].nunique()
    names = {key for cell in chosen for key in cell}
    measured = [column for column in rows if column not in names and "meta/" not in column]
    assert_measured(rows, rows[measured].drop(columns=["run", "step"]))
    return rows


def assert_measured(rows: pd.DataFrame, measured: pd.DataFrame) -> None:
    """Every row has a measured value, and no number is infinite."""
    assert measured.notna().any(axis=1).all()
    assert not np.isinf(rows.select_dtypes("number").to_numpy(float)).any()


def own_tests(module: Any) -> ModuleType:
    """The test file of an experiment."""
    room, _, name = module.__name__.removeprefix("recombine.").rpartition(".")
    return importlib.import_module(f"tests.{room}.test_{name}")


@pytest.mark.parametrize("name", NAMES)
def test_experiment(name, tmp_path, monkeypatch):
    if name == "instructions":
        pytest.importorskip("transformers", reason="its students need the extra torch")
    module = catalogue.experiment(name)
    own = own_tests(module)
    if hasattr(own, "prepare_tiny"):
        own.prepare_tiny(monkeypatch)
    is_computed = hasattr(module, "cells")
    rows = computed_rows(name, module, tmp_path) if is_computed else trained_rows(name, module)
    claims = claim.claims_of(module, rows)
    assert claims
    assert {judged.verdict for judged in claims} <= set(claim.VERDICTS)
    figures = figures_of(module, rows)
    assert figures
    assert all(len(figure.data) or len(figure.layout.annotations) for figure in figures.values())
    if hasattr(module, "summary"):
        values = module.summary(rows)
        assert values
        assert all(isinstance(value, numbers.Real) for value in values.values())
    if hasattr(own, "check_tiny"):
        own.check_tiny(rows)
