from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.basics.statistics import crossings, needed, ratio
from recombine.experiments.claim import (
    OURS,
    RESULTS,
    Claim,
    device_seconds,
    judge,
    last,
    ledger,
    never_falls,
    trend,
    trends,
)
from recombine.storage.table import Table
from recombine.sweeps.run import Run, identity

PUBLISHED = {
    "name": "width",
    "statement": "wider is better",
    "source": "Fig. 2",
    "published": "R2 > 0.9",
}


def claims(rows):
    if rows is None:
        return [Claim(**PUBLISHED, measured=None, holds=None)]
    best = rows["test/r2"].max()
    return [
        Claim(
            **PUBLISHED,
            measured=best,
            holds=best > 0.9,
            interval=(0.91, 0.97),
            control="narrow fails",
        )
    ]


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


@pytest.mark.parametrize("spelt", [OURS, "", "-", "none"])
def test_where_nothing_was_published_a_ledger_says_so_in_one_way(tmp_path, spelt):
    claim = Claim(**PUBLISHED | {"published": spelt}, measured=1.0, holds=True)
    told = [claim, Claim(**PUBLISHED, measured=1.0, holds=True)]
    lines = ledger({"mine": SimpleNamespace(claims=lambda rows: told)}, tmp_path)
    assert lines["ours"].tolist() == [True, False]
    assert lines["published"].tolist() == ["ours", "R2 > 0.9"]
    assert lines["verdict"].tolist() == ["reproduced"] * 2


def test_a_ledger_measures_what_has_run_and_lists_what_has_not(tmp_path):
    table = Table(tmp_path / "done.parquet")
    table.append(
        pd.DataFrame({"run": ["a", "a", "b"], "step": [0, 1, 1], "test/r2": [0.1, 0.5, 0.95]})
    )
    table.note(
        date="2025-11-15",
        scale="small",
        device="Abacus",
        command="recombine run done --out elsewhere",
    )
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
    assert lines["device"].tolist() == ["Abacus", "", ""]
    assert lines["scale"].tolist() == ["small", "full", "small"]
    assert lines["command"].tolist() == [
        f"recombine run {name} --scale {scale} --out {tmp_path / name}.parquet"
        for name, scale in (("done", "small"), ("todo", "full"), ("empty", "small"))
    ]


def test_committed_tables_are_named_from_the_checkout():
    (line,) = judge("todo", SimpleNamespace(claims=claims), Table(RESULTS / "todo.parquet"))
    assert line["command"] == "recombine run todo --scale full --out docs/results/todo.parquet"


def test_a_ledger_is_of_the_runs_that_a_table_shows(tmp_path):
    table = Table(tmp_path / "done.parquet")
    table.append(pd.DataFrame({"run": ["a", "b"], "step": [1, 1], "test/r2": [0.5, 0.95]}))
    table.note(shown=["a"])
    (line,) = judge("done", SimpleNamespace(claims=claims), table)
    assert (line["runs"], line["measured"], line["verdict"]) == (1, 0.5, "not reproduced")


def test_a_ledger_tells_runs_that_their_experiment_no_longer_asks_for(tmp_path):
    table, run = Table(tmp_path / "done.parquet"), Run(num_steps=8)
    table.append(
        pd.DataFrame({"run": [identity(run), "old"], "step": [1, 1], "test/r2": [0.5, 0.95]})
    )
    table.note(scale="small")
    scales = []
    module = SimpleNamespace(claims=claims, runs=lambda scale: scales.append(scale) or [run, Run()])
    (line,) = judge("done", module, table)
    assert (line["runs"], line["outdated"], line["computed"], scales) == (2, 1, False, ["small"])
    (line,) = judge("todo", module, Table(tmp_path / "todo.parquet"))
    assert (line["runs"], line["outdated"]) == (0, 0)
    module = SimpleNamespace(claims=claims, cells=lambda scale: 1 / 0)
    with pytest.raises(
        InputError, match="done cannot list what it asks for at small scale: ZeroDivisionError"
    ):
        judge("done", module, table)


def test_device_seconds_count_every_run_and_every_program_once():
    rows = pd.DataFrame(
        [
            {"run": run, "step": step, "meta/seconds": seconds, "meta/compile_seconds": 10.0}
            for run, seconds in (("a", 1.0), ("b", 1.0), ("c", 3.0))  # a and b trained side by side
            for step in (1, 2)
        ]
    )
    assert device_seconds(rows) == 1 + 1 + 3 + 10 + 10
    assert device_seconds(pd.DataFrame()) == 0


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
    with pytest.raises(
        InputError, match=r"done\.parquet has no column 'test/r2'.*recombine run done"
    ):
        ledger({"done": SimpleNamespace(claims=claims)}, tmp_path)


def test_claims_that_fail_are_told_in_one_line(tmp_path):
    Table(tmp_path / "done.parquet").append(pd.DataFrame({"run": ["a"], "test/r2": [0.5]}))
    with pytest.raises(
        InputError, match=r"claims cannot be computed from .*done\.parquet: ZeroDivisionError"
    ):
        ledger({"done": SimpleNamespace(claims=lambda rows: 1 / 0)}, tmp_path)


def test_the_last_evaluation_of_every_run():
    rows = pd.DataFrame(
        {"run": ["a", "a", "b", "b"], "step": [5, 10, 20, 40], "value": [1, 2, 3, 4]}
    )
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


def scored(**scores):
    """Scores by size (its name without the letter), one for each seed."""
    cells = [
        (int(name[1:]), seed, score)
        for name, found in scores.items()
        for seed, score in enumerate(found)
    ]
    return pd.DataFrame(cells, columns=["width", "seed", "r2"])


def test_a_trend_that_grows():
    found = trend(
        scored(w4=(0.1, 0.2, 0.3), w8=(0.5, 0.6, 0.7), w16=(0.7, 0.8, 0.9)),
        "width",
        "r2",
        (4, 8, 16),
    )
    np.testing.assert_allclose(
        (found.gain, *found.interval, found.spread, found.drop), (0.6, 0.6, 0.6, 0.1, 0)
    )
    assert found.grows
    assert (found.fall, found.fall_interval) == (0, (0, 0))


@pytest.mark.parametrize(
    ("widest", "drop", "falls"),
    [
        ((0.74, 0.79, 0.84), 0.01, False),  # every seed falls, but by less than seeds differ
        ((0.45, 0.5, 0.55), 0.3, True),
        ((0.0, 0.0, 0.86), 0.8 - 0.86 / 3, False),  # more than seeds differ, but one of them rises
    ],
)
def test_a_fall_counts_beyond_the_spread_of_paired_seeds(widest, drop, falls):
    frame = scored(w4=(0.1, 0.2, 0.3), w8=(0.75, 0.8, 0.85), w16=(0.75, 0.8, 0.85), w32=widest)
    found = trend(frame, "width", "r2", (4, 8, 16, 32))
    np.testing.assert_allclose(found.drop, drop)
    np.testing.assert_allclose(found.fall, drop if falls else 0)
    assert (found.fall_interval[0] > 0) is falls
    claim = never_falls(
        [found, trend(scored(w4=(0, 0), w8=(1, 1)), "width", "r2", (4, 8))], "No fall", "us"
    )
    assert (claim.measured, claim.holds) == (found.fall, not falls)


def test_a_gain_within_the_spread_of_seeds_does_not_grow():
    found = trend(scored(w4=(0.1, 0.5, 0.9), w8=(0.2, 0.6, 1.0)), "width", "r2", (4, 8))
    np.testing.assert_allclose((found.gain, found.spread), (0.1, 0.4))
    assert found.interval[0] > 0
    assert not found.grows


def test_trends_need_every_cell():
    frame = scored(w4=(0.1, 0.2), w8=(0.5, 0.6))
    assert trend(frame, "width", "r2", (4, 8, 16)) is None
    assert trend(frame, "width", "r2", (4,)) is None
    assert trend(frame.drop(index=3), "width", "r2", (4, 8)) is None
    both = pd.concat([frame.assign(depth=2), frame.assign(depth=4)])
    wanted = [{2: (4, 8), 6: (4, 8)}, {4: (4, 8), 2: (4, 8)}]
    assert list(trends(both, "depth", "width", "r2", wanted)) == [4, 2]
    assert trends(both, "depth", "width", "r2", wanted[:1]) == {}
    assert trends(both.iloc[:0], "depth", "width", "r2", wanted) == {}


def test_crossings_tell_what_was_measured():
    curves = {"a": (0.5, 0.8, 1.0), "b": (0.5, 0.6, 0.7), "c": (0.95, 0.96, 1.0)}
    frame = pd.DataFrame(
        [
            {"kind": kind, "seed": 0, "support/num_train": tasks, "r2": score}
            for kind, scores in curves.items()
            for tasks, score in zip((10, 20, 80), scores, strict=True)
        ]
    )
    found = crossings(frame, ["kind", "seed"], "r2", 0.9)
    assert found["state"].tolist() == ["crossed", "never", "at once"]
    np.testing.assert_allclose(found["needed"], (40, np.inf, 10))
    assert list(crossings(frame.iloc[:0], ["kind", "seed"], "r2", 0.9)) == [
        "kind",
        "seed",
        "needed",
        "state",
    ]
