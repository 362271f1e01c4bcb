from pathlib import Path

import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import more_modules
from recombine.sweeps.run import describe, identity, structure

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "more_modules.parquet"


def rows_of(shares, fewest=0.3):
    """Rows of the full sweep: R2 .9 on unseen tasks (or `fewest`, from the fewest), K+1 and K+2 shares of it."""
    made = []
    for run in more_modules.runs("full"):
        hot, score = run.family.num_hot, fewest if run.frac_test >= 0.75 else 0.9
        more = {
            f"extrapolation/num_hot={hot + n}/r2": share * score
            for n, share in zip((1, 2), shares, strict=True)
        }
        made.append(
            {"run": identity(run), "step": run.num_steps, **describe(run), "test/r2": score} | more
        )
    return pd.DataFrame(made)


def test_a_program_for_each_number_of_active_modules():
    runs = more_modules.runs("full")
    assert len(runs) == 3 * 5 * 3 - 2 * 3, (
        "136 tasks of two modules: 90% and 95% held out leave too few to connect 16"
    )
    assert len(set(map(structure, runs))) == 3


def test_shares_are_kept_or_not():
    found = {claim.name: claim for claim in more_modules.claims(rows_of((0.95, 0.8)))}
    assert found["K=3, K+1"].measured == pytest.approx(0.95)
    assert found["K=3, K+1"].verdict == "reproduced"
    assert found["K=4, K+2"].verdict == "not reproduced"
    assert found["K=4, fewest"].measured == pytest.approx(0.3 / 0.9)
    assert found["K=4, fewest"].verdict == "reproduced"
    # A student as good from the fewest tasks shows that nothing was at stake.
    equal = {
        claim.name: claim.verdict
        for claim in more_modules.claims(rows_of((0.95, 0.95), fewest=0.85))
    }
    assert {equal[f"K={k}, fewest"] for k in (2, 3, 4)} == {"not reproduced"}
    rows = rows_of((0.95, 0.8))
    alone = {
        claim.name: claim.verdict for claim in more_modules.claims(rows[rows["frac_test"] == 0.75])
    }
    assert {alone[f"K={k}, fewest"] for k in (2, 3, 4)} == {"not yet run"}, (
        "the only cell is no contrast of itself"
    )
    assert {claim.verdict for claim in more_modules.claims(None)} == {"not yet run"}
    nothing = rows_of((0.95, 0.95))
    nothing["test/r2"] = -0.1
    assert {claim.measured for claim in more_modules.claims(nothing) if "+" in claim.name} == {0.0}


def test_tiny_runs_end_to_end():
    rows = rc.train(more_modules.runs("tiny"))
    assert len(more_modules.summary(rows)) == 6
    assert set(more_modules.figures(rows)) == {"trained_2"}


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert set(rows["run"]) <= set(map(identity, more_modules.runs(table.meta()["scale"])))
    claims = {claim.name: claim for claim in more_modules.claims(rows)}
    assert all(claims[f"K={k}, K+2"].measured < claims[f"K={k}, K+1"].measured for k in (2, 3)), (
        "the further, the harder"
    )
    if table.meta()["scale"] == "full":
        failing = {name for name, claim in claims.items() if claim.verdict != "reproduced"}
        assert failing == {"K=4, fewest"}, (
            "5% of the tasks with up to four modules are still enough"
        )
