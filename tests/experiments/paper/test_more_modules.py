from pathlib import Path

import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import more_modules
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity, structure
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "more_modules.parquet"


def rows_of(shares, fewest=0.3):
    """Rows of the full sweep: R2 .9 on held-out tasks, or `fewest` with few train tasks.

    The scores with K+1 and K+2 active modules are these shares of it.
    """
    rows = []
    for run in more_modules.runs("full"):
        score = fewest if run.frac_test >= 0.75 else 0.9
        row = {"run": identity(run), "step": run.num_steps, **describe(run), "test/r2": score}
        for more, share in zip((1, 2), shares, strict=True):
            row[f"extrapolation/num_hot={run.family.num_hot + more}/r2"] = share * score
        rows.append(row)
    return pd.DataFrame(rows)


def claims_by_name(rows):
    return {claim.name: claim for claim in claims_of(more_modules, rows)}


def test_a_program_for_each_number_of_active_modules():
    runs = more_modules.runs("full")
    # Of 136 tasks with up to two modules, 90% and 95% held out leave too few to connect 16 modules.
    assert len(runs) == 3 * 5 * 3 - 2 * 3
    assert len(set(map(structure, runs))) == 3


def test_claims_compare_shares_of_the_score():
    rows = rows_of((0.95, 0.8))
    claims = claims_by_name(rows)
    assert claims["K=3, K+1"].measured == pytest.approx(0.95)
    assert claims["K=3, K+1"].verdict == "reproduced"
    assert claims["K=4, K+2"].verdict == "not reproduced"
    assert claims["K=4, fewest"].measured == pytest.approx(0.3 / 0.9)
    assert claims["K=4, fewest"].verdict == "reproduced"
    assert {claim.verdict for claim in claims_of(more_modules, None)} == {"not yet run"}
    nothing = rows_of((0.95, 0.95))
    nothing["test/r2"] = -0.1
    shares = {claim.measured for claim in claims_of(more_modules, nothing) if "+" in claim.name}
    assert shares == {0.0}, "a student that does not generalize keeps nothing"


def test_the_fewest_tasks_must_do_worse_than_the_most():
    equal = claims_by_name(rows_of((0.95, 0.95), fewest=0.85))
    assert {equal[f"K={k}, fewest"].verdict for k in (2, 3, 4)} == {"not reproduced"}
    rows = rows_of((0.95, 0.8))
    single = claims_by_name(rows[rows["frac_test"] == 0.75])
    verdicts = {single[f"K={k}, fewest"].verdict for k in (2, 3, 4)}
    assert verdicts == {"not yet run"}, "a single held-out fraction has no contrast"


def check_tiny(rows):
    assert len(more_modules.summary(rows)) == 6
    assert set(figures_of(more_modules, rows)) == {"trained_2"}


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    claims = claims_by_name(rows)
    for k in (2, 3):
        one_more = claims[f"K={k}, K+1"].measured
        assert claims[f"K={k}, K+2"].measured < one_more, "two more modules are harder than one"
    if table.meta()["scale"] == "full":
        failing = {name for name, claim in claims.items() if claim.verdict != "reproduced"}
        # 5% of the tasks with up to four modules are still enough.
        assert failing == {"K=4, fewest"}
