"""Failures of a sweep: kills, full disks, damaged files, other versions.

No finished run is lost, no stale rows are mixed in silently, and every failure has a clear message.
"""

import contextlib
import dataclasses
import datetime
import errno
import fcntl
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
from recombine.basics.atomic_io import lock_owner
from recombine.basics.errors import InputError
from recombine.reporting import page as report
from recombine.storage import status
from recombine.storage.table import Table
from recombine.sweeps.run import identity
from recombine.training import checkpoint, chunk, scheduler, trainer
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
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)  # an error may still hold a file open


def fill(disk: Path) -> Path:
    """Fill the disk with a file."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return ballast


def test_kills_at_random_times_lose_repeat_and_change_nothing(tmp_path):
    sweep = kills.SWEEP.format(num_steps=500, num_seeds=2)
    counts = kills.survive(tmp_path, 4, sweep, delay=3, log=lambda _: None)
    assert counts["kills"] == counts["random"] + counts["writing"] == 4
    assert counts["with_rows"] + counts["resumed"] > 0, (
        "some kills came while rows or checkpoints existed"
    )
    assert counts["rows_expected"] == counts["sweeps"] * 24
    for name in ("rows_lost", "rows_strange", "rows_repeated", "sweeps_changed", "files_left"):
        assert counts[name] == 0, name


def test_a_second_writer_is_refused_and_the_message_names_the_first(tmp_path, expected):
    (tmp_path / "long.py").write_text(kills.SWEEP.format(num_steps=200_000, num_seeds=1))
    first = kills._start(tmp_path / "long.py", tmp_path / "out")
    try:
        while lock_owner(tmp_path / "out") is None:
            assert first.poll() is None
        with pytest.raises(
            InputError, match=f"another process is writing to .*process {first.pid} on"
        ):
            rc.train(RUNS, tmp_path / "out")
        assert status.is_active(tmp_path / "out")
    finally:
        first.kill()
        first.wait()
    pd.testing.assert_frame_equal(numbers(rc.train(RUNS, tmp_path / "out")), expected)


def test_rows_written_twice_count_once(tmp_path, expected):
    rc.train(RUNS[:2], tmp_path / "out")
    other = rc.train(RUNS, tmp_path / "other")
    # As if two machines without a common lock had written here.
    Table(tmp_path / "out").append(other)
    rows = Table(tmp_path / "out").read()
    assert rows.groupby(["run", "step"]).size().max() == 1
    pd.testing.assert_frame_equal(numbers(rc.train(RUNS, tmp_path / "out")), expected)


def call_before_each_chunk(monkeypatch, callback):
    """Call `callback(number)` before each chunk is trained. Returns the list of trained chunks."""
    chunk_rows = scheduler.chunk_rows
    trained = []

    def logged_chunk_rows(*args):
        callback(len(trained))
        trained.append(args[0])
        return chunk_rows(*args)

    monkeypatch.setattr(scheduler, "chunk_rows", logged_chunk_rows)
    return trained


def test_on_a_full_disk_rows_wait_until_there_is_space(small_disk, expected, monkeypatch, capsys):
    ballast = []

    def fill_for_two_chunks(number):
        if number == 1:
            ballast.append(fill(small_disk))
        if number == 3:
            ballast[0].unlink()

    call_before_each_chunk(monkeypatch, fill_for_two_chunks)
    rows = rc.train(RUNS, small_disk / "out", max_width=1, progress=True)
    pd.testing.assert_frame_equal(numbers(rows), expected)
    printed = " ".join(capsys.readouterr().err.split())
    assert "(No space left on device): 1 runs wait in memory; free some space" in printed
    assert "2 runs wait in memory" in printed
    assert "3 runs wait" not in printed
    assert len(status.read(small_disk / "out")["notes"]) == 2


def test_rows_that_do_not_fit_on_the_disk_are_saved_elsewhere(small_disk, expected, monkeypatch):
    call_before_each_chunk(monkeypatch, lambda number: fill(small_disk) if number == 1 else None)
    with pytest.raises(InputError) as caught:
        rc.train(RUNS, small_disk / "out", max_width=1)
    message = str(caught.value)
    assert "No space left on device" in message
    assert "the rows of the last 3 runs are in" in message
    assert "\n" not in message
    saved = Path(message.split(" are in ")[1].split(";")[0])
    (small_disk / "ballast").unlink()
    (small_disk / "out" / "rows" / saved.name).write_bytes(saved.read_bytes())
    monkeypatch.setattr(scheduler, "chunk_rows", lambda *_: pytest.fail("nothing is left to train"))
    pd.testing.assert_frame_equal(numbers(rc.train(RUNS, small_disk / "out")), expected)


@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_on_a_full_disk_checkpoints_are_dropped_before_rows_wait(
    tmp_path, expected, monkeypatch, has_checkpoints, capsys
):
    folder = tmp_path / "out" / "checkpoints"
    append = Table.append
    num_refused = []

    def append_if_there_is_room(self, rows):
        if any(folder.glob("*.eqx")) or (not has_checkpoints and not num_refused):
            num_refused.append(len(rows))
            raise OSError(errno.ENOSPC, "No space left on device")
        return append(self, rows)

    def save_a_checkpoint(number):
        if has_checkpoints and number == 1:
            folder.mkdir()
            (folder / f"{identity(RUNS[3])}-0.eqx").write_bytes(bytes(1000))

    monkeypatch.setattr(Table, "append", append_if_there_is_room)
    call_before_each_chunk(monkeypatch, save_a_checkpoint)
    rows = rc.train(RUNS, tmp_path / "out", max_width=1)
    pd.testing.assert_frame_equal(numbers(rows), expected)
    printed = " ".join(capsys.readouterr().err.split())
    assert num_refused == [2]
    assert ("checkpoints were dropped to make room for rows" in printed) == has_checkpoints
    assert ("runs wait in memory" in printed) == (not has_checkpoints)


def test_a_disk_that_is_full_from_the_beginning_is_an_error(small_disk):
    (small_disk / "out" / "rows").mkdir(parents=True)
    fill(small_disk)
    with pytest.raises(InputError, match=r"cannot write results to .*No space left on device"):
        rc.train(RUNS, small_disk / "out")


def test_a_read_only_folder_can_be_read(small_disk, call, monkeypatch):
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
def test_a_note_says_that_reused_rows_are_of_another_version(tmp_path, name, word, capsys):
    rows = rc.train(RUNS[:2])
    Table(tmp_path / "out").append(rows.assign(**{name: "other"}))
    rows = rc.train(RUNS, tmp_path / "out", progress=True)
    assert rows[name].eq("other").tolist() == [True] * 4 + [False] * 4
    printed = " ".join(capsys.readouterr().err.split())
    assert f"2 of 2 reused runs were trained with another {word} (other; now" in printed
    (note,) = status.read(tmp_path / "out")["notes"]
    assert "they are kept as they are. To train them again, choose another --out" in note
    assert re.search(r"other \(2 runs\)", report.page(Table(tmp_path / "out")))


def test_rows_of_this_version_are_reused_without_a_note(tmp_path, capsys):
    rc.train(RUNS[:2], tmp_path / "out")
    rc.train(RUNS, tmp_path / "out", progress=True)
    assert "another" not in capsys.readouterr().err
    assert status.read(tmp_path / "out")["notes"] == []


def test_other_numerics_are_other_runs(tmp_path, monkeypatch):
    rc.train(RUNS[:2], tmp_path / "out")
    monkeypatch.setattr("recombine.sweeps.run.NUMERICS", 999)
    trained = call_before_each_chunk(monkeypatch, lambda _: None)
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
    chunk_rows = scheduler.chunk_rows

    def fail_second(chunk, *args):
        if chunk.runs[0] == RUNS[1]:
            raise InputError("one run does not fit in the device's memory: lower its widths")
        return chunk_rows(chunk, *args)

    with monkeypatch.context() as patch:
        patch.setattr(scheduler, "chunk_rows", fail_second)
        with pytest.raises(
            InputError, match="1 run failed, the others are trained: one run does not fit"
        ):
            rc.train(RUNS, tmp_path / "out", max_width=1, progress=True)
    assert "1 run failed, the others continue: one run does not fit" in " ".join(
        capsys.readouterr().err.split()
    )
    failed = status.read(tmp_path / "out")
    assert (failed["state"], failed["finished"], failed["runs"]) == ("failed", 3, 4)
    assert failed["failures"] == [
        {
            "runs": [identity(RUNS[1])],
            "reason": "one run does not fit in the device's memory: lower its widths",
        }
    ]
    trained = call_before_each_chunk(monkeypatch, lambda _: None)
    pd.testing.assert_frame_equal(numbers(rc.train(RUNS, tmp_path / "out")), expected)
    assert [chunk.runs for chunk in trained] == [(RUNS[1],)]
    assert status.read(tmp_path / "out")["state"] == "finished"


def test_the_status_file_follows_the_sweep(tmp_path):
    rc.train(RUNS[:1], tmp_path / "out")
    states = []
    update = scheduler.Display.update

    def logged_update(self, chunk, progress):
        update(self, chunk, progress)
        self.status.write(immediately=True)
        states.append(status.read(tmp_path / "out"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler.Display, "update", logged_update)
        rc.train(RUNS, tmp_path / "out", max_width=1)
    assert {state["state"] for state in states} == {"training"}
    num_finished = [state["finished"] for state in states]
    assert num_finished == sorted(num_finished)
    assert (states[0]["runs"], states[0]["reused"], states[0]["finished"]) == (4, 1, 1)
    assert states[0]["now"] == [
        {"runs": 1, "phase": "compiling", "step": 0, "num_steps": 20, "score": None}
    ]
    assert states[-1]["now"][0]["step"] == 20
    assert states[-1]["rate"] > 0
    assert states[-1]["left"] >= 0
    last = status.read(tmp_path / "out")
    assert (last["state"], last["finished"], last["now"]) == ("finished", 4, [])
    assert not status.is_active(tmp_path / "out")


def test_the_status_of_an_interrupted_sweep_is_stopped(tmp_path, monkeypatch):
    def stop(number):
        if number == 2:
            raise KeyboardInterrupt

    call_before_each_chunk(monkeypatch, stop)
    with pytest.raises(KeyboardInterrupt):
        rc.train(RUNS, tmp_path / "out", max_width=1)
    assert status.read(tmp_path / "out")["state"] == "stopped"
    assert len(Table(tmp_path / "out").finished()) == 2


def test_parts_are_merged_during_a_sweep_and_at_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("recombine.training.row_writer.MAX_PARTS", 2)
    num_parts = []
    call_before_each_chunk(
        monkeypatch, lambda _: num_parts.append(Table(tmp_path / "out").num_parts())
    )
    runs = rc.sweep(TINY, seed=range(6))
    rows = rc.train(runs, tmp_path / "out", max_width=1)
    assert max(num_parts) == 2
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


def test_the_command_and_the_experiment_are_stored_before_training(call, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SMALL)
    notes = []
    call_before_each_chunk(monkeypatch, lambda _: notes.append(Table(tmp_path / "out").meta()))
    assert call("run", "mine.py", "--out", "out", "--json")[0] == 0
    assert notes[0]["experiment"] == "mine"
    assert notes[0]["source"] == str(tmp_path / "mine.py")
    assert notes[0]["command"] == "recombine run mine.py --out out --json"
    assert len(notes[0]["shown"]) == 3


def test_a_folder_that_is_deleted_during_training_is_an_error(tmp_path, monkeypatch):
    call_before_each_chunk(
        monkeypatch, lambda number: shutil.rmtree(tmp_path / "out") if number == 2 else None
    )
    with pytest.raises(
        InputError, match=r"rows of 2 runs are missing in .*run the same command again"
    ):
        rc.train(RUNS, tmp_path / "out", max_width=1)


def test_a_part_that_is_damaged_during_training_does_not_stop_it(tmp_path, monkeypatch):
    monkeypatch.setattr("recombine.training.row_writer.MAX_PARTS", 2)

    def damage(number):
        if number == 2:
            next((tmp_path / "out" / "rows").iterdir()).write_bytes(b"theirs")

    trained = call_before_each_chunk(monkeypatch, damage)
    with pytest.raises(InputError, match="not a readable Parquet file"):
        rc.train(rc.sweep(TINY, seed=range(6)), tmp_path / "out", max_width=1)
    assert len(trained) == 6, "all are trained and written, only reading fails"
    assert Table(tmp_path / "out").num_parts() == 6


def test_a_mirror_that_fails_is_not_called_again(tmp_path, capsys):
    num_rows = []

    def mirror(rows):
        num_rows.append(len(rows))
        raise ConnectionError("nobody answers")

    rows = rc.train(RUNS, tmp_path / "out", max_width=1, mirror=mirror)
    assert rows["run"].nunique() == 4
    assert num_rows == [2]
    assert "no more rows are sent to the mirror" in " ".join(capsys.readouterr().err.split())


def test_a_mirror_also_gets_reused_rows(tmp_path):
    rc.train(RUNS[:1], tmp_path / "out")
    mirrored = []
    rc.train(RUNS, tmp_path / "out", mirror=lambda rows: mirrored.extend(rows["run"]))
    assert sorted(set(mirrored)) == sorted(map(identity, RUNS))
    assert len(mirrored) == 8


def test_checkpoints_of_finished_runs_are_removed(tmp_path):
    rc.train(RUNS, tmp_path / "out")
    folder = tmp_path / "out" / "checkpoints"
    folder.mkdir()
    # As if the process was killed after it wrote the rows.
    (folder / f"{identity(RUNS[0])}-0123.eqx").write_bytes(b"")
    rc.train(RUNS, tmp_path / "out")
    assert not folder.exists()


def test_sigterm_saves_a_checkpoint_and_the_sweep_continues_from_it(tmp_path):
    sweep = kills.SWEEP.format(num_steps=20_000, num_seeds=1)
    (tmp_path / "long.py").write_text(sweep)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "recombine", "run", str(tmp_path / "long.py"), "--json"]
    process = subprocess.Popen(
        [*command, "--out", str(out)],
        env=os.environ | {"RECOMBINE_CHECKPOINT": "1000"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not kills._is_training(process, out):
        assert process.poll() is None
        time.sleep(0.02)
    assert not (out / "checkpoints").exists(), "none is due for a long time"
    process.terminate()
    _, error = process.communicate(timeout=120)
    assert process.returncode == 143
    assert len(error.strip().splitlines()) == 1
    assert "run the same command to continue" in error
    (file,) = (out / "checkpoints").iterdir()
    assert checkpoint.problem_of(file) is None
    assert status.read(out)["state"] == "stopped"


@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_a_second_ctrl_c_ends_the_sweep_with_one_line(tmp_path, delay):
    (tmp_path / "long.py").write_text(kills.SWEEP.format(num_steps=200_000, num_seeds=1))
    out = tmp_path / "out"
    # A process in the background ignores Ctrl-C unless it asks for it.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from recombine.__main__ import command; command()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "run", str(tmp_path / "long.py"), "--json", "--out", str(out)],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    while not kills._is_training(process, out):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    (line,) = error.strip().splitlines()
    assert line.startswith("recombine: stopped;")
    assert line.endswith("run the same command to continue")


def test_a_failing_watch_function_is_one_line():
    def watch(chunk, progress):
        raise KeyError("two\nlines")

    with pytest.raises(InputError, match="the function passed as watch failed") as caught:
        rc.fit(RUNS[0], watch=watch)
    assert "\n" not in str(caught.value)


def test_a_link_in_place_of_a_lock_is_not_followed(tmp_path):
    mine = tmp_path / "mine"
    mine.write_text("precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").symlink_to(mine)
    assert lock_owner(tmp_path / "out") is None
    with pytest.raises(InputError, match="cannot write to"):
        rc.train(RUNS[:1], tmp_path / "out")
    assert mine.read_text() == "precious"


@pytest.mark.parametrize("content", ["[1]", "3", "{", "[" * 1000, "\xff", ""])
def test_a_held_lock_with_damaged_content_is_one_line(tmp_path, content):
    (tmp_path / "out").mkdir()
    lock = tmp_path / "out" / ".lock"
    lock.write_text(content, encoding="latin-1")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another open file: as if another process held it
        assert lock_owner(tmp_path / "out") == {}
        with pytest.raises(InputError, match="another process is writing to") as caught:
            rc.train(RUNS[:1], tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_a_link_in_place_of_a_failure_note_is_not_followed(call, tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    (tmp_path / "bad.py").write_text(
        "def cells(scale):\n    return [{'n': 1}]\n\ndef measure(n):\n    return 1 / 0\n"
    )
    (tmp_path / "out" / "rows").mkdir(parents=True)
    (tmp_path / "out" / "failure.txt").symlink_to(tmp_path / "mine.txt")
    assert call("run", "bad.py", "--out", "out")[0] == 2
    assert (tmp_path / "mine.txt").read_text() == "precious"
    assert "ZeroDivisionError" in (tmp_path / "out" / "failure.txt").read_text()


def test_only_temporary_files_of_ended_processes_are_removed(tmp_path):
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


def test_a_forked_child_does_not_hold_the_folder_of_its_parent(tmp_path):
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
        )  # the child sleeps for 60 s, so it would still hold the folder
        while lock_owner(tmp_path / "out") is not None and time.monotonic() < until:
            time.sleep(0.05)
        assert lock_owner(tmp_path / "out") is None
        os.killpg(parent.pid, signal.SIGKILL)


def test_steps_of_an_earlier_process_do_not_count_as_progress(tmp_path):
    display = scheduler.Display(1, 0, {"a": 100.0}, show_progress=False)
    display.update("a", trainer.Progress("compiling", 0, 1000, 1, None, 0.0))
    display.update("a", trainer.Progress("resuming", 900, 1000, 1, None, 0.9))
    assert display.total == pytest.approx(10)
    display.update("a", trainer.Progress("training", 950, 1000, 1, None, 0.95))
    assert sum(display.done.values()) == pytest.approx(5)
    assert display.steps_trained_here() == 50
