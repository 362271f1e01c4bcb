"""Trackers get the numbers of the rows under the run's hash, offline, and never stop the sweep."""

import json
import math
import os
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.storage import trackers
from tests.tiny import TINY

CONSTANT_COLUMNS = ("support/", "meta/")


class StoredRun(NamedTuple):
    """A run as it was read back from a tracker."""

    name: str
    config: dict
    scores: dict


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Rows of two real runs, the second with numbers that are not finite."""
    rows = rc.train(rc.sweep(TINY, support=[rc.Random(), rc.Popular()]))
    rows.loc[2, "test/r2"] = np.nan
    rows.loc[3, "test/r2"] = np.inf
    rows.loc[3, "test/loss"] = -np.inf
    return rows.sample(frac=1, random_state=0)  # the order of the rows must not matter


@pytest.fixture(autouse=True)
def logged_out(tmp_path):
    """The settings and logins of the user who runs the tests are hidden."""
    settings = ("WANDB_", "MLFLOW_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(settings)}
    environment["WANDB_CONFIG_DIR"] = str(tmp_path / "wandb-config")
    environment["NETRC"] = str(tmp_path / "netrc")
    with mock.patch.dict(os.environ, environment, clear=True):
        yield


def installed(name: str):
    module = pytest.importorskip(
        name, reason=f'THE TRACKER {name} IS NOT TESTED: pip install "recombine[{name}]"'
    )
    if name == "wandb":
        module.teardown()  # it reads the environment once
    return module


def expected(rows: pd.DataFrame) -> dict[str, StoredRun]:
    runs = {}
    for run, rows_of_run in rows.groupby("run"):
        config = {}
        scores = {int(step): {} for step in rows_of_run["step"]}
        for name in rows.columns.drop(["run", "step"]):
            if "/" not in name or name.startswith(CONSTANT_COLUMNS):
                value = rows_of_run[name].iloc[0]
                if pd.notna(value):
                    config[name] = value
                continue
            for step, value in zip(rows_of_run["step"], rows_of_run[name], strict=True):
                if math.isfinite(value):
                    scores[int(step)][name] = pytest.approx(value)
        runs[run] = StoredRun(f"tiny-{run[:8]}", config, scores)
    return runs


def read_tensorboard(folder: Path) -> dict[str, StoredRun]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    runs = {}
    for run_folder in (folder / "tensorboard").iterdir():
        events = EventAccumulator(str(run_folder)).Reload()
        scores = {}
        for name in events.Tags()["scalars"]:
            for event in events.Scalars(name):
                assert name not in scores.setdefault(event.step, {}), "a number is stored once"
                scores[event.step][name] = event.value
        content = events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
        start = HParamsPluginData.FromString(content).session_start_info
        config = {
            name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()
        }
        runs[run_folder.name] = StoredRun(start.group_name, config, scores)
    return runs


def read_mlflow(folder: Path) -> dict[str, StoredRun]:
    from mlflow import MlflowClient

    client = MlflowClient((folder / "mlruns").as_uri())
    runs = {}
    for run in client.search_runs([client.get_experiment_by_name("tiny").experiment_id]):
        assert run.info.status == "FINISHED"
        scores = {}
        for name in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, name):
                column = name.replace("num_hot-", "num_hot=")
                assert column not in scores.setdefault(metric.step, {}), "a number is stored once"
                scores[metric.step][column] = metric.value
        config = {
            name.replace("support-", "support/").replace("meta-", "meta/"): value
            for name, value in run.data.params.items()
        }
        run_hash = run.data.tags["recombine.run"]
        assert run_hash not in runs, "a run is stored once"
        runs[run_hash] = StoredRun(run.info.run_name, config, scores)
    return runs


def wandb_records(path: Path):
    """The records of W&B's file: blocks of 32 KiB as in LevelDB's log, after a 7-byte header."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = path.read_bytes()
    position = 7
    record = b""
    while position + 7 <= len(data):
        left_in_block = 32768 - position % 32768
        if left_in_block < 7:
            position += left_in_block
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        if position + 7 + length > len(data):
            return
        record += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # a whole record, or the last fragment of one
            yield Record.FromString(record)
            record = b""


def finished_wandb_records(path: Path) -> list:
    """All records of a run. W&B's own process writes the last ones a moment after `finish`."""
    deadline = time.monotonic() + 30
    records = []
    while not any(record.HasField("exit") for record in records) and time.monotonic() < deadline:
        records = list(wandb_records(path))
    return records


def read_wandb(folder: Path) -> dict[str, StoredRun]:
    runs = {}
    # Sorted by time: the last copy of a run replaces the earlier ones.
    for path in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        records = finished_wandb_records(path)
        run = next(record.run for record in records if record.HasField("run"))
        assert run.run_group == "tiny"
        assert run.project == "recombine"
        scores = {}
        for record in records:
            if record.HasField("history"):
                values = {
                    item.key or item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                }
                scores[values["_step"]] = {
                    name: value for name, value in values.items() if not name.startswith("_")
                }
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        config.pop("_wandb", None)
        runs[run.run_id] = StoredRun(run.display_name, config, scores)
    return runs


READERS = {"wandb": read_wandb, "tensorboard": read_tensorboard, "mlflow": read_mlflow}


def check(stored: dict[str, StoredRun], rows: pd.DataFrame, config_is_text: bool) -> None:
    wanted = expected(rows)
    assert stored.keys() == wanted.keys()
    for run, copy in stored.items():
        assert copy.name == wanted[run].name
        assert copy.scores == wanted[run].scores
        config = wanted[run].config
        if config_is_text:
            config = {name: str(value) for name, value in config.items()}
        assert copy.config == config


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_a_tracker_has_the_numbers_of_the_rows(name, rows, tmp_path, capfd):
    installed(name)
    # The second copy replaces the first.
    for out in (tmp_path / "out" / "rows.parquet", tmp_path / "out"):
        with trackers.open_trackers([name, name], experiment="tiny", folder=out) as log:
            for _, chunk in rows.groupby("run"):
                log(chunk)
        assert capfd.readouterr() == ("", ""), "nothing is printed"
        check(READERS[name](tmp_path / "out"), rows, config_is_text=name == "mlflow")
        rows = rows.assign(**{"seen/r2": rows["seen/r2"] + 1, "meta/seconds": 3.5})
    folder_name = "mlruns" if name == "mlflow" else name
    assert {path.name for path in (tmp_path / "out").iterdir()} == {folder_name}


def test_a_run_of_many_numbers_is_copied_completely(tmp_path):
    installed("mlflow")  # it takes at most 1000 metrics and 100 parameters in one call
    config = {f"model.field{i}": i for i in range(110)}
    lines = []
    for step in (1, 2, 3):
        scores = {f"test/{i}": float(i + step) for i in range(350)}
        lines.append(scores | config | {"run": "a" * 16, "step": step})
    rows = pd.DataFrame(lines)
    with trackers.open_trackers(["mlflow"], experiment="tiny", folder=tmp_path) as log:
        log(rows)
    check(read_mlflow(tmp_path), rows, config_is_text=True)


def test_an_unknown_name_is_refused_before_anything_is_opened(tmp_path, monkeypatch):
    monkeypatch.setitem(
        trackers.TRACKERS, "tensorboard", lambda *_: pytest.fail("must not be opened")
    )
    with pytest.raises(InputError, match="no tracker 'wandbb': did you mean wandb"):
        trackers.open_trackers(
            ["tensorboard", "wandbb"], experiment="tiny", folder=tmp_path
        ).__enter__()


@pytest.mark.parametrize("name", trackers.TRACKERS)
def test_the_message_names_a_missing_package(name, tmp_path, monkeypatch):
    for module in [name, *(module for module in sys.modules if module.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        InputError, match=rf'{name} is not installed.*pip install "recombine\[{name}\]"'
    ):
        trackers.open_trackers([name], experiment="tiny", folder=tmp_path).__enter__()


def test_the_message_for_wrong_settings_is_one_line(tmp_path, monkeypatch):
    installed("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nothing://there")
    with pytest.raises(
        InputError,
        match=r"^cannot open mlflow \(.*: check its settings .*, or remove mlflow from --log$",
    ):
        trackers.open_trackers(["mlflow"], experiment="tiny", folder=tmp_path).__enter__()


def test_a_tracker_that_fails_is_reported_once_and_gets_no_more_rows(
    rows, tmp_path, monkeypatch, capsys
):
    attempts = []
    copies = []

    def fail(copy):
        attempts.append(copy)
        raise OSError("no space\nleft")

    monkeypatch.setitem(trackers.TRACKERS, "broken", lambda *_: fail)
    monkeypatch.setitem(trackers.TRACKERS, "fine", lambda *_: copies.append)
    with trackers.open_trackers(["broken", "fine"], experiment="tiny", folder=tmp_path) as log:
        log(rows)
        log(rows)
    assert len(attempts) == 1
    runs = list(dict.fromkeys(rows.sort_values("step")["run"]))
    assert [copy.run for copy in copies] == 2 * runs
    reason = "OSError: no space left"
    message = f"recombine: no more rows are sent to broken ({reason}); the table has all rows\n"
    assert capsys.readouterr() == ("", message)


def test_a_server_that_does_not_answer_does_not_stop_a_sweep(rows, tmp_path, monkeypatch, capfd):
    installed("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with trackers.open_trackers(["mlflow"], experiment="tiny", folder=tmp_path) as log:
        log(rows)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("no more rows are sent to mlflow") == 1
    assert list(tmp_path.iterdir()) == [], "the local store is not used in its place"


def test_training_does_not_wait_for_trackers_but_the_end_does(rows, tmp_path, monkeypatch):
    released = threading.Event()
    copies = []

    def write(copy):
        copies.append(released.wait(60))

    monkeypatch.setitem(trackers.TRACKERS, "slow", lambda *_: write)
    with trackers.open_trackers(["slow"], experiment="tiny", folder=tmp_path) as log:
        log(rows)
        assert copies == []
        released.set()
    assert copies == [True, True]


def test_ctrl_c_does_not_wait_for_the_remaining_copies(rows, tmp_path, monkeypatch):
    begun = threading.Event()
    released = threading.Event()
    copies = []

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            released.set()
            super().shutdown(wait=wait)

    def write(copy):
        begun.set()
        copies.append(released.wait(60))

    monkeypatch.setattr(trackers, "ThreadPoolExecutor", Pool)
    monkeypatch.setitem(trackers.TRACKERS, "slow", lambda *_: write)
    opened = trackers.open_trackers(["slow"], experiment="tiny", folder=tmp_path)
    opened.__enter__()(rows)
    begun.wait(60)
    assert not opened.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None), (
        "the exception reaches the caller"
    )
    assert copies == [True], "only the copy that was being written"


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({}, "offline"),
        ({"WANDB_MODE": "disabled"}, "disabled"),
        ({"WANDB_API_KEY": "k" * 40}, None),
        ({"WANDB_API_KEY": "k" * 40, "WANDB_MODE": "offline"}, "offline"),
        ({"NETRC": "netrc-with-key"}, None),
    ],
)
def test_wandb_is_online_only_if_the_user_is_logged_in(settings, mode, rows, tmp_path, monkeypatch):
    (tmp_path / "netrc-with-key").write_text(f"machine api.wandb.ai login user password {'k' * 40}")
    monkeypatch.chdir(tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
    calls = []
    monkeypatch.setattr(
        installed("wandb"), "init", lambda **options: calls.append(options) or mock.MagicMock()
    )
    with trackers.open_trackers(["wandb"], experiment="tiny", folder=tmp_path) as log:
        log(rows)
    assert [options["mode"] for options in calls] == [mode, mode]
    assert {str(options["dir"]) for options in calls} == {str(tmp_path / "elsewhere")}


def test_wandb_never_asks_for_a_key(tmp_path, monkeypatch):
    installed("wandb")
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(InputError, match="you are not logged in to W&B: run `wandb login` first"):
        trackers.open_trackers(["wandb"], experiment="tiny", folder=tmp_path).__enter__()
