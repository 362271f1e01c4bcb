from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import recombine as rc
from recombine.experiments.limits import linear_factors
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity, replace_fields, structure
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "linear_factors.parquet"
RAW, DECODED = linear_factors.PROBES["raw"], linear_factors.PROBES["decodability"]


def rows_of(factor, decoded, untrained=lambda held: 0.5, more=0.0, across=lambda held: held):
    """Synthetic rows of the small sweep: probe scores are functions of the held-out fraction."""
    made_rows = []
    for run in linear_factors.runs("small"):
        held_out = run.frac_test
        is_trained = run.recipe.learning_rate > 0
        has_more_samples = not run.diagnostics
        row = {"run": identity(run), "step": 1, **describe(run)}
        row["test/r2"] = 1.05 - held_out + more * has_more_samples
        row[RAW] = factor(held_out) if is_trained else untrained(held_out)
        row[DECODED] = decoded(held_out)
        row[linear_factors.COSINE] = across(held_out)
        row[linear_factors.SHUFFLED] = -0.01
        row[linear_factors.PROBES["whitened"]] = held_out
        row["support/num_train"] = round(92 * (1 - held_out))
        made_rows.append(row)
    return pd.DataFrame(made_rows)


def claims_by_name(rows):
    return {claim.name: claim for claim in claims_of(linear_factors, rows)}


def falls(held):
    return 1 - held


def test_the_full_sweep_is_few_programs():
    runs = linear_factors.runs("full")
    assert len(set(map(structure, runs))) == 13
    trained = [run for run in runs if run.recipe.learning_rate > 0 and run.diagnostics]
    assert len(trained) == 2 * 3 * 7 * 3
    baselines = {
        replace_fields(run, {"recipe.learning_rate": 0.0, "num_steps": 1}) for run in trained
    }
    assert baselines == {run for run in runs if run.recipe.learning_rate == 0}
    more = [run for run in runs if not run.diagnostics]
    assert {run.num_points for run in more} == {linear_factors.TIMES * trained[0].num_points}
    assert {run.model.widths for run in more} == {(1024,) * 4}
    cells = {
        replace_fields(run, {"num_points": 4, "diagnostics": trained[0].diagnostics})
        for run in more
    }
    assert len(cells) == 9
    assert cells <= set(trained), "each has a student that differs in the samples only"


def test_rank_correlation_is_spearmans():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"test/r2": rng.normal(size=30), "probe": rng.integers(0, 5, 30)})
    expected = stats.spearmanr(frame["test/r2"], frame["probe"]).statistic
    assert linear_factors.rank(frame, "probe") == pytest.approx(expected)
    assert np.isnan(linear_factors.rank(frame.assign(probe=1.0), "probe"))
    assert np.isnan(linear_factors.rank(frame, "absent"))


def test_factors_that_correlate_with_generalization():
    claims = claims_by_name(rows_of(falls, falls))
    for name in ("raw", "raw, alike", "decodability"):
        assert claims[name].measured == pytest.approx(1)
        assert claims[name].verdict == "reproduced"
    assert claims["as good as decodability"].measured == pytest.approx(0)
    assert claims["as good as decodability, alike"].verdict == "reproduced"
    assert claims["shuffled tasks"].verdict == "reproduced"
    assert claims["orthogonal"].measured == pytest.approx(-1)
    assert claims["orthogonal"].verdict == "reproduced"
    assert claims["diversity"].measured == pytest.approx(0.775)
    assert claims["diversity"].verdict == "reproduced"
    # A constant has no rank correlation, so the baseline is not judged.
    assert claims["untrained twin"].verdict == "not yet run"


def test_factors_that_do_not_correlate_with_generalization():
    claims = claims_by_name(rows_of(lambda held: held, falls, untrained=falls, across=falls))
    for name in ("raw", "raw, alike", "as good as decodability", "untrained twin", "orthogonal"):
        assert claims[name].verdict == "not reproduced", name
    assert claims["decodability"].verdict == "reproduced"
    assert claims["whitened"].verdict == "not reproduced"


def test_without_students_that_fail_no_correlation_counts():
    rows = rows_of(falls, falls)
    rows["test/r2"] = 0.95 + 0.01 * rows["test/r2"]
    assert claims_by_name(rows)["raw"].measured == pytest.approx(1)
    assert claims_by_name(rows)["raw"].verdict == "confounded"


@pytest.mark.parametrize(("more", "verdict"), [(0.01, "reproduced"), (0.2, "not reproduced")])
def test_what_more_samples_add(more, verdict):
    volume = claims_by_name(rows_of(falls, falls, more=more))["volume"]
    assert volume.measured == pytest.approx(more)
    assert volume.verdict == verdict


def test_samples_must_add_less_than_combinations():
    rows = rows_of(falls, falls, more=0.01)
    rows["test/r2"] = rows["test/r2"].where(rows["num_points"] > rows["num_points"].min(), 0.5)
    rows.loc[rows["num_points"] > rows["num_points"].min(), "test/r2"] = 0.51
    claims = claims_by_name(rows)
    assert claims["volume"].measured == pytest.approx(0.01)
    assert claims["volume"].verdict == "confounded", "its control does not fail"
    assert claims["diversity"].verdict == "not reproduced", "combinations add nothing"


def test_an_unfinished_sweep_is_judged_in_part():
    rows = rows_of(falls, falls, untrained=falls)
    assert claims_by_name(rows)["untrained twin"].verdict == "not reproduced"
    without = claims_by_name(rows[rows["recipe.learning_rate"] > 0])
    assert without["untrained twin"].verdict == "not yet run"
    assert without["raw"].verdict == "reproduced"
    assert claims_by_name(rows[rows["num_points"] == 8])["volume"].verdict == "not yet run"
    assert claims_by_name(rows[rows["frac_test"] == 0.5])["diversity"].holds is None
    claims_of_one_row = claims_by_name(rows.iloc[:1])
    assert {
        claim.verdict for name, claim in claims_of_one_row.items() if name != "shuffled tasks"
    } == {"not yet run"}
    assert {claim.verdict for claim in claims_of(linear_factors, None)} == {"not yet run"}
    assert [claim.name for claim in claims_of(linear_factors, None)] == list(claims_of_one_row)


def check_tiny(rows):
    assert np.isfinite(linear_factors.summary(rows)["added by samples"])
    figures = ["raw", "whitened", "decodability", "untrained", "orthogonal", "volume"]
    assert list(figures_of(linear_factors, rows)) == figures
    assert not any(
        claim.holds for claim in claims_of(linear_factors, rows) if claim.name != "shuffled tasks"
    )


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert set(rows["run"]) == set(map(identity, linear_factors.runs(table.meta()["scale"])))
    assert not rows["diverged"].any()
    assert {claim.name: claim.verdict for claim in claims_of(linear_factors, rows)} == {
        "raw": "not reproduced",  # narrow students have a low R2 but are sums of factors
        "whitened": "not reproduced",
        "decodability": "reproduced",
        "raw, alike": "inconclusive",
        "as good as decodability": "not reproduced",
        "as good as decodability, alike": "inconclusive",
        "orthogonal": "not reproduced",
        "shuffled tasks": "reproduced",
        "untrained twin": "inconclusive",  # untrained networks predict nearly as well
        "diversity": "reproduced",
        "volume": "reproduced",
    }
