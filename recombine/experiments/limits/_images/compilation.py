"""Programs that are compiled once; on a GPU in background threads, before they are needed."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from recombine.training import device

_compiled: dict[Hashable, Future[Any]] = {}
_pools: list[ThreadPoolExecutor] = []


def compile_ahead(name: Hashable, compile_program: Callable[[], Any]) -> None:
    """Start to compile a program in the background. A CPU has no spare cores: nothing is done."""
    if not device.on_cpu() and name not in _compiled:
        if not _pools:
            _pools.append(ThreadPoolExecutor(device.num_compilers()))
        _compiled[name] = _pools[0].submit(compile_program)


def compiled(name: Hashable, compile_program: Callable[[], Any]) -> Any:
    """The program of this name, compiled now unless it was before."""
    if name not in _compiled:
        _compiled[name] = Future()
        try:
            _compiled[name].set_result(compile_program())
        except BaseException:
            del _compiled[name]
            raise
    return _compiled[name].result()
