"""Where chunks are trained: in this process, in several of this machine, by Dask workers, or as Slurm jobs.

`opened("dask-local:3")` gives an executor of `concurrent.futures` shape to `rc.train(…, executor=…)`. When its block
ends, also by an error or Ctrl-C, what has not finished is cancelled and the processes that it started are gone. Worker
processes of one machine divide its cores among them: 4 on 8 cores get 2 each, and more workers than cores get one each.
"""

import contextlib
import re
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from pathlib import Path

from recombine.basics.errors import require
from recombine.training.executors import dask, local
from recombine.training.executors.slurm import jobs, options_of

FORMS = (
    "here, processes:N, dask-local:N (N from 1 to 999), dask://HOST:PORT, tcp://HOST:PORT or slurm"
)


def opened(
    on: str, slurm: str = "", folder: Path = Path()
) -> AbstractContextManager[Executor | None]:
    """The executor that `on` names, for a `with` block; none for `here`. Slurm's files go to `folder/slurm`."""
    require(not slurm or on == "slurm", f"--slurm {slurm} needs --on slurm, got --on {on}")
    kind, _, rest = on.partition(":")
    if on == "here":
        return contextlib.nullcontext()
    if on == "slurm":
        return jobs(options_of(slurm), folder / "slurm")
    if re.fullmatch(r"(dask|tcp)://[\w.-]+:\d+", on):
        return dask.cluster("tcp:" + rest)
    counted = {"processes": local.processes, "dask-local": dask.local_cluster}
    require(
        kind in counted and re.fullmatch("[1-9][0-9]{0,2}", rest) is not None,
        f"--on {on} is none of {FORMS}",
    )
    return counted[kind](int(rest))
