"""Several processes or machines give the same rows as one, even if some are killed.

Nothing is mocked: processes, Dask and submitit really run.
"""

import contextlib
import errno
import functools
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import types
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

import recombine as rc
from recombine.basics.errors import InputError, require
from recombine.storage import status
from recombine.training import executors, heartbeat, machine, progress, scheduler
from recombine.training.executors import open_executor, signed_results, slurm
from tests.tiny import TINY


def needs(package: str, extra: str):
    reason = f'{extra.upper()} IS NOT TESTED: pip install "recombine[{extra}]"'
    return pytest.mark.skipif(not find_spec(package), reason=reason)


needs_dask = needs("distributed", "dask")
needs_slurm = needs("submitit", "slurm")


def executors_named(*names: str) -> list:
    """Names of executors. Those whose package is missing are skipped."""
    marks = {"dask": [needs_dask], "slurm": [needs_slurm]}
    return [pytest.param(name, marks=marks.get(re.split("[-:]", name)[0], [])) for name in names]


def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """The columns that must not depend on when and how a run was trained."""
    columns = sorted(name for name in rows.columns if not name.startswith("meta/"))
    return rows[columns].sort_values(["run", "step"]).reset_index(drop=True)


def wait_until(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def is_running(process: int) -> bool:
    with contextlib.suppress(OSError):
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    return False


def processes_of(folder: Path) -> list[int]:
    return [int(path.name.rpartition("-")[2]) for path in folder.iterdir()]


def cores_of_workers(executor) -> dict[str, set[int]]:
    """The cores of each worker, by process id.

    They are printed by a child process of the worker, which imports nothing of ours.
    """
    command = (
        f"sleep 0.3; echo $PPID; {sys.executable} -c 'import os; print(*os.sched_getaffinity(0))'"
    )
    futures = [executor.submit(subprocess.getoutput, command) for _ in range(6)]
    cores = {}
    for future in futures:
        process, *numbers = future.result().split()
        cores[process] = set(map(int, numbers))
    return cores


@pytest.fixture(scope="module")
def expected_rows() -> pd.DataFrame:
    return rc.train(rc.sweep(TINY, seed=range(24)), max_width=1)


def check_sweep(executor, expected_rows: pd.DataFrame, out: Path, num_runs: int) -> None:
    rows = rc.train(rc.sweep(TINY, seed=range(num_runs)), out, executor=executor, max_width=1)
    expected = expected_rows[expected_rows["run"].isin(rows["run"])]
    assert rows["run"].nunique() == num_runs
    pd.testing.assert_frame_equal(numbers(rows), numbers(expected), check_exact=True)


def test_here_means_no_executor():
    with open_executor("here") as executor:
        assert executor is None


@pytest.mark.parametrize("on", executors_named("processes:2", "dask-local:2"))
def test_workers_of_this_machine_give_the_same_rows(on, expected_rows, tmp_path):
    with open_executor(on) as executor:
        check_sweep(executor, expected_rows, tmp_path / "out", 4)


@pytest.fixture
def all_cores():
    """All cores of the machine: a worker of pytest may have only one of them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count()))
    yield os.sched_getaffinity(0)
    os.sched_setaffinity(0, before)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
@pytest.mark.parametrize(
    "on",
    executors_named("processes:1", "processes:2", "processes:3", "dask-local:1", "dask-local:3"),
)
def test_workers_divide_the_cores(on, all_cores):
    num_workers = int(on[-1])
    with open_executor(on) as executor:
        shares = list(cores_of_workers(executor).values())
    assert len(shares) == num_workers
    assert set.union(*shares) == all_cores
    num_shared = sum(map(len, shares))
    assert num_shared == max(num_workers, len(all_cores)), "each core once, or one per worker"


@needs_dask
def test_a_killed_dask_worker_loses_nothing(expected_rows, tmp_path, monkeypatch):
    arrived = []

    def kill_at_the_third(future):
        arrived.append(future)
        if len(arrived) == 3:
            os.kill(worker, signal.SIGKILL)

    def submit_watched(*arguments):
        future = submit(*arguments)
        future.add_done_callback(kill_at_the_third)
        return future

    with open_executor("dask-local:3") as executor:
        workers = cores_of_workers(executor)
        worker = int(min(workers))
        submit = executor.submit
        monkeypatch.setattr(executor, "submit", submit_watched)
        check_sweep(executor, expected_rows, tmp_path / "out", 24)
        wait_until(lambda: not is_running(worker))
    assert len(workers) == 3
    assert len(arrived) == 24
    # Not read as a Table, which would drop repeated rows.
    rows = pd.concat(map(pd.read_parquet, (tmp_path / "out" / "rows").iterdir()))
    assert rows["run"].nunique() == 24, "all arrived"
    assert rows.groupby(["run", "step"]).size().eq(1).all(), "none arrived twice"


def test_a_process_that_dies_loses_nothing(expected_rows, tmp_path, capfd):
    with open_executor("processes:2") as executor:
        os.kill(int(min(cores_of_workers(executor))), signal.SIGKILL)
        check_sweep(executor, expected_rows, tmp_path / "out", 4)
    assert "a worker process died: a new one starts its chunk again" in capfd.readouterr().err


def test_a_call_that_kills_its_process_every_time_fails():
    with open_executor("processes:1") as executor:
        assert executor.submit(abs, -3).result() == 3
        with pytest.raises(InputError, match="its process died 3 times"):
            executor.submit(os._exit, 9).result(timeout=60)
        assert executor.submit(abs, -4).result(timeout=60) == 4, "other calls continue"


def die_if(number: int, deadly: int) -> int:
    if number == deadly:
        os._exit(9)
    time.sleep(0.05)
    return number


def test_one_deadly_call_does_not_fail_the_others():
    with open_executor("processes:2") as executor:
        futures = [executor.submit(die_if, number, 3) for number in range(12)]
        results = [future.exception(timeout=120) or future.result() for future in futures]
    assert [result for result in results if isinstance(result, int)] == [
        number for number in range(12) if number != 3
    ]
    assert "its process died 3 times" in str(results[3])


def test_a_silent_worker_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "MAX_SILENCE", 0.5)
    with open_executor("processes:1") as executor:
        executor.submit(own_pid, 0, str(tmp_path)).result()
        (worker,) = [int(path.name) for path in tmp_path.iterdir()]
        os.kill(worker, signal.SIGSTOP)
        notes = []

        def note(text):
            notes.append(text)
            os.kill(worker, signal.SIGCONT)

        future = executor.submit(abs, -3)
        display = types.SimpleNamespace(note=note)
        (done,) = scheduler._as_completed([future], scheduler._Remotely(executor, False), display)
        assert done.result() == 3
    assert notes[0] == (
        f"no chunk was finished for 0.5 s: waiting for process {worker} with 1 chunk left"
    )


def beat_and_hang(number: int, folder: str, deadly: int) -> int:
    """The first or every call with this number hangs after its first heartbeat."""
    path = Path(folder) / f"{number}.heartbeat"
    heartbeat.Heartbeat(path).beat()
    (Path(folder) / f"{number}-{os.getpid()}").touch()
    if number == deadly or (number == 1 and len(list(Path(folder).glob("1-*"))) == 1):
        time.sleep(600)
    return number


def test_a_chunk_without_progress_is_stopped_and_only_it_is_blamed(tmp_path):
    notes = []
    display = types.SimpleNamespace(note=notes.append)
    with open_executor("processes:2") as executor:
        heartbeats = {
            executor.submit(beat_and_hang, number, str(tmp_path), 3): tmp_path
            / f"{number}.heartbeat"
            for number in range(6)
        }
        remotely = scheduler._Remotely(executor, False, chunk_timeout=0.7)
        done = list(scheduler._as_completed(heartbeats, remotely, display))
        results = [future.exception() or future.result() for future in done]
    finished = sorted(result for result in results if isinstance(result, int))
    assert finished == [0, 1, 2, 4, 5], "number 1 hangs once, number 3 every time"
    (error,) = [result for result in results if not isinstance(result, int)]
    assert "its process died 3 times" in str(error)
    assert len(notes) == 4
    assert all(re.match(r"process \d+ on .* made no progress for 0.7 s: it is", n) for n in notes)


def test_a_silent_chunk_is_named_while_others_make_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "MAX_SILENCE", 0.5)
    monkeypatch.setattr(scheduler, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(heartbeat, "PAUSE", 0.0)
    silent, lively = Future(), Future()
    paths = {silent: tmp_path / "a.heartbeat", lively: tmp_path / "b.heartbeat"}
    notes = []

    def note(text):
        notes.append(text)
        silent.set_result(1)
        lively.set_result(2)

    def beat():
        heartbeat.Heartbeat(paths[silent]).beat()
        while not lively.done():
            heartbeat.Heartbeat(paths[lively]).beat()
            time.sleep(0.05)

    remotely = scheduler._Remotely(types.SimpleNamespace(), False)
    observed = scheduler._as_completed(paths, remotely, types.SimpleNamespace(note=note))
    timer = threading.Timer(0.3, beat)
    timer.start()
    assert len(list(observed)) == 2
    timer.join()
    assert len(notes) == 1
    assert re.match(
        rf"process {os.getpid()} on .* has made no progress for 0.5 s: waiting", notes[0]
    )


def test_a_lively_chunk_is_not_stopped_after_the_driver_was_busy(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "PAUSE", 0.0)
    finished, lively = Future(), Future()
    paths = {finished: tmp_path / "a.heartbeat", lively: tmp_path / "b.heartbeat"}
    alive = heartbeat.Heartbeat(paths[lively])
    alive.beat()
    stopped = []

    def stop(future, silence):
        stopped.append(future)
        return True

    remotely = scheduler._Remotely(types.SimpleNamespace(stop=stop), False, chunk_timeout=0.3)
    display = types.SimpleNamespace(note=lambda text: None)
    threading.Timer(0.1, finished.set_result, (1,)).start()
    observed = scheduler._as_completed(paths, remotely, display)
    assert next(observed) is finished
    end = time.monotonic() + 0.6  # rows are written slowly, and the other chunk makes progress
    while time.monotonic() < end:
        alive.beat()
        time.sleep(0.02)
    threading.Timer(0.1, lively.set_result, (2,)).start()
    assert next(observed) is lively
    assert stopped == []


def test_a_process_that_just_got_a_chunk_is_not_stopped(tmp_path):
    with open_executor("processes:1") as executor:
        future = executor.submit(time.sleep, 2.0)
        while not executor.busy_workers():
            time.sleep(0.01)
        assert not executor.stop(future, 60.0), "it began less than a minute ago"
        assert future.result() is None


def test_heartbeats_go_on_when_the_disk_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "PAUSE", 0.0)
    path = tmp_path / "a.heartbeat"
    alive = heartbeat.Heartbeat(path)
    alive.beat()
    os.utime(path, (1, 1))

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", fail)
    alive.beat()
    assert path.stat().st_mtime > 1


def test_a_silent_chunk_of_this_process_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "MAX_SILENCE", 0.3)
    chunk_rows = scheduler.chunk_rows

    def slow_chunk_rows(*arguments):
        time.sleep(1.0)
        return chunk_rows(*arguments)

    monkeypatch.setattr(scheduler, "chunk_rows", slow_chunk_rows)
    rc.train(TINY, tmp_path / "out")
    notes = status.read(tmp_path / "out")["notes"]
    assert notes[0] == (f"no progress for 0.3 s: waiting for process {os.getpid()} on this machine")
    assert len(notes) > 1


def test_the_first_answer_of_like_workers_is_not_awaited_silently(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "MAX_SILENCE", 0.3)

    class Slow(ThreadPoolExecutor):
        def submit(self, fn, /, *arguments, **options):
            time_to_wait = 1.0 if fn is machine.columns else 0.0
            return super().submit(lambda: (time.sleep(time_to_wait), fn(*arguments, **options))[1])

    with Slow(1) as executor:
        rc.train(TINY, tmp_path / "out", executor=executor, like_workers=True)
    notes = status.read(tmp_path / "out")["notes"]
    assert notes[0] == (
        "no worker has answered for 0.3 s: waiting for the workers with 1 chunk left"
    )


def test_a_chunk_timeout_reaches_the_executor_and_leaves_nothing(tmp_path, expected_rows):
    with open_executor("processes:2") as executor:
        rows = rc.train(
            rc.sweep(TINY, seed=range(2)),
            tmp_path / "out",
            executor=executor,
            max_width=1,
            chunk_timeout=300,
        )
    expected = expected_rows[expected_rows["run"].isin(rows["run"])]
    pd.testing.assert_frame_equal(numbers(rows), numbers(expected), check_exact=True)
    assert not (tmp_path / "out" / "checkpoints").exists()


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), 5])
def test_an_impossible_chunk_timeout_is_refused(tmp_path, seconds):
    with pytest.raises(InputError, match="--chunk-timeout"):
        rc.train(TINY, tmp_path / "out", chunk_timeout=seconds)


def own_pid(number: int, folder: str) -> int:
    (Path(folder) / f"{os.getpid()}").touch()
    time.sleep(0.2)
    return number


def test_kills_anywhere_fail_no_call(tmp_path):
    """More deaths than a call may have, but of different calls."""
    with open_executor("processes:2") as executor:
        futures = [executor.submit(own_pid, number, str(tmp_path)) for number in range(16)]
        for number in (1, 4, 7, 10):
            futures[number].result(timeout=120)
            alive = [int(path.name) for path in tmp_path.iterdir() if is_running(int(path.name))]
            os.kill(alive[0], signal.SIGKILL)
        assert [future.result(timeout=120) for future in futures] == list(range(16))


@needs_dask
def test_finished_work_of_a_killed_dask_worker_is_not_repeated(tmp_path):
    def job(number):
        (tmp_path / f"{number}-{os.getpid()}").touch()
        return number

    with open_executor("dask-local:1") as executor:
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
        yield process
    finally:
        process.kill()
        process.wait()


@needs_dask
def test_a_dask_scheduler_is_used_by_its_address(expected_rows, tmp_path, capfd):
    file = tmp_path / "scheduler.json"
    with started("scheduler", "--port", "0", "--host", "127.0.0.1", "--scheduler-file", str(file)):
        wait_until(lambda: file.exists() and file.read_text().endswith("}"))
        address = json.loads(file.read_text())["address"]
        with open_executor(address.replace("tcp", "dask")) as executor:
            assert (
                f"has no worker yet: start some with `dask worker {address}`"
                in capfd.readouterr().err
            )
            with started("worker", address, "--nthreads", "1", "--no-nanny"):
                check_sweep(executor, expected_rows, tmp_path / "out", 2)
                unfinished = executor.submit(time.sleep, 600)
        wait_until(unfinished.cancelled)


LONG = """
import dataclasses
import recombine as rc
from tests.tiny import TINY

def runs(scale):
    return rc.sweep(dataclasses.replace(TINY, num_steps=100_000), seed=range(2))
"""


@needs_dask
def test_a_killed_dask_scheduler_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOMBINE_CHECKPOINT", "0.1")  # of the worker, too
    (tmp_path / "long.py").write_text(LONG)
    file = tmp_path / "scheduler.json"
    where = ["--port", "0", "--host", "127.0.0.1", "--scheduler-file", str(file)]
    with started("scheduler", *where) as scheduler_process:
        wait_until(lambda: file.exists() and file.read_text().endswith("}"))
        address = json.loads(file.read_text())["address"]
        options = [
            "--executor",
            address.replace("tcp", "dask"),
            "--out",
            str(tmp_path / "out"),
            "--json",
        ]
        with started("worker", address, "--nthreads", "1", "--no-nanny"):
            driver = subprocess.Popen(
                [sys.executable, "-m", "recombine", "run", str(tmp_path / "long.py"), *options],
                stderr=subprocess.PIPE,
                text=True,
            )
            wait_until(lambda: any(tmp_path.glob("out/checkpoints/*.eqx")))  # a worker trains
            scheduler_process.kill()
            _, error = driver.communicate(timeout=90)
    assert driver.returncode == 2
    lines = [line for line in error.splitlines() if "has no worker yet" not in line]
    assert lines == [
        f"recombine: the Dask scheduler at {address} is gone; finished rows are saved, run the "
        "same command to continue"
    ]


STRANGER = """
import sys
import distributed

attempts = [("tcp", None), ("tls", distributed.Security.temporary())]
for scheme, security in attempts:
    try:
        distributed.Client(f"{scheme}:{sys.argv[1]}", timeout=3, security=security)
    except OSError:
        continue
    sys.exit("came in")
"""


@needs_dask
def test_dask_on_this_machine_accepts_only_its_own_certificates():
    with open_executor("dask-local:1") as executor:
        scheme, _, rest = executor._client.scheduler.address.partition(":")
        assert scheme == "tls"
        assert executor.submit(abs, -3).result(timeout=60) == 3
        command = [sys.executable, "-c", STRANGER, rest]
        stranger = subprocess.run(command, capture_output=True, text=True, check=False)
        assert stranger.returncode == 0, stranger.stderr


@needs_dask
def test_an_error_beside_a_running_dask_scheduler_stays_as_it_is():
    with pytest.raises(OSError, match="No space left"), open_executor("dask-local:1"):
        raise OSError(errno.ENOSPC, "No space left on device")


@needs_dask
def test_an_address_without_a_scheduler_is_an_error(monkeypatch):
    monkeypatch.setattr(executors.dask, "CONNECT_SECONDS", 0.5)
    with pytest.raises(
        InputError,
        match=r"no Dask scheduler answers at tcp://127.0.0.1:9: start one with `dask scheduler`",
    ):
        open_executor("dask://127.0.0.1:9").__enter__()


@needs_slurm
def test_submitted_jobs_give_the_same_rows(expected_rows, tmp_path):
    with open_executor("slurm", "cluster=local", tmp_path) as executor:
        check_sweep(executor, expected_rows, tmp_path / "out", 2)
        with pytest.raises(InputError, match="the user's mistake"):
            executor.submit(require, False, "the user's mistake").result()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGUSR2], ids=["killed", "out of time"])
@needs_slurm
def test_a_lost_job_is_submitted_again(sent, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(slurm, "MAX_RESULT_DELAY", 0.5)
    jobs = tmp_path / "jobs"
    jobs.mkdir()

    def job():  # the first time, it does not end by itself
        (jobs / f"job-{os.getpid()}").touch()
        time.sleep(600 * (len(list(jobs.iterdir())) == 1))
        return "done"

    with open_executor("slurm", "cluster=local,partition=any,timeout_min=5", tmp_path) as executor:
        other, future = executor.submit(os.getpid), executor.submit(job)
        wait_until(lambda: processes_of(jobs))
        os.kill(processes_of(jobs)[0], sent)
        assert future.result(60) == "done"
        assert other.result(60) != os.getpid()
    assert len(processes_of(jobs)) == 2
    lines = capfd.readouterr().err.splitlines()
    (note,) = [line for line in lines if line.startswith("recombine:")]
    assert "ended without a result: submitted again" in note


def job_that_raises(kind: str) -> None:
    raise {"ours": InputError, "python": KeyError, "other": pd.errors.EmptyDataError}[kind]("why")


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # submitit leaves its logs open
@needs_slurm
def test_results_of_jobs_are_data_with_a_signature(tmp_path):
    mixed = pd.DataFrame(
        {"run": ["b", "a"], "x": [0.1 + 0.2, float("nan")], "y": pd.Series([1, "z"], dtype=object)}
    )
    with open_executor("slurm", "cluster=debug", tmp_path) as executor:
        (key,) = (tmp_path / "slurm").glob("*.key")
        assert key.stat().st_mode & 0o077 == 0, "nobody else may read the secret"
        same = executor.submit(mixed.copy).result(60)
        assert executor.submit(dict, a=1).result(60) == {"a": 1}
        for kind, error_type in (
            ("ours", InputError),
            ("python", KeyError),
            ("other", RuntimeError),
        ):
            error = executor.submit(job_that_raises, kind).exception(60)
            assert type(error) is error_type
            assert "why" in str(error)
            assert "job_that_raises" in error.__notes__[0]
    pd.testing.assert_frame_equal(same, mixed, check_exact=True)
    assert not key.exists()


class Evil:
    """Runs code where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, (os.environ["EVIL_FOLDER"],)


@needs_slurm
def test_a_forged_result_is_refused_and_nothing_is_unpickled(tmp_path, monkeypatch):
    monkeypatch.setenv("EVIL_FOLDER", str(tmp_path / "evil"))
    other = signed_results.Key(tmp_path / "other")
    key = signed_results.Key(tmp_path / "jobs")
    own = signed_results.SignedCall(key.path, functools.partial(dict, a=1))
    own()
    assert key.read(own.path) == ({"a": 1}, None)
    own()
    sound = own.path.read_bytes()
    forged = signed_results.SignedCall(other.path, functools.partial(dict, a=2))
    forged()
    neighbor = signed_results.SignedCall(key.path, functools.partial(dict, a=3))
    neighbor()
    for data in (
        forged.path.read_bytes(),
        neighbor.path.read_bytes(),
        pickle.dumps(Evil()),
        sound[:-1] + b"2",
        sound[:40],
        b"",
    ):
        own.path.write_bytes(data)
        with pytest.raises(InputError, match="was not written by a job of this sweep"):
            key.read(own.path)
    # submitit's own results are pickles: the driver never reads one.
    monkeypatch.setattr("submitit.core.utils.pickle_load", lambda *_: pytest.fail("unpickled"))
    with open_executor("slurm", "cluster=local", tmp_path) as executor:
        assert executor.submit(abs, -3).result(60) == 3
    assert not (tmp_path / "evil").exists()


@needs_slurm
def test_sigterm_in_a_slurm_job_ends_it_although_submitit_ignores_it(tmp_path, monkeypatch):
    for sent in (signal.SIGTERM, signal.SIGUSR2):
        script = (
            "import os, signal, sys\nfrom recombine.training import termination\n"
            "from recombine.training.executors import signed_results\n"
            "for name in ('SIGTERM', 'SIGUSR2'):\n"
            "    signal.signal(getattr(signal, name), lambda *_: None)  # like submitit\n"
            "signed_results._handle_end_of_job()\n"
            "with termination.stop_on_sigterm(), termination.checked():\n"
            f"    os.kill(os.getpid(), {int(sent)})\n"
            "    sys.exit(0 if termination.is_requested() else 1)\n"
        )
        environment = os.environ | {"SUBMITIT_FOLDER": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
        assert done.returncode == 0, sent


@needs_slurm
def test_a_job_that_is_lost_every_time_fails(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(slurm, "MAX_RESULT_DELAY", 0.2)
    with open_executor("slurm", "cluster=local", tmp_path) as executor:
        future = executor.submit(os._exit, 1)
        with pytest.raises(
            InputError, match=r"ended without a result, as 2 before it did .*timeout_min="
        ):
            future.result(60)
    assert capfd.readouterr().err.count("submitted again") == 2


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # submitit leaves its logs open
@needs_slurm
def test_submitits_debug_cluster_runs_in_this_process(tmp_path):
    with open_executor("slurm", "cluster=debug", tmp_path) as executor:
        futures = [executor.submit(os.getpid) for _ in range(2)]
        processes = {future.result() for future in as_completed(futures)}
        assert processes == {os.getpid()}


SCRIPT = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
from recombine.training.executors import open_executor

def touch_and_sleep(folder):
    (folder / f"job-{os.getpid()}").touch()
    time.sleep(600)

if __name__ == "__main__":
    folder = Path(sys.argv[3])
    with open_executor(sys.argv[1], sys.argv[2], folder / "files") as executor:
        [executor.submit(touch_and_sleep, folder / "jobs") for _ in range(4)][0].result()
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
    """Only the driver gets the signal. It must end its workers, in the middle of their jobs."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [
        sys.executable,
        tmp_path / "script.py",
        on,
        "cluster=local" if on == "slurm" else "",
        tmp_path,
    ]
    with (tmp_path / "stderr").open("w") as stderr:
        driver = subprocess.Popen(command, stderr=stderr)
    wait_until(lambda: len(processes_of(tmp_path / "jobs")) >= 2)
    driver.send_signal(sent)
    driver.wait(30)
    assert sent == signal.SIGKILL or "KeyboardInterrupt" in (tmp_path / "stderr").read_text()
    wait_until(lambda: not any(map(is_running, processes_of(tmp_path / "jobs"))), 15)


TRAIN_UNTIL_SIGTERM = """
import os, sys, time
from pathlib import Path
from recombine.training import termination
from recombine.training.executors import open_executor

def train(folder):
    with termination.stop_on_sigterm(), termination.checked():
        (folder / f"training-{os.getpid()}").touch()
        while not termination.is_requested():
            time.sleep(0.01)
        time.sleep(0.5)  # the call of the program ends, and the checkpoint is written
        (folder / f"saved-{os.getpid()}").touch()
        raise termination.Terminated

if __name__ == "__main__":
    with open_executor("processes:2") as executor, termination.stop_on_sigterm():
        [executor.submit(train, Path(sys.argv[1])) for _ in range(2)][0].result()
"""


@pytest.mark.parametrize("to", ["driver", "group"])
def test_sigterm_lets_worker_processes_save_their_checkpoints(to, tmp_path):
    (tmp_path / "script.py").write_text(TRAIN_UNTIL_SIGTERM)
    marks = tmp_path / "marks"
    marks.mkdir()
    driver = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", marks],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(lambda: len(list(marks.glob("training-*"))) == 2)
    workers = processes_of(marks)
    if to == "driver":
        driver.send_signal(signal.SIGTERM)
    else:
        os.killpg(driver.pid, signal.SIGTERM)
    driver.wait(60)
    assert sorted(path.name for path in marks.glob("saved-*")) == sorted(
        f"saved-{worker}" for worker in workers
    )
    wait_until(lambda: not any(map(is_running, workers)))


@pytest.mark.parametrize(
    "on", ["", "there", "processes", "processes:0", "dask-local:-1", "dask-local:x", "dask://host"]
)
def test_an_invalid_name_is_refused_with_the_valid_ones(on):
    with pytest.raises(
        InputError,
        match=r"is not valid: use here, processes:N, .*tls://HOST:PORT or slurm",
    ):
        open_executor(on)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("partition", "takes options like partition=gpu,"),
        ("partition=", "takes options like partition=gpu,"),
        ("partitoin=gpu", "did you mean partition"),
        ("timeout_min=long", "timeout_min must be a number, got 'long'"),
        ("nodes=2", "nodes must be 1"),
        ("cluster=lokal", "did you mean local"),
    ],
)
def test_invalid_slurm_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        open_executor("slurm", options)


@needs_slurm
def test_slurm_options_need_slurm(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="needs --executor slurm"):
        open_executor("processes:2", "partition=gpu")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="no Slurm on this machine"):
        open_executor("slurm", "partition=gpu", tmp_path).__enter__()


@needs_slurm
def test_options_reach_sbatch_as_slurm_writes_them(tmp_path, monkeypatch):
    """A fake sbatch copies its script and then fails."""
    for name in ("sbatch", "srun"):
        (tmp_path / name).write_text(
            f'#!/bin/sh\ncp "$1" {tmp_path}/script\n'
            'echo "sbatch: error: no such partition" >&2\nexit 1\n'
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    options = "partition=gpu,gres=gpu:1,mem-per-cpu=2G,time=2:00:00,cpus_per_task=8,mem_gb=1.5"
    with (
        open_executor("slurm", options, tmp_path) as executor,
        pytest.raises(
            InputError, match=r"could not be submitted .*no such partition\): change --slurm"
        ),
    ):
        executor.submit(os.getpid)
    script = (tmp_path / "script").read_text()
    for line in (
        "partition=gpu",
        "gres=gpu:1",
        "mem-per-cpu=2G",
        "time=2:00:00",
        "cpus-per-task=8",
        "mem=1536MB",
    ):
        assert f"#SBATCH --{line}\n" in script


@pytest.mark.parametrize(
    ("on", "name", "extra"),
    [
        ("dask-local:1", "distributed", "dask"),
        ("dask://a:1", "distributed", "dask"),
        ("slurm", "submitit", "slurm"),
    ],
)
def test_a_missing_package_is_an_error(on, name, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        InputError, match=rf'{name} is not installed: pip install "recombine\[{extra}\]"'
    ):
        open_executor(on).__enter__()
