from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import recombine as rc
from recombine.experiments.limits import linear_factors
from recombine.sweeps.run import describe, identity, put, structure

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "linear_factors.parquet"
RAW, DECODED = linear_factors.PROBES["raw"], linear_factors.PROBES["decodability"]


def rows_of(factor, decoded, twin=lambda held: 0.5, more=0.0, across=lambda held: held):
    """Rows of the small sweep, made up: what a probe shows is a function of the held-out fraction."""
    made = []
    for run in linear_factors.runs("small"):
        held, trained, again = run.frac_test, run.recipe.learning_rate > 0, not run.diagnostics
        row = {
            "run": identity(run),
            "step": 1,
            **describe(run),
            "test/r2": 1.05 - held + more * again,
        }
        row |= {
            RAW: factor(held) if trained else twin(held),
            DECODED: decoded(held),
            linear_factors.ACROSS: across(held),
        }
        row |= {linear_factors.SHUFFLED: -0.01, linear_factors.PROBES["whitened"]: held}
        made.append(row | {"support/num_train": round(92 * (1 - held))})
    return pd.DataFrame(made)


def claims_of(rows):
    return {claim.name: claim for claim in linear_factors.claims(rows)}


def falls(held):
    return 1 - held


def test_the_full_sweep_is_few_programs():
    runs = linear_factors.runs("full")
    assert len(set(map(structure, runs))) == 13
    trained = [run for run in runs if run.recipe.learning_rate > 0 and run.diagnostics]
    assert len(trained) == 2 * 3 * 7 * 3
    twins = {put(run, {"recipe.learning_rate": 0.0, "num_steps": 1}) for run in trained}
    assert twins == {run for run in runs if run.recipe.learning_rate == 0}
    more = [run for run in runs if not run.diagnostics]
    assert {run.num_points for run in more} == {linear_factors.TIMES * trained[0].num_points}
    assert {run.model.widths for run in more} == {(1024,) * 4}
    cells = {put(run, {"num_points": 4, "diagnostics": trained[0].diagnostics}) for run in more}
    assert len(cells) == 9
    assert cells <= set(trained), "each has a student beside it that differs in the samples alone"


def test_rank_correlation_is_spearmans():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"test/r2": rng.normal(size=30), "probe": rng.integers(0, 5, 30)})
    expected = stats.spearmanr(frame["test/r2"], frame["probe"]).statistic
    assert linear_factors.rank(frame, "probe") == pytest.approx(expected)
    assert np.isnan(linear_factors.rank(frame.assign(probe=1.0), "probe"))
    assert np.isnan(linear_factors.rank(frame, "absent"))


def test_sums_that_go_with_generalisation_are_told():
    found = claims_of(rows_of(falls, falls))
    for name in ("raw", "raw, alike", "decodability"):
        assert found[name].measured == pytest.approx(1)
        assert found[name].verdict == "reproduced"
    assert found["as good as decodability"].measured == pytest.approx(0)
    assert found["as good as decodability, alike"].verdict == "reproduced"
    assert found["shuffled tasks"].verdict == "reproduced"
    assert found["orthogonal"].measured == pytest.approx(-1)
    assert found["orthogonal"].verdict == "reproduced"
    assert found["diversity"].measured == pytest.approx(0.775)
    assert found["diversity"].verdict == "reproduced"
    # The rank of a constant is none: nothing can be said against such a twin, or about it.
    assert found["untrained twin"].verdict == "not yet run"


def test_sums_that_do_not_are_told_too():
    found = claims_of(rows_of(lambda held: held, falls, twin=falls, across=falls))
    for name in ("raw", "raw, alike", "as good as decodability", "untrained twin", "orthogonal"):
        assert found[name].verdict == "not reproduced", name
    assert found["decodability"].verdict == "reproduced"
    assert found["whitened"].verdict == "not reproduced"


def test_without_students_that_fail_nothing_is_shown():
    rows = rows_of(falls, falls)
    rows["test/r2"] = 0.95 + 0.01 * rows["test/r2"]
    assert claims_of(rows)["raw"].measured == pytest.approx(1)
    assert claims_of(rows)["raw"].verdict == "not reproduced"


@pytest.mark.parametrize(("more", "verdict"), [(0.01, "reproduced"), (0.2, "not reproduced")])
def test_what_more_samples_add(more, verdict):
    volume = claims_of(rows_of(falls, falls, more=more))["volume"]
    assert volume.measured == pytest.approx(more)
    assert volume.verdict == verdict


def test_samples_must_add_less_than_combinations():
    rows = rows_of(falls, falls, more=0.01)
    rows["test/r2"] = rows["test/r2"].where(rows["num_points"] > rows["num_points"].min(), 0.5)
    rows.loc[rows["num_points"] > rows["num_points"].min(), "test/r2"] = 0.51
    found = claims_of(rows)
    assert found["volume"].measured == pytest.approx(0.01)
    assert found["volume"].verdict == found["diversity"].verdict == "not reproduced", (
        "combinations add nothing"
    )


def test_half_a_sweep_is_judged_as_far_as_it_goes():
    rows = rows_of(falls, falls, twin=falls)
    assert claims_of(rows)["untrained twin"].verdict == "not reproduced"
    without = claims_of(rows[rows["recipe.learning_rate"] > 0])
    assert without["untrained twin"].verdict == "not yet run"
    assert without["raw"].verdict == "reproduced"
    assert claims_of(rows[rows["num_points"] == 8])["volume"].verdict == "not yet run"
    assert claims_of(rows[rows["frac_test"] == 0.5])["diversity"].holds is None
    one = claims_of(rows.iloc[:1])
    assert {claim.verdict for name, claim in one.items() if name != "shuffled tasks"} == {
        "not yet run"
    }
    assert {claim.verdict for claim in linear_factors.claims(None)} == {"not yet run"}
    assert [claim.name for claim in linear_factors.claims(None)] == list(one)


def test_tiny_runs_end_to_end():
    rows = rc.train(linear_factors.runs("tiny"))
    assert np.isfinite(linear_factors.summary(rows)["added by samples"])
    assert list(linear_factors.figures(rows)) == [
        *("raw", "whitened", "decodability", "untrained", "orthogonal", "volume")
    ]
    assert not any(
        claim.holds for claim in linear_factors.claims(rows) if claim.name != "shuffled tasks"
    )


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert set(rows["run"]) == set(map(identity, linear_factors.runs(table.meta()["scale"])))
    assert not rows["diverged"].any()
    assert {claim.name: claim.verdict for claim in linear_factors.claims(rows)} == {
        "raw": "not reproduced",  # narrow students score badly and are sums of parts all the same
        "whitened": "not reproduced",
        "decodability": "reproduced",
        "raw, alike": "not reproduced",
        "as good as decodability": "not reproduced",
        "as good as decodability, alike": "not reproduced",
        "orthogonal": "not reproduced",
        "shuffled tasks": "reproduced",
        "untrained twin": "not reproduced",  # the twin's sum of parts tells nearly as much
        "diversity": "reproduced",
        "volume": "reproduced",
    }
