from pathlib import Path

import numpy as np
import pandas as pd

import recombine as rc
from recombine.experiments.paper import transformer_efficiency
from recombine.sweeps.run import describe, identity, structure

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "transformer_efficiency.parquet"


def rows_of(scores):
    """Rows of the tiny sweep with made-up scores: (family, model) -> test / seen with 60% and with 30% trained."""
    made = []
    for run in transformer_efficiency.runs("tiny"):
        family, model = type(run.family).__name__, type(run.model).__name__
        kept = scores[family, model][run.frac_test > 0.5]
        metric = "r2" if family == "Hyperteacher" else "trajectory_accuracy"
        row = {
            "run": identity(run),
            "step": 20,
            **describe(run),
            f"seen/{metric}": 0.5,
            f"test/{metric}": 0.5 * kept,
        }
        made.append(row | {"support/num_train": round(100 * (1 - run.frac_test))})
    return pd.DataFrame(made)


def test_both_students_get_the_same_tasks_and_data():
    runs = transformer_efficiency.runs("full")
    assert len(set(map(structure, runs))) == 5, "the control is a program of its own"
    for family, num_cells in (("Hyperteacher", 30), ("PreferenceGrid", 15)):
        seen = {}
        for run in runs:
            if type(run.family).__name__ == family:
                cell = (
                    run.frac_test,
                    run.seed,
                    run.num_steps,
                    run.num_tasks,
                    run.num_points,
                    run.recipe.weight_decay,
                )
                seen.setdefault(
                    (type(run.model).__name__, getattr(run.model, "apart", False)), set()
                ).add(cell)
        assert len(seen) == (2 if family == "Hyperteacher" else 3)
        assert all(
            cells == seen["MLP", False] and len(cells) == num_cells for cells in seen.values()
        )


EVEN = {
    (f, m): (0.95, 0.8) for f in ("Hyperteacher", "PreferenceGrid") for m in ("MLP", "Transformer")
}


def claims_of(scores):
    return {claim.name: claim for claim in transformer_efficiency.claims(rows_of(scores))}


def test_tasks_needed_are_read_off_the_curves():
    scores = EVEN | {
        ("Hyperteacher", "MLP"): (0.8, 0.1),
        ("Hyperteacher", "Transformer"): (1.0, 0.8),
    }
    found = transformer_efficiency.summary(rows_of(scores))
    assert found["Hyperteacher, MLP, decay 0.05: tasks needed"] == np.inf
    # Halfway between the shares .8 and 1, on a logarithmic axis from 30 to 60 tasks.
    np.testing.assert_allclose(
        found["Hyperteacher, Transformer, decay 0: tasks needed"], 30 * 2**0.5
    )
    share, matched = (
        claims_of(scores)[f"hyperteacher, transformer, decay 0.05: {name}"]
        for name in ("share", "match")
    )
    assert (share.measured, share.interval, share.verdict) == (
        np.inf,
        (np.inf, np.inf),
        "reproduced",
    )
    # 30 tasks are enough for the transformer to score as the MLP does with 60.
    assert (matched.measured, matched.interval, matched.verdict) == (2.0, (2.0, 2.0), "reproduced")


def test_equal_students_reproduce_nothing():
    claims = claims_of(EVEN).values()
    assert len(claims) == 8
    assert {claim.verdict for claim in claims} == {"not reproduced"}
    np.testing.assert_allclose([claim.measured for claim in claims], 1.0)


def test_a_transformer_that_never_gets_there_is_not_ahead():
    claims = claims_of(
        {pair: (0.95, 0.8) if pair[1] == "MLP" else (0.5, 0.4) for pair in EVEN}
    ).values()
    assert {(claim.measured, claim.interval, claim.verdict) for claim in claims} == {
        (0.0, (0.0, 0.0), "not reproduced")
    }


def test_without_a_failing_control_nothing_is_shown():
    claims = claims_of(
        {pair: (0.8, 0.7) if pair[1] == "MLP" else (1.0, 0.95) for pair in EVEN}
    ).values()
    assert not any(claim.holds for claim in claims)


def test_who_fits_nothing_keeps_nothing():
    rows = rows_of(EVEN)
    rows[["seen/r2", "test/r2"]] = 0.05, 0.05
    assert (
        transformer_efficiency.summary(rows)["Hyperteacher, MLP, decay 0: tasks needed"] == np.inf
    )


def test_tiny_runs_end_to_end():
    rows = rc.train(transformer_efficiency.runs("tiny"))
    assert len(transformer_efficiency.summary(rows)) == 7
    figures = transformer_efficiency.figures(rows)
    assert [len({trace.name for trace in figure.data}) for figure in figures.values()] == [4, 3]
    assert not any(claim.holds for claim in transformer_efficiency.claims(rows)), (
        "20 steps are not enough"
    )


def test_conclusions_from_the_committed_rows():
    rows = rc.Table(RESULTS).read()
    finished = set(rows["run"]) & set(map(identity, transformer_efficiency.runs("full")))
    assert len(finished) == rows["run"].nunique() == 105
    assert not rows["diverged"].any()
    assert (
        {claim.name: claim.verdict for claim in transformer_efficiency.claims(rows)}
        == {
            "hyperteacher, transformer, decay 0: match": "reproduced",
            "hyperteacher, transformer, decay 0: share": "reproduced",
            "hyperteacher, transformer, decay 0.05: match": "not reproduced",  # with decay the MLP needs as few
            "hyperteacher, transformer, decay 0.05: share": "not reproduced",
            "preferencegrid, transformer, decay 0.05: match": "reproduced",
            "preferencegrid, transformer, decay 0.05: share": "not reproduced",  # it scores higher on seen tasks too
            "preferencegrid, transformer, points apart, decay 0.05: match": "reproduced",  # but 1.6 times, not 3.7
            "preferencegrid, transformer, points apart, decay 0.05: share": "not reproduced",
        }
    )
    assert {claim.verdict for claim in transformer_efficiency.claims(None)} == {"not yet run"}
