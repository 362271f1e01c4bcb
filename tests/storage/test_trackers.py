"""What mirrors promise: the rows' numbers under the run's hash, quietly, offline, never in the sweep's way."""

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

PLACES = ("support/", "meta/")


class Found(NamedTuple):
    """A run as it was read back from a mirror."""

    name: str
    config: dict
    scores: dict


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    """Rows of two real runs, the second with numbers that no tool likes."""
    rows = rc.train(rc.sweep(TINY, support=[rc.Random(), rc.Popular()]))
    rows.loc[2, "test/r2"], rows.loc[3, "test/r2"], rows.loc[3, "test/loss"] = (
        np.nan,
        np.inf,
        -np.inf,
    )
    return rows.sample(frac=1, random_state=0)  # the order of the lines must not matter


@pytest.fixture(autouse=True)
def nobody(tmp_path):
    """Nobody is logged in anywhere, whoever runs the tests."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("WANDB_", "MLFLOW_"))
    }
    away = {"WANDB_CONFIG_DIR": str(tmp_path / "wandb-config"), "NETRC": str(tmp_path / "netrc")}
    with mock.patch.dict(os.environ, kept | away, clear=True):
        yield


def installed(name: str):
    module = pytest.importorskip(
        name, reason=f'THE MIRROR {name} IS NOT TESTED: pip install "recombine[{name}]"'
    )
    if name == "wandb":
        module.teardown()  # it reads the environment once
    return module


def expected(rows: pd.DataFrame) -> dict[str, Found]:
    found = {}
    for run, lines in rows.groupby("run"):
        names = [name for name in rows if "/" in name and not name.startswith(PLACES)]
        scores = {
            int(line["step"]): {
                name: pytest.approx(line[name]) for name in names if math.isfinite(line[name])
            }
            for _, line in lines.iterrows()
        }
        about = {
            name: lines[name].iloc[0] for name in rows if "/" not in name or name.startswith(PLACES)
        }
        about = {
            name: value
            for name, value in about.items()
            if pd.notna(value) and name not in ("run", "step")
        }
        found[run] = Found(f"tiny-{run[:8]}", about, scores)
    return found


def read_tensorboard(folder: Path) -> dict[str, Found]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    found = {}
    for place in (folder / "tensorboard").iterdir():
        events = EventAccumulator(str(place)).Reload()
        scores = {}
        for name in events.Tags()["scalars"]:
            for event in events.Scalars(name):
                assert name not in scores.setdefault(event.step, {}), "a number is there once"
                scores[event.step][name] = event.value
        about = HParamsPluginData.FromString(
            events.PluginTagToContent("hparams")["_hparams_/session_start_info"]
        )
        start = about.session_start_info
        config = {
            name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()
        }
        found[place.name] = Found(start.group_name, config, scores)
    return found


def read_mlflow(folder: Path) -> dict[str, Found]:
    from mlflow import MlflowClient

    client = MlflowClient((folder / "mlruns").as_uri())
    found = {}
    for run in client.search_runs([client.get_experiment_by_name("tiny").experiment_id]):
        assert run.info.status == "FINISHED"
        scores = {}
        for name in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, name):
                plain = name.replace("num_hot-", "num_hot=")
                assert plain not in scores.setdefault(metric.step, {}), "a number is there once"
                scores[metric.step][plain] = metric.value
        config = {
            name.replace("support-", "support/").replace("meta-", "meta/"): v
            for name, v in run.data.params.items()
        }
        assert run.data.tags["recombine.sweeps.run"] not in found, "a run is there once"
        found[run.data.tags["recombine.sweeps.run"]] = Found(run.info.run_name, config, scores)
    return found


def wandb_records(path: Path):
    """The records of W&B's own file: blocks of 32 KiB as in LevelDB's log, the first behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        if at + 7 + length > len(data):
            return
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(whole)
            whole = b""


def read_wandb(folder: Path) -> dict[str, Found]:
    found = {}
    for path in sorted(
        (folder / "wandb").glob("offline-run-*/*.wandb")
    ):  # what is uploaded last replaces the former
        records, end = [], time.monotonic() + 30
        # W&B's own process writes the end of the file a moment after `finish`.
        while not any(record.HasField("exit") for record in records) and time.monotonic() < end:
            records = list(wandb_records(path))
        about = next(record.run for record in records if record.HasField("run"))
        assert about.run_group == "tiny"
        assert about.project == "recombine"
        scores = {}
        for record in records:
            if record.HasField("history"):
                items = {
                    item.key or item.nested_key[0]: json.loads(item.value_json)
                    for item in record.history.item
                }
                scores[items["_step"]] = {
                    name: value for name, value in items.items() if not name.startswith("_")
                }
        config = {
            item.key: json.loads(item.value_json)
            for item in about.config.update
            if item.key != "_wandb"
        }
        found[about.run_id] = Found(about.display_name, config, scores)
    return found


READERS = {"wandb": read_wandb, "tensorboard": read_tensorboard, "mlflow": read_mlflow}


def check(found: dict[str, Found], rows: pd.DataFrame, text: bool) -> None:
    wanted = expected(rows)
    assert found.keys() == wanted.keys()
    for run, copy in found.items():
        assert copy.name == wanted[run].name
        assert copy.scores == wanted[run].scores
        config = (
            {name: str(value) for name, value in wanted[run].config.items()}
            if text
            else wanted[run].config
        )
        assert copy.config == config


@pytest.mark.parametrize("name", trackers.MIRRORS)
def test_a_mirror_has_the_numbers_of_the_rows(name, rows, tmp_path, capfd):
    installed(name)
    for out in (
        tmp_path / "out" / "rows.parquet",
        tmp_path / "out",
    ):  # the second time over the first
        with trackers.open_mirrors([name, name], experiment="tiny", folder=out) as log:
            for _, chunk in rows.groupby("run"):
                log(chunk)
        assert capfd.readouterr() == ("", ""), "nothing is said"
        check(READERS[name](tmp_path / "out"), rows, text=name == "mlflow")
        rows = rows.assign(**{"seen/r2": rows["seen/r2"] + 1, "meta/seconds": 3.5})
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        {"mlflow": "mlruns"}.get(name, name)
    }


def test_a_mirror_of_many_numbers_is_whole(tmp_path):
    installed("mlflow")  # which takes a thousand metrics and a hundred parameters at a time
    lines = [
        {f"test/{i}": float(i + step) for i in range(350)} | {"run": "a" * 16, "step": step}
        for step in (1, 2, 3)
    ]
    rows = pd.DataFrame([line | {f"model.field{i}": i for i in range(110)} for line in lines])
    with trackers.open_mirrors(["mlflow"], experiment="tiny", folder=tmp_path) as log:
        log(rows)
    check(read_mlflow(tmp_path), rows, text=True)


def test_an_unknown_name_is_refused_before_anything_is_opened(tmp_path, monkeypatch):
    monkeypatch.setitem(
        trackers.MIRRORS, "tensorboard", lambda *_: pytest.fail("must not be opened")
    )
    with pytest.raises(InputError, match="no mirror 'wandbb': did you mean wandb"):
        trackers.open_mirrors(
            ["tensorboard", "wandbb"], experiment="tiny", folder=tmp_path
        ).__enter__()


@pytest.mark.parametrize("name", trackers.MIRRORS)
def test_a_package_that_is_missing_is_named(name, tmp_path, monkeypatch):
    for module in [name, *(module for module in sys.modules if module.startswith(f"{name}."))]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        InputError, match=rf'{name} is not installed.*pip install "recombine\[{name}\]"'
    ):
        trackers.open_mirrors([name], experiment="tiny", folder=tmp_path).__enter__()


def test_settings_that_a_tool_refuses_are_told_in_one_line(tmp_path, monkeypatch):
    installed("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nothing://there")
    with pytest.raises(
        InputError,
        match=r"^mlflow cannot be opened \(.*: check its settings and version, or leave it out$",
    ):
        trackers.open_mirrors(["mlflow"], experiment="tiny", folder=tmp_path).__enter__()


def test_a_mirror_that_fails_is_told_once_and_left_out(rows, tmp_path, monkeypatch, capsys):
    tried, kept = [], []

    def fail(copy):
        tried.append(copy)
        raise OSError("no space\nleft")

    monkeypatch.setitem(trackers.MIRRORS, "broken", lambda *_: fail)
    monkeypatch.setitem(trackers.MIRRORS, "fine", lambda *_: kept.append)
    with trackers.open_mirrors(["broken", "fine"], experiment="tiny", folder=tmp_path) as log:
        log(rows)
        log(rows)
    assert len(tried) == 1
    assert [copy.run for copy in kept] == 2 * list(dict.fromkeys(rows.sort_values("step")["run"]))
    told = "recombine: broken gets no more rows, the table has them all: OSError: no space left\n"
    assert capsys.readouterr() == ("", told)


def test_a_server_that_is_not_there_does_not_stop_a_sweep(rows, tmp_path, monkeypatch, capfd):
    installed("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with trackers.open_mirrors(["mlflow"], experiment="tiny", folder=tmp_path) as log:
        log(rows)
    out, told = capfd.readouterr()
    assert out == ""
    assert told.count("mlflow gets no more rows") == 1
    assert list(tmp_path.iterdir()) == [], "the user's own place was meant"


def test_training_does_not_wait_for_mirrors_and_the_end_does(rows, tmp_path, monkeypatch):
    released, kept = threading.Event(), []
    monkeypatch.setitem(
        trackers.MIRRORS, "slow", lambda *_: lambda copy: kept.append(released.wait(60))
    )
    with trackers.open_mirrors(["slow"], experiment="tiny", folder=tmp_path) as log:
        log(rows)
        assert kept == []
        released.set()
    assert kept == [True, True]


def test_ctrl_c_does_not_wait_for_what_is_left(rows, tmp_path, monkeypatch):
    begun, released, kept = threading.Event(), threading.Event(), []

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait=True, *, cancel_futures=False):
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            released.set()
            super().shutdown(wait=wait)

    def write(copy):
        begun.set()
        kept.append(released.wait(60))

    monkeypatch.setattr(trackers, "ThreadPoolExecutor", Pool)
    monkeypatch.setitem(trackers.MIRRORS, "slow", lambda *_: write)
    opened = trackers.open_mirrors(["slow"], experiment="tiny", folder=tmp_path)
    opened.__enter__()(rows)
    begun.wait(60)
    assert not opened.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None), (
        "it goes on to the caller"
    )
    assert kept == [True], "the one that was being written"


@pytest.mark.parametrize(
    ("settings", "mode"),
    [
        ({}, "offline"),
        ({"WANDB_MODE": "disabled"}, "disabled"),
        ({"WANDB_API_KEY": "k" * 40}, None),
        ({"WANDB_API_KEY": "k" * 40, "WANDB_MODE": "offline"}, "offline"),
        ({"NETRC": "there"}, None),
    ],
)
def test_wandb_is_online_only_for_who_is_logged_in(settings, mode, rows, tmp_path, monkeypatch):
    (tmp_path / "there").write_text(f"machine api.wandb.ai login user password {'k' * 40}")
    monkeypatch.chdir(tmp_path)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))
    asked = []
    monkeypatch.setattr(
        installed("wandb"), "init", lambda **options: asked.append(options) or mock.MagicMock()
    )
    with trackers.open_mirrors(["wandb"], experiment="tiny", folder=tmp_path) as log:
        log(rows)
    assert [options["mode"] for options in asked] == [mode, mode]
    assert {str(options["dir"]) for options in asked} == {str(tmp_path / "elsewhere")}


def test_wandb_never_asks_for_a_key(tmp_path, monkeypatch):
    installed("wandb")
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(InputError, match="nobody is logged in to W&B: call `wandb login` first"):
        trackers.open_mirrors(["wandb"], experiment="tiny", folder=tmp_path).__enter__()
