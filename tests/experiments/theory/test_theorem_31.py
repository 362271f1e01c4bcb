import math
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.theory import theorem_31
from recombine.training.computed import Cell

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "theorem_31.parquet"
NAMES = [
    "error",
    "bound",
    "exponent in eps",
    "exponent in M",
    "deep",
    "crossing",
    "exact",
    "memorise",
]


def neurons_of(cell) -> float:
    """Made up: as the theorem has it, with a slack of 60 M on the cube and 60 elsewhere."""
    size, num_modules = cell["size"], cell["num_modules"]
    ratio = 60 * (num_modules if cell["where"] == "cube" else 1) / (cell["eps"] or 1.0)
    if cell["construction"] == "memorise":
        return size * math.fsum(math.comb(num_modules, k) for k in range(1, cell["num_hot"] + 1))
    if cell["construction"] == "exact":
        return size * num_modules + 2 * size
    per_piece = 2 * size**2
    return (
        per_piece * (math.log2(ratio) if cell["construction"] == "deep" else math.sqrt(ratio))
        + 2 * size
    )


def rows_of(scale: str = "small", error=None, neurons=None) -> pd.DataFrame:
    """Rows of a sweep as they should come out, but for what is given."""

    def found(cell) -> float:
        if cell["eps"] == 0:
            return 1.0 if cell["kind"] == "thin" else 1e-14
        return cell["eps"] * (8 if cell["kind"] == "thin" else 0.7)

    made = []
    for cell in theorem_31.cells(scale):
        row = {"run": Cell("theorem_31", cell).name, "step": 0, **cell, "neurons": neurons_of(cell)}
        row |= {} if cell["kind"] == "count" else {"sup_error": found(cell)}
        row |= {"crossing": 0.9} if cell["construction"] == "deep" else {}
        row |= (error(cell) or {}) if error else {}
        made.append(row | ((neurons(cell) or {}) if neurons else {}))
    return pd.DataFrame(made)


def verdicts(rows) -> dict[str, str]:
    return {claim.name: claim.verdict for claim in theorem_31.claims(rows)}


def test_what_should_come_out_is_reproduced():
    claims = {claim.name: claim for claim in theorem_31.claims(rows_of())}
    assert list(claims) == NAMES
    assert {claim.verdict for claim in claims.values()} == {"reproduced"}
    assert claims["error"].measured == pytest.approx(0.7)
    assert claims["exponent in eps"].measured == pytest.approx(-0.5, abs=0.01)
    assert claims["exponent in M"].measured == pytest.approx(0.0, abs=1e-9)
    assert claims["memorise"].measured == pytest.approx(1.0, abs=0.03)
    assert {claim.verdict for claim in theorem_31.claims(None)} == {"not yet run"}


def only(cell, **values) -> bool:
    return all(cell[name] == value for name, value in values.items())


COMPACT = {"construction": "shallow", "where": "compact"}
BROKEN = {
    "one error above eps": (
        {
            "error": lambda cell: (
                only(cell, kind="attack", eps=1e-3, seed=1) and {"sup_error": 1.01e-3}
            )
        },
        {"error"},
    ),
    "a search that finds nothing": (
        {"error": lambda cell: cell["kind"] != "count" and {"sup_error": 1e-12}},
        {"error", "exact"},
    ),
    "more neurons than allowed": (
        {"neurons": lambda cell: only(cell, **COMPACT, size=4, eps=1e-5) and {"neurons": 9.5e4}},
        {"bound"},
    ),
    "neurons as 1/eps": (
        {
            "neurons": lambda cell: (
                only(cell, kind="count", **COMPACT) and {"neurons": 0.1 / (cell["eps"] or 1.0)}
            )
        },
        {"exponent in eps"},
    ),
    "neurons linear in M": (
        {
            "neurons": lambda cell: (
                only(cell, kind="count", **COMPACT)
                and {"neurons": cell["num_modules"] / math.sqrt(cell["eps"])}
            )
        },
        {"exponent in M"},
    ),
    "a deep network that is none": (
        {
            "neurons": lambda cell: (
                only(cell, kind="count", construction="deep")
                and {"neurons": 100 / math.sqrt(cell["eps"]), "crossing": 1e-3}
            )
        },
        {"exponent in eps", "deep", "crossing"},
    ),
    "a table that grows as a power": (
        {
            "neurons": lambda cell: (
                only(cell, kind="attack", construction="memorise")
                and {"neurons": cell["num_modules"] ** 3}
            )
        },
        {"memorise"},
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_breaks_a_claim(case):
    changes, broken = BROKEN[case]
    assert {
        name for name, verdict in verdicts(rows_of(**changes)).items() if verdict != "reproduced"
    } == broken


def test_half_a_sweep_tells_what_it_can():
    rows = rows_of()
    counted = rows[rows["kind"] == "count"].drop(columns="sup_error")
    known = {name for name, verdict in verdicts(counted).items() if verdict == "reproduced"}
    assert known == {"bound", "exponent in eps", "exponent in M", "deep", "crossing"}
    for num_rows in (1, 3, 40, 200):
        assert set(verdicts(rows[:num_rows]).values()) <= {"not yet run", "reproduced"}
        theorem_31.summary(rows[:num_rows])
        theorem_31.figures(rows[:num_rows])


def test_the_grid_is_the_issues():
    cells = theorem_31.cells("full")
    assert Counter(cell["seed"] for cell in cells).keys() == {0, 1, 2}
    shallow = [cell for cell in cells if only(cell, kind="count", **COMPACT, size=16)]
    fine = {(cell["eps"], cell["num_modules"]) for cell in shallow if cell["eps"] <= 0.1}
    assert fine == {(10.0**-p, 2**q) for p in range(1, 6) for q in range(2, 10)}
    built = {
        (cell["size"], cell["eps"])
        for cell in cells
        if only(cell, kind="attack", construction="shallow")
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


def test_tiny_runs_end_to_end():
    cells = theorem_31.cells("tiny")
    rows = pd.DataFrame(
        [{"run": str(i), "step": 0, **c, **theorem_31.measure(**c)} for i, c in enumerate(cells)]
    )
    found = theorem_31.summary(rows)
    assert found["shallow, compact, size 2: largest error / eps"] <= 1
    assert found["deep, compact, size 2: largest error / eps"] <= 1
    thin = rows[(rows["kind"] == "thin") & (rows["eps"] > 0)]
    assert (thin["sup_error"] > 2 * thin["eps"]).all()
    assert {name: len(one.data) for name, one in theorem_31.figures(rows).items()} == {
        "precision": 6,  # a line and its dots for each
        "modules": 12,
        "attack": 6,  # one for each network, thin ones too
    }
    assert set(verdicts(rows).values()) == {"not yet run"}, "one world has no interval"


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    wanted = {Cell("theorem_31", cell).name for cell in theorem_31.cells(table.meta()["scale"])}
    assert set(rows["run"]) == wanted
    assert verdicts(rows) == dict.fromkeys(NAMES, "reproduced")
    found = theorem_31.summary(rows)
    assert found["shallow, cube: exponent in M"] == pytest.approx(0.5, abs=0.05)
    assert found["shallow, compact, size 4: largest error / eps"] > 0.5, (
        "the search comes near to what the proof allows"
    )
