import math
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.plots import figures_of
from recombine.experiments.theory import theorem_31
from recombine.training.computed import Cell
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "theorem_31.parquet"
NAMES = [
    "error",
    "error, deep, whole cube",
    "bound",
    "exponent in eps",
    "exponent in M",
    "exponent in M, deep, whole cube",
    "deep",
    "crossing",
    "exact",
    "memorise",
]


def neurons_of(cell) -> float:
    """Made-up neurons that follow the theorem: a slack of 60 M on the cube and 60 elsewhere."""
    size, num_modules = cell["size"], cell["num_modules"]
    ratio = 60 * (num_modules if cell["where"] == "cube" else 1) / (cell["eps"] or 1.0)
    if cell["construction"] == "memorise":
        return size * math.fsum(math.comb(num_modules, k) for k in range(1, cell["num_hot"] + 1))
    if cell["construction"] == "exact":
        return size * num_modules + 2 * size
    num_pieces = math.log2(ratio) if cell["construction"] == "deep" else math.sqrt(ratio)
    return 2 * size**2 * num_pieces + 2 * size


def rows_of(scale: str = "small", error=None, neurons=None) -> pd.DataFrame:
    """Made-up rows on which all claims hold, changed by functions of a cell."""

    def error_of(cell) -> float:
        if cell["eps"] == 0:
            return 1.0 if cell["kind"] == "thin" else 1e-14
        return cell["eps"] * (8 if cell["kind"] == "thin" else 0.7)

    rows = []
    cells = theorem_31.cells(scale)
    if scale == "small":  # two worlds are not judged: a third one, like the first
        cells += [cell | {"seed": 2} for cell in cells if cell["seed"] == 0]
    for cell in cells:
        row = {"run": Cell("theorem_31", cell).name, "step": 0, **cell, "neurons": neurons_of(cell)}
        row |= {} if cell["kind"] == "count" else {"sup_error": error_of(cell)}
        row |= {"crossing": 0.9} if cell["construction"] == "deep" else {}
        for change in (error, neurons):
            if change is not None:
                row |= change(cell) or {}
        rows.append(row)
    return pd.DataFrame(rows)


def verdicts(rows) -> dict[str, str]:
    return {claim.name: claim.verdict for claim in claims_of(theorem_31, rows)}


def test_made_up_rows_reproduce_all_claims():
    claims = {claim.name: claim for claim in claims_of(theorem_31, rows_of())}
    assert list(claims) == NAMES
    assert {claim.verdict for claim in claims.values()} == {"reproduced"}
    assert claims["error"].measured == pytest.approx(0.7)
    assert claims["exponent in eps"].measured == pytest.approx(-0.5, abs=0.01)
    assert claims["exponent in M"].measured == pytest.approx(0.0, abs=1e-9)
    assert claims["memorise"].measured == pytest.approx(1.0, abs=0.03)
    assert {claim.verdict for claim in claims_of(theorem_31, None)} == {"not yet run"}


def matches(cell, **values) -> bool:
    return all(cell[name] == value for name, value in values.items())


COMPACT = {"construction": "shallow", "where": "compact"}
BROKEN = {
    "one error above eps": (
        {
            "error": lambda cell: (
                matches(cell, kind="attack", eps=1e-3, seed=1) and {"sup_error": 1.01e-3}
            )
        },
        {"error", "error, deep, whole cube"},
    ),
    "one error of the deep network on the whole cube above eps": (
        {
            "error": lambda cell: (
                matches(cell, kind="attack", construction="deep", where="cube", eps=1e-3, seed=1)
                and {"sup_error": 1.01e-3}
            )
        },
        {"error", "error, deep, whole cube"},
    ),
    "a thin deep network on the whole cube that is not detected": (
        {
            "error": lambda cell: (
                matches(cell, kind="thin", construction="deep", where="cube", seed=1)
                and {"sup_error": 0.9 * cell["eps"]}
            )
        },
        {"error", "error, deep, whole cube"},
    ),
    "a deep network whose neurons grow with M on the whole cube": (
        {
            "neurons": lambda cell: (
                matches(cell, kind="count", construction="deep", where="cube")
                and {"neurons": 10 * cell["num_modules"]}
            )
        },
        {"exponent in M, deep, whole cube"},
    ),
    "a search that finds nothing": (
        {"error": lambda cell: cell["kind"] != "count" and {"sup_error": 1e-12}},
        {"error", "error, deep, whole cube", "exact"},
    ),
    "more neurons than allowed": (
        {"neurons": lambda cell: matches(cell, **COMPACT, size=4, eps=1e-5) and {"neurons": 9.5e4}},
        {"bound"},
    ),
    "neurons as 1/eps": (
        {
            "neurons": lambda cell: (
                matches(cell, kind="count", **COMPACT) and {"neurons": 0.1 / (cell["eps"] or 1.0)}
            )
        },
        {"exponent in eps"},
    ),
    "neurons linear in M": (
        {
            "neurons": lambda cell: (
                matches(cell, kind="count", **COMPACT)
                and {"neurons": cell["num_modules"] / math.sqrt(cell["eps"])}
            )
        },
        {"exponent in M"},
    ),
    "a deep network that grows as the shallow one": (
        {
            "neurons": lambda cell: (
                matches(cell, kind="count", construction="deep")
                and {"neurons": 100 / math.sqrt(cell["eps"]), "crossing": 1e-3}
            )
        },
        {"exponent in eps", "deep", "crossing"},
    ),
    "a table that grows as a power": (
        {
            "neurons": lambda cell: (
                matches(cell, kind="attack", construction="memorise")
                and {"neurons": cell["num_modules"] ** 3}
            )
        },
        {"memorise"},
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_changes_that_make_claims_fail(case):
    changes, failing = BROKEN[case]
    judged = verdicts(rows_of(**changes))
    assert {name for name, verdict in judged.items() if verdict != "reproduced"} == failing


def test_an_unfinished_sweep_is_judged_where_rows_exist():
    rows = rows_of()
    counted = rows[rows["kind"] == "count"].drop(columns="sup_error")
    known = {name for name, verdict in verdicts(counted).items() if verdict == "reproduced"}
    names = {"bound", "exponent in eps", "exponent in M", "deep", "crossing"}
    assert known == names | {"exponent in M, deep, whole cube"}
    for num_rows in (1, 3, 40, 200):
        assert set(verdicts(rows[:num_rows]).values()) <= {"not yet run", "reproduced"}
        theorem_31.summary(rows[:num_rows])
        figures_of(theorem_31, rows[:num_rows])


def test_numbers_that_follow_from_formulas_are_checks_and_not_findings():
    claims = claims_of(theorem_31, None)
    checks = [claim for claim in claims if claim.source == "check of the construction"]
    measured = {"error", "error, deep, whole cube", "exact"}
    assert {claim.name for claim in checks} == set(NAMES) - measured
    assert all(claim.ours and claim.statement.startswith("Check of") for claim in checks)
    assert [claim.name for claim in claims if not claim.ours] == ["error"]


def test_the_full_grid():
    cells = theorem_31.cells("full")
    assert Counter(cell["seed"] for cell in cells).keys() == {0, 1, 2}
    shallow = [cell for cell in cells if matches(cell, kind="count", **COMPACT, size=16)]
    fine = {(cell["eps"], cell["num_modules"]) for cell in shallow if cell["eps"] <= 0.1}
    assert fine == {(10.0**-p, 2**q) for p in range(1, 6) for q in range(2, 10)}
    built = {
        (cell["size"], cell["eps"])
        for cell in cells
        if matches(cell, kind="attack", construction="shallow")
    }
    assert built == {(4, 0.1), (4, 0.01), (4, 1e-3), (4, 1e-4), (4, 1e-5), (16, 0.1), (16, 0.01)}


def test_tables_are_counted_as_they_are_built():
    cell = {
        "construction": "memorise",
        "where": "corners",
        "size": 2,
        "num_modules": 4,
        "num_hot": 3,
        "eps": 0.0,
    }
    counted, built = (theorem_31.measure(kind=kind, seed=0, **cell) for kind in ("count", "attack"))
    assert counted == {name: built[name] for name in counted}
    assert built["sup_error"] < 1e-12


def check_tiny(rows):
    values = theorem_31.summary(rows)
    assert values["shallow, compact, size 2: largest error / eps"] <= 1
    assert values["deep, compact, size 2: largest error / eps"] <= 1
    thin = rows[(rows["kind"] == "thin") & (rows["eps"] > 0)]
    assert (thin["sup_error"] > 2 * thin["eps"]).all()
    assert {name: len(figure.data) for name, figure in figures_of(theorem_31, rows).items()} == {
        "precision": 6,  # a line and its dots for each network
        "modules": 14,
        "attack": 8,  # one for each network, with thin ones
    }
    assert set(verdicts(rows).values()) == {"not yet run"}, "one world has no interval"


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    names = {Cell("theorem_31", cell).name for cell in theorem_31.cells(table.meta()["scale"])}
    assert set(rows["run"]) == names
    assert verdicts(rows) == dict.fromkeys(NAMES, "reproduced")
    values = theorem_31.summary(rows)
    assert values["shallow, cube: exponent in M"] == pytest.approx(0.5, abs=0.05)
    assert values["shallow, compact, size 4: largest error / eps"] > 0.5, (
        "the search comes close to the error that the proof allows"
    )
