import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.theory import theorem_41

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
    """Rows made by hand on which every claim holds; `changes` are functions of a row, by the name of a column."""
    made = []
    for cell in theorem_41.cells("tiny"):
        within = cell.get("budget", 0.5) < 1
        delta = 0.04 if within else 0.36
        shuffled = cell.get("encoding") == "IntervalShuffle"
        lost = {"student": 0.01, "random": 0.0, "adversary": 0.8 * delta**0.5 if within else 0.9}[
            cell["model"]
        ]
        row = cell | {
            "step": 0,
            "run": str(len(made)),
            "delta": delta,
            "apart": 0.8,
            "check": within,
        }
        row |= {"bound": 1 - delta**0.5, "recovery/theorem": 1 - lost, "recovery/permuted": 0.1}
        row |= {
            "recovery/code": 0.2 if shuffled else 1.0,
            "recovery/hidden": 0.9,
            "recovery/untrained": 0.3,
        }
        made.append(row | {name: change(row) for name, change in changes.items()})
    return pd.DataFrame(made)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in theorem_41.claims(rows)}


def broken(**changes):
    """The claims that do not hold any more."""
    return {
        name
        for name, verdict in verdicts(rows_of(**changes)).items()
        if verdict == "not reproduced"
    }


def test_verdicts_go_both_ways():
    assert verdicts(rows_of()) == REPRODUCED
    worse = {
        "recovery/theorem": lambda row: (
            0.79 if row["model"] == "student" else row["recovery/theorem"]
        )
    }
    assert broken(**worse) == {"bound, students"}
    worse = {"recovery/theorem": lambda row: 0.79 if row["check"] else row["recovery/theorem"]}
    assert broken(**worse) == {"bound, students", "bound, corrupted teachers", "tight"}, (
        "random errors lose as many"
    )
    kind = {
        "recovery/theorem": lambda row: (
            0.99 if row["model"] == "adversary" else row["recovery/theorem"]
        )
    }
    assert broken(**kind) == {"tight", "check"}
    read = {"recovery/code": lambda row: 1.0}
    assert broken(**read) == {"linear, code", "linear, hidden"}
    unread = {"recovery/hidden": lambda row: 0.25}
    assert broken(**unread) == {"linear, hidden"}, "an untrained layer tells more"


def test_controls_must_fail():
    found = {"recovery/permuted": lambda row: 0.9}
    assert broken(**found) == {"bound, students", "bound, corrupted teachers"}
    loses = {
        "recovery/theorem": lambda row: 0.1 if row.get("budget", 0) > 1 else row["recovery/theorem"]
    }
    assert broken(**loses) == {"check"}, "random errors break the bound, too"
    hard = {"recovery/code": lambda row: 0.2}
    assert broken(**hard) == {"linear, code"}, "not even an identity code is read"


def test_what_is_not_there_is_not_judged():
    assert set(verdicts(None).values()) == {"not yet run"}
    assert [claim.name for claim in theorem_41.claims(None)] == list(REPRODUCED)
    rows = rows_of()
    half = verdicts(
        rows[(rows["model"] == "student") & (rows["encoding"] == "Identity")].drop(columns="budget")
    )
    assert half == dict.fromkeys(REPRODUCED, "not yet run") | {"bound, students": "reproduced"}
    assert verdicts(rows.assign(check=False))["tight"] == "not yet run", (
        "no point is promised anything"
    )
    one = rows[rows["seed"] == 0]
    assert set(verdicts(one).values()) == {"not yet run"}, "one seed has no interval"


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
    assert all(0 < tau < 1 for tau in theorem_41.TAUS), "below half the closest two tasks' distance"


@pytest.fixture(scope="module")
def tiny():
    kept = [cell for cell in theorem_41.cells("tiny") if cell["tau"] in (0.25, 0.9)]
    kept = [cell for cell in kept if cell.get("encoding") != "Identity" or cell["seed"] == 0]
    rows = [cell | theorem_41.measure(**cell) for cell in kept]
    return pd.DataFrame(rows).assign(step=0, run=[str(i) for i in range(len(rows))])


def test_tiny_runs_end_to_end(tiny):
    found = {claim.name: claim for claim in theorem_41.claims(tiny)}
    assert found["bound, students"].verdict == "not yet run", (
        "20 steps make no student for which the check holds"
    )
    assert found["bound, corrupted teachers"].verdict == found["check"].verdict == "reproduced"
    held = tiny[tiny["check"]]
    assert (held["recovery/theorem"] >= held["bound"] - 1e-9).all()
    assert (tiny["recovery/theorem"] >= tiny["sharp bound"] - 1e-9).all(), (
        "with or without the check"
    )
    assert list(theorem_41.figures(tiny)) == [
        "bound",
        "corrupted",
        "decoders-Identity",
        "decoders-IntervalShuffle",
    ]
    assert theorem_41.summary(tiny)["Identity, linear, code: tasks recovered"] == 1.0


def test_an_adversary_spends_what_he_may(tiny):
    adversary = tiny[tiny["model"] == "adversary"]
    budget = adversary["budget"] * (adversary["apart"] / 2) ** 2
    assert (adversary["delta"] <= budget + 1e-9).all()
    assert (adversary["check"] == (adversary["budget"] < 1)).all()
    random = tiny[tiny["model"] == "random"]
    np.testing.assert_allclose(
        random["delta"], random["budget"] * (random["apart"] / 2) ** 2, atol=0.05
    )


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert len(rows) == len(theorem_41.cells(table.meta()["scale"])) == rows["run"].nunique()
    assert verdicts(rows) == REPRODUCED
    assert (rows["recovery/theorem"] >= rows["sharp bound"] - 1e-9).all()
