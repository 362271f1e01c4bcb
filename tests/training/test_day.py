"""Failures of a sweep on worker processes: every run has its rows, and only a deadly run fails."""

import dataclasses

import pandas as pd
import pytest

import recombine as rc
from benchmarks import day
from recombine.basics import user_files
from recombine.basics.errors import InputError
from recombine.storage.table import Table
from recombine.training.executors import open_executor
from tests.tiny import TINY


def test_a_small_day_loses_repeats_and_changes_nothing(tmp_path):
    """30 runs; a worker is killed at least once, the driver once, and the disk is full once."""
    counts = day.compare_with_quiet(
        tmp_path,
        30,
        1000,
        worker_seconds=1,
        driver_kills=1,
        full_seconds=0.5,
        log=lambda _: None,
    )
    assert counts["worker_kills"] >= 1
    assert counts["driver_kills"] == 1
    assert counts["rows_expected"] == 60
    for name in ("rows_lost", "rows_strange", "rows_repeated", "sweeps_changed", "files_left"):
        assert counts[name] == 0, name


DEADLY = '''
import dataclasses
import multiprocessing
import os

import recombine as rc


@dataclasses.dataclass(frozen=True)
class Deadly:
    """Like Identity, but it kills each worker process that begins to train with it."""

    is_deadly: bool = False

    def num_tokens(self, family):
        return 0

    def init(self, key, family):
        if self.is_deadly and multiprocessing.parent_process() is not None:
            os._exit(9)
        return rc.Identity().init(key, family)

    def encode(self, params, key, task, examples):
        return task
'''


def test_one_deadly_chunk_of_twelve_fails_alone(tmp_path):
    (tmp_path / "deadly.py").write_text(DEADLY)
    deadly = user_files.load(tmp_path / "deadly.py").Deadly
    base = dataclasses.replace(TINY, encoding=deadly())
    runs = rc.sweep(base, seed=range(12))
    runs[5] = dataclasses.replace(runs[5], encoding=deadly(is_deadly=True))
    with (
        open_executor("processes:2") as executor,
        pytest.raises(InputError, match="1 run failed, the others are trained: its process died 3"),
    ):
        rc.train(runs, tmp_path / "out", executor=executor, max_width=1)
    rows = Table(tmp_path / "out").read()
    assert isinstance(rows, pd.DataFrame)
    assert rows["run"].nunique() == 11
