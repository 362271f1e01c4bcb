"""Dask workers as an executor: on this machine, or of a scheduler with a known address."""

import concurrent.futures
import contextlib
import importlib
import logging
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import Any

from recombine.basics.console import say
from recombine.basics.errors import InputError
from recombine.training.executors.local import keep_to_share

CONNECT_SECONDS = 10


@contextlib.contextmanager
def local_cluster(num_workers: int) -> Iterator[Executor]:
    """Start Dask workers on this machine."""
    distributed = _import("distributed", extra="dask")

    class CoreShare(distributed.WorkerPlugin):
        """Keeps a worker to its share of the cores.

        A worker that replaces a killed one has the same name, and so gets the same share.
        """

        def setup(self, worker: Any) -> None:
            keep_to_share(worker.name, num_workers)

    with (
        _quiet(),
        distributed.LocalCluster(
            n_workers=num_workers,
            threads_per_worker=1,
            dashboard_address=None,
            # Certificates of this sweep only: no other user of this machine can send it work.
            security=distributed.Security.temporary(),
            # No limit, because Dask would restart a worker above it. We halve the chunk instead.
            memory_limit=0,
        ) as local,
        distributed.Client(local) as client,
    ):
        client.register_plugin(CoreShare())
        with _executor_of(client) as executor:
            yield executor


@contextlib.contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """Use the workers of the scheduler at this address.

    For `tls://` the certificates are those of Dask's own configuration (`distributed.comm.tls`).
    """
    distributed = _import("distributed", extra="dask")
    security = None
    if address.startswith("tls:"):
        security = distributed.Security(require_encryption=True)
    with _quiet():
        yield from _connected(distributed, address, security)


def _connected(distributed: Any, address: str, security: Any) -> Iterator[Executor]:
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS, security=security)
    except (OSError, ValueError) as error:  # ValueError: not a valid host name
        raise InputError(
            f"no Dask scheduler answers at {address}: start one with `dask scheduler`, "
            f"and workers with `dask worker {address}`"
        ) from error
    with client, _executor_of(client) as executor:
        if not client.scheduler_info()["workers"]:
            say(
                f"the Dask scheduler at {address} has no worker yet: "
                f"start some with `dask worker {address}`"
            )
        yield executor


@contextlib.contextmanager
def _executor_of(client: Any) -> Iterator[Executor]:
    from distributed.cfexecutor import ClientExecutor

    class ReleasingExecutor(ClientExecutor):
        """Releases a task as soon as its result has arrived.

        Otherwise Dask would compute it again if the worker that holds the result dies.
        """

        def busy_workers(self) -> str:
            """The workers that compute at this moment; if there is none, that they are lost."""
            processing = client.processing()
            if not processing:
                return "a worker: the scheduler has none, start one with `dask worker`"
            busy = [address for address, tasks in processing.items() if tasks]
            return f"worker {', '.join(busy)}" if busy else ""

        def _wrap_future(self, future: Any) -> Future:
            wrapped = super()._wrap_future(future)
            wrapped.add_done_callback(lambda _: future.release())
            return wrapped

    executor = ReleasingExecutor(client, pure=False)
    address = client.scheduler.address
    try:
        yield executor
    except (concurrent.futures.CancelledError, OSError) as error:
        stream = client.scheduler_comm
        if client.status == "running" and stream is not None and not stream.comm.closed():
            raise
        raise InputError(
            f"the Dask scheduler at {address} is gone; finished rows are saved, run the same "
            "command to continue"
        ) from error
    finally:
        executor.shutdown(wait=False)  # in Dask, this cancels unfinished tasks


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Print nothing of Dask's own log in this process: a lost scheduler would fill the terminal."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]
    loggers = [logging.getLogger(name) for name in [*names, "asyncio", "tornado.application"]]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _import(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f'{name} is not installed: pip install "recombine[{extra}]"') from error
