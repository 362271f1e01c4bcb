from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from recombine.claims import Claim, last, ledger, needed, ratio
from recombine.core import InputError
from recombine.table import Table

PUBLISHED = {"name": "width", "statement": "wider is better", "source": "Fig. 2", "published": "R2 > 0.9"}


def claims(rows):
    if rows is None:
        return [Claim(**PUBLISHED, measured=None, holds=None)]
    best = rows["test/r2"].max()
    return [Claim(**PUBLISHED, measured=best, holds=best > 0.9, interval=(0.91, 0.97), control="narrow fails")]


@pytest.mark.parametrize(
    ("holds", "better", "verdict"),
    [
        (None, False, "not yet run"),
        (False, False, "not reproduced"),
        (False, True, "not reproduced"),
        (True, False, "reproduced"),
        (np.True_, True, "better"),
    ],
)
def test_verdicts(holds, better, verdict):
    assert Claim(**PUBLISHED, measured=1.0, holds=holds, better=better).verdict == verdict


def test_a_ledger_measures_what_has_run_and_lists_what_has_not(tmp_path):
    table = Table(tmp_path / "done.parquet")
    table.append(pd.DataFrame({"run": ["a", "a", "b"], "step": [0, 1, 1], "test/r2": [0.1, 0.5, 0.95]}))
    table.note(date="2025-11-15", command="recombine run done --scale small")
    Table(tmp_path / "empty.parquet").note(scale="small")
    modules = {name: SimpleNamespace(claims=claims) for name in ("done", "todo", "empty")}
    lines = ledger(modules | {"silent": SimpleNamespace()}, tmp_path)
    assert lines["experiment"].tolist() == ["done", "todo", "empty"]
    assert lines["verdict"].tolist() == ["reproduced", "not yet run", "not yet run"]
    assert lines["runs"].tolist() == [2, 0, 0]
    assert lines["measured"].isna().tolist() == [False, True, True]
    assert lines["measured"][0] == 0.95
    assert lines["interval"][0] == (0.91, 0.97)
    assert lines["control"][0] == "narrow fails"
    assert lines["date"].tolist() == ["2025-11-15", "", ""]
    assert lines["command"].tolist() == [
        "recombine run done --scale small",
        "recombine run todo --scale full",
        "recombine run empty --scale small",
    ]


def test_an_empty_ledger_has_all_its_columns(tmp_path):
    full = ledger({"todo": SimpleNamespace(claims=claims)}, tmp_path)
    assert list(ledger({}, tmp_path)) == list(full)
    assert {"published", "measured", "verdict", "command"} <= set(full)


def test_broken_results_are_named(tmp_path):
    (tmp_path / "done.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match=r"done\.parquet"):
        ledger({"done": SimpleNamespace(claims=claims)}, tmp_path)


def test_results_of_an_older_version_are_named(tmp_path):
    Table(tmp_path / "done.parquet").append(pd.DataFrame({"run": ["a"], "test/accuracy": [0.5]}))
    with pytest.raises(InputError, match=r"done\.parquet has no column 'test/r2'.*recombine run done"):
        ledger({"done": SimpleNamespace(claims=claims)}, tmp_path)


def test_the_last_evaluation_of_every_run():
    rows = pd.DataFrame({"run": ["a", "a", "b", "b"], "step": [5, 10, 20, 40], "value": [1, 2, 3, 4]})
    assert last(rows)["value"].tolist() == [2, 4]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((0.5, 0.8, 1.0), 40.0),  # .9 is halfway from .8 (at 20) to 1 (at 80): the geometric mean
        ((0.95, 0.96, 1.0), 10.0),  # already the fewest are enough
        ((0.5, 0.6, 0.7), np.inf),
        ((0.95, 0.8, 1.0), 40.0),  # a dip: only what comes after it counts
    ],
)
def test_tasks_needed(shares, expected):
    np.testing.assert_allclose(needed([10, 20, 80], shares, 0.9), expected)
    np.testing.assert_allclose(needed([80, 10, 20], [shares[2], *shares[:2]], 0.9), expected)


def test_tasks_needed_at_the_edges():
    assert needed([10], [1.0], 0.9) == 10
    assert needed([], [], 0.9) == np.inf
    assert needed([10, 20], [np.nan, np.nan], 0.9) == np.inf
    assert needed([10, 20], [0.1, np.nan], 0.9) == np.inf
    assert needed([10, 20], [np.nan, 1.0], 0.9) == 20


def test_ratios_of_tasks():
    assert ratio(30, 10) == 3
    assert ratio(np.inf, 10) == np.inf
    assert ratio(10, np.inf) is None
    assert ratio(np.inf, np.inf) is None
