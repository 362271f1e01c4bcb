import numpy as np
import pandas as pd
import pytest

from recombine.experiments.limits import coverage_principle
from recombine.experiments.limits._iso_shapes import num_parameters
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity
from tests.experiments.neutral import FAILED, claims_of

SCALE = "full"


def rows_of(power=2.5, share=0.4, larger=1.0, executor=0.3, seen=1.0):
    """Rows of a world in which the share `share` of the instances of 12 symbols is needed.

    The number needed grows with the exponent `power`. The larger student and the executor need the
    fractions `larger` and `executor` of it.
    """
    rows = []
    for run in coverage_principle.runs(SCALE):
        row = {"run": identity(run), "step": run.num_steps, **describe(run)}
        size = run.family.num_symbols
        num_train = size**3 - round(run.frac_test * size**3)
        needed = share * 12**3 * (size / 12) ** power
        if row.get("model.d_model") == max(coverage_principle.WIDTHS[SCALE]):
            needed *= larger
        if row["model"] == "Executor":
            needed *= executor
        # Around the number of tasks needed, accuracy is linear in its logarithm.
        accuracy = np.clip(0.9 + 0.05 * np.log(num_train / needed), 0, 1) + 1e-4 * run.seed
        row["test/accuracy"] = accuracy
        row["seen/accuracy"] = seen
        row["support/num_train"] = num_train
        rows.append(row)
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(coverage_principle, rows)}


def test_claims_hold_where_the_data_needed_grows_faster_than_counting_explains():
    rows = rows_of()
    verdict_of = verdicts(rows)
    assert len(verdict_of) == 5
    assert set(verdict_of.values()) == {"reproduced"}
    final = coverage_principle.prepare(rows)
    measured = coverage_principle.exponent(coverage_principle.SMALLER)(final)
    assert measured == pytest.approx(2.5, abs=0.1)


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"power": 1.5}, {"quadratic"}),
        ({"power": 3.0}, {"less than a share"}),
        ({"larger": 0.5}, {"parameters"}),
        ({"executor": 1.0}, {"executor", "parameters", "less than a share"}),
        ({"seen": 0.5}, {"learned"}),
    ],
)
def test_each_claim_can_fail(changes, failing):
    verdict_of = verdicts(rows_of(**changes))
    assert {name for name, verdict in verdict_of.items() if verdict in FAILED} == failing


def test_quadratic_growth_is_confounded_if_counting_explains_it():
    """Whoever only has to see every lookup needs as many instances as the student."""
    verdict_of = verdicts(rows_of(power=2.0, share=0.25))
    assert verdict_of["quadratic"] == "confounded"


def test_a_student_that_never_reaches_the_target_needs_infinitely_more():
    final = coverage_principle.prepare(rows_of(share=40.0, executor=0.01))
    ratio = coverage_principle.data_ratio
    assert ratio(coverage_principle.EXECUTOR, coverage_principle.SMALLER)(final) == 0
    assert ratio(coverage_principle.SMALLER, coverage_principle.EXECUTOR)(final) == float("inf")
    assert np.isnan(ratio(coverage_principle.LARGER, coverage_principle.SMALLER)(final))
    found = verdicts(rows_of(share=40.0, executor=0.01))
    assert found["executor"] == "reproduced"
    assert found["quadratic"] == "not yet run", "there is no number to judge"


def test_to_see_every_lookup_once_grows_quadratically():
    final = coverage_principle.prepare(rows_of())
    measured = coverage_principle.exponent(coverage_principle.SEEN_LOOKUPS)(final)
    assert measured == pytest.approx(2, abs=0.1)
    # With a share p of S^3 instances, a lookup is missing with probability (1 - p)^(S - 1).
    share = coverage_principle.share_of_seen_lookups(20, 800)
    p_first = 1 - 0.9**19
    assert share == pytest.approx(p_first**2, abs=0.05), "f1 is nearly onto, so both are alike"


@pytest.mark.parametrize("scale", ["small", "full"])
def test_the_larger_student_has_about_20_times_the_parameters(scale):
    widths = coverage_principle.WIDTHS[scale]
    runs = [run for run in coverage_principle.runs(scale) if run.seed == 0]
    largest = max(coverage_principle.NUM_SYMBOLS[scale])
    count = {
        run.model.d_model: num_parameters(run.model, run.family, run.encoding)
        for run in runs
        if run.family.num_symbols == largest and hasattr(run.model, "d_model")
    }
    assert 15 < count[widths[1]] / count[widths[0]] < 22


def check_tiny(rows):
    assert set(figures_of(coverage_principle, rows)) == {"3-symbols", "4-symbols"}
    assert {claim.verdict for claim in claims_of(coverage_principle, rows)} == {"not yet run"}
