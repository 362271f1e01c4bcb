import math

import pandas as pd
import pytest

from recombine.experiments.limits import chain_depth
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity
from tests.experiments.neutral import FAILED, claims_of

TRAINED = {"trained lengths", "depth: trained lengths", "data: trained lengths"}
BEYOND = {"beyond", "depth: beyond", "data: beyond"}


def rows_of(collapses=True, scales=True, executor=1.0, missing=0.1, seen=1.0):
    """Rows of the full sweep for a world in which the claims hold, or one of them does not."""
    rows = []
    for run in chain_depth.runs("full"):
        row = {"run": identity(run), "step": run.num_steps, **describe(run)}
        row["support/num_train"] = round(1000 * (1 - run.frac_test))
        row["seen/accuracy"] = seen
        size = math.log2(row.get("model.d_model", 128) / 16) / 4 + 0.01 * run.seed
        size += (row.get("model.num_layers", 2) - 2) / 5 - (run.frac_test - 0.25)
        model = type(run.model).__name__
        if type(run.family).__name__ == "Hyperteacher":
            row["test/r2"] = 0.5 + (0.4 * size if scales else 0)
        elif type(run.support).__name__ == "MissingModule":
            row["test/accuracy"] = missing
        else:
            for length in range(2, 11):
                long = 0.1 if collapses else 0.3 + 0.6 * size
                score = long if length > 6 else 0.55 + (0.4 * size if scales else 0)
                row[f"test/length={length}/accuracy"] = executor if model == "Executor" else score
        rows.append(row)
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(chain_depth, rows)}


def test_claims_hold_where_scale_helps_sums_and_not_longer_chains():
    verdict_of = verdicts(rows_of())
    assert len(verdict_of) == 11
    assert set(verdict_of.values()) == {"reproduced"}
    assert set(verdicts(None).values()) == {"not yet run"}


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"collapses": False}, {"collapse", *BEYOND}),
        ({"scales": False}, {"sums", *TRAINED}),
        ({"executor": 0.5}, {"executor", "collapse", *BEYOND}),
        ({"missing": 0.9}, {"missing module", *TRAINED}),
        ({"seen": 0.3}, {"learned", "collapse", *BEYOND}),
    ],
)
def test_each_claim_can_fail(changes, failing):
    verdict_of = verdicts(rows_of(**changes))
    assert {name for name, verdict in verdict_of.items() if verdict in FAILED} == failing


def test_a_collapse_is_confounded_if_the_executor_collapses_or_the_student_learned_nothing():
    assert verdicts(rows_of(executor=0.5))["collapse"] == "confounded"
    assert verdicts(rows_of(seen=0.3))["collapse"] == "confounded"
    rows = rows_of()
    memorized = rows.copy()
    memorized[[f"test/length={length}/accuracy" for length in range(2, 7)]] *= 0.4
    assert verdicts(memorized)["collapse"] == "confounded", "new chains of any length fail"
    without_executor = rows[rows["model"] != "Executor"]
    assert verdicts(without_executor)["collapse"] == "confounded", "a control that was not trained"


def test_each_sweep_varies_one_axis():
    final = chain_depth.prepare(rows_of())
    for name, column, (ends, low, high) in chain_depth.ENDS:
        own = final[final[f"in {name} sweep"] & (final["family"] == "Chain")]
        for other in {"model.width", "model.depth", "num_train"} - {column}:
            assert own[other].nunique() == 1
        assert own[column].nunique() >= 3
        assert set(own[ends]) == {low, high, ""}


def check_tiny(rows):
    figures = figures_of(chain_depth, rows)
    assert {trace.name for trace in figures["scale"].data} == {
        chain_depth.SUMS,
        chain_depth.TRAINED,
        chain_depth.LONGER,
    }
    assert {"depth", "data"} <= set(figures)
    assert {trace.name for trace in figures["length"].data} == {"width 8", "width 16", "executor"}
    assert {claim.verdict for claim in claims_of(chain_depth, rows)} <= {"not yet run"}
