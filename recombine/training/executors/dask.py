"""Dask workers as an executor: a cluster of this machine, or one that a scheduler's address names."""

import contextlib
import importlib
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from typing import Any

from recombine.basics.console import say
from recombine.basics.errors import InputError
from recombine.training.executors.local import keep_to_share

CONNECT_SECONDS = 10


@contextlib.contextmanager
def local_cluster(num: int) -> Iterator[Executor]:
    """So many workers of this machine."""
    distributed = _package("distributed", "dask")

    class Share(distributed.WorkerPlugin):
        """Also of a worker that takes a killed one's place: it has the same name."""

        def setup(self, worker: Any) -> None:
            keep_to_share(worker.name, num)

    # No memory limit: Dask would restart a worker above its share, where the engine halves a chunk instead.
    settings = {
        "n_workers": num,
        "threads_per_worker": 1,
        "dashboard_address": None,
        "memory_limit": 0,
    }
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster) as client:
        client.register_plugin(Share())
        with _tasks(client) as executor:
            yield executor


@contextlib.contextmanager
def cluster(address: str) -> Iterator[Executor]:
    """The workers of the scheduler at this address."""
    distributed = _package("distributed", "dask")
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:  # ValueError: a name that no machine can have
        raise InputError(
            f"no Dask scheduler answers at {address}: `dask scheduler` starts one, `dask worker {address}` a worker"
        ) from error
    with client, _tasks(client) as executor:
        if not client.scheduler_info()["workers"]:
            say(
                f"the Dask scheduler at {address} has no worker yet: start some with `dask worker {address}`"
            )
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
