"""The state of a sweep while it trains, and its view in the terminal."""

import contextlib
import functools
import json
import os
import time

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import recombine as rc
from recombine.basics.atomic_io import write_lock
from recombine.basics.errors import InputError
from recombine.reporting import watch
from recombine.storage.status import Status
from recombine.storage.table import Table
from tests.tiny import TINY

RUNS = rc.sweep(TINY, recipe__learning_rate=[0.01, 1e30], seed=range(3))
REASON = (
    "the accelerator refused fourteen gigabytes even for one run at a time: lower the widths of "
    "the model"
)
CHUNK = {"runs": 2, "phase": "training", "step": 10, "num_steps": 20, "score": 0.25}


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> pd.DataFrame:
    """Six runs; those with the higher learning rate have diverged."""
    return rc.train(RUNS, tmp_path_factory.mktemp("watch") / "rows.parquet", max_width=2)


@pytest.fixture
def half(rows, tmp_path) -> Table:
    """A sweep of six runs, four of them finished."""
    table = Table(tmp_path / "sweep")
    last_runs = list(dict.fromkeys(rows["run"]))
    table.append(rows[rows["run"].isin(last_runs[:4])])
    table.note(
        experiment="tiny",
        title="A tiny sweep",
        scale="small",
        command="recombine run tiny",
        shown=last_runs,
    )
    return table


def write_status(
    table: Table, state: str = "training", now: tuple = (), finished: int = 4, **changes
) -> None:
    status = Status(table.path, runs=6, reused=1)
    status.chunks = dict(enumerate(now))
    status.write(immediately=True, state=state, finished=finished, **changes)


def test_rows_without_a_status_are_a_finished_sweep(rows, tmp_path):
    for path in (tmp_path / "folder", tmp_path / "rows.parquet"):
        Table(path).append(rows)
        state = watch.state(path)
        last = rows.groupby("run").tail(1)["test/r2"]
        assert state["state"] == "finished"
        assert (state["finished"], state["runs"], state["fraction"], state["rows"]) == (
            6,
            6,
            1.0,
            len(rows),
        )
        assert state["scores"]["best"] == last.max()
        assert state["scores"]["median"] == np.median(last[np.isfinite(last)])
        assert sum(state["scores"]["counts"]) == 3, "the diverged ones have no score"
        assert state["title"] == path.stem
        json.dumps(state, allow_nan=False)


def test_diverged_runs_are_named_by_the_fields_that_differ(rows, tmp_path):
    Table(tmp_path / "out").append(rows)
    diverged = watch.state(tmp_path / "out")["diverged"]
    assert [run["what"] for run in diverged] == [
        {"recipe.learning_rate": 1e30, "seed": seed} for seed in range(3)
    ]
    step = rows.loc[rows["recipe.learning_rate"] == 1e30, "diverged_at"].iloc[0]
    assert {run["reason"] for run in diverged} == {f"loss not finite at step {step}"}
    # A run that diverges only when it is evaluated.
    first = rows[rows["run"] == diverged[0]["run"]]
    Table(tmp_path / "one").append(first.assign(diverged_at=-1))
    assert watch.state(tmp_path / "one")["diverged"] == [
        {"run": diverged[0]["run"], "what": {}, "reason": "test loss not finite"}
    ]


def test_runs_that_train_count_in_part(half):
    start = time.perf_counter()
    write_status(half, now=(CHUNK,), left=120.0, rate=9500.0)
    with write_lock(half.path):
        state = watch.state(half.path)
        assert state["state"] == "training"
        assert (state["finished"], state["runs"], state["reused"]) == (4, 6, 1)
        assert state["fraction"] == (4 + 2 * 10 / 20) / 6
        assert state["now"] == [CHUNK]
        assert state["rate"] == 9500.0
        # The status file is 50 seconds old.
        file = half.path / "status.json"
        os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 50))
        later = watch.state(half.path)
        elapsed = time.perf_counter() - start + 0.01  # two clocks differ by less
        assert later["seconds"] - state["seconds"] == pytest.approx(50, abs=elapsed)
        assert later["left"] == pytest.approx(70, abs=elapsed)


def test_only_a_killed_sweep_is_interrupted(half):
    write_status(half, now=(CHUNK,), left=120.0)
    state = watch.state(half.path)
    assert (state["state"], state["now"], state["left"]) == ("interrupted", [], None)
    assert state["fraction"] == 4 / 6
    for name in ("finished", "failed", "stopped"):
        write_status(half, name)
        assert watch.state(half.path)["state"] == name


def test_a_sweep_that_ends_while_its_status_is_read_is_not_interrupted(half, monkeypatch):
    write_status(half)
    read = watch.status.read
    lock = contextlib.ExitStack()
    lock.enter_context(write_lock(half.path))

    def read_and_end(folder):
        document = read(folder)
        lock.close()
        return document

    monkeypatch.setattr(watch.status, "read", read_and_end)
    assert watch.state(half.path)["state"] == "training"
    assert watch.state(half.path)["state"] == "interrupted"


def test_only_the_last_commands_runs_are_shown_in_its_order(half, rows):
    names = list(dict.fromkeys(rows["run"]))
    half.note(shown=[names[2], names[0]])
    sweep = watch.Sweep(half.path)
    assert sweep.state()["finished"] == 2
    assert list(dict.fromkeys(sweep.rows["run"])) == [names[2], names[0]]
    half.note(shown=["another"])  # a new command, none of whose runs has finished
    write_status(half, finished=0)
    state = sweep.state()
    assert (state["rows"], state["scores"], state["diverged"], len(sweep.lines)) == (0, None, [], 0)


def test_rows_are_read_again_only_when_they_change(half, rows, monkeypatch):
    read = Table.read
    calls = []
    monkeypatch.setattr(Table, "read", lambda self, *args: calls.append(self) or read(self, *args))
    sweep = watch.Sweep(half.path)
    assert sweep.state()["rows"] == sweep.state()["rows"] == 8
    assert len(calls) == 1
    half.append(rows[~rows["run"].isin(sweep.lines["run"])])
    assert sweep.state()["rows"] == 12
    assert len(calls) == 2
    assert list(sweep.arrived) == list(dict.fromkeys(rows["run"]))


def test_a_folder_without_a_sweep_raises_an_error(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing", "missing.parquet"):
        with pytest.raises(
            InputError, match=f"{name} has no results of a sweep: give the folder"
        ) as caught:
            watch.show(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_a_snapshot_fits_80_columns_and_breaks_no_word(half, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    write_status(
        half,
        now=(CHUNK,),
        left=7300.0,
        rate=9500.0,
        failures=[{"runs": ["a"], "reason": REASON}],
        notes=["halved"],
    )
    with write_lock(half.path):
        watch.show(half.path, once=True)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    words = text.split()
    assert set(REASON.split()) <= set(words)
    for expected in (
        "A tiny sweep",
        "83%",
        "4 of 6 runs, 1 reused",
        "2 h 1 min left, 9,500 run-steps/s",
        "training 2 runs, step 10 of 20, test score 0.250",
        "1 run failed:",
        "learning_rate 1e+30, seed 0 diverged: loss not finite at step",
        "learning_rate  seed  seen/r2  test/r2",
        "best",
        "halved",
    ):
        assert expected in text, expected
    assert "█" in text


def test_the_table_shows_as_many_columns_as_fit(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    fields = {f"model.a_long_name_of_a_field_{i}": [i, i + 1] * 6 for i in range(5)}
    frame = pd.DataFrame(
        {
            "run": [f"{i:02}" for i in range(12)],
            "step": 1,
            **fields,
            "test/r2": np.linspace(-9, 1, 12),
        }
    )
    Table(tmp_path).append(frame)
    watch.show(tmp_path)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "The latest 8 of 12 finished runs" in text
    assert "a_long_name_of_a_field_0" in text
    assert "columns that do not fit" in text
    assert "1.000" in text, "scores are never left out"
    assert "-5.364" in text
    assert "-6.273" not in text, "it is among the first four"
    assert "≤-1" in text


@pytest.fixture
def terminal(monkeypatch):
    # A terminal, whatever runs the tests. Rich reads its abilities from the environment.
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(
        watch, "Console", functools.partial(Console, force_terminal=True, width=80, height=50)
    )


def test_the_live_view_updates_until_the_sweep_ends(half, rows, terminal, monkeypatch, capsys):
    def append_rest(_):
        half.append(rows[~rows["run"].isin(half.finished())])
        write_status(half, finished=5, now=(CHUNK,))

    steps = [append_rest, lambda _: write_status(half, "finished", finished=6)]
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: steps.pop(0)(seconds))
    write_status(half, now=(CHUNK,))
    with write_lock(half.path):
        watch.show(half.path)
    text = capsys.readouterr().out
    assert steps == []
    positions = [
        text.index(expected)
        for expected in ("4 of 6 runs", "5 of 6 runs", "6 of 6 runs", "recombine report")
    ]
    assert positions == sorted(positions)
    assert text.rstrip().endswith("\x1b[?25h"), "the cursor is back"


def test_ctrl_c_restores_the_terminal(half, terminal, monkeypatch, capsys):
    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(watch.time, "sleep", stop)
    write_status(half)
    with write_lock(half.path), pytest.raises(KeyboardInterrupt):
        watch.show(half.path)
    assert capsys.readouterr().out.rstrip().endswith("\x1b[?25h")
