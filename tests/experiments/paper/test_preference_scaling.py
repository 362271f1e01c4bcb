from pathlib import Path

import pytest

import recombine as rc
from recombine.experiments.paper import preference_scaling
from recombine.sweeps.run import structure

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "preference_scaling.parquet"


def test_the_sweep_is_the_one_that_is_promised():
    runs = preference_scaling.runs("full")
    assert len(set(runs)) == len(runs) == 42
    assert len(set(map(structure, runs))) == 4, (
        "a program for each width; fractions and supports share the widest's"
    )
    assert {run.family for run in runs} == {rc.PreferenceGrid(num_features=16)}
    assert {type(run.support).__name__ for run in runs} >= {"Random", *preference_scaling.VIOLATING}


@pytest.fixture(scope="module")
def tiny():
    return rc.train(preference_scaling.runs("tiny"))


def test_tiny_runs_end_to_end(tiny):
    found = preference_scaling.summary(tiny)
    assert set(found) == {"width 4", "width 16", "25% held out", "50% held out", "Random"}
    figures = preference_scaling.figures(tiny)
    assert list(figures) == ["episode", "width", "data", "supports"]
    claims = {claim.name: claim for claim in preference_scaling.claims(tiny)}
    assert not claims["width"].holds, "40 steps are not enough"
    assert claims["support"].verdict == claims["frequency"].verdict == "not yet run", (
        "only one support was trained"
    )


def test_claims_that_do_not_hold_are_found():
    rows = rc.Table(RESULTS).read()

    def verdicts(changed):
        return {claim.name: claim.verdict for claim in preference_scaling.claims(changed)}

    def scored(mask, value):
        return rows.assign(
            **{preference_scaling.SCORE: rows[preference_scaling.SCORE].mask(mask, value)}
        )

    assert verdicts(scored(rows["model.widths"] == "16x16", 0.6))["width"] == "not reproduced", (
        "the control succeeds"
    )
    assert verdicts(scored(rows["model.widths"] == "64x64", 0.73))["width"] == "not reproduced", (
        "not monotone"
    )
    assert verdicts(scored(rows["frac_test"] == 0.98, 0.7))["data"] == "not reproduced"
    assert verdicts(scored(rows["frac_test"] == 0.9, 0.8))["data"] == "not reproduced", (
        "not monotone"
    )
    assert verdicts(scored(rows["support"] == "Disconnected", 0.72))["support"] == "not reproduced"
    assert verdicts(scored(rows["support"] == "Popular", 0.6))["frequency"] == "not reproduced"


def test_the_film_strip_tells_a_whole_episode():
    strip = preference_scaling.episode(rc.PreferenceGrid(num_features=16))
    captions = [note.text for note in strip.layout.annotations]
    assert len(captions) <= 8
    assert captions[-1].endswith("nothing: the end") or len(captions) == 8
    assert sum("earns" in caption for caption in captions) >= 2
    agent = strip.data[-1]
    assert len(agent.x) == len(captions)


def test_conclusions_from_the_committed_rows():
    rows = rc.Table(RESULTS).read()
    assert rows["run"].nunique() == 42
    assert not rows["diverged"].any()
    assert {"meta/device", "meta/jax", "meta/date"} <= set(rows)
    assert {claim.name: claim.verdict for claim in preference_scaling.claims(rows)} == {
        "width": "reproduced",
        "data": "reproduced",
        "support": "reproduced",
        "frequency": "reproduced",
    }
    found = preference_scaling.summary(rows)
    assert found["width 16"] < 0.3 < 0.7 < found["width 1024"]
    assert found["98% held out"] < 0.6 < 0.7 < found["75% held out"]
    assert found["MissingModule"] < found["Disconnected"] < 0.6 < 0.7 < found["Popular"]
    assert found["Unpopular"] < 0.6, "three modules in one train task each are hardly learned"
    assert {claim.verdict for claim in preference_scaling.claims(None)} == {"not yet run"}
