from pathlib import Path

import pandas as pd
import pytest

import recombine as rc
from recombine.basics import statistics
from recombine.experiments.ledger import shown
from recombine.experiments.paper import scaling_law
from recombine.experiments.plots import figures_of
from recombine.experiments.theory import definitions
from tests.experiments.neutral import FAILED, claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results"
DRAWN = "injective, PreferenceGrid, weights drawn"


def rows_of(**changes):
    """Made-up rows on which every claim holds. `changes` replace columns by functions of a row."""
    rows = []
    for cell in definitions.cells("small"):
        row = cell | {"step": 0, "run": str(len(rows))} | VALUES[cell["what"]](cell)
        rows.append(row | {name: change(row) for name, change in changes.items()})
    return pd.DataFrame(rows)


def made_up_distance(cell):
    distance = 0.0 if cell["weights"] == definitions.TWINS else 0.3
    return {"relative": distance, "injective": distance > 0}


def made_up_description(cell):
    size = cell["size"]
    length = 2.0**size if cell["family"] == "Unrelated" else 100.0 * size
    return {"num_modules": size, "num_tasks": 2**size, "description": length}


def made_up_number(cell):
    total = rc.Hyperteacher(cell["size"], cell["num_hot"]).num_tasks
    needed = total**0.5 * (1 + 0.01 * cell["seed"])
    return {"total": total, "needed": needed, "state": "crossed", "target": 0.8}


VALUES = {
    "injective": made_up_distance,
    "description": made_up_description,
    "needed": made_up_number,
}


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(definitions, rows)}


def failing_claims(**changes):
    """The claims that no longer hold."""
    judged = verdicts(rows_of(**changes))
    return {name for name, verdict in judged.items() if verdict in FAILED}


def needed_claim(rows):
    (claim,) = (claim for claim in claims_of(definitions, rows) if claim.name == "tasks needed")
    return claim


def test_each_claim_can_fail():
    judged = verdicts(rows_of())
    assert len(judged) == 9
    assert set(judged.values()) == {"reproduced"}
    assert needed_claim(rows_of()).measured == pytest.approx(0.5)

    def equal_goals(row):
        return 0.0 if row.get("family") == "GoalGrid" else row.get("relative")

    def long_description(row):
        return row["num_tasks"] if row["what"] == "description" else None

    def fixed_share(row):
        return row["total"] / 10 if row["what"] == "needed" else None

    assert failing_claims(relative=equal_goals) == {"injective, GoalGrid, weights 1"}
    assert failing_claims(description=long_description) == {
        f"description, {family}" for family in definitions.COMPOSITIONAL
    }
    assert failing_claims(needed=fixed_share) == {"tasks needed"}, "its power is not below 1"


def test_controls_must_fail():
    all_distinct = failing_claims(injective=lambda row: row["what"] == "injective")
    assert len(all_distinct) == 5, "two equal modules counted as distinct"
    assert all(name.startswith("injective") for name in all_distinct)

    def all_short(row):
        return 100.0 * row["size"] if row["what"] == "description" else None

    failing = failing_claims(description=all_short)
    assert len(failing) == 3, "unrelated tasks counted as having a short description"


def test_claims_with_missing_rows_are_not_judged():
    assert set(verdicts(None).values()) == {"not yet run"}
    rows = rows_of()
    is_first_case = (rows["what"] == "injective") & (rows["family"] == "Hyperteacher")
    unfinished = rows[is_first_case].dropna(axis=1, how="all")
    judged = verdicts(unfinished)
    assert [name for name, verdict in judged.items() if verdict == "reproduced"] == [
        "injective, Hyperteacher, weights 1",
        "injective, Hyperteacher, weights drawn",
    ]
    assert set(judged.values()) == {"reproduced", "not yet run"}
    without_control = verdicts(rows[rows["weights"] != definitions.TWINS])
    assert without_control["injective, GoalGrid, weights 1"] == "not yet run"
    is_large = rows["size"].rank(method="dense", ascending=False) <= 3
    few_crossings = rows.assign(state=rows["state"].where(is_large, "never"))
    assert verdicts(few_crossings)["tasks needed"] == "not yet run", "a law needs more than three M"
    assert list(figures_of(definitions, unfinished)) == ["closest"]


def test_tasks_needed_are_those_of_the_scaling_law():
    table = rc.Table(RESULTS / "scaling_law.parquet")
    scale = table.meta()["scale"]
    cells = [cell for cell in definitions.cells(scale) if cell["what"] == "needed"]
    rows = pd.DataFrame([cell | definitions.measure(**cell) for cell in cells])
    final = scaling_law.prepare(shown(table))
    theirs = scaling_law.usable_crossings(final, "MLP", scaling_law.TARGETS[scale][0])
    ours = needed_claim(rows)
    assert len(definitions.usable_numbers(definitions.prepare(rows))) > 0
    assert ours.measured == pytest.approx(scaling_law.largest_power(theirs))
    assert ours.interval == pytest.approx(statistics.over_seeds(theirs, scaling_law.largest_power))
    assert ours.verdict == "reproduced"
    assert definitions.measure("needed", size=5, num_hot=2, seed=0) == {"state": "missing"}


def test_a_scaling_law_by_another_recipe_gives_other_cells(tmp_path, monkeypatch):
    committed = rc.Table(RESULTS / "scaling_law.parquet")
    rows = shown(committed)
    rows = rows[rows["family.num_hot"] == 4]
    table = rc.Table(tmp_path / "scaling_law.parquet")
    table.append(rows)
    monkeypatch.setattr(definitions, "RESULTS", tmp_path)

    def needed_cells():
        cells = definitions.cells("full")
        return [cell for cell in cells if cell["what"] == "needed" and cell["num_hot"] == 4]

    before = needed_cells()
    assert "recipe_of_law" not in before[0], "cells of the first table keep their names"
    new = rows.assign(num_steps=8000, run="new " + rows["run"])
    new["test/r2"] = rows["test/r2"] - 0.02
    table.append(new)
    table.note(shown=list(rows["run"]), scale="full")
    assert needed_cells() == before, "the new rows are not shown yet"
    numbers = [definitions.measure(**cell)["needed"] for cell in before[:3]]
    table.note(shown=list(new["run"]))
    after = needed_cells()
    assert [cell["recipe_of_law"] for cell in after] == [
        "Fast(learning_rate=0.05, weight_decay=0.02, vector_rate=1), 8,000 steps"
    ] * len(before)
    lower = [definitions.measure(**cell)["needed"] for cell in after[:3]]
    assert all(new > old for new, old in zip(lower, numbers, strict=True))


def check_tiny(rows):
    is_injective = rows.set_index(["family", "weights"])["injective"].dropna()
    assert [case for case, injective in is_injective.items() if not injective] == [
        ("Hyperteacher", definitions.TWINS),
        ("PreferenceGrid", definitions.DRAWN),
    ]
    assert list(figures_of(definitions, rows)) == ["closest", "description"]
    values = definitions.summary(rows)
    assert values["PreferenceGrid: description, power of the modules"] == pytest.approx(1.0)
    assert values["Unrelated: description, power of the tasks"] > 1
    judged = verdicts(rows)
    assert {judged[name] for name in judged if "description" in name} == {"reproduced"}


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS / "definitions.parquet")
    rows = table.read()
    assert len(rows) == len(definitions.cells(table.meta()["scale"])) == rows["run"].nunique()
    judged = verdicts(rows)
    # Preferences that are multiples of each other lead to the same choices.
    assert [name for name, verdict in judged.items() if verdict != "reproduced"] == [DRAWN]
    equal_tasks = rows[(rows["weights"] == definitions.DRAWN) & (rows["relative"] == 0)]
    pair = equal_tasks["closest"].iloc[0].split(" | ")
    num_active = [sum(float(weight) > 0 for weight in task.split()) for task in pair]
    assert num_active == [1, 1]
