import numpy as np
import pandas as pd
import pytest

from recombine.experiments.limits import coverage_principle
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity
from tests.experiments.neutral import claims_of

SCALE = "full"


def rows_of(power=2.0, larger=1.0, executor=1.0):
    """Rows of a world in which `M ** power` train chains are needed, fewer for larger students."""
    rows = []
    for run in coverage_principle.runs(SCALE):
        row = {"run": identity(run), "step": run.num_steps, **describe(run)}
        num_modules = run.family.num_modules
        total = num_modules + num_modules**2
        num_train = total - round(run.frac_test * total)
        needed = 0.45 * num_modules**power * 8 ** (2 - power)
        if row.get("model.d_model") == max(coverage_principle.WIDTHS[SCALE]):
            needed *= larger
        # Around the number of tasks needed, accuracy is linear in its logarithm.
        accuracy = np.clip(0.9 + 0.3 * np.log(num_train / needed), 0, 1) + 1e-4 * run.seed
        row["test/length=2/accuracy"] = executor if row["model"] == "Executor" else accuracy
        row["support/num_train"] = num_train
        rows.append(row)
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(coverage_principle, rows)}


def test_claims_hold_in_a_quadratic_world():
    assert set(verdicts(rows_of()).values()) == {"reproduced"}
    final = coverage_principle.prepare(rows_of())
    assert coverage_principle.exponent("smaller student")(final) == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"power": 1.4}, {"quadratic"}),
        ({"larger": 0.5}, {"parameters"}),
        ({"executor": 0.5}, {"executor"}),
    ],
)
def test_each_claim_can_fail(changes, failing):
    by_claim = verdicts(rows_of(**changes))
    assert {name for name, verdict in by_claim.items() if verdict == "not reproduced"} == failing


def test_the_larger_student_has_about_20_times_the_parameters():
    small, large = coverage_principle.WIDTHS[SCALE]
    assert 18 < (large / small) ** 2 < 22, "blocks have a multiple of width squared weights"


def check_tiny(rows):
    assert set(figures_of(coverage_principle, rows)) == {"3-modules", "4-modules"}
    assert {claim.verdict for claim in claims_of(coverage_principle, rows)} == {"not yet run"}
