"""The numbers in docs/scaling.md are those of the committed rows."""

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


def test_the_table_of_costs_shows_the_committed_rows(rows):
    assert TEXT.split("<!-- cost -->")[1].split("<!-- end of cost -->")[0].strip() == cost.page(
        rows
    )


def test_the_model_predicts_the_cost_of_whole_sweeps(rows):
    assert set(rows["device"]) == {"cpu", "NVIDIA H200"}
    for kind, of_kind in rows.groupby("device"):
        cells = cost.cells(small=kind == "cpu")
        assert set(of_kind["sweep"]) == set(cells)
        for row in of_kind.itertuples():
            expected = estimate(cells[row.sweep], kind)["seconds"]
            assert expected == pytest.approx(row.expected_seconds, rel=1e-6), (
                "the rows were made with the current model"
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
    for name in ("rows", "checkpoints", "notes", "with_rows", "resumed"):
        assert counted["2 CPU cores"][name] > 0, name
    for name, counts in counted.items():
        assert counts["kills"] == counts["random"] + counts["writing"]
        for error in ("rows_lost", "rows_strange", "rows_repeated", "sweeps_changed", "files_left"):
            assert counts[error] == 0, error
        cells = " | ".join(str(counts[column]) for column in COLUMNS)
        assert f"| {name} | {cells} |" in TEXT


def test_every_executor_is_documented():
    for form in ("processes:", "dask-local:", "dask://", "--executor slurm"):
        assert form in TEXT
    for option in (*slurm.SUBMITIT_OPTIONS, "partition", "gres", "cluster"):
        assert option in TEXT or option in ("nodes", "name")
