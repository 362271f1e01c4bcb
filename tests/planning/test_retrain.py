"""Training what tables lack within a time: nothing finished is lost, and a resumed sweep equals an
uninterrupted one.
"""

import pandas as pd
import pytest

import recombine as rc
from benchmarks import retrain
from recombine.basics.errors import InputError
from recombine.experiments import catalogue
from recombine.storage.table import Table
from recombine.sweeps.run import identity

# Three chunks of two runs each, and two chunks with three runs, all of one program.
FIRST = """
import recombine as rc
from tests.tiny import TINY

def runs(scale):
    return rc.sweep(TINY, seed=range(6))
"""
SECOND = """
import recombine as rc
from tests.tiny import TINY

def runs(scale):
    return rc.sweep(TINY, seed=range(10, 13))
"""
WIDTH = 2  # runs in a chunk


class NumChunks(retrain.TimeLimit):
    """Time for a number of chunks; `action` is called when it is over."""

    def __init__(self, number, action=lambda: None):
        super().__init__(1e6)
        self.number = number
        self.action = action

    def allows(self, expected):
        assert expected > 0
        self.number -= 1
        if self.number < 0:
            self.action()
        return self.number >= 0


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setattr(retrain, "default_max_width", lambda: WIDTH)
    for name, text in (("first", FIRST), ("second", SECOND)):
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "results").mkdir()
    return tmp_path


def listed(folders):
    files = [str(folders / f"{name}.py") for name in ("first", "second")]
    return retrain.sweeps(files, folders / "results")


def missing(folders):
    return {sweep.name: len(sweep.missing) for sweep in listed(folders)}


def committed(folders, name):
    return Table(folders / "results" / f"{name}.parquet")


def results_of(rows):
    """The rows without the columns that depend on the day and the machine."""
    columns = sorted(column for column in rows if not column.startswith("meta/"))
    return rows.sort_values(["run", "step"])[columns].reset_index(drop=True)


def test_a_sweep_that_stops_keeps_its_rows_and_continues_from_merged_tables(folders):
    one, two = folders / "one", folders / "two"
    retrain.train(listed(folders), NumChunks(2), one)
    assert [path.name for path in one.iterdir()] == ["first.parquet"], "no other file is left"
    assert len(Table(one / "first.parquet").finished()) == 4
    lines = retrain.merge(listed(folders), one)
    assert lines == ["first: 4 runs added, 2 still missing; the table shows the finished runs"]
    assert missing(folders) == {"first": 2, "second": 3}
    retrain.train(listed(folders), NumChunks(9), two)
    assert [path.name for path in sorted(two.iterdir())] == ["first.parquet", "second.parquet"]
    retrain.merge(listed(folders), two)
    assert missing(folders) == {"first": 0, "second": 0}
    sweep = listed(folders)[0]
    table = committed(folders, "first")
    assert set(table.meta()["shown"]) == set(sweep.names)
    whole = rc.train(sweep.runs, max_width=WIDTH, progress=False)
    pd.testing.assert_frame_equal(results_of(table.read()), results_of(whole))
    assert len(table.read()) == len(whole), "no row is there twice"


def test_the_same_folder_continues(folders):
    out = folders / "out"
    retrain.train(listed(folders), NumChunks(1), out)
    retrain.train(listed(folders), NumChunks(1), out)
    assert len(Table(out / "first.parquet").finished()) == 4
    before = (out / "first.parquet").read_bytes()
    retrain.train(listed(folders), NumChunks(0), out)
    assert (out / "first.parquet").read_bytes() == before, "nothing is trained without time"
    assert not (out / "second.parquet").exists()


def test_a_sweep_is_trained_in_parts_that_fit_into_the_time(folders, monkeypatch):
    calls = []

    def counted_complete(runs, *arguments, **options):
        calls.append(len(runs))
        return complete(runs, *arguments, **options)

    complete = retrain.complete
    monkeypatch.setattr(retrain, "complete", counted_complete)
    monkeypatch.setattr(retrain, "MIN_RATE", 1.0)
    text = FIRST.replace("seed=range(6)", "model__widths=[(8, 8), (9, 9)], seed=range(3)")
    (folders / "first.py").write_text(text)
    sweep = listed(folders)[0]
    limit = retrain.TimeLimit(1e6, clock=lambda: 0.0)
    training = retrain.TimedTraining(sweep, limit, folders / "out", folders)
    assert len(training.waiting) == 4
    limit.seconds = training.expected[training.waiting[0]]
    training.run()
    assert calls[0] == 3, "the other program does not fit into the time"
    assert limit.measured > 0
    limit.seconds = 1e6
    training.run()
    rows = Table(folders / "out" / "first.parquet").read()
    whole = rc.train(sweep.runs, max_width=WIDTH, progress=False)
    pd.testing.assert_frame_equal(results_of(rows), results_of(whole))
    assert set(rows["meta/width"]) == set(whole["meta/width"])


def test_ctrl_c_keeps_finished_rows(folders):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retrain.train(listed(folders), NumChunks(1, interrupt), folders / "out")
    assert len(Table(folders / "out" / "first.parquet").finished()) == 2


def test_earlier_rows_are_shown_until_all_new_ones_are_there(folders):
    earlier = rc.sweep(listed(folders)[0].runs[0], seed=range(90, 92))
    table = committed(folders, "first")
    about = {
        "scale": "small",
        "shown": list(map(identity, earlier)),
        "command": "recombine run --seeds 9",
    }
    rc.train(earlier, table.path, max_width=1, about=about, progress=False)
    retrain.train(listed(folders)[:1], NumChunks(2), folders / "one")
    lines = retrain.merge(listed(folders), folders / "one")
    assert lines == ["first: 4 runs added, 2 still missing"]
    assert table.meta()["shown"] == about["shown"]
    assert table.meta()["command"] == about["command"]
    assert table.meta()["max_width"] == WIDTH, "that of the new sweep"
    retrain.train(listed(folders)[:1], NumChunks(1), folders / "two")
    (line,) = retrain.merge(listed(folders), folders / "two")
    assert line == "first: 2 runs added, 0 still missing; the table shows all runs"
    assert set(table.meta()["shown"]) == set(listed(folders)[0].names)
    assert table.meta()["command"] != about["command"]
    assert set(map(identity, earlier)) < table.finished(), "the earlier rows stay"
    assert retrain.merge(listed(folders), folders / "two") == [
        "first: 0 runs added, 0 still missing"
    ], "merging again changes nothing"


def test_rows_that_no_experiment_lists_are_not_merged(folders):
    out = folders / "out"
    other = rc.sweep(listed(folders)[0].runs[0], seed=range(90, 92))
    rc.train(other, out / "first.parquet", max_width=WIDTH, progress=False)
    assert retrain.merge(listed(folders), out) == ["first: 0 runs added, 6 still missing"]
    assert not committed(folders, "first").finished()
    (out / "first.parquet").rename(out / "unknown.parquet")
    with pytest.raises(InputError, match=r"no experiment is named as unknown\.parquet"):
        retrain.merge(listed(folders), out)


def test_a_damaged_table_is_refused(folders):
    out = folders / "out"
    retrain.train(listed(folders), NumChunks(1), out)
    data = bytearray((out / "first.parquet").read_bytes())
    data[len(data) // 2] ^= 1
    (out / "first.parquet").write_bytes(data)
    with pytest.raises(InputError, match="not a readable Parquet file"):
        retrain.merge(listed(folders), out)
    assert not committed(folders, "first").finished()


def test_a_failing_experiment_does_not_stop_the_next(folders, capsys):
    broken = """
class Broken(rc.Identity):
    def encode(self, params, key, task, examples):
        raise ValueError("no code today")

def _broken(run):
    import dataclasses
    return dataclasses.replace(run, encoding=Broken())
"""
    text = FIRST.replace("sweep(TINY", "sweep(_broken(TINY)")
    text = text.replace("\ndef runs", f"{broken}\ndef runs")
    (folders / "first.py").write_text(text)
    retrain.train(listed(folders), NumChunks(9), folders / "out")
    assert len(Table(folders / "out" / "second.parquet").finished()) == 3
    assert "first failed" in capsys.readouterr().err


def test_training_does_not_go_on_without_a_time_limit(folders, capsys):
    def fail():
        raise ValueError("no clock today")

    retrain.train(listed(folders)[:1], NumChunks(1, fail), folders / "out")
    assert len(Table(folders / "out" / "first.parquet").finished()) == 2
    assert "training stops here, finished rows are saved: no clock" in capsys.readouterr().err


def test_a_folder_has_few_files(folders, monkeypatch, capsys):
    monkeypatch.setattr(retrain, "MAX_FILES", 1)
    retrain.train(listed(folders), NumChunks(9), folders / "out")
    assert [path.name for path in (folders / "out").iterdir()] == ["first.parquet"]
    assert "second is left for the next call" in capsys.readouterr().err


def test_a_chunk_is_started_if_its_corrected_time_is_left():
    now = [0.0]
    limit = retrain.TimeLimit(100, clock=lambda: now[0])
    assert limit.allows(100)
    assert not limit.allows(101)
    now[0] = 40
    limit.add(10, 20)  # chunks take twice the expected time
    assert limit.allows(30)
    assert not limit.allows(31)
    limit.add(90, 0)  # five times faster than expected, but a fast start is no promise
    assert limit.allows(120)
    assert not limit.allows(121)


def test_the_command_lists_trains_and_merges(folders, capsys):
    first, second = (str(folders / f"{name}.py") for name in ("first", "second"))
    common = [first, second, "--results", str(folders / "results"), "--device", "NVIDIA H200"]
    retrain.main(common)
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in out[1:3]] == [
        ["first", "full", "6", "6"],
        ["second", "full", "3", "3"],
    ]
    retrain.main([*common, "--train", "0", "--out", str(folders / "out")])
    assert not list((folders / "out").iterdir()), "there was no time for any chunk"
    retrain.main([*common, "--train", "1000", "--out", str(folders / "out")])
    capsys.readouterr()
    retrain.main([*common, "--merge", str(folders / "out")])
    assert "second: 3 runs added, 0 still missing" in capsys.readouterr().out
    assert set(missing(folders).values()) == {0}
    retrain.main(common)
    assert len(capsys.readouterr().out.splitlines()) == 2, "nothing is missing any more"
    with pytest.raises(SystemExit):
        retrain.main([*common, "--train", "5"])


def test_the_order_names_experiments():
    assert set(retrain.ORDER) <= set(catalogue.experiment_names())
    assert len(set(retrain.ORDER)) == len(retrain.ORDER)
    names = ["scaling_law", "information_loss", "data_slice"]
    sweeps = retrain.sweeps(names, retrain.results_folder())
    assert [sweep.name for sweep in sweeps] == ["information_loss", "scaling_law", "data_slice"]
