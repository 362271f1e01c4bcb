"""docs/scaling.md says what was measured: the committed rows, and no others."""

import json
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import cost
from recombine.planning.estimate import estimate
from recombine.training.executors import slurm

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "scaling.md").read_text()


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return pd.read_parquet(DOCS / "results" / "cost.parquet")


def test_the_table_of_costs_is_that_of_the_committed_rows(rows):
    assert TEXT.split("<!-- cost -->")[1].split("<!-- end of cost -->")[0].strip() == cost.page(
        rows
    )


def test_the_model_tells_the_cost_of_whole_sweeps(rows):
    assert set(rows["device"]) == {"cpu", "NVIDIA H200"}
    for kind, of_kind in rows.groupby("device"):
        cells = cost.cells(small=kind == "cpu")
        assert set(of_kind["sweep"]) == set(cells)
        for row in of_kind.itertuples():
            expected = estimate(cells[row.sweep], kind)["seconds"]
            assert expected == pytest.approx(row.expected_seconds, rel=1e-6), (
                "the rows are of the model as it is"
            )
            assert 1 / 1.6 < row.measured_seconds / expected < 1.6, row.sweep


COLUMNS = (
    "kills",
    "rows",
    "checkpoints",
    "notes",
    "with_rows",
    "resumed",
    "rows_expected",
    "rows_lost",
    "rows_repeated",
)


def test_no_kill_lost_repeated_or_changed_a_row():
    counted = json.loads((DOCS / "results" / "kills.json").read_text())
    assert counted["2 CPU cores"]["kills"] >= 50
    assert (
        min(
            counted["2 CPU cores"][name]
            for name in ("rows", "checkpoints", "notes", "with_rows", "resumed")
        )
        > 0
    )
    for name, counts in counted.items():
        assert counts["kills"] == counts["random"] + counts["writing"]
        wrong = ("rows_lost", "rows_strange", "rows_repeated", "sweeps_changed", "files_left")
        assert [counts[one] for one in wrong] == [0] * 5
        assert f"| {name} | {' | '.join(str(counts[one]) for one in COLUMNS)} |" in TEXT


def test_every_way_of_training_is_told():
    for form in ("processes:", "dask-local:", "dask://", "--on slurm"):
        assert form in TEXT
    for option in (*slurm.SHARED, "partition", "gres", "cluster"):
        assert option in TEXT or option in ("nodes", "name")
