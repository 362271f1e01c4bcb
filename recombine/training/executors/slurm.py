"""Slurm jobs as an executor with the interface of `concurrent.futures`, through submitit.

submitit gives up a job that ended without a result. Here a thread looks for results, and submits
such a job again.

submitit's own results are pickles, which can run code when they are read. They are not used: a job
writes its result as data, signed with a secret of the sweep (`signed_results.py`).
"""

import concurrent.futures
import contextlib
import functools
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recombine.basics.console import say
from recombine.basics.errors import InputError, require
from recombine.training.executors import signed_results

DEFAULT_TIMEOUT_MIN = 240  # of a job: submitit's own 5 minutes are too short for most chunks
SUBMITIT_OPTIONS = {
    "timeout_min": int,
    "mem_gb": float,
    "cpus_per_task": int,
    "gpus_per_node": int,
    "nodes": int,
    "name": str,
}
SLURM_OPTIONS = [
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
    "mail_type",
    "mail_user",
    "mem",
    "mem_per_cpu",
    "mem_per_gpu",
    "nice",
    "nodelist",
    "partition",
    "qos",
    "reservation",
    "time",
]
# "local" runs jobs in processes of this machine, "debug" in this process. Both are submitit's.
CLUSTERS = ("slurm", "local", "debug")
RESULT_INTERVAL = 0.5  # seconds between two looks for results, which are files
QUEUE_INTERVAL = 5  # seconds between two calls of squeue
MAX_RESULT_DELAY = 15  # seconds until a result appears after its job has ended, on a slow disk
MAX_RETRIES = 2  # of a job that ended without a result


def parse_options(text: str) -> dict[str, Any]:
    """Parse `partition=gpu,timeout_min=120`. submitit's own options get their types."""
    from recombine.basics.suggest import did_you_mean

    types = SUBMITIT_OPTIONS | dict.fromkeys((*SLURM_OPTIONS, "cluster"), str)
    options: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        name, _, value = item.partition("=")
        name = name.strip().replace("-", "_")
        require(
            value.strip() != "",
            f"--slurm takes options like partition=gpu,timeout_min=120, got {item!r}",
        )
        require(name in types, f"--slurm has no option {name!r}: {did_you_mean(name, types)}")
        try:
            options[name] = types[name](value.strip())
        except ValueError as error:
            raise InputError(f"--slurm {name} must be a number, got {value!r}") from error
    require(
        options.get("nodes", 1) == 1,
        "--slurm nodes must be 1: each job trains one chunk on one node",
    )
    cluster = options.get("cluster", "slurm")
    require(
        cluster in CLUSTERS,
        f"--slurm has no cluster {cluster!r}: {did_you_mean(cluster, CLUSTERS)}",
    )
    return options


@contextlib.contextmanager
def open_jobs(options: dict[str, Any], folder: Path) -> Iterator[Executor]:
    """An executor that makes each call a Slurm job. The jobs' files are in `folder`."""
    # Otherwise submitit logs to stdout, where --json writes.
    os.environ.setdefault("SUBMITIT_LOG_LEVEL", "NOCONFIG")
    try:
        import submitit
    except ImportError as error:
        raise InputError('submitit is not installed: pip install "recombine[slurm]"') from error
    cluster = options.pop("cluster", "slurm")
    require(
        cluster != "slurm" or shutil.which("sbatch") is not None,
        "there is no Slurm on this machine (no sbatch): "
        "run this on the cluster, or choose another --executor",
    )
    executor = submitit.AutoExecutor(folder, cluster)
    # Slurm's options reach sbatch as they were written. submitit would read a time of 2:00:00 as
    # minutes.
    slurm_options = {name: value for name, value in options.items() if name in SLURM_OPTIONS}
    shared_options = {name: value for name, value in options.items() if name in SUBMITIT_OPTIONS}
    shared_options.setdefault("timeout_min", DEFAULT_TIMEOUT_MIN)
    executor.update_parameters(**shared_options, slurm_additional_parameters=slurm_options)
    jobs = SlurmJobs(executor)
    try:
        yield jobs
    finally:
        jobs.shutdown()


@dataclass
class _Job:
    """A submitted call."""

    call: signed_results.SignedCall
    handle: Any  # submitit's job
    num_retries: int = 0
    last_seen: float = 0.0  # when the job was last known to run or wait
    submitted: float = 0.0


class SlurmJobs(Executor):
    """Slurm jobs as futures. A job that ends without a result is submitted again."""

    def __init__(self, executor: Any):
        self.executor = executor
        self.key = signed_results.Key(Path(executor.folder))
        self.jobs: dict[Future, _Job] = {}
        self.lock = threading.Lock()
        self.is_shut_down = threading.Event()
        self.queue: set[str] | None = None  # the jobs in Slurm's queue. None if it is not known
        self.queue_time = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """Submit one job."""
        future = Future()
        future.set_running_or_notify_cancel()
        call = signed_results.SignedCall(self.key.path, functools.partial(fn, *args, **kwargs))
        with self.lock:
            self.jobs[future] = self._submit_job(call)
        return future

    def busy_workers(self) -> str:
        """The jobs that have not finished."""
        with self.lock:
            jobs = sorted(str(job.handle.job_id) for job in self.jobs.values())
        return f"job {', '.join(jobs)}" if jobs else ""

    def stop(self, future: Future, silence: float = 0.0) -> bool:
        """Cancel the job of this call, which is then submitted again. False if it has ended.

        A job that was submitted less than `silence` seconds ago waits or begins: it is not the
        silent one.
        """
        with self.lock:
            job = self.jobs.get(future)
            if job is None or time.monotonic() - job.submitted < silence:
                return False
            job.handle.cancel(check=False)
        return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel every job that has not finished."""
        self.is_shut_down.set()
        with self.lock:
            for future, job in self.jobs.items():
                job.handle.cancel(check=False)
                future.set_exception(concurrent.futures.CancelledError())
            self.jobs.clear()
        self.key.remove()

    def _submit_job(self, call: signed_results.SignedCall, num_retries: int = 0) -> _Job:
        try:
            handle = self.executor.submit(call)
        except Exception as error:  # of several types. sbatch's own message is the last line
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise InputError(
                f"the job could not be submitted ({lines[-1]}): change --slurm"
            ) from error
        now = time.monotonic()
        return _Job(call, handle, num_retries, last_seen=now, submitted=now)

    def _watch(self) -> None:
        """Look for results until the executor is shut down. Runs in a thread."""
        while not self.is_shut_down.wait(RESULT_INTERVAL):
            # A shared disk may not answer now. Then we look again later.
            with self.lock, contextlib.suppress(OSError):
                results = {path.name for path in Path(self.executor.folder).glob("*.result")}
                for future, job in list(self.jobs.items()):
                    try:
                        self._check_job(future, job, results)
                    except Exception as error:
                        del self.jobs[future]
                        future.set_exception(error)

    def _check_job(self, future: Future, job: _Job, results: set[str]) -> None:
        """Take the result of a job if there is one. Submit the job again if it is lost."""
        if self.executor.cluster == "debug":
            job.handle.result()  # runs the call in this process
        if self._has_result(job, results):
            value, error = self.key.read(job.call.path)
            del self.jobs[future]
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
        elif self._is_alive(job.handle):
            job.last_seen = time.monotonic()
        elif time.monotonic() - job.last_seen > MAX_RESULT_DELAY:
            self._submit_again(future, job)

    def _has_result(self, job: _Job, results: set[str]) -> bool:
        if self.executor.cluster == "debug":
            return True
        has_ended = self.executor.cluster != "local" or job.handle.done()
        return has_ended and job.call.path.name in results

    def _submit_again(self, future: Future, job: _Job) -> None:
        job_id = job.handle.job_id
        require(
            job.num_retries < MAX_RETRIES,
            f"job {job_id} ended without a result, as {MAX_RETRIES} before it did "
            f"(log: {job.handle.paths.stderr}): ask for more time or memory, "
            "--slurm timeout_min=…,mem_gb=…",
        )
        self.jobs[future] = self._submit_job(job.call, job.num_retries + 1)
        new_id = self.jobs[future].handle.job_id
        say(f"job {job_id} ended without a result: submitted again, as {new_id}")

    def _is_alive(self, handle: Any) -> bool:
        """Whether a job runs or waits in the queue. True if that is not known."""
        if self.executor.cluster == "local":
            return not handle.done()
        # submitit's own check needs Slurm's accounting (sacct), which many clusters do not have.
        if time.monotonic() - self.queue_time > QUEUE_INTERVAL:
            command = ["squeue", "--me", "--noheader", "--format=%i"]
            squeue = subprocess.run(command, capture_output=True, text=True, check=False)
            self.queue = set(squeue.stdout.split()) if squeue.returncode == 0 else None
            self.queue_time = time.monotonic()
        return self.queue is None or handle.job_id in self.queue
