"""Where chunks are trained: in this process, in several of this machine, by Dask workers, or as Slurm jobs.

`opened("dask-local:3")` gives an executor of `concurrent.futures` shape to `rc.train(…, executor=…)`. When its block
ends, also by an error or Ctrl-C, what has not finished is cancelled and the processes that it started are gone. Worker
processes of one machine divide its cores among them: 4 on 8 cores get 2 each, and more workers than cores get one each.
"""

import concurrent.futures
import contextlib
import functools
import importlib
import multiprocessing
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.console import Console

from recombine.core import InputError, require
from recombine.slurm import jobs, options_of

FORMS = "here, processes:N, dask-local:N (N from 1 to 999), dask://HOST:PORT, tcp://HOST:PORT or slurm"
CONNECT_SECONDS = 10
MAX_AGAIN = 2  # times that a chunk is given to another process when its own has died


def opened(on: str, slurm: str = "", folder: Path = Path()) -> AbstractContextManager[Executor | None]:
    """The executor that `on` names, for a `with` block; none for `here`. Slurm's files go to `folder/slurm`."""
    require(not slurm or on == "slurm", f"--slurm {slurm} needs --on slurm, got --on {on}")
    kind, _, rest = on.partition(":")
    if on == "here":
        return contextlib.nullcontext()
    if on == "slurm":
        return jobs(options_of(slurm), folder / "slurm")
    if re.fullmatch(r"(dask|tcp)://[\w.-]+:\d+", on):
        return _dask("tcp:" + rest)
    counted = {"processes": _processes, "dask-local": _dask_local}
    require(kind in counted and re.fullmatch("[1-9][0-9]{0,2}", rest) is not None, f"--on {on} is none of {FORMS}")
    return counted[kind](int(rest))


def keep_to_share(worker: int, num_workers: int) -> None:
    """Keep this process to its share of the cores, so that all workers together use each core once."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[worker % len(cores) :: num_workers])


@contextlib.contextmanager
def _processes(num: int) -> Iterator[Executor]:
    pool = Processes(num)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class Processes(Executor):
    """A pool of processes that is made anew when one of them dies (killed for memory, say): its calls begin again."""

    def __init__(self, num: int):
        self.num, self.lock, self.ended = num, threading.RLock(), False
        self.pool, self.pipe = self._made()

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """Call the function in one of the processes."""
        future = Future()
        future.set_running_or_notify_cancel()
        self._send(future, functools.partial(fn, *args, **kwargs), 0)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes; what has not finished is cancelled."""
        with self.lock:
            self.ended = True
            self.pipe.close()
        self.pool.shutdown(wait, cancel_futures=True)

    def _made(self) -> tuple[Executor, Any]:
        context = multiprocessing.get_context("spawn")  # a fork of a process with JAX's threads may hang
        ours, theirs = context.Pipe()
        started = context.Value("i", 0)
        return concurrent.futures.ProcessPoolExecutor(self.num, context, _begin, (theirs, started, self.num)), ours

    def _send(self, future: Future, call: Callable, num_again: int) -> None:
        with self.lock:
            pool = self.pool
            try:
                inner = pool.submit(call)
            except concurrent.futures.BrokenExecutor:
                self._renew(pool)
                pool = self.pool
                inner = pool.submit(call)
        inner.add_done_callback(lambda inner: self._take(future, call, num_again, pool, inner))

    def _take(self, future: Future, call: Callable, num_again: int, pool: Executor, inner: Future) -> None:
        error = concurrent.futures.CancelledError() if inner.cancelled() else inner.exception()
        if isinstance(error, concurrent.futures.BrokenExecutor) and not self.ended and num_again < MAX_AGAIN:
            self._renew(pool)
            self._send(future, call, num_again + 1)
        elif isinstance(error, concurrent.futures.BrokenExecutor) and not self.ended:
            told = f"its process died {num_again + 1} times, for lack of memory perhaps: use fewer processes"
            future.set_exception(InputError(told))
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(inner.result())

    def _renew(self, broken: Executor) -> None:
        with self.lock:
            if self.pool is broken and not self.ended:
                _tell("a process died: its chunks begin again in a new one")
                self.pipe.close()
                self.pool, self.pipe = self._made()


def _begin(pipe: Any, started: Any, num: int) -> None:
    with started.get_lock():
        worker, started.value = started.value, started.value + 1
    keep_to_share(worker, num)
    threading.Thread(target=_end_with, args=(pipe,), daemon=True).start()


def _end_with(pipe: Any) -> None:
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()  # nothing is ever sent: it returns when the driver closes its end, or dies
    os._exit(1)


@contextlib.contextmanager
def _dask_local(num: int) -> Iterator[Executor]:
    distributed = _package("distributed", "dask")

    class Share(distributed.WorkerPlugin):
        """Also of a worker that takes a killed one's place: it has the same name."""

        def setup(self, worker: Any) -> None:
            keep_to_share(worker.name, num)

    # No memory limit: Dask would restart a worker above its share, where the engine halves a chunk instead.
    settings = {"n_workers": num, "threads_per_worker": 1, "dashboard_address": None, "memory_limit": 0}
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        client.register_plugin(Share())
        with _tasks(client) as executor:
            yield executor


@contextlib.contextmanager
def _dask(address: str) -> Iterator[Executor]:
    distributed = _package("distributed", "dask")
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:  # ValueError: a name that no machine can have
        raise InputError(
            f"no Dask scheduler answers at {address}: `dask scheduler` starts one, `dask worker {address}` a worker"
        ) from error
    with client, _tasks(client) as executor:
        if not client.scheduler_info()["workers"]:
            _tell(f"the Dask scheduler at {address} has no worker yet: start some with `dask worker {address}`")
        yield executor


@contextlib.contextmanager
def _tasks(client: Any) -> Iterator[Executor]:
    from distributed.cfexecutor import ClientExecutor

    class Tasks(ClientExecutor):
        """Lets go of a task when its result is here: else it is trained again if the worker that had it dies."""

        def _wrap_future(self, future: Any) -> Future:
            wrapped = super()._wrap_future(future)
            wrapped.add_done_callback(lambda _: future.release())
            return wrapped

    executor = Tasks(client, pure=False)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False)  # in Dask this cancels what is not finished


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f'{name} is not installed: pip install "recombine[{extra}]"') from error


def _tell(text: str) -> None:
    Console(stderr=True).print(f"recombine: {text}", soft_wrap=True, markup=False, highlight=False)
