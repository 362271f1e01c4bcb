"""What a sweep tells while it trains, and its picture in the terminal."""

import contextlib
import functools
import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import recombine as rc
from recombine.basics.atomic_io import held
from recombine.basics.errors import InputError
from recombine.reporting import watch
from recombine.storage.status import Status
from recombine.storage.table import Table
from tests.tiny import TINY

RUNS = rc.sweep(TINY, recipe__learning_rate=[0.01, 1e30], seed=range(3))
REASON = "the accelerator refused fourteen gigabytes even for one run at a time: lower the widths of the model"
CHUNK = {"runs": 2, "phase": "training", "step": 10, "num_steps": 20, "score": 0.25}


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> pd.DataFrame:
    """Six runs; those with the higher learning rate have diverged."""
    return rc.train(RUNS, tmp_path_factory.mktemp("watch") / "rows.parquet", max_width=2)


@pytest.fixture
def half(rows, tmp_path) -> Table:
    """A sweep of six runs, four of them finished."""
    table = Table(tmp_path / "sweep")
    shown = list(dict.fromkeys(rows["run"]))
    table.append(rows[rows["run"].isin(shown[:4])])
    table.note(
        experiment="tiny",
        title="A tiny sweep",
        scale="small",
        command="recombine run tiny",
        shown=shown,
    )
    return table


def tell(
    table: Table, state: str = "training", now: tuple = (), finished: int = 4, **changes
) -> None:
    status = Status(table.path, runs=6, reused=1)
    status.now = dict(enumerate(now))
    status.write(now=True, state=state, finished=finished, **changes)


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


def test_diverged_runs_are_told_by_what_distinguishes_them(rows, tmp_path):
    Table(tmp_path / "out").append(rows)
    lost = watch.state(tmp_path / "out")["diverged"]
    assert [run["what"] for run in lost] == [
        {"recipe.learning_rate": 1e30, "seed": seed} for seed in range(3)
    ]
    step = rows.loc[rows["recipe.learning_rate"] == 1e30, "diverged_at"].iloc[0]
    assert {run["reason"] for run in lost} == {f"loss not finite at step {step}"}
    Table(tmp_path / "one").append(
        rows[rows["run"] == lost[0]["run"]].assign(diverged_at=-1)
    )  # only when evaluated
    assert watch.state(tmp_path / "one")["diverged"] == [
        {"run": lost[0]["run"], "what": {}, "reason": "test loss not finite"}
    ]


def test_a_sweep_that_trains_counts_what_is_under_way(half):
    tell(half, now=(CHUNK,), left=120.0, rate=9500.0)
    with held(half.path):
        state = watch.state(half.path)
        assert state["state"] == "training"
        assert (state["finished"], state["runs"], state["reused"]) == (4, 6, 1)
        assert state["fraction"] == (4 + 2 * 10 / 20) / 6
        assert state["now"] == [CHUNK]
        assert state["rate"] == 9500.0
        file = half.path / "status.json"
        os.utime(
            file, (file.stat().st_atime, file.stat().st_mtime - 50)
        )  # nothing was told for 50 seconds
        later = watch.state(half.path)
        assert later["seconds"] - state["seconds"] == pytest.approx(50, abs=5)
        assert later["left"] == pytest.approx(70, abs=5)


def test_a_killed_sweep_is_interrupted_and_others_are_what_they_say(half):
    tell(half, now=(CHUNK,), left=120.0)
    state = watch.state(half.path)
    assert (state["state"], state["now"], state["left"]) == ("interrupted", [], None)
    assert state["fraction"] == 4 / 6
    for name in ("finished", "failed", "stopped"):
        tell(half, name)
        assert watch.state(half.path)["state"] == name


def test_a_sweep_that_ends_while_it_is_looked_at_is_not_interrupted(half, monkeypatch):
    tell(half)
    read, lock = watch.status.read, contextlib.ExitStack()
    lock.enter_context(held(half.path))

    def read_and_end(folder):
        found = read(folder)
        lock.close()
        return found

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
    tell(half, finished=0)
    state = sweep.state()
    assert (state["rows"], state["scores"], state["diverged"], len(sweep.lines)) == (0, None, [], 0)


def test_rows_are_read_again_only_when_they_changed(half, rows, monkeypatch):
    read, calls = Table.read, []
    monkeypatch.setattr(Table, "read", lambda self, *args: calls.append(self) or read(self, *args))
    sweep = watch.Sweep(half.path)
    assert sweep.state()["rows"] == sweep.state()["rows"] == 8
    assert len(calls) == 1
    half.append(rows[~rows["run"].isin(sweep.lines["run"])])
    assert sweep.state()["rows"] == 12
    assert len(calls) == 2
    assert list(sweep.arrived) == list(dict.fromkeys(rows["run"]))


def test_no_sweep_is_said_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing", "missing.parquet"):
        with pytest.raises(InputError, match=f"{name} holds no sweep: name the folder") as caught:
            watch.show(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_a_snapshot_fits_80_columns_and_breaks_no_word(half, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    tell(
        half,
        now=(CHUNK,),
        left=7300.0,
        rate=9500.0,
        failures=[{"runs": ["a"], "reason": REASON}],
        notes=["halved"],
    )
    with held(half.path):
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
    assert "no room for" in text
    assert "1.000" in text, "scores are not what is left out"
    assert "-5.364" in text
    assert "-6.273" not in text, "it is among the first four"
    assert "≤-1" in text


@pytest.fixture
def terminal(monkeypatch):
    # Rich asks the environment what a terminal can do: here it is one, whatever runs the tests.
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(
        watch, "Console", functools.partial(Console, force_terminal=True, width=80, height=50)
    )


def test_the_live_picture_follows_the_sweep_and_ends_with_it(
    half, rows, terminal, monkeypatch, capsys
):
    def rest(_):
        half.append(rows[~rows["run"].isin(half.finished())])
        tell(half, finished=5, now=(CHUNK,))

    steps = [rest, lambda _: tell(half, "finished", finished=6)]
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: steps.pop(0)(seconds))
    tell(half, now=(CHUNK,))
    with held(half.path):
        watch.show(half.path)
    text = capsys.readouterr().out
    assert steps == []
    places = [
        text.index(expected)
        for expected in ("4 of 6 runs", "5 of 6 runs", "6 of 6 runs", "recombine report")
    ]
    assert places == sorted(places)
    assert text.rstrip().endswith("\x1b[?25h"), "the cursor is back"


def test_ctrl_c_gives_the_terminal_back(half, terminal, monkeypatch, capsys):
    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(watch.time, "sleep", stop)
    tell(half)
    with held(half.path), pytest.raises(KeyboardInterrupt):
        watch.show(half.path)
    assert capsys.readouterr().out.rstrip().endswith("\x1b[?25h")


def test_watching_needs_no_jax():
    code = "import sys, recombine.reporting.watch, recombine.reporting.serve; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
