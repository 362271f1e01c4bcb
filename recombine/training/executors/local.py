"""Worker processes on this machine as an executor.

They divide the cores among them. If a process dies, its call is made again in a new one.
"""

import collections
import concurrent.futures
import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from typing import Any

from recombine.basics.console import say
from recombine.basics.errors import InputError
from recombine.training import termination

MAX_RETRIES = 2  # of a call whose process died
SAVE_CHECKPOINT = "save a checkpoint"  # sent to every process when the driver got SIGTERM
MAX_SAVE_SECONDS = 30.0  # a cluster kills some time after SIGTERM; a call of a program takes 10 s


def keep_to_share(worker: int, num_workers: int) -> None:
    """Restrict this process to its share of the cores, so that no two workers share a core."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[worker % len(cores) :: num_workers])


@contextlib.contextmanager
def processes(num_workers: int) -> Iterator[Executor]:
    """Start worker processes."""
    executor = Processes(num_workers)
    try:
        yield executor
    except termination.Terminated:
        executor.save_checkpoints()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


@dataclass
class _Call:
    """A function that was submitted, with its arguments."""

    future: Future
    function: Callable
    num_deaths: int = 0  # processes that died while it ran
    began: float = 0.0  # when a process got it


class _Worker:
    """A process with its number, and our end of the pipe that it waits on."""

    def __init__(self, number: int, num_workers: int):
        self.number = number
        self.num_workers = num_workers
        self.is_idle = True
        self.call: _Call | None = None  # that runs or ran last
        self.start()

    def start(self) -> None:
        """Start the process, or a new one after it died."""
        # Not forked: a fork of a process with JAX's threads may hang.
        context = multiprocessing.get_context("spawn")
        self.pipe, their_end = context.Pipe()
        self.pool = concurrent.futures.ProcessPoolExecutor(
            1, context, _start_worker, (their_end, self.number, self.num_workers)
        )


class Processes(Executor):
    """Worker processes. If one dies, for example for lack of memory, a new one takes its place.

    Only the call that ran in it is affected: it is repeated, and fails after three deaths. A call
    is sent to a process when the process is idle, so no other call is lost with it.
    """

    def __init__(self, num_workers: int):
        self.lock = threading.RLock()
        self.is_shut_down = False
        self.waiting: collections.deque[_Call] = collections.deque()
        self.workers = [_Worker(number, num_workers) for number in range(num_workers)]

    def submit(self, fn: Callable, /, *args: Any, **kwargs: Any) -> Future:
        """Call the function in one of the processes."""
        future = Future()
        future.set_running_or_notify_cancel()
        self.waiting.append(_Call(future, functools.partial(fn, *args, **kwargs)))
        self._send_waiting()
        return future

    def busy_workers(self) -> str:
        """The processes that compute at this moment."""
        with self.lock:
            busy = [worker for worker in self.workers if not worker.is_idle]
            processes = [str(pid) for worker in busy for pid in worker.pool._processes or ()]
        return f"process {', '.join(processes)}" if processes else ""

    def stop(self, future: Future, silence: float = 0.0) -> bool:
        """Kill the process that runs this call, which counts as its death. False if none does.

        A process that got the call less than `silence` seconds ago is not the silent one.
        """
        latest = time.monotonic() - silence
        with self.lock:
            for worker in self.workers:
                call = None if worker.is_idle else worker.call
                if call is not None and call.future is future and call.began <= latest:
                    for process in list((worker.pool._processes or {}).values()):
                        process.kill()
                    return True
        return False

    def save_checkpoints(self) -> None:
        """Let every process save a checkpoint of its chunk before it ends."""
        with self.lock:
            self.is_shut_down = True
            for worker in self.workers:
                with contextlib.suppress(OSError):
                    worker.pipe.send(SAVE_CHECKPOINT)
            processes = [p for w in self.workers for p in (w.pool._processes or {}).values()]
        running = {process.sentinel for process in processes}
        end = time.monotonic() + MAX_SAVE_SECONDS
        while running and time.monotonic() < end:
            running -= set(multiprocessing.connection.wait(running, end - time.monotonic()))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the processes. Unfinished calls are cancelled."""
        with self.lock:
            self.is_shut_down = True
            for worker in self.workers:
                worker.pipe.close()
            while self.waiting:
                self.waiting.popleft().future.set_exception(concurrent.futures.CancelledError())
        for worker in self.workers:
            worker.pool.shutdown(wait, cancel_futures=True)

    def _send_waiting(self) -> None:
        """Send waiting calls to idle processes."""
        with self.lock:
            for worker in self.workers:
                if self.waiting and worker.is_idle and not self.is_shut_down:
                    self._send(worker, self.waiting.popleft())

    def _send(self, worker: _Worker, call: _Call) -> None:
        worker.is_idle = False
        worker.call = call
        call.began = time.monotonic()
        try:
            done = worker.pool.submit(call.function)
        except BrokenExecutor:  # it died while it was idle, so no call is to blame
            _replace(worker)
            done = worker.pool.submit(call.function)
        done.add_done_callback(lambda done: self._receive(worker, call, done))

    def _receive(self, worker: _Worker, call: _Call, done: Future) -> None:
        """Take the result of a call. If its process died, start a new one."""
        error = concurrent.futures.CancelledError() if done.cancelled() else done.exception()
        with self.lock:
            has_died = isinstance(error, BrokenExecutor) and not self.is_shut_down
            if has_died:
                call.num_deaths += 1
                _replace(worker)
                if call.num_deaths <= MAX_RETRIES:
                    self.waiting.append(call)  # behind the others, which it must not hold up
            worker.is_idle = True
        if has_died and call.num_deaths > MAX_RETRIES:
            error = InputError(
                f"its process died {call.num_deaths} times, perhaps for lack of memory: "
                "use fewer processes"
            )
        if error is None:
            call.future.set_result(done.result())
        elif not has_died or call.num_deaths > MAX_RETRIES:
            call.future.set_exception(error)
        self._send_waiting()


def _replace(worker: _Worker) -> None:
    say("a worker process died: a new one starts its chunk again")
    worker.pipe.close()
    worker.start()


def _start_worker(pipe: Any, worker: int, num_workers: int) -> None:
    keep_to_share(worker, num_workers)
    threading.Thread(target=_exit_with_driver, args=(pipe,), daemon=True).start()


def _exit_with_driver(pipe: Any) -> None:
    with contextlib.suppress(EOFError, OSError):
        # Returns when the driver dies or closes its end, or sends this at SIGTERM.
        if pipe.recv() == SAVE_CHECKPOINT:
            termination.end_training(MAX_SAVE_SECONDS)
    os._exit(1)
