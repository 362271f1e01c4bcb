"""Several processes of this machine as an executor: they divide its cores, and one that dies is replaced."""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from recombine.basics.console import say
from recombine.basics.errors import InputError

MAX_AGAIN = 2  # times that a chunk is given to another process when its own has died


def keep_to_share(worker: int, num_workers: int) -> None:
    """Keep this process to its share of the cores, so that all workers together use each core once."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[worker % len(cores) :: num_workers])


@contextlib.contextmanager
def processes(num: int) -> Iterator[Executor]:
    """So many processes."""
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
        context = multiprocessing.get_context(
            "spawn"
        )  # a fork of a process with JAX's threads may hang
        ours, theirs = context.Pipe()
        started = context.Value("i", 0)
        return concurrent.futures.ProcessPoolExecutor(
            self.num, context, _begin, (theirs, started, self.num)
        ), ours

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

    def _take(
        self, future: Future, call: Callable, num_again: int, pool: Executor, inner: Future
    ) -> None:
        error = concurrent.futures.CancelledError() if inner.cancelled() else inner.exception()
        if (
            isinstance(error, concurrent.futures.BrokenExecutor)
            and not self.ended
            and num_again < MAX_AGAIN
        ):
            self._renew(pool)
            self._send(future, call, num_again + 1)
        elif isinstance(error, concurrent.futures.BrokenExecutor) and not self.ended:
            message = f"its process died {num_again + 1} times, for lack of memory perhaps: use fewer processes"
            future.set_exception(InputError(message))
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(inner.result())

    def _renew(self, broken: Executor) -> None:
        with self.lock:
            if self.pool is broken and not self.ended:
                say("a process died: its chunks begin again in a new one")
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
