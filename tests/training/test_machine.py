"""Rows and checkpoints know the machine that their numbers depend on."""

import json
import os
import subprocess
import sys
from concurrent.futures import Executor, Future

import pandas as pd
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.reporting.page import mixtures
from recombine.storage import status
from recombine.storage.table import Table
from recombine.training import checkpoint, device, machine
from tests.tiny import TINY

RUNS = rc.sweep(TINY, seed=range(4))
CHILD = """
import json, sys
from pathlib import Path
from recombine.training import machine
from recombine.training.checkpoint import Checkpoint
from tests.tiny import TINY
name = Checkpoint(Path("folder"), [TINY], 1).path.name
sys.stdout.write(json.dumps([machine.columns(), name]))
"""


def in_new_process(flags: str) -> tuple[dict, str]:
    output = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    return tuple(json.loads(output))


def test_other_flags_and_devices_are_in_the_rows_and_in_the_key_of_a_checkpoint():
    usual, usual_name = in_new_process("")
    assert (usual["meta/xla_flags"], usual["meta/num_devices"]) == ("none", 1)
    names = {usual_name}
    for flags, changed in (
        ("--xla_cpu_max_isa=AVX2", {"meta/xla_flags"}),
        ("--xla_cpu_enable_fast_math=true", {"meta/xla_flags"}),
        (
            "--xla_force_host_platform_device_count=2",
            {"meta/xla_flags", "meta/num_devices"},
        ),
    ):
        columns, name = in_new_process(flags)
        assert {key for key in columns if columns[key] != usual[key]} == changed
        names.add(name)
    assert len(names) == 4
    assert in_new_process("--xla_dump_to=/nowhere")[1] == usual_name, "it changes no number"


def test_the_flags_have_one_order_and_may_be_in_a_file(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_FLAGS", "--xla_b=1 --xla_a=2")
    both = machine.xla_flags()
    monkeypatch.setenv("XLA_FLAGS", " --xla_a=2  --xla_b=1")
    assert machine.xla_flags() == both == "--xla_a=2 --xla_b=1"
    (tmp_path / "flags").write_text("--xla_b=1\n--xla_a=2\n")
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    assert machine.xla_flags() == both
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert machine.xla_flags() == "--xla_a=2 --xla_b=1 NVIDIA_TF32_OVERRIDE=0"


INFO = (
    "processor\t: {n}\nvendor_id\t: Intel\nmodel\t: {model}\ncpu MHz\t: {n}\nflags\t: {flags}\n\n"
)


def cpu_of(monkeypatch, tmp_path, text: str) -> str:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    return machine.cpu.__wrapped__()


def test_the_cpu_is_known_by_its_model_and_instruction_sets(monkeypatch, tmp_path):
    def cpu(flags="avx avx2 fma", model=6, n=0):
        text = INFO.format(n=n, model=model, flags=flags) + INFO.format(n=1, model=model, flags="")
        return cpu_of(monkeypatch, tmp_path, text)

    assert cpu().split()[1] == "avx2"
    assert cpu("fma avx2 avx ibrs constant_tsc", n=7) == cpu(), "the kernel's flags do not matter"
    assert cpu("avx avx2") != cpu()
    assert cpu(model=7) != cpu()
    assert cpu("avx avx2 fma avx512f").split()[1] == "avx512f"
    arm = cpu_of(monkeypatch, tmp_path, "Features\t: fp asimd sve\nCPU part\t: 0xd0c\n")
    assert arm.split()[1] == "sve"


@pytest.mark.parametrize("column", [name for name in machine.columns() if name != "meta/device"])
def test_a_checkpoint_of_another_machine_is_not_used(tmp_path, monkeypatch, column):
    path = checkpoint.Checkpoint(tmp_path, RUNS, 4).path
    other = machine.columns() | {column: "other"}
    monkeypatch.setattr(machine, "columns", lambda: other)
    assert checkpoint.Checkpoint(tmp_path, RUNS, 4).path != path


def test_the_cpu_does_not_matter_for_a_gpu(monkeypatch):
    on_cpu = machine.key()
    monkeypatch.setattr(device, "on_cpu", lambda: False)
    assert set(on_cpu) - set(machine.key()) == {machine.cpu()}
    gpu = {"meta/device": "NVIDIA H200", "meta/cpu": "a"}
    assert machine.differences(gpu, gpu | {"meta/cpu": "b"}) == []


def test_all_settings_have_their_defaults_here():
    assert machine.settings() == "default"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(device.NUMERIC_SETTINGS, "enable_x64", True)
        assert machine.settings() == "enable_x64=False"


def test_what_is_not_known_does_not_differ():
    known = machine.columns()
    assert machine.differences({}, known) == machine.differences(known, known) == []
    assert machine.differences(known | {"meta/cpu": float("nan")}, known) == []
    other = known | {"meta/cpu": "x", "meta/xla_flags": "--xla_a=1"}
    assert machine.differences(other, known) == [
        f"CPU (x; {known['meta/cpu']})",
        f"set of XLA flags (--xla_a=1; {known['meta/xla_flags']})",
    ]


@pytest.mark.parametrize(
    ("column", "word"),
    [(column, word) for word, column in machine.COLUMNS.items() if word not in ("JAX", "device")],
)
def test_reused_rows_of_another_machine_are_noted(tmp_path, column, word):
    other = 7 if column == "meta/num_devices" else "other"
    rows = rc.train(RUNS[:1])
    Table(tmp_path / "out").append(rows.assign(**{column: other}))
    rc.train(RUNS, tmp_path / "out")
    (note,) = status.read(tmp_path / "out")["notes"]
    assert f"1 of 1 reused runs were trained with another {word} ({other}; now" in note
    assert len(mixtures(Table(tmp_path / "out").read())) == 1


def test_rows_without_the_columns_are_valid_and_give_no_note(tmp_path):
    rows = rc.train(RUNS[:1])
    later = [column for column in machine.columns() if column not in ("meta/device", "meta/jax")]
    Table(tmp_path / "out").append(rows.drop(columns=later))
    rc.train(RUNS, tmp_path / "out")
    assert status.read(tmp_path / "out")["notes"] == []
    both = Table(tmp_path / "out").read()
    assert both["meta/cpu"].isna().tolist().count(True) == 2
    assert mixtures(both) == {}


class Elsewhere(Executor):
    """Calls at once, every second time on another machine."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.patch = patch
        self.columns = machine.columns()
        self.num_calls = 0

    def submit(self, fn, /, *args, **kwargs):
        future = Future()
        self.num_calls += 1
        cpu = "other" if self.num_calls % 2 == 0 else self.columns["meta/cpu"]
        with self.patch.context() as patch:
            patch.setattr(machine, "columns", lambda: self.columns | {"meta/cpu": cpu})
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)
        return future


def test_a_sweep_over_unlike_workers_says_so_once(tmp_path, monkeypatch):
    rows = rc.train(RUNS, tmp_path / "out", max_width=1, executor=Elsewhere(monkeypatch))
    assert set(rows["meta/cpu"]) == {machine.cpu(), "other"}
    (note,) = status.read(tmp_path / "out")["notes"]
    assert "the workers are different machines, so their numbers differ slightly: CPU (" in note
    assert "(2 runs)" in mixtures(rows)["mixed CPUs"]


def test_like_workers_can_be_required(tmp_path, monkeypatch):
    executor = Elsewhere(monkeypatch)
    with pytest.raises(
        InputError, match=r"2 runs failed, the others are trained: the worker on .* is unlike"
    ):
        rc.train(RUNS, tmp_path / "out", max_width=1, executor=executor, like_workers=True)
    rows = Table(tmp_path / "out").read()
    assert isinstance(rows, pd.DataFrame)
    assert rows["run"].nunique() == 2
    assert set(rows["meta/cpu"]) == {machine.cpu()}
