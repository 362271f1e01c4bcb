"""Rows that are committed are still found: every run that the record shows is one that its
experiment lists today.
"""

from pathlib import Path

import pytest

from recombine.experiments import catalogue
from recombine.experiments.instrument import predicted_failures
from recombine.experiments.theory import theorem_41
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.recipes.fast import Fast
from recombine.storage.table import Table
from recombine.sweeps.run import NUMERICS, Run, identity
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
