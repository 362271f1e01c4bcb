import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.limits import recursion_depth
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity
from tests.experiments.neutral import claims_of


def rows_of(gain=0.1, used=0.3, seen=0.95, executor=0.97):
    """Rows of the small sweep; `gain` is that of four times the steps of training."""
    rows = []
    for run in recursion_depth.runs("small"):
        row = {"run": identity(run), "step": run.num_steps, **describe(run), "seen/accuracy": seen}
        row["test/accuracy"] = executor
        if isinstance(run.model, rc.Recursive):
            trained = run.model.num_steps
            for diagnostic in run.diagnostics:
                for steps in diagnostic.steps:
                    accuracy = 0.5 + 0.001 * run.seed
                    accuracy += gain if steps == 4 * trained else 0
                    accuracy -= used if steps < trained else 0
                    row[f"SupervisionSteps/test/steps={steps}/accuracy"] = accuracy
        rows.append(row)
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(recursion_depth, rows)}


def test_all_claims_can_hold():
    found = verdicts(rows_of())
    assert len(found) == 7
    assert set(found.values()) == {"reproduced"}


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        (
            {"gain": -0.1},
            {
                f"more steps, {ground}, {student}"
                for ground in ("puzzles", "longer chains")
                for student in ("recursion", "plain, carried state")
            },
        ),
        ({"used": 0.0}, {"steps are used"}),
        ({"seen": 0.5}, {"chains are learned"}),
        ({"executor": 0.3}, {"executor"}),
    ],
)
def test_each_claim_can_fail(changes, failing):
    found = verdicts(rows_of(**changes))
    assert {name for name, verdict in found.items() if verdict == "not reproduced"} == failing


def test_steps_go_beyond_training_and_chains_beyond_trained_lengths():
    for run in recursion_depth.runs("full"):
        if isinstance(run.model, rc.Recursive) and run.model.num_steps > 1:
            (diagnostic,) = run.diagnostics
            assert max(diagnostic.steps) == 4 * run.model.num_steps
        if isinstance(run.family, rc.Chain):
            assert run.support.longest < run.family.max_length


def check_tiny(rows):
    assert {"steps, puzzles", "steps, longer chains", "length"} == set(
        figures_of(recursion_depth, rows)
    )
    assert {claim.verdict for claim in claims_of(recursion_depth, rows)} == {"not yet run"}
