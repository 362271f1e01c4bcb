"""What can happen to a sweep overnight, and what becomes of it: nothing finished is lost, nothing stale is mixed in
silently, and every outcome is told in words."""

import contextlib
import dataclasses
import datetime
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

import recombine as rc
from benchmarks import kills
from recombine.basics.atomic_io import holder
from recombine.basics.errors import InputError
from recombine.reporting import page as report
from recombine.storage import status
from recombine.storage.table import Table
from recombine.sweeps.run import identity
from recombine.training import chunk, scheduler, trainer
from tests.tiny import TINY

RUNS = rc.sweep(TINY, seed=range(4))
SMALL = """
import recombine as rc
from tests.tiny import TINY

def runs(scale):
    return rc.sweep(TINY, seed=range(3))
"""


def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[[name for name in rows if not name.startswith("meta/")]].reset_index(drop=True)


@pytest.fixture(scope="module")
def expected() -> pd.DataFrame:
    return numbers(rc.train(RUNS))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 kB."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"cannot mount a small disk: {made.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)  # an error may still hold a file open


def fill(disk: Path) -> Path:
    """A file that takes all the room there is."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


def test_kills_at_random_moments_lose_repeat_and_change_nothing(tmp_path):
    counts = kills.survive(
        tmp_path, 4, kills.SWEEP.format(num_steps=500, num_seeds=2), 3, tell=lambda _: None
    )
    assert counts["kills"] == counts["random"] + counts["writing"] == 4
    assert counts["with_rows"] + counts["resumed"] > 0, "the kills fell into something"
    assert counts["rows_expected"] == counts["sweeps"] * 24
    for name in ("rows_lost", "rows_strange", "rows_repeated", "sweeps_changed", "files_left"):
        assert counts[name] == 0, name


def test_a_second_process_is_told_who_writes(tmp_path, expected):
    (tmp_path / "long.py").write_text(kills.SWEEP.format(num_steps=200_000, num_seeds=1))
    first = kills._start(tmp_path / "long.py", tmp_path / "out")
    try:
        while holder(tmp_path / "out") is None:
            assert first.poll() is None
        with pytest.raises(InputError, match=f"another process writes to .*process {first.pid} on"):
            rc.train(RUNS, tmp_path / "out")
        assert status.alive(tmp_path / "out")
    finally:
        first.kill()
        first.wait()
    pd.testing.assert_frame_equal(numbers(rc.train(RUNS, tmp_path / "out")), expected)


def test_rows_written_twice_count_once(tmp_path, expected):
    rc.train(RUNS[:2], tmp_path / "out")
    other = rc.train(RUNS, tmp_path / "other")
    Table(tmp_path / "out").append(
        other
    )  # as if two machines without a common lock had written here
    rows = Table(tmp_path / "out").read()
    assert rows.groupby(["run", "step"]).size().max() == 1
    pd.testing.assert_frame_equal(numbers(rc.train(RUNS, tmp_path / "out")), expected)


def one_at_a_time(monkeypatch, before):
    """Train run by run, and call something before each."""
    train_chunk, trained = scheduler.chunk_rows, []

    def noted(*args):
        before(len(trained))
        trained.append(args[0])
        return train_chunk(*args)

    monkeypatch.setattr(scheduler, "chunk_rows", noted)
    return trained


def test_on_a_full_disk_rows_wait_until_there_is_room(small_disk, expected, monkeypatch, capsys):
    ballast = []

    def before(number):
        if number == 1:
            ballast.append(fill(small_disk))
        if number == 3:
            ballast[0].unlink()

    one_at_a_time(monkeypatch, before)
    rows = rc.train(RUNS, small_disk / "out", max_width=1, progress=True)
    pd.testing.assert_frame_equal(numbers(rows), expected)
    told = " ".join(capsys.readouterr().err.split())
    assert "(No space left on device): 1 runs wait in memory; free some space" in told
    assert "2 runs wait in memory" in told
    assert "3 runs wait" not in told
    assert len(status.read(small_disk / "out")["notes"]) == 2


def test_what_a_full_disk_cannot_take_is_left_elsewhere(small_disk, expected, monkeypatch):
    one_at_a_time(monkeypatch, lambda number: fill(small_disk) if number == 1 else None)
    with pytest.raises(InputError) as caught:
        rc.train(RUNS, small_disk / "out", max_width=1)
    told = str(caught.value)
    assert "No space left on device" in told
    assert "the rows of the last 3 runs are in" in told
    assert "\n" not in told
    left = Path(told.split(" are in ")[1].split(";")[0])
    (small_disk / "ballast").unlink()
    (small_disk / "out" / "rows" / left.name).write_bytes(left.read_bytes())
    monkeypatch.setattr(scheduler, "chunk_rows", lambda *_: pytest.fail("nothing is left to train"))
    pd.testing.assert_frame_equal(numbers(rc.train(RUNS, small_disk / "out")), expected)


def test_a_disk_that_is_full_from_the_beginning_is_told_in_one_line(small_disk):
    (small_disk / "out" / "rows").mkdir(parents=True)
    fill(small_disk)
    with pytest.raises(InputError, match=r"cannot write results to .*No space left on device"):
        rc.train(RUNS, small_disk / "out")


def test_a_read_only_folder_is_read_and_not_written(small_disk, call, monkeypatch):
    (small_disk / "mine.py").write_text(SMALL)
    assert (
        call("run", str(small_disk / "mine.py"), "--out", str(small_disk / "out"), "--json")[0] == 0
    )
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    code, out, err = call(
        "run", str(small_disk / "mine.py"), "--out", str(small_disk / "out"), "--json"
    )
    assert code == 0, err
    assert json.loads(out)["runs"] == 3
    assert "Read-only file system" in err
    code, _, err = call(
        "run", str(small_disk / "mine.py"), "--out", str(small_disk / "out"), "--seeds", "4"
    )
    assert code == 2
    assert "cannot write to" in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("damage", ["truncated", "foreign", "flipped"])
def test_a_damaged_part_stops_the_sweep_until_it_is_moved_away(tmp_path, expected, damage):
    rc.train(RUNS, tmp_path / "out")
    (part,) = (tmp_path / "out" / "rows").iterdir()
    data = part.read_bytes()
    flipped = data[:-20] + bytes([data[-20] ^ 4]) + data[-19:]
    part.write_bytes({"truncated": data[:50], "foreign": b"theirs", "flipped": flipped}[damage])
    for _ in range(2):
        with pytest.raises(
            InputError,
            match=f"{part.name} is not a readable .* move it away and run the same command",
        ):
            rc.train(RUNS, tmp_path / "out")
    part.rename(tmp_path / "away")
    pd.testing.assert_frame_equal(numbers(rc.train(RUNS, tmp_path / "out")), expected)


@pytest.mark.parametrize(
    ("name", "word"), [("meta/jax", "JAX"), ("meta/code", "code"), ("meta/device", "device")]
)
def test_rows_of_another_version_are_kept_and_told(tmp_path, name, word, capsys):
    rows = rc.train(RUNS[:2])
    Table(tmp_path / "out").append(rows.assign(**{name: "other"}))
    rows = rc.train(RUNS, tmp_path / "out", progress=True)
    assert rows[name].eq("other").tolist() == [True] * 4 + [False] * 4
    told = " ".join(capsys.readouterr().err.split())
    assert f"2 of 2 reused runs were made with another {word} (other; now" in told
    (note,) = status.read(tmp_path / "out")["notes"]
    assert "they are kept as they are; name another --out" in note
    assert re.search(r"other \(2 runs\)", report.page(Table(tmp_path / "out")))


def test_rows_of_this_version_are_reused_without_a_word(tmp_path, capsys):
    rc.train(RUNS[:2], tmp_path / "out")
    rc.train(RUNS, tmp_path / "out", progress=True)
    assert "another" not in capsys.readouterr().err
    assert status.read(tmp_path / "out")["notes"] == []


def test_other_numerics_are_other_runs(tmp_path, monkeypatch):
    rc.train(RUNS[:2], tmp_path / "out")
    monkeypatch.setattr("recombine.sweeps.run.NUMERICS", 999)
    trained = one_at_a_time(monkeypatch, lambda _: None)
    rows = rc.train(RUNS[:2], tmp_path / "out")
    assert len(trained) == 1
    assert set(rows["run"]) == {identity(run) for run in RUNS[:2]}
    assert Table(tmp_path / "out").read()["run"].nunique() == 4, (
        "the older rows stay, as other runs"
    )


def test_a_clock_that_was_set_back_changes_nothing(tmp_path, expected, monkeypatch):
    rc.train(RUNS[:2], tmp_path / "out")

    class Past(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(1999, 12, 31, tzinfo=tz)

    for module in (chunk, status):
        past = types.SimpleNamespace(datetime=Past, UTC=datetime.UTC)
        monkeypatch.setattr(module, "datetime", past)
    rows = rc.train(RUNS, tmp_path / "out")
    assert sorted(rows["meta/date"].unique())[0] == "1999-12-31"
    pd.testing.assert_frame_equal(numbers(rows), expected)
    again = rc.train(RUNS, tmp_path / "out")
    pd.testing.assert_frame_equal(again, rows)


def test_one_chunk_that_fails_does_not_stop_the_others(tmp_path, expected, monkeypatch, capsys):
    train_chunk = scheduler.chunk_rows

    def fails(chunk, *args):
        if chunk.runs[0] == RUNS[1]:
            raise InputError("one run does not fit in the device's memory: lower its widths")
        return train_chunk(chunk, *args)

    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "chunk_rows", fails)
        with pytest.raises(
            InputError, match="1 run failed, the others are trained: one run does not fit"
        ):
            rc.train(RUNS, tmp_path / "out", max_width=1, progress=True)
    assert "1 run failed, the others go on: one run does not fit" in " ".join(
        capsys.readouterr().err.split()
    )
    told = status.read(tmp_path / "out")
    assert (told["state"], told["finished"], told["runs"]) == ("failed", 3, 4)
    assert told["failures"] == [
        {
            "runs": [identity(RUNS[1])],
            "reason": "one run does not fit in the device's memory: lower its widths",
        }
    ]
    trained = one_at_a_time(monkeypatch, lambda _: None)
    pd.testing.assert_frame_equal(numbers(rc.train(RUNS, tmp_path / "out")), expected)
    assert [one.runs for one in trained] == [(RUNS[1],)]
    assert status.read(tmp_path / "out")["state"] == "finished"


def test_the_status_tells_how_it_went(tmp_path):
    rc.train(RUNS[:1], tmp_path / "out")
    told = []
    train = scheduler.Display.update

    def update(self, chunk, progress):
        train(self, chunk, progress)
        self.status.write(now=True)
        told.append(status.read(tmp_path / "out"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler.Display, "update", update)
        rc.train(RUNS, tmp_path / "out", max_width=1)
    assert {one["state"] for one in told} == {"training"}
    assert [one["finished"] for one in told] == sorted(one["finished"] for one in told)
    assert (told[0]["runs"], told[0]["reused"], told[0]["finished"]) == (4, 1, 1)
    assert told[0]["now"] == [
        {"runs": 1, "phase": "compiling", "step": 0, "num_steps": 20, "score": None}
    ]
    assert told[-1]["now"][0]["step"] == 20
    assert told[-1]["rate"] > 0
    assert told[-1]["left"] >= 0
    last = status.read(tmp_path / "out")
    assert (last["state"], last["finished"], last["now"]) == ("finished", 4, [])
    assert not status.alive(tmp_path / "out")


def test_a_stopped_sweep_says_so(tmp_path, monkeypatch):
    def stop(number):
        if number == 2:
            raise KeyboardInterrupt

    one_at_a_time(monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        rc.train(RUNS, tmp_path / "out", max_width=1)
    assert (status.read(tmp_path / "out")["state"], len(Table(tmp_path / "out").finished())) == (
        "stopped",
        2,
    )


def test_parts_are_compacted_as_they_come_and_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr("recombine.training.row_writer.MAX_PARTS", 2)
    seen = []
    one_at_a_time(monkeypatch, lambda _: seen.append(Table(tmp_path / "out").num_parts()))
    runs = rc.sweep(TINY, seed=range(6))
    rows = rc.train(runs, tmp_path / "out", max_width=1)
    assert max(seen) == 2
    assert Table(tmp_path / "out").num_parts() == 1
    assert rows["run"].nunique() == 6


def test_a_report_of_three_thousand_runs_is_small(tmp_path):
    base = rc.train(
        dataclasses.replace(TINY, diagnostics=(rc.LinearDecodability(num_fit=32, num_seen=32),))
    )
    table = Table(tmp_path / "out")
    rows = base.loc[base.index.repeat(3000)].reset_index(drop=True)
    table.append(
        rows.assign(
            run=[f"{n % 3000:016x}" for n in range(len(rows))],
            seed=[n % 3000 for n in range(len(rows))],
        )
    )
    scatter = go.Figure(
        go.Scatter(x=np.arange(6000) / 7, y=np.sqrt(np.arange(6000)), mode="markers")
    )
    table.save_figures({"a": scatter.to_json(), "b": scatter.to_json()})
    page = report.write(table, tmp_path / "page.html")
    assert page.stat().st_size < 10e6


def test_the_driver_shows_its_command_and_experiment_from_the_start(call, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SMALL)
    seen = []
    one_at_a_time(monkeypatch, lambda _: seen.append(Table(tmp_path / "out").meta()))
    assert call("run", "mine.py", "--out", "out", "--json")[0] == 0
    assert seen[0]["experiment"] == "mine"
    assert seen[0]["source"] == str(tmp_path / "mine.py")
    assert seen[0]["command"] == "recombine run mine.py --out out --json"
    assert len(seen[0]["shown"]) == 3


def test_a_folder_that_is_emptied_meanwhile_is_told(tmp_path, monkeypatch):
    one_at_a_time(
        monkeypatch, lambda number: shutil.rmtree(tmp_path / "out") if number == 2 else None
    )
    with pytest.raises(InputError, match=r"2 runs are not in .*run the same command again"):
        rc.train(RUNS, tmp_path / "out", max_width=1)


def test_a_damaged_part_does_not_stop_a_sweep_that_runs(tmp_path, monkeypatch):
    monkeypatch.setattr("recombine.training.row_writer.MAX_PARTS", 2)

    def damage(number):
        if number == 2:
            next((tmp_path / "out" / "rows").iterdir()).write_bytes(b"theirs")

    trained = one_at_a_time(monkeypatch, damage)
    with pytest.raises(InputError, match="not a readable Parquet part"):
        rc.train(rc.sweep(TINY, seed=range(6)), tmp_path / "out", max_width=1)
    assert len(trained) == 6, "all are trained and written; only reading them fails"
    assert Table(tmp_path / "out").num_parts() == 6


def test_a_mirror_that_fails_is_dropped(tmp_path, capsys):
    called = []

    def mirror(rows):
        called.append(len(rows))
        raise ConnectionError("nobody answers")

    rows = rc.train(RUNS, tmp_path / "out", max_width=1, mirror=mirror)
    assert rows["run"].nunique() == 4
    assert called == [2]
    assert "the mirror gets no more rows" in " ".join(capsys.readouterr().err.split())


def test_a_mirror_gets_what_was_finished_before(tmp_path):
    rc.train(RUNS[:1], tmp_path / "out")
    seen = []
    rc.train(RUNS, tmp_path / "out", mirror=lambda rows: seen.extend(rows["run"]))
    assert sorted(set(seen)) == sorted(map(identity, RUNS))
    assert len(seen) == 8


def test_checkpoints_of_finished_runs_go(tmp_path):
    rc.train(RUNS, tmp_path / "out")
    folder = tmp_path / "out" / "checkpoints"
    folder.mkdir()
    (folder / f"{identity(RUNS[0])}-0123.eqx").write_bytes(
        b""
    )  # killed between the writing of rows and this
    rc.train(RUNS, tmp_path / "out")
    assert not folder.exists()


def test_only_the_files_of_the_dead_are_swept_up(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    host, table = socket.gethostname(), Table(tmp_path / "out")
    table.check_writable()
    rows = tmp_path / "out" / "rows"
    dead = rows / f".part-1.parquet.{'a' * 32}.{gone.pid}@{host}.tmp"
    others = [
        rows / f".part-2.parquet.{'b' * 32}.{os.getpid()}@{host}.tmp",
        rows / f".part-3.parquet.{'c' * 32}.{gone.pid}@elsewhere.tmp",
        tmp_path / "out" / ".mine.tmp",
    ]
    for path in (dead, *others):
        path.touch()
    with table.held():
        pass
    assert not dead.exists()
    assert all(path.exists() for path in others)


def test_a_forked_child_does_not_hold_its_parents_folder(tmp_path):
    script = (
        "import os, sys, time\nfrom recombine.storage.table import Table\n"
        "with Table(sys.argv[1]).held():\n"
        "    if os.fork() == 0: time.sleep(60)\n"
        "    sys.stdout.write('held\\n'); sys.stdout.flush(); time.sleep(60)\n"
    )
    Table(tmp_path / "out").check_writable()
    command = [sys.executable, "-c", script, str(tmp_path / "out")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout.readline() == "held\n"
        parent.kill()
        parent.wait()
        until = (
            time.monotonic() + 20
        )  # the child sleeps for 60 s: long after this it would still hold
        while holder(tmp_path / "out") is not None and time.monotonic() < until:
            time.sleep(0.05)
        assert holder(tmp_path / "out") is None
        os.killpg(parent.pid, signal.SIGKILL)


def test_a_resumed_chunk_is_no_measure_of_the_pace(tmp_path):
    display = scheduler.Display(1, 0, {"a": 100.0}, shown=False)
    display.update("a", trainer.Progress("compiling", 0, 1000, 1, None, 0.0))
    display.update("a", trainer.Progress("resuming", 900, 1000, 1, None, 0.9))
    assert display.total == pytest.approx(10)
    display.update("a", trainer.Progress("training", 950, 1000, 1, None, 0.95))
    assert sum(display.done.values()) == pytest.approx(5)
    assert sum(display.steps.values()) + sum(display.trained.values()) == 50
