"""The machine under a program: how many runs share one call, how many calls go side by side, what fits in memory, and
where compiled programs are kept between processes."""

import concurrent.futures
import contextlib
import functools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from recombine.basics.errors import require

CACHE_BYTES = 2 * 10**9  # of compiled programs on disk; the longest unused go first
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
FULL = 0.9  # of the device's memory; the rest is for the allocator's gaps


def on_cpu() -> bool:
    """Whether programs run on the host's own cores."""
    return jax.default_backend() == "cpu"


def lane(width: int) -> int:
    """How many of a chunk's runs one call trains.

    A GPU is filled by all of them at once; several GPUs share them evenly. A core of a CPU is filled by one, whose
    arrays then stay in its cache: there, calls run side by side instead.
    """
    return 1 if on_cpu() and num_devices() == 1 else -(-width // num_devices()) * num_devices()


def num_devices() -> int:
    """How many devices of one kind share the runs of a call. (A CPU is one, unless XLA was told to play several.)"""
    return jax.local_device_count()


def over_runs(function: Callable, axes: tuple[int | None, ...], donated: int | None = None) -> Any:
    """A function of one run as a function of many: the arguments with axis 0 are stacked, the others shared.

    On several devices each takes its share of the runs, and no two of them ever talk to each other.
    """
    many = jax.vmap(function, in_axes=axes)
    donated_ = () if donated is None else (donated,)
    if num_devices() == 1:
        return jax.jit(many, donate_argnums=donated_)
    specs = tuple(PartitionSpec() if axis is None else PartitionSpec("runs") for axis in axes)
    mesh, out = _mesh(), PartitionSpec("runs")
    apart = jax.shard_map(many, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False)
    places = tuple(NamedSharding(mesh, spec) for spec in specs)
    return jax.jit(
        apart, in_shardings=places, out_shardings=NamedSharding(mesh, out), donate_argnums=donated_
    )


def put(tree: Any, stacked: bool) -> Any:
    """Arrays on the device: those of many runs each where their run is trained, shared ones everywhere."""
    if num_devices() == 1:
        return jax.device_put(tree)
    return jax.device_put(
        tree, NamedSharding(_mesh(), PartitionSpec("runs") if stacked else PartitionSpec())
    )


def _mesh() -> Mesh:
    return Mesh(np.array(jax.local_devices()), ("runs",))


def num_threads() -> int:
    """How many calls run side by side."""
    return num_cores() if on_cpu() and num_devices() == 1 else 1


def num_cores() -> int:
    """How many of the host's cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def side_by_side(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """The function of every item, as many at a time as the machine has room for."""
    if min(len(items), num_threads()) == 1:
        return [function(item) for item in items]
    pool = concurrent.futures.ThreadPoolExecutor(num_threads())
    try:
        return list(pool.map(function, items))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C only the calls under way are waited for


def num_compilers() -> int:
    """How many programs are compiled at a time, each by a thread of its own."""
    return max(1, min(4, num_cores() // 4) if on_cpu() else min(8, num_cores() // 2))


def compiler_options() -> dict[str, Any]:
    """What XLA is told. On a GPU it would time kernels of its own for every matrix product, which makes most of the
    compilation, must have the device to itself and may choose other kernels each time. cuBLAS knows as good ones."""
    return (
        {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
        if jax.default_backend() == "gpu"
        else {}
    )


def settings() -> tuple[Any, ...]:
    """What the user told JAX that changes numbers."""
    names = (
        "default_matmul_precision",
        "enable_x64",
        "default_device",
        "default_prng_impl",
        "numpy_dtype_promotion",
    )
    return tuple(getattr(jax.config, f"jax_{name}", None) for name in names)


def fits(*compiled: Any) -> bool:
    """Whether each of these compiled programs has room in the device's memory, as far as that is known."""
    limit = _device_bytes()
    return limit is None or max(map(needed_bytes, compiled)) <= FULL * limit


def total_bytes() -> int | None:
    """The memory that programs share, the device's or else the host's (or its container's), where it is known."""
    pages = ("SC_PHYS_PAGES", "SC_PAGE_SIZE")
    if (
        _device_bytes() is not None
        or not on_cpu()
        or not set(pages) <= set(getattr(os, "sysconf_names", ()))
    ):
        return _device_bytes()
    limits = [math.prod(map(os.sysconf, pages))]
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        limits.append(int(CONTAINER_LIMIT.read_text()))
    return min(limits)


def _device_bytes() -> int | None:
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def needed_bytes(compiled: Any) -> int:
    """Memory of a compiled program while it runs: arguments, results and all between."""
    needs = compiled.memory_analysis()
    if needs is None:
        return 0
    together = needs.argument_size_in_bytes + needs.output_size_in_bytes + needs.temp_size_in_bytes
    return int(together - needs.alias_size_in_bytes)


def out_of_memory(error: Exception) -> bool:
    """Whether the device refused for lack of memory."""
    told = str(error).lower()
    signs = ("resource_exhausted", "out of memory", "out_of_memory", "alloc_failed")
    return isinstance(error, MemoryError) or any(sign in told for sign in signs)


@functools.cache
def keep_programs() -> Path | None:
    """Keep compiled programs on disk, so that another process need not compile them again.

    In `$RECOMBINE_CACHE` (`off` for nowhere), or in the user's cache folder; a folder that was already chosen through
    JAX's own settings stays. A folder that was asked for and cannot be used is an error; the user's cache folder is
    done without.
    """
    chosen = os.environ.get("RECOMBINE_CACHE", "")
    if jax.config.jax_compilation_cache_dir or chosen == "off":  # pyright: ignore
        return None
    try:
        folder = Path(chosen or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = folder if chosen else folder / "recombine"
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise OSError("not writable")
        prune(folder, CACHE_BYTES)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        require(
            not chosen,
            f"RECOMBINE_CACHE={chosen} cannot be used ({error}): name another folder, or off",
        )
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return folder


def prune(folder: Path, max_bytes: int) -> None:
    """Delete the longest unused files of a cache until the rest is small enough."""
    files = []
    for path in folder.glob("jit_*"):
        with contextlib.suppress(OSError):  # another process may have deleted it
            if path.is_file():
                files.append((path, path.stat()))
    files.sort(key=lambda file: -max(file[1].st_atime, file[1].st_mtime))
    for (path, _), total in zip(files, np.cumsum([stat.st_size for _, stat in files]), strict=True):
        if total > max_bytes:
            path.unlink(missing_ok=True)
