import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import variants
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity
from recombine.training.task_sampler import make_split
from tests.experiments.neutral import FAILED, claims_of

FALLS = {"linear": 0.1, "quadratic": 0.0, "constant": 0.3}
SHARES = {0.25: 0.98, 0.95: 0.6}


def rows_of(falls=FALLS, shares=SHARES, seen=0.99):
    """Rows of the full sweep: test R2 falls this much from the fewest to the most modules, and is
    this share of the seen R2 with other teachers.
    """
    rng = np.random.default_rng(0)
    rows = []
    for run in variants.runs("full"):
        score = seen * shares.get(run.frac_test, 1)
        if isinstance(run.support, rc.Growing):
            is_constant = run.support.law == "linear" and run.support.factor != 8
            law = "constant" if is_constant else run.support.law
            score = 0.95 - falls[law] * (run.family.num_modules - 12) / 12
        score += 0.001 * rng.normal()
        about = {"run": identity(run), "step": run.num_steps, **describe(run)}
        rows.append(about | {"test/r2": score, "seen/r2": seen})
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(variants, rows)}


def test_train_sets_grow_by_their_laws_with_the_factors_of_the_public_code():
    runs = variants.runs("full")
    assert len(set(runs)) == len(runs) == 3 * (4 * 3 + 2 * 2)
    sizes = {}
    for run in runs:
        if isinstance(run.support, rc.Growing) and run.seed == 0:
            _, facts = make_split(run, run.family.tasks())
            sizes.setdefault(run.family.num_modules, []).append(facts["support/num_train"])
    assert sizes == {m: [8 * m, m * m, 48] for m in (12, 16, 20, 24)}
    others = [run.family for run in runs if not isinstance(run.support, rc.Growing)]
    assert {(family.weights, family.num_layers) for family in others} == {
        ("continuous", 1),
        ("discrete", 2),
    }


def test_the_constant_law_has_no_factor_of_the_linear_one():
    # `prepare` separates them by the factor.
    constants = {
        size / num_modules
        for scale, size in variants.CONSTANT.items()
        for num_modules in variants.MODULES[scale]
    }
    assert not constants & set(variants.LINEAR_FACTOR.values())


def test_all_claims_can_hold():
    claims = {claim.name: claim for claim in claims_of(variants, rows_of())}
    assert {claim.verdict for claim in claims.values()} == {"reproduced"}
    assert claims["quadratic growth"].measured == pytest.approx(0, abs=0.003)
    assert claims["quadratic growth"].note.startswith("fall 0.10")
    assert claims["deeper teacher"].measured == pytest.approx(0.98, abs=0.003)


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"falls": FALLS | {"quadratic": 0.1}}, {"quadratic growth"}),
        ({"falls": FALLS | {"constant": 0.0}}, {"quadratic growth"}),  # the control must fall
        ({"shares": SHARES | {0.25: 0.85}}, {"continuous weights", "deeper teacher"}),
        ({"shares": SHARES | {0.95: 0.95}}, {"continuous weights", "deeper teacher"}),
        ({"seen": 0.4}, {"continuous weights", "deeper teacher"}),  # students that do not fit
    ],
)
def test_changed_scores_make_a_claim_fail(changes, failing):
    judged = verdicts(rows_of(**changes))
    assert {name for name, verdict in judged.items() if verdict in FAILED} == failing


def test_growth_is_confounded_if_a_train_set_of_fixed_size_is_enough():
    judged = verdicts(rows_of(falls=FALLS | {"constant": 0.0}))
    assert judged["quadratic growth"] == "confounded"


def test_an_incomplete_sweep_is_judged_in_part():
    rows = rows_of()
    without_law = verdicts(rows[rows["support.law"] != "quadratic"])
    assert without_law["quadratic growth"] == "not yet run"
    assert without_law["deeper teacher"] == "reproduced"
    assert set(verdicts(None).values()) == {"not yet run"}


def check_tiny(rows):
    summary = variants.summary(rows)
    assert {"constant, M=4", "quadratic, M=5", "deeper teacher, 25% held out"} < set(summary)
    assert len(summary) == 3 * 2 + 2 * 2
    assert set(figures_of(variants, rows)) == {"growth", "teachers"}
    judged = verdicts(rows)
    assert judged["deeper teacher"] != "reproduced", "20 steps are not enough"
