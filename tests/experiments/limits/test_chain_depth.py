import math

import pandas as pd
import pytest

from recombine.experiments.limits import chain_depth
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity
from tests.experiments.neutral import claims_of


def rows_of(collapses=True, scales=True, executor=1.0, missing=0.1):
    """Rows of the full sweep for a world in which the claims hold, or one of them does not."""
    rows = []
    for run in chain_depth.runs("full"):
        row = {"run": identity(run), "step": run.num_steps, **describe(run)}
        size = math.log2(row.get("model.d_model", 128) / 16) / 4 + 0.01 * run.seed
        model = type(run.model).__name__
        if type(run.family).__name__ == "Hyperteacher":
            row["test/r2"] = 0.5 + (0.4 * size if scales else 0)
        elif type(run.support).__name__ == "MissingModule":
            row["test/accuracy"] = missing
        else:
            for length in range(2, 11):
                long = 0.1 if collapses else 0.3 + 0.6 * size
                score = long if length > 6 else 0.4 + (0.5 * size if scales else 0)
                row[f"test/length={length}/accuracy"] = executor if model == "Executor" else score
        rows.append(row)
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(chain_depth, rows)}


def test_claims_hold_where_scale_helps_sums_and_not_longer_chains():
    by_claim = verdicts(rows_of())
    assert len(by_claim) == 6
    assert set(by_claim.values()) == {"reproduced"}
    assert set(verdicts(None).values()) == {"not yet run"}


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"collapses": False}, {"collapse", "beyond"}),
        ({"scales": False}, {"sums", "trained lengths"}),
        ({"executor": 0.5}, {"executor"}),
        ({"missing": 0.9}, {"missing module"}),
    ],
)
def test_each_claim_can_fail(changes, failing):
    by_claim = verdicts(rows_of(**changes))
    assert {name for name, verdict in by_claim.items() if verdict == "not reproduced"} == failing


def check_tiny(rows):
    figures = figures_of(chain_depth, rows)
    assert {trace.name for trace in figures["scale"].data} == {
        chain_depth.SUMS,
        chain_depth.TRAINED,
        chain_depth.LONGER,
    }
    assert {trace.name for trace in figures["length"].data} == {"width 8", "width 16", "executor"}
    assert {claim.verdict for claim in claims_of(chain_depth, rows)} <= {"not yet run"}
