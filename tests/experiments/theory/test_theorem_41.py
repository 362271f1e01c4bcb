import itertools
from pathlib import Path

import numpy as np
import pandas as pd

import recombine as rc
from recombine.experiments.plots import figures_of
from recombine.experiments.theory import theorem_41
from tests.experiments.neutral import FAILED, claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "theorem_41.parquet"
REPRODUCED = dict.fromkeys(
    (
        "bound, students",
        "bound, corrupted teachers",
        "tight",
        "check",
        "linear, code",
        "linear, hidden",
    ),
    "reproduced",
)


def rows_of(**changes):
    """Made-up rows on which every claim holds. `changes` replace columns by functions of a row."""
    rows = []
    for cell in theorem_41.cells("tiny"):
        check_holds = cell.get("budget", 0.5) < 1
        delta = 0.04 if check_holds else 0.36
        is_shuffled = cell.get("encoding") == "IntervalShuffle"
        lost_to_adversary = 0.8 * delta**0.5 if check_holds else 0.9
        lost = {"student": 0.01, "random": 0.0, "adversary": lost_to_adversary}
        row = cell | {
            "step": 0,
            "run": str(len(rows)),
            "delta": delta,
            "apart": 0.8,
            "check": check_holds,
            "bound": 1 - delta**0.5,
            "recovery/theorem": 1 - lost[cell["model"]],
            "recovery/permuted": 0.1,
            "recovery/code": 0.2 if is_shuffled else 1.0,
            "recovery/hidden": 0.9,
            "recovery/untrained": 0.3,
        }
        rows.append(row | {name: change(row) for name, change in changes.items()})
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(theorem_41, rows)}


def failing_claims(**changes):
    """The claims that no longer hold."""
    judged = verdicts(rows_of(**changes))
    return {name for name, verdict in judged.items() if verdict in FAILED}


def changed_recovery(value, applies):
    """A change of the tasks that the theorem's decoder recovers, in the rows where it applies."""
    return {"recovery/theorem": lambda row: value if applies(row) else row["recovery/theorem"]}


def test_each_claim_can_fail():
    assert verdicts(rows_of()) == REPRODUCED
    students_below = changed_recovery(0.79, lambda row: row["model"] == "student")
    assert failing_claims(**students_below) == {"bound, students"}
    all_below = changed_recovery(0.79, lambda row: row["check"])
    assert failing_claims(**all_below) == {
        "bound, students",
        "bound, corrupted teachers",
        "tight",
    }, "random errors lose as many tasks"
    weak_adversary = changed_recovery(0.99, lambda row: row["model"] == "adversary")
    assert failing_claims(**weak_adversary) == {"tight", "check"}
    linear_code = {"recovery/code": lambda row: 1.0}
    assert failing_claims(**linear_code) == {"linear, code", "linear, hidden"}
    nothing_learned = {"recovery/hidden": lambda row: 0.25}
    assert failing_claims(**nothing_learned) == {"linear, hidden"}, "below the untrained layer"


def test_controls_must_fail():
    permuted_succeeds = {"recovery/permuted": lambda row: 0.9}
    assert failing_claims(**permuted_succeeds) == {"bound, students", "bound, corrupted teachers"}
    all_errors_break_it = changed_recovery(0.1, lambda row: row.get("budget", 0) > 1)
    assert failing_claims(**all_errors_break_it) == {"check"}, "random errors break the bound, too"
    never_linear = {"recovery/code": lambda row: 0.2}
    assert failing_claims(**never_linear) == {"linear, code"}, "an identity code is not decoded"


def test_claims_with_missing_rows_are_not_judged():
    assert set(verdicts(None).values()) == {"not yet run"}
    assert [claim.name for claim in claims_of(theorem_41, None)] == list(REPRODUCED)
    rows = rows_of()
    is_identity = (rows["model"] == "student") & (rows["encoding"] == "Identity")
    unfinished = verdicts(rows[is_identity].drop(columns="budget"))
    not_run = dict.fromkeys(REPRODUCED, "not yet run")
    assert unfinished == not_run | {"bound, students": "reproduced"}
    without_check = verdicts(rows.assign(check=False))
    assert without_check["tight"] == "not yet run", "the theorem applies to no point"
    one_seed = rows[rows["seed"] == 0]
    assert set(verdicts(one_seed).values()) == {"not yet run"}, "one seed has no interval"


def test_every_student_is_measured_at_every_tau_on_both_sides():
    cells = theorem_41.cells("full")
    students = [cell for cell in cells if cell["model"] == "student"]
    assert len({(cell["encoding"], cell["width"]) for cell in students}) == 6, "structures"
    names = ("encoding", "width", "frac_test", "seed", "tau", "side")
    values = [{cell[name] for cell in students} for name in names]
    assert {tuple(cell[name] for name in names) for cell in students} == set(
        itertools.product(*values)
    )
    assert len(students) == 2 * 3 * 2 * 3 * 4 * 2
    assert len(cells) - len(students) == 2 * 3 * 4 * 6
    assert all(0 < tau < 1 for tau in theorem_41.TAUS), (
        "below half the distance of the two closest tasks"
    )


def check_tiny(rows):
    judged = verdicts(rows)
    assert judged["bound, students"] == "not yet run", (
        "after 20 steps the check holds for no student"
    )
    assert judged["bound, corrupted teachers"] == judged["check"] == "reproduced"
    promised = rows[rows["check"]]
    assert (promised["recovery/theorem"] >= promised["bound"] - 1e-9).all()
    assert (rows["recovery/theorem"] >= rows["sharp bound"] - 1e-9).all(), (
        "with or without the check"
    )
    assert list(figures_of(theorem_41, rows)) == [
        "bound",
        "corrupted",
        "decoders-Identity",
        "decoders-IntervalShuffle",
    ]
    assert theorem_41.summary(rows)["Identity, linear, code: tasks recovered"] == 1.0
    check_that_the_adversary_stays_within_its_budget(rows)


def check_that_the_adversary_stays_within_its_budget(rows):
    adversary = rows[rows["model"] == "adversary"]
    budget = adversary["budget"] * (adversary["apart"] / 2) ** 2
    assert (adversary["delta"] <= budget + 1e-9).all()
    assert (adversary["check"] == (adversary["budget"] < 1)).all()
    random = rows[rows["model"] == "random"]
    np.testing.assert_allclose(
        random["delta"], random["budget"] * (random["apart"] / 2) ** 2, atol=0.05
    )


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert len(rows) == len(theorem_41.cells(table.meta()["scale"])) == rows["run"].nunique()
    assert verdicts(rows) == REPRODUCED
    assert (rows["recovery/theorem"] >= rows["sharp bound"] - 1e-9).all()
