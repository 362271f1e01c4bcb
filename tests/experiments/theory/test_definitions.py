from pathlib import Path

import pandas as pd
import pytest

import recombine as rc
from recombine.basics import statistics
from recombine.experiments.paper import scaling_law
from recombine.experiments.theory import definitions

RESULTS = Path(__file__).parents[3] / "docs" / "results"
DRAWN = "injective, PreferenceGrid, weights drawn"


def rows_of(**changes):
    """Rows made by hand on which every claim holds; `changes` are functions of a row, by the name of a column."""
    made = []
    for cell in definitions.cells("small"):
        row = cell | {"step": 0, "run": str(len(made))}
        if cell["what"] == "injective":
            apart = 0.0 if cell["weights"] == definitions.TWINS else 0.3
            row |= {"relative": apart, "injective": apart > 0}
        elif cell["what"] == "description":
            size = cell["size"]
            long = 2.0**size if cell["family"] == "Unrelated" else 100.0 * size
            row |= {"num_modules": size, "num_tasks": 2**size, "description": long}
        else:
            total = rc.Hyperteacher(cell["size"], cell["num_hot"]).num_tasks
            row |= {
                "total": total,
                "needed": total**0.5 * (1 + 0.01 * cell["seed"]),
                "state": "crossed",
                "target": 0.8,
            }
        made.append(row | {name: change(row) for name, change in changes.items()})
    return pd.DataFrame(made)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in definitions.claims(rows)}


def broken(**changes):
    return {
        name
        for name, verdict in verdicts(rows_of(**changes)).items()
        if verdict == "not reproduced"
    }


def test_verdicts_go_both_ways():
    found = verdicts(rows_of())
    assert len(found) == 9
    assert set(found.values()) == {"reproduced"}
    (few,) = (claim for claim in definitions.claims(rows_of()) if claim.name == "tasks needed")
    assert few.measured == pytest.approx(0.5)
    assert broken(
        relative=lambda row: 0.0 if row.get("family") == "GoalGrid" else row.get("relative")
    ) == {"injective, GoalGrid, weights 1"}
    lengthy = {
        "description": lambda row: row["num_tasks"] if row["what"] == "description" else None
    }
    assert broken(**lengthy) == {f"description, {family}" for family in definitions.SHORT}
    shared = {"needed": lambda row: row["total"] / 10 if row["what"] == "needed" else None}
    assert broken(**shared) == {"tasks needed"}, "a fixed share is no power below 1"


def test_controls_must_fail():
    twins = broken(injective=lambda row: row["what"] == "injective")
    assert len(twins) == 5, "two equal modules were taken for distinct"
    assert all(name.startswith("injective") for name in twins)
    unrelated = broken(
        description=lambda row: 100.0 * row["size"] if row["what"] == "description" else None
    )
    assert len(unrelated) == 3, "unrelated tasks were taken for short"


def test_what_is_not_there_is_not_judged():
    assert set(verdicts(None).values()) == {"not yet run"}
    rows = rows_of()
    begun = rows[(rows["what"] == "injective") & (rows["family"] == "Hyperteacher")].dropna(
        axis=1, how="all"
    )
    found = verdicts(begun)
    assert [name for name, verdict in found.items() if verdict == "reproduced"] == [
        "injective, Hyperteacher, weights 1",
        "injective, Hyperteacher, weights drawn",
    ]
    assert set(found.values()) == {"reproduced", "not yet run"}
    assert (
        verdicts(rows[rows["weights"] != definitions.TWINS])["injective, GoalGrid, weights 1"]
        == "not yet run"
    )
    never = rows.assign(
        state=rows["state"].where(rows["size"].rank(method="dense", ascending=False) <= 3, "never")
    )
    assert verdicts(never)["tasks needed"] == "not yet run", "three M are too few for a law"
    assert list(definitions.figures(begun)) == ["closest"]


def test_tasks_needed_are_those_of_the_scaling_law():
    table = rc.Table(RESULTS / "scaling_law.parquet")
    scale = table.meta()["scale"]
    cells = [cell for cell in definitions.cells(scale) if cell["what"] == "needed"]
    rows = pd.DataFrame([cell | definitions.measure(**cell) for cell in cells])
    known = definitions._known(rows)
    theirs = scaling_law._known(table.read(), "MLP")
    (ours,) = (claim for claim in definitions.claims(rows) if claim.name == "tasks needed")
    assert len(known) > 0
    assert ours.measured == pytest.approx(scaling_law.power(theirs))
    assert ours.interval == pytest.approx(statistics.over_seeds(theirs, scaling_law.power))
    assert ours.verdict == "reproduced"
    assert definitions.measure("needed", size=5, num_hot=2, seed=0) == {"state": "missing"}


def test_tiny_runs_end_to_end():
    cells = [cell for cell in definitions.cells("tiny") if cell.get("seed", 0) == 0]
    rows = pd.DataFrame([cell | definitions.measure(**cell) for cell in cells])
    rows = rows.assign(step=0, run=[str(i) for i in range(len(rows))])
    closest = rows.set_index(["family", "weights"])["injective"].dropna()
    assert [case for case, distinct in closest.items() if not distinct] == [
        ("Hyperteacher", definitions.TWINS),
        ("PreferenceGrid", definitions.DRAWN),
    ]
    assert list(definitions.figures(rows)) == ["closest", "description"]
    found = definitions.summary(rows)
    assert found["PreferenceGrid: description, power of the modules"] == pytest.approx(1.0)
    assert found["Unrelated: description, power of the tasks"] > 1
    assert {claim.verdict for claim in definitions.claims(rows) if "description" in claim.name} == {
        "reproduced"
    }


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS / "definitions.parquet")
    rows = table.read()
    assert len(rows) == len(definitions.cells(table.meta()["scale"])) == rows["run"].nunique()
    found = verdicts(rows)
    # Preferences that differ by a factor make the same choices.
    assert [name for name, verdict in found.items() if verdict != "reproduced"] == [DRAWN]
    (pair,) = rows[(rows["weights"] == definitions.DRAWN) & (rows["relative"] == 0)][
        "closest"
    ].head(1)
    assert [sum(float(weight) > 0 for weight in task.split()) for task in pair.split(" | ")] == [
        1,
        1,
    ]
