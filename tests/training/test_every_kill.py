"""A small sweep is killed at each of its file operations once, and resumed.

The kill is simulated in this process: from one operation on, every operation on the disk fails with
an exception that no code catches. So the disk stays as a SIGKILL at this moment would leave it.
"""

import contextlib
import dataclasses
import itertools
import os
from pathlib import Path

import pandas as pd
import pytest

import recombine as rc
from recombine.basics import atomic_io
from recombine.storage.table import Table
from recombine.training import checkpoint, program, row_writer
from recombine.training.verification import verify
from tests.tiny import TINY

RUNS = rc.sweep(dataclasses.replace(TINY, num_steps=20, num_evals=2), seed=range(3))
PATH_OPERATIONS = ("open", "write_text", "replace", "unlink", "mkdir", "rmdir", "touch")
OS_OPERATIONS = ("open", "fsync", "ftruncate", "pwrite")


class Killed(BaseException):
    """Like a signal: no code catches it."""


class Disk:
    """Counts the operations on the disk. From number `last` on, all of them fail."""

    def __init__(self, patch: pytest.MonkeyPatch, last: float):
        self.last = last
        self.names: list[str] = []
        self.locks: list[int] = []
        for owner, names in ((Path, PATH_OPERATIONS), (os, OS_OPERATIONS)):
            for name in names:
                patch.setattr(owner, name, self.counted(name, getattr(owner, name)))

    def counted(self, name, function):
        def operation(*args, **kwargs):
            reads = name == "open" and "rb" in args
            is_ours = "out" in str(args[0]) or isinstance(args[0], int)
            if is_ours and not reads:
                self.names.append(name)
                if len(self.names) >= self.last:
                    raise Killed
            result = function(*args, **kwargs)
            if str(args[0]).endswith(".lock") and isinstance(result, int):
                self.locks.append(result)
            return result

        return operation


@pytest.fixture(autouse=True)
def many_operations(monkeypatch):
    """A checkpoint after every stride, and compaction after every second chunk."""
    monkeypatch.setenv("RECOMBINE_CHECKPOINT", "0")
    monkeypatch.setattr(checkpoint, "MAX_TIME_FRACTION", float("inf"))
    monkeypatch.setattr(program, "MAX_STEPS_PER_STRIDE", 10)
    monkeypatch.setattr(row_writer, "MAX_PARTS", 1)
    program.compile_program.cache_clear()
    yield
    program.compile_program.cache_clear()


def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[[name for name in rows if not name.startswith("meta/")]]


def train_until(out: Path, last: float) -> Disk:
    """Train until the disk fails. The lock ends with the process, so it is released here."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, last)
        with contextlib.suppress(Killed):
            rc.train(RUNS, out, max_width=1)
    for lock in disk.locks:
        with contextlib.suppress(OSError):  # it was released in order
            os.close(lock)
    atomic_io._open_locks.clear()
    return disk


def test_a_kill_at_every_file_operation_loses_repeats_and_changes_nothing(
    tmp_path, monkeypatch, capsys
):
    expected = numbers(rc.train(RUNS, max_width=1))
    names = train_until(tmp_path / "out-whole", float("inf")).names
    assert {"replace", "unlink", "mkdir", "fsync", "pwrite"} <= set(names)
    assert len(names) > 50
    # A process that was killed does not run any more; this one plays both.
    monkeypatch.setattr(atomic_io, "_is_running", lambda pid: False)
    num_with_rows = num_with_checkpoint = 0
    for last in itertools.count(1):
        out = tmp_path / f"out-{last}"
        disk = train_until(out, last)
        if len(disk.names) < last:
            break
        num_with_rows += any(out.glob("rows/part-*"))
        num_with_checkpoint += any(out.glob("checkpoints/*.eqx"))
        rows = rc.train(RUNS, out, max_width=1)
        pd.testing.assert_frame_equal(numbers(rows), expected)
        assert verify(out).problems == []
        raw = pd.concat(pd.read_parquet(part) for part in Table(out).parts())
        assert not raw.duplicated(["run", "step"]).any(), f"killed at operation {last}"
        left = [path for path in out.rglob("*") if path.name.endswith(".tmp")]
        assert not left, f"killed at operation {last}: {left}"
        assert not (out / "checkpoints").exists()
    assert num_with_rows > 10
    assert num_with_checkpoint > 10
    with capsys.disabled():
        counts = f"{last - 1} file operations, each killed once: {num_with_rows} kills with rows"
        os.write(1, f"\n{counts}, {num_with_checkpoint} with a checkpoint; 0 lost\n".encode())
