from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import data_slice, decodability, scaling_data
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results"
AGREEMENTS = ("agrees with the earlier recipe", "agrees with the paper's recipe")


def rows_of(score):
    """Rows of the full sweep with made-up scores, `score(run)`, which differ between seeds."""
    rows = []
    for run in data_slice.runs("full"):
        about = {"run": identity(run), "step": run.num_steps, **describe(run)}
        about["support/num_train"] = round(696 * (1 - run.frac_test))
        rows.append(about | {data_slice.SCORE: score(run) + 0.0005 * run.seed})
    return pd.DataFrame(rows)


def growing(run):
    return 1 - 0.4 * run.frac_test**4


def with_lower(recipe, loss):
    """`growing`, but one recipe scores lower where almost all tasks are held out."""

    def score(run):
        is_lower = type(run.recipe).__name__ == recipe and run.frac_test == 0.98
        return growing(run) - loss * is_lower

    return score


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(data_slice, rows)}


def test_the_runs_are_those_of_other_experiments():
    runs = data_slice.runs("full")
    assert len(set(runs)) == len(runs) == 7 * (8 + 3 + 3)
    assert set(runs[:56]) <= set(decodability.runs("full"))
    assert set(runs[56:77]) <= set(scaling_data.earlier_runs())
    assert set(runs[77:]) <= set(decodability.runs("full"))


def test_equal_recipes_agree():
    assert set(verdicts(rows_of(growing)).values()) == {"reproduced"}


@pytest.mark.parametrize(("loss", "verdict"), [(0.008, "reproduced"), (0.02, "not reproduced")])
def test_a_recipe_with_lower_scores_does_not_agree(loss, verdict):
    judged = verdicts(rows_of(with_lower("Paper", loss)))
    assert judged[AGREEMENTS[1]] == verdict
    assert judged[AGREEMENTS[0]] == "reproduced"


def test_an_agreement_of_scores_that_never_change_does_not_hold():
    claims = {claim.name: claim for claim in claims_of(data_slice, rows_of(lambda run: 0.9))}
    for name in AGREEMENTS:
        assert claims[name].measured < data_slice.MAX_DIFFERENCE
        assert claims[name].confounded
        assert claims[name].verdict == "not reproduced"


def test_a_fall_is_detected():
    judged = verdicts(rows_of(lambda run: growing(run) - 0.05 * (run.frac_test == 0.25)))
    assert judged["never falls"] == "not reproduced"
    assert judged["tasks"] == "reproduced"


def test_missing_runs_are_not_yet_run():
    rows = rows_of(growing)
    without_a_fraction = rows[rows["frac_test"] != 0.5]
    assert verdicts(without_a_fraction)["tasks"] == "not yet run"
    without_paper = rows[rows["recipe"] != "Paper"]
    assert verdicts(without_paper)[AGREEMENTS[1]] == "not yet run"


def check_tiny(rows):
    assert set(figures_of(data_slice, rows)) == {"recipes"}
    claims = {claim.name: claim for claim in claims_of(data_slice, rows)}
    assert claims[AGREEMENTS[0]].measured is not None
    assert data_slice.summary(rows)


def test_conclusions_from_the_committed_rows():
    rows = rc.Table(RESULTS / "data_slice.parquet").read()
    assert set(rows["run"]) == set(map(identity, data_slice.runs("full")))
    assert not rows["diverged"].any()
    claims = {claim.name: claim for claim in claims_of(data_slice, rows)}
    assert {name: claim.verdict for name, claim in claims.items()} == {
        "tasks": "reproduced",
        "never falls": "reproduced",
        AGREEMENTS[0]: "not reproduced",
        AGREEMENTS[1]: "not reproduced",
    }
    np.testing.assert_allclose(claims[AGREEMENTS[0]].measured, 0.199, atol=1e-3)
    np.testing.assert_allclose(claims[AGREEMENTS[1]].measured, 0.270, atol=1e-3)
