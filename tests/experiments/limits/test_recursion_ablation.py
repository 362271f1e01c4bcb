import pandas as pd
import pytest

from recombine.experiments.limits import _recursion, recursion_ablation
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity
from tests.experiments.neutral import claims_of

NAMES = [*recursion_ablation.students("small"), recursion_ablation.NO_AVERAGE]


def rows_of(seen=0.9, **scores):
    """Final rows of the small sweep; all changes lose, unless `scores` says otherwise."""
    rows = []
    for i, run in enumerate(recursion_ablation.runs("small")):
        name = NAMES[i // len(_recursion.SEEDS["small"])]
        score = 0.8 if name == recursion_ablation.STANDARD else 0.5
        row = {"run": identity(run), "step": run.num_steps, **describe(run), "seen/accuracy": seen}
        rows.append(row | {"test/accuracy": scores.get(name, score) + 0.001 * run.seed})
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(recursion_ablation, rows)}


def test_every_run_has_the_name_of_its_change():
    rows = recursion_ablation.prepare(rows_of())
    assert list(dict.fromkeys(rows["change"])) == NAMES
    assert (rows.groupby("change").size() == 3).all()
    full = recursion_ablation.students("full")
    assert len(full) == 1 + 3 * 2 + 4
    # T and n are not varied together.
    standard = full["standard"]
    for name, model in full.items():
        fields = ("num_cycles", "num_updates", "num_steps")
        num_changed = sum(getattr(model, f) != getattr(standard, f) for f in fields)
        assert num_changed == (1 if "=" in name else 0)


def test_all_claims_can_hold():
    assert set(verdicts(rows_of()).values()) == {"reproduced"}


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        ({"T = 1": 0.8}, "cycles"),
        ({"n = 1": 0.8}, "updates"),
        ({"S = 1": 0.8}, "supervision steps"),
        ({"two networks": 0.8}, "two networks"),
        ({"attention": 0.9}, "attention"),
        ({"no running average": 0.8}, "running average"),
        ({"gradient through all cycles": 0.8}, "gradient"),
        ({"seen": 0.2}, "trained enough"),
    ],
)
def test_each_claim_can_fail(change, failing):
    found = verdicts(rows_of(**change))
    assert {name for name, verdict in found.items() if verdict == "not reproduced"} == {failing}


def check_tiny(rows):
    assert {"change", "compute"} == set(figures_of(recursion_ablation, rows))
    assert {claim.verdict for claim in claims_of(recursion_ablation, rows)} == {"not yet run"}
