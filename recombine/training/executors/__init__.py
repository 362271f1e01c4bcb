"""Executors: where chunks are trained. In this process, in worker processes, on Dask, or on Slurm.

`open_executor("dask-local:3")` opens an executor with the interface of `concurrent.futures`, to be
passed to `rc.train(…, executor=…)`. When its `with` block ends (normally, by an error or by
Ctrl-C), unfinished work is cancelled and every process that it started has ended.

Worker processes on one machine divide its cores: 4 workers on 8 cores get 2 cores each. If there
are more workers than cores, each worker gets one core.
"""

import contextlib
import re
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from pathlib import Path

from recombine.basics.errors import require
from recombine.training.executors import dask, local, slurm

FORMS = (
    "here, processes:N, dask-local:N (N from 1 to 999), dask://HOST:PORT, tcp://HOST:PORT, "
    "tls://HOST:PORT or slurm"
)


def open_executor(
    name: str, slurm_options: str = "", folder: Path = Path()
) -> AbstractContextManager[Executor | None]:
    """Open the named executor for a `with` block. It is None for `here`, which means this process.

    Slurm writes its files into `folder/slurm`.
    """
    require(
        not slurm_options or name == "slurm",
        f"--slurm {slurm_options} needs --executor slurm, got --executor {name}",
    )
    if name == "here":
        return contextlib.nullcontext()
    if name == "slurm":
        return slurm.open_jobs(slurm.parse_options(slurm_options), folder / "slurm")
    kind, _, rest = name.partition(":")
    if re.fullmatch(r"(dask|tcp|tls)://[\w.-]+:\d+", name):
        return dask.cluster(("tls:" if kind == "tls" else "tcp:") + rest)
    with_num_workers = {"processes": local.processes, "dask-local": dask.local_cluster}
    require(
        kind in with_num_workers and re.fullmatch("[1-9][0-9]{0,2}", rest) is not None,
        f"--executor {name} is not valid: use {FORMS}",
    )
    return with_num_workers[kind](int(rest))


opened = open_executor  # the old name, for one more release
