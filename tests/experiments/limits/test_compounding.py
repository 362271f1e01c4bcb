import pandas as pd
import pytest

from recombine.experiments.limits import compounding
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity
from tests.experiments.neutral import FAILED, claims_of

EPS = 0.02


def rows_of(fall=0.6, executor=0.0, propagated=0.6, decoded=0.9, seen=1.0):
    """Rows of the full sweep: independent errors, and a fall beyond the trained length."""
    rows = []
    for run in compounding.runs("full"):
        row = {"run": identity(run), "step": run.num_steps, **describe(run)}
        row["seen/accuracy"] = seen
        is_writer = row["model"] == "Executor" or row["model.targets"] == "scratchpad"
        is_untrained = row["recipe.learning_rate"] == 0
        row["ErrorPropagation/seen/step_error"] = EPS if is_writer else None
        row["ErrorPropagation/seen/correct"] = 0.2 if is_untrained else decoded
        row["ErrorPropagation/test/layer=10/propagated"] = propagated
        row["ErrorPropagation/test/layer=10/local"] = 0.2
        for length in range(2, 11):
            off = executor if row["model"] == "Executor" else fall * (length > 6)
            accuracy = (1 - EPS) ** length - off + 0.001 * run.seed
            row[f"test/length={length}/accuracy"] = accuracy
        rows.append(row)
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(compounding, rows)}


def test_claims_hold_in_a_world_of_compounding_errors():
    verdict_of = verdicts(rows_of())
    assert len(verdict_of) == 6
    assert set(verdict_of.values()) == {"reproduced"}


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"fall": 0.0}, {"collapse", "worse than independent"}),
        ({"executor": 0.2}, {"executor", "worse than independent"}),
        ({"executor": 0.6}, {"executor", "worse than independent", "collapse"}),
        ({"seen": 0.3}, {"learned"}),
        ({"propagated": 0.1}, {"propagated"}),
        ({"decoded": 0.2}, {"decoded"}),
    ],
)
def test_each_claim_can_fail(changes, failing):
    verdict_of = verdicts(rows_of(**changes))
    assert {name for name, verdict in verdict_of.items() if verdict in FAILED} == failing


def test_a_collapse_is_confounded_if_the_executor_collapses():
    assert verdicts(rows_of(executor=0.6))["collapse"] == "confounded"


def check_tiny(rows):
    figures = figures_of(compounding, rows)
    assert {trace.name for trace in figures["length"].data} == {
        "scratchpad",
        "scratchpad, (1-eps)^n",
        "executor",
        "executor, (1-eps)^n",
    }
    assert {trace.name for trace in figures["labels"].data} == set(compounding.LABELS)
    assert {claim.verdict for claim in claims_of(compounding, rows)} == {"not yet run"}
