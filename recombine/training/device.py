"""The machine that programs run on: its devices, cores and memory, and the program cache.

Here it is decided how many runs share a call and how many calls run in parallel.
"""

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

MAX_CACHE_BYTES = 2 * 10**9  # of compiled programs on disk
MAX_MEMORY_FRACTION = 0.9  # of the device's memory: the allocator leaves gaps
MEMORY_LIMIT_FILE = Path("/sys/fs/cgroup/memory.max")  # of a container
# JAX's settings that change numbers, with their defaults.
NUMERIC_SETTINGS = {
    "default_matmul_precision": None,
    "enable_x64": False,
    "default_device": None,
    "default_prng_impl": "threefry2x32",
    "numpy_dtype_promotion": "standard",
    "threefry_partitionable": True,
}
OUT_OF_MEMORY_SIGNS = ("resource_exhausted", "out of memory", "out_of_memory", "alloc_failed")


def on_cpu() -> bool:
    """Whether programs run on the host's own cores."""
    return jax.default_backend() == "cpu"


def lane_width(width: int) -> int:
    """How many runs of a chunk one call trains.

    On a GPU, one call trains all of them. Several GPUs share them evenly. On a CPU, a call trains
    one run, whose arrays stay in the cache of a core, and calls run in parallel.
    """
    if on_cpu() and num_devices() == 1:
        return 1
    runs_per_device = -(-width // num_devices())
    return runs_per_device * num_devices()


def num_devices() -> int:
    """How many devices share the runs of a call.

    A CPU counts as one device, unless XLA was configured to simulate several.
    """
    return jax.local_device_count()


def vmap_over_runs(
    function: Callable, axes: tuple[int | None, ...], donated: int | None = None
) -> Any:
    """Make a jitted function of many runs from a function of one run.

    Arguments with axis 0 are stacked over runs, those with None are shared. `donated` is the
    number of an argument whose memory may be reused. With several devices, each computes its own
    runs, without communication.
    """
    over_runs = jax.vmap(function, in_axes=axes)
    donate_argnums = () if donated is None else (donated,)
    if num_devices() == 1:
        return jax.jit(over_runs, donate_argnums=donate_argnums)
    mesh = _mesh()
    in_specs = tuple(PartitionSpec() if axis is None else PartitionSpec("runs") for axis in axes)
    out_specs = PartitionSpec("runs")
    sharded = jax.shard_map(
        over_runs, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )
    return jax.jit(
        sharded,
        in_shardings=tuple(NamedSharding(mesh, spec) for spec in in_specs),
        out_shardings=NamedSharding(mesh, out_specs),
        donate_argnums=donate_argnums,
    )


def put(tree: Any, stacked: bool) -> Any:
    """Copy arrays to the device.

    With several devices, arrays that are stacked over runs are divided among them, and others are
    copied to each.
    """
    if num_devices() == 1:
        return jax.device_put(tree)
    spec = PartitionSpec("runs") if stacked else PartitionSpec()
    return jax.device_put(tree, NamedSharding(_mesh(), spec))


def _mesh() -> Mesh:
    return Mesh(np.array(jax.local_devices()), ("runs",))


def num_threads() -> int:
    """How many calls run in parallel."""
    return num_cores() if on_cpu() and num_devices() == 1 else 1


def num_cores() -> int:
    """How many of the host's cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_parallel(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """Apply a function to every item, in `num_threads` threads."""
    if min(len(items), num_threads()) == 1:
        return [function(item) for item in items]
    pool = concurrent.futures.ThreadPoolExecutor(num_threads())
    try:
        return list(pool.map(function, items))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, calls that have not begun are dropped


def num_compilers() -> int:
    """How many programs are compiled in parallel, each in its own thread."""
    if on_cpu():
        return max(1, min(4, num_cores() // 4))
    return max(1, min(8, num_cores() // 2))


def compiler_options() -> dict[str, Any]:
    """Options for XLA. On a GPU they switch autotuning off.

    Autotuning times several kernels for each matrix product. That takes most of the compilation
    time, needs the device for itself, and may choose other kernels each time. The kernels of
    cuBLAS are as fast.
    """
    if jax.default_backend() != "gpu":
        return {}
    return {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}


def numeric_settings() -> tuple[Any, ...]:
    """The values of JAX's settings that change numbers, in the order of `NUMERIC_SETTINGS`."""
    values = [getattr(jax.config, f"jax_{name}", None) for name in NUMERIC_SETTINGS]
    return tuple(getattr(value, "value", value) for value in values)  # an enum as its text


def fits(*compiled: Any) -> bool:
    """Whether each compiled function fits in the device's memory. True if that is not known."""
    limit = _device_bytes()
    return limit is None or max(map(needed_bytes, compiled)) <= MAX_MEMORY_FRACTION * limit


def total_bytes() -> int | None:
    """The memory of the device, or of the host or its container. None if it is not known."""
    device_bytes = _device_bytes()
    if device_bytes is not None or not on_cpu():
        return device_bytes
    names = ("SC_PHYS_PAGES", "SC_PAGE_SIZE")
    if not set(names) <= set(getattr(os, "sysconf_names", ())):
        return None
    limits = [math.prod(map(os.sysconf, names))]
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        limits.append(int(MEMORY_LIMIT_FILE.read_text()))
    return min(limits)


def _device_bytes() -> int | None:
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def needed_bytes(compiled: Any) -> int:
    """The memory of a compiled function while it runs: arguments, results and temporaries."""
    sizes = compiled.memory_analysis()
    if sizes is None:
        return 0
    total = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    return int(total - sizes.alias_size_in_bytes)


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means that the device has too little memory."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in text for sign in OUT_OF_MEMORY_SIGNS)


@functools.cache
def enable_program_cache() -> Path | None:
    """Cache compiled programs on disk, so that other processes need not compile them again.

    The folder is `$RECOMBINE_CACHE`, or the user's cache folder. Returns None if there is no cache
    of ours: `$RECOMBINE_CACHE` is `off`, JAX's own cache is configured, or the user's cache folder
    cannot be used. An unusable `$RECOMBINE_CACHE` is an error.
    """
    chosen = os.environ.get("RECOMBINE_CACHE", "")
    if jax.config.jax_compilation_cache_dir or chosen == "off":  # pyright: ignore
        return None
    try:
        folder = Path(chosen) if chosen else _user_cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise OSError("not writable")
        prune_cache(folder, MAX_CACHE_BYTES)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        require(
            not chosen,
            f"RECOMBINE_CACHE={chosen} cannot be used ({error}): name another folder, or off",
        )
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    return folder


def _user_cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recombine"


def prune_cache(folder: Path, max_bytes: int) -> None:
    """Delete the least recently used files of a cache until it is small enough."""
    files = []
    for path in folder.glob("jit_*"):
        with contextlib.suppress(OSError):  # another process may have deleted it
            if path.is_file():
                files.append((path, path.stat()))
    files.sort(key=lambda file: -max(file[1].st_atime, file[1].st_mtime))
    total = 0
    for path, stat in files:  # the most recently used first
        total += stat.st_size
        if total > max_bytes:
            path.unlink(missing_ok=True)
