"""Slurm jobs as an executor of `concurrent.futures` shape, through submitit.

submitit's jobs are no such futures, and give up a job that ended without a result: here a thread looks for results, and
submits what was lost again.
"""

import concurrent.futures
import contextlib
import functools
import os
import shutil
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recombine.basics.console import say
from recombine.basics.errors import InputError, require

TIMEOUT_MIN = 240  # of a Slurm job, unless told; submitit's own 5 minutes would end most chunks
SHARED = {
    "timeout_min": int,
    "mem_gb": float,
    "cpus_per_task": int,
    "gpus_per_node": int,
    "nodes": int,
    "name": str,
}
SLURM = [
    *(
        "account",
        "begin",
        "comment",
        "constraint",
        "cpus_per_gpu",
        "exclude",
        "exclusive",
        "gpus",
        "gres",
        "licenses",
    ),
    *(
        "mail_type",
        "mail_user",
        "mem",
        "mem_per_cpu",
        "mem_per_gpu",
        "nice",
        "nodelist",
        "partition",
        "qos",
    ),
    *("reservation", "time"),
]
CLUSTERS = (
    "slurm",
    "local",
    "debug",
)  # the last two are submitit's own: processes of this machine, and this process
LOOK_SECONDS = 0.5  # between looks for results, which are files
QUEUE_SECONDS = 5  # between calls of squeue
LATE_SECONDS = 15  # that a result may come after its job's end, on a slow shared disk
MAX_AGAIN = 2  # times that a lost job is submitted again


def options_of(text: str) -> dict[str, Any]:
    """`partition=gpu,timeout_min=120` as values by name: numbers where a number is meant, else as Slurm writes them."""
    from recombine.basics.suggest import nearest

    known = SHARED | dict.fromkeys((*SLURM, "cluster"), str)
    options: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        name = name.strip().replace("-", "_")
        require(
            value.strip() != "",
            f"--slurm takes partition=gpu,timeout_min=120 and the like, got {item!r}",
        )
        require(name in known, f"--slurm has no option {name!r}: {nearest(name, known)}")
        try:
            options[name] = known[name](value.strip())
        except ValueError as error:
            raise InputError(f"--slurm {name} must be a number, got {value!r}") from error
    require(
        options.get("nodes", 1) == 1,
        "--slurm nodes must be 1: a job trains one chunk, and there are many jobs",
    )
    cluster = options.get("cluster", "slurm")
    require(
        cluster in CLUSTERS, f"--slurm has no cluster {cluster!r}: {nearest(cluster, CLUSTERS)}"
    )
    return options


@contextlib.contextmanager
def jobs(options: dict[str, Any], folder: Path) -> Iterator[Executor]:
    """An executor whose calls are Slurm jobs, with their files in a folder."""
    os.environ.setdefault(
        "SUBMITIT_LOG_LEVEL", "NOCONFIG"
    )  # else it logs to stdout, where --json writes
    try:
        import submitit
    except ImportError as error:
        raise InputError('submitit is not installed: pip install "recombine[slurm]"') from error
    cluster = options.pop("cluster", "slurm")
    found = cluster != "slurm" or shutil.which("sbatch") is not None
    require(
        found,
        "there is no Slurm on this machine (no sbatch): go to a machine of the cluster, or leave --on slurm",
    )
    executor = submitit.AutoExecutor(folder, cluster)
    # Slurm's own names reach sbatch as they were written: submitit would take a time of 2:00:00 for minutes.
    own = {name: value for name, value in options.items() if name in SLURM}
    shared = {name: value for name, value in options.items() if name in SHARED}
    executor.update_parameters(
        **{"timeout_min": TIMEOUT_MIN} | shared, slurm_additional_parameters=own
    )
    submitted = SlurmJobs(executor)
    try:
        yield submitted
    finally:
        submitted.shutdown()


@dataclass
class _Job:
    """A submitted call, and what is known of it."""

    call: Callable[[], tuple[Any, Exception | None]]
    handle: Any  # submitit's
    num_again: int = 0
    last_seen: float = 0.0


class SlurmJobs(Executor):
    """Slurm jobs as futures. A job that ends without a result is submitted again."""

    def __init__(self, executor: Any):
        self.executor = executor
        self.jobs: dict[Future, _Job] = {}
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.queue, self.queue_time = None, 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """Submit one job."""
        future, call = Future(), functools.partial(outcome, fn, *args, **kwargs)
        future.set_running_or_notify_cancel()
        with self.lock:
            self.jobs[future] = self._sent(call)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel every job that has not finished."""
        self.ended.set()
        with self.lock:
            for future, job in self.jobs.items():
                job.handle.cancel(check=False)
                future.set_exception(concurrent.futures.CancelledError())
            self.jobs.clear()

    def _sent(self, call: Callable, num_again: int = 0) -> _Job:
        try:
            handle = self.executor.submit(call)
        except Exception as error:  # of several kinds; sbatch's own words come last
            told = str(error).strip().splitlines() or [type(error).__name__]
            raise InputError(
                f"the job could not be submitted ({told[-1]}): change --slurm"
            ) from error
        return _Job(call, handle, num_again, time.monotonic())

    def _watch(self) -> None:
        while not self.ended.wait(LOOK_SECONDS):
            with (
                self.lock,
                contextlib.suppress(OSError),
            ):  # a shared disk that does not answer now is asked again
                written = {path.name for path in Path(self.executor.folder).glob("*_result.pkl")}
                for future, job in list(self.jobs.items()):
                    try:
                        self._look(future, job, written)
                    except Exception as error:
                        del self.jobs[future]
                        future.set_exception(error)

    def _look(self, future: Future, job: _Job, written: set[str]) -> None:
        from submitit.core.utils import UncompletedJobError

        if self.executor.cluster == "debug" or job.handle.paths.result_pickle.name in written:
            value, error = job.handle.result()
            if isinstance(
                error, UncompletedJobError
            ):  # raised inside the job, shortly before its time is over
                return self._send_again(future, job)
            del self.jobs[future]
            future.set_result(value) if error is None else future.set_exception(error)
        elif self._is_alive(job.handle):
            job.last_seen = time.monotonic()
        elif time.monotonic() - job.last_seen > LATE_SECONDS:
            self._send_again(future, job)

    def _send_again(self, future: Future, job: _Job) -> None:
        number, log = job.handle.job_id, job.handle.paths.stderr
        require(
            job.num_again < MAX_AGAIN,
            f"job {number} ended without a result, as {MAX_AGAIN} before it did (log: {log}): "
            "ask for more with --slurm timeout_min=…,mem_gb=…",
        )
        self.jobs[future] = self._sent(job.call, job.num_again + 1)
        say(
            f"job {number} ended without a result: submitted again, as {self.jobs[future].handle.job_id}"
        )

    def _is_alive(self, handle: Any) -> bool:
        if self.executor.cluster == "local":
            return not handle.done()
        # Not submitit's own check: it needs Slurm's accounts (sacct), which many clusters do not keep.
        if time.monotonic() - self.queue_time > QUEUE_SECONDS:
            command = ["squeue", "--me", "--noheader", "--format=%i"]
            told = subprocess.run(command, capture_output=True, text=True, check=False)
            # Where Slurm does not answer now, all are taken to be alive.
            self.queue = set(told.stdout.split()) if told.returncode == 0 else None
            self.queue_time = time.monotonic()
        return self.queue is None or handle.job_id in self.queue


def outcome(function: Callable, *args: Any, **kwargs: Any) -> tuple[Any, Exception | None]:
    """The function's value or its error, which otherwise would arrive as text and of another type."""
    try:
        return function(*args, **kwargs), None
    except Exception as error:
        error.add_note(traceback.format_exc())
        return None, error
