"""Many processes and machines give the rows that one gives, whatever is killed on the way. All of it really runs."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import as_completed
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

import recombine as rc
from recombine.basics.errors import InputError, require
from recombine.training import executors
from recombine.training.executors import opened, slurm
from tests.tiny import TINY

needs_dask, needs_slurm = (
    pytest.mark.skipif(
        not find_spec(name),
        reason=f'{extra.upper()} IS NOT TESTED: pip install "recombine[{extra}]"',
    )
    for name, extra in (("distributed", "dask"), ("submitit", "slurm"))
)


def places(*names: str) -> list:
    """Places to train at; those whose package is absent are skipped."""
    marks = {"dask": [needs_dask], "slurm": [needs_slurm]}
    return [pytest.param(name, marks=marks.get(re.split("[-:]", name)[0], [])) for name in names]


def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """The columns that must not depend on when and how a run was trained."""
    kept = sorted(name for name in rows.columns if not name.startswith("meta/"))
    return rows[kept].sort_values(["run", "step"]).reset_index(drop=True)


def until(condition, seconds: float = 60):
    """Wait for the condition and give what it became."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)
    return found


def is_running(process: int) -> bool:
    with contextlib.suppress(OSError):
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    return False


def processes_of(folder: Path) -> list[int]:
    return [int(path.name.rpartition("-")[2]) for path in folder.iterdir()]


def shares(executor) -> dict[str, set[int]]:
    """The cores of each worker process, as a child of it sees them (a light call: it imports nothing of ours)."""
    command = (
        f"sleep 0.3; echo $PPID; {sys.executable} -c 'import os; print(*os.sched_getaffinity(0))'"
    )
    futures = [executor.submit(subprocess.getoutput, command) for _ in range(6)]
    return {(told := future.result().split())[0]: set(map(int, told[1:])) for future in futures}


@pytest.fixture(scope="module")
def here() -> pd.DataFrame:
    return rc.train(rc.sweep(TINY, seed=range(24)), max_width=1)


def check_sweep(executor, here: pd.DataFrame, out: Path, num_runs: int) -> None:
    rows = rc.train(rc.sweep(TINY, seed=range(num_runs)), out, executor=executor, max_width=1)
    expected = here[here["run"].isin(rows["run"])]
    assert rows["run"].nunique() == num_runs
    pd.testing.assert_frame_equal(numbers(rows), numbers(expected), check_exact=True)


def test_here_is_no_executor():
    with opened("here") as executor:
        assert executor is None


@pytest.mark.parametrize("on", places("processes:2", "dask-local:2"))
def test_workers_of_this_machine_give_the_same_rows(on, here, tmp_path):
    with opened(on) as executor:
        check_sweep(executor, here, tmp_path / "out", 4)


@pytest.fixture
def all_cores():
    """All cores of the machine: a worker of pytest has only its own share, which cannot be divided."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count()))
    yield os.sched_getaffinity(0)
    os.sched_setaffinity(0, before)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
@pytest.mark.parametrize(
    "on", places("processes:1", "processes:2", "processes:3", "dask-local:1", "dask-local:3")
)
def test_workers_divide_the_cores(on, all_cores):
    num, cores = int(on[-1]), all_cores
    with opened(on) as executor:
        found = list(shares(executor).values())
    assert len(found) == num
    assert set.union(*found) == cores
    assert sum(map(len, found)) == max(num, len(cores)), "each core once, or one for each worker"


@needs_dask
def test_a_killed_dask_worker_costs_nothing(here, tmp_path, monkeypatch):
    arrived = []

    def kill_at_the_third(future):
        arrived.append(future)
        if len(arrived) == 3:
            os.kill(worker, signal.SIGKILL)

    def submit_watched(*arguments):
        future = submit(*arguments)
        future.add_done_callback(kill_at_the_third)
        return future

    with opened("dask-local:3") as executor:
        workers = shares(executor)
        worker, submit = int(min(workers)), executor.submit
        monkeypatch.setattr(executor, "submit", submit_watched)
        check_sweep(executor, here, tmp_path / "out", 24)
        until(lambda: not is_running(worker))
    assert len(workers) == 3
    assert len(arrived) == 24
    rows = pd.concat(
        map(pd.read_parquet, (tmp_path / "out" / "rows").iterdir())
    )  # a Table would drop repeated ones
    assert rows["run"].nunique() == 24, "all arrived"
    assert rows.groupby(["run", "step"]).size().eq(1).all(), "none twice"


def test_a_process_that_dies_costs_nothing(here, tmp_path, capfd):
    with opened("processes:2") as executor:
        os.kill(int(min(shares(executor))), signal.SIGKILL)
        check_sweep(executor, here, tmp_path / "out", 4)
    assert "a process died: its chunks begin again in a new one" in capfd.readouterr().err


def test_a_call_that_kills_its_process_is_given_up():
    with opened("processes:1") as executor:
        assert executor.submit(abs, -3).result() == 3
        with pytest.raises(InputError, match="its process died 3 times"):
            executor.submit(os._exit, 9).result(timeout=60)
        assert executor.submit(abs, -4).result(timeout=60) == 4, "others go on"


@needs_dask
def test_what_a_killed_dask_worker_had_finished_is_not_trained_again(tmp_path):
    def job(number):
        (tmp_path / f"{number}-{os.getpid()}").touch()
        return number

    with opened("dask-local:1") as executor:
        futures = [executor.submit(job, number) for number in range(4)]
        assert [future.result() for future in futures] == list(range(4))
        os.kill(processes_of(tmp_path)[0], signal.SIGKILL)
        assert executor.submit(job, 4).result() == 4
    assert len(processes_of(tmp_path)) == 5


@contextlib.contextmanager
def started(*arguments: str):
    command = [sys.executable, "-m", "dask", *arguments, "--no-dashboard"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@needs_dask
def test_a_dask_scheduler_is_used_by_its_address(here, tmp_path, capfd):
    file = tmp_path / "scheduler.json"
    with started("scheduler", "--port", "0", "--host", "127.0.0.1", "--scheduler-file", str(file)):
        until(lambda: file.exists() and file.read_text().endswith("}"))
        address = json.loads(file.read_text())["address"]
        with opened(address.replace("tcp", "dask")) as executor:
            assert (
                f"has no worker yet: start some with `dask worker {address}`"
                in capfd.readouterr().err
            )
            with started("worker", address, "--nthreads", "1", "--no-nanny"):
                check_sweep(executor, here, tmp_path / "out", 2)
                unfinished = executor.submit(time.sleep, 600)
        until(unfinished.cancelled)


@needs_dask
def test_an_address_without_a_scheduler_is_told(monkeypatch):
    monkeypatch.setattr(executors.dask, "CONNECT_SECONDS", 0.5)
    with pytest.raises(
        InputError, match=r"no Dask scheduler answers at tcp://127.0.0.1:9: `dask scheduler`"
    ):
        opened("dask://127.0.0.1:9").__enter__()


@needs_slurm
def test_submitted_jobs_give_the_same_rows(here, tmp_path):
    with opened("slurm", "cluster=local", tmp_path) as executor:
        check_sweep(executor, here, tmp_path / "out", 2)
        with pytest.raises(InputError, match="the user's mistake"):
            executor.submit(require, False, "the user's mistake").result()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGUSR2], ids=["killed", "out of time"])
@needs_slurm
def test_a_lost_job_is_submitted_again(sent, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(slurm, "LATE_SECONDS", 0.5)
    jobs = tmp_path / "jobs"
    jobs.mkdir()

    def job():  # the first time, it does not end
        (jobs / f"job-{os.getpid()}").touch()
        time.sleep(600 * (len(list(jobs.iterdir())) == 1))
        return "done"

    with opened("slurm", "cluster=local,partition=any,timeout_min=5", tmp_path) as executor:
        other, future = executor.submit(os.getpid), executor.submit(job)
        until(lambda: processes_of(jobs))
        os.kill(processes_of(jobs)[0], sent)
        assert future.result(60) == "done"
        assert other.result(60) != os.getpid()
    assert len(processes_of(jobs)) == 2
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("recombine:")]
    assert ["ended without a result: submitted again" in line for line in told] == [True]


@needs_slurm
def test_a_job_that_is_lost_every_time_is_given_up(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(slurm, "LATE_SECONDS", 0.2)
    with opened("slurm", "cluster=local", tmp_path) as executor:
        future = executor.submit(os._exit, 1)
        with pytest.raises(
            InputError, match=r"ended without a result, as 2 before it did .*timeout_min="
        ):
            future.result(60)
    assert capfd.readouterr().err.count("submitted again") == 2


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # submitit leaves its logs open
@needs_slurm
def test_submitits_debug_cluster_runs_in_this_process(tmp_path):
    with opened("slurm", "cluster=debug", tmp_path) as executor:
        assert {
            f.result() for f in as_completed([executor.submit(os.getpid) for _ in range(2)])
        } == {os.getpid()}


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # where tests run in the background it is ignored
from recombine.training.executors import opened

def noted(folder):
    (folder / f"job-{os.getpid()}").touch()
    time.sleep(600)

if __name__ == "__main__":
    folder = Path(sys.argv[3])
    with opened(sys.argv[1], sys.argv[2], folder / "files") as executor:
        [executor.submit(noted, folder / "jobs") for _ in range(4)][0].result()
"""


@pytest.mark.parametrize(
    ("on", "sent"),
    [
        ("processes:2", signal.SIGINT),
        ("processes:2", signal.SIGKILL),
        pytest.param("dask-local:2", signal.SIGINT, marks=needs_dask),
        pytest.param("dask-local:2", signal.SIGKILL, marks=needs_dask),
        pytest.param("slurm", signal.SIGINT, marks=needs_slurm),
    ],
)
def test_workers_end_with_their_driver(on, sent, tmp_path):
    """The signal goes to the driver alone: that its workers end, in the middle of their jobs, must be its doing."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [
        sys.executable,
        tmp_path / "script.py",
        on,
        "cluster=local" if on == "slurm" else "",
        tmp_path,
    ]
    with (tmp_path / "told").open("w") as told:
        driver = subprocess.Popen(command, stderr=told)
    until(lambda: len(processes_of(tmp_path / "jobs")) >= 2)
    driver.send_signal(sent)
    driver.wait(30)
    assert sent == signal.SIGKILL or "KeyboardInterrupt" in (tmp_path / "told").read_text()
    until(lambda: not any(map(is_running, processes_of(tmp_path / "jobs"))), 15)


@pytest.mark.parametrize(
    "on", ["", "there", "processes", "processes:0", "dask-local:-1", "dask-local:x", "dask://host"]
)
def test_malformed_places_list_the_forms(on):
    with pytest.raises(
        InputError, match=r"is none of here, processes:N, .*tcp://HOST:PORT or slurm"
    ):
        opened(on)


@pytest.mark.parametrize(
    ("slurm", "told"),
    [
        ("partition", "takes partition=gpu,"),
        ("partition=", "takes partition=gpu,"),
        ("partitoin=gpu", "did you mean partition"),
        ("timeout_min=long", "timeout_min must be a number, got 'long'"),
        ("nodes=2", "nodes must be 1"),
        ("cluster=lokal", "did you mean local"),
    ],
)
def test_malformed_slurm_options_are_told(slurm, told):
    with pytest.raises(InputError, match=told):
        opened("slurm", slurm)


@needs_slurm
def test_slurm_options_need_slurm(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="needs --on slurm"):
        opened("processes:2", "partition=gpu")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="no Slurm on this machine"):
        opened("slurm", "partition=gpu", tmp_path).__enter__()


@needs_slurm
def test_options_reach_sbatch_as_slurm_writes_them(tmp_path, monkeypatch):
    """A false sbatch keeps what it is given, and refuses it."""
    for name in ("sbatch", "srun"):
        (tmp_path / name).write_text(
            f'#!/bin/sh\ncp "$1" {tmp_path}/given\necho "sbatch: error: no such partition" >&2\nexit 1\n'
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    options = "partition=gpu,gres=gpu:1,mem-per-cpu=2G,time=2:00:00,cpus_per_task=8,mem_gb=1.5"
    with (
        opened("slurm", options, tmp_path) as executor,
        pytest.raises(
            InputError, match=r"could not be submitted .*no such partition\): change --slurm"
        ),
    ):
        executor.submit(os.getpid)
    given = (tmp_path / "given").read_text()
    for line in (
        "partition=gpu",
        "gres=gpu:1",
        "mem-per-cpu=2G",
        "time=2:00:00",
        "cpus-per-task=8",
        "mem=1536MB",
    ):
        assert f"#SBATCH --{line}\n" in given


@pytest.mark.parametrize(
    ("on", "name", "extra"),
    [
        ("dask-local:1", "distributed", "dask"),
        ("dask://a:1", "distributed", "dask"),
        ("slurm", "submitit", "slurm"),
    ],
)
def test_a_missing_package_is_told(on, name, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        InputError, match=rf'{name} is not installed: pip install "recombine\[{extra}\]"'
    ):
        opened(on).__enter__()
