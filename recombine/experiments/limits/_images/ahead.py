"""Programs that are compiled once, and on a GPU ahead of their use, several at a time."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from recombine.training import device

_made: dict[Hashable, Future[Any]] = {}
_pools: list[ThreadPoolExecutor] = []


def begin(name: Hashable, make: Callable[[], Any]) -> None:
    """Begin to make what will be asked for; on a CPU, which has no time to spare, only when it is."""
    if not device.on_cpu() and name not in _made:
        if not _pools:
            _pools.append(ThreadPoolExecutor(device.num_compilers()))
        _made[name] = _pools[0].submit(make)


def made(name: Hashable, make: Callable[[], Any]) -> Any:
    """What was made under this name, now or before."""
    if name not in _made:
        _made[name] = Future()
        try:
            _made[name].set_result(make())
        except BaseException:
            del _made[name]
            raise
    return _made[name].result()
