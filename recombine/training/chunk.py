"""A chunk: runs of one structure that train side by side, here or, as a parcel of text, on another machine."""

import datetime
import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pandas as pd

from recombine.basics.errors import require
from recombine.basics.version import __version__
from recombine.parts.precision import multiplied_in
from recombine.sweeps.code_hash import of_package
from recombine.sweeps.run import Run, describe, identity, structure
from recombine.training import trainer
from recombine.training.executors import remote
from recombine.training.fitted import Fitted
from recombine.training.task_sampler import Splits


class Chunk(NamedTuple):
    """Runs that train side by side in one program of the given width."""

    runs: tuple[Run, ...]
    width: int


Watch = Callable[[Chunk, trainer.Progress], None]
MAX_WIDTH = 16  # runs in a chunk on a CPU, whose rows are written together


def cut(runs: Iterable[Run], max_width: int = MAX_WIDTH) -> list[Chunk]:
    """Cut a sweep into chunks: equal runs once, equal structures together, chunks of a structure equally wide."""
    require(max_width >= 1, f"max_width must be at least 1, got {max_width}")
    groups: dict[Run, dict[Run, None]] = {}
    for run in runs:
        groups.setdefault(structure(run), {})[run] = None
    chunks = []
    for group in map(list, groups.values()):
        width = math.ceil(len(group) / math.ceil(len(group) / max_width))
        chunks += [Chunk(tuple(group[i : i + width]), width) for i in range(0, len(group), width)]
    return chunks


def chunk_rows(
    chunk: Chunk,
    keep: str | Path | None = None,
    watch: Watch | None = None,
    ready: Future[trainer.Ready] | None = None,
    folder: Path | None = None,
    leave: bool = False,
    splits: Splits | None = None,
) -> pd.DataFrame:
    """The rows of one chunk, which is trained; with `keep`, save its networks, with `folder`, its checkpoints."""
    fitted = fit_chunk(chunk, watch, ready, folder, leave, splits)
    if keep is not None:
        for one in fitted:
            one.save(Path(keep) / identity(one.run))
    return pd.concat([one.rows for one in fitted], ignore_index=True)


def remote_rows(text: str, width: int, keep: str | None, folder: str | None) -> pd.DataFrame:
    """The rows of a chunk that came as text from another process, and is trained here.

    Checkpoints are kept where this machine sees the driver's folder. The end is one too: it outlives a driver that is
    killed before the rows arrive.
    """
    place = Path(folder) if folder is not None and Path(folder).parent.is_dir() else None
    return chunk_rows(Chunk(tuple(remote.unpack(text)), width), keep, None, None, place, leave=True)


def stamp(code: str) -> dict[str, Any]:
    """How and when rows are made, by code of this hash."""
    return {
        "meta/device": jax.devices()[0].device_kind,
        "meta/jax": jax.__version__,
        "meta/recombine": __version__,
        "meta/code": code,
        "meta/date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def fit_chunk(
    chunk: Chunk,
    watch: Watch | None = None,
    ready: Future[trainer.Ready] | None = None,
    folder: Path | None = None,
    leave: bool = False,
    splits: Splits | None = None,
) -> list[Fitted]:
    """Train one chunk and give its networks, each with its rows."""

    def tell(progress: trainer.Progress) -> None:
        if watch is not None:
            watch(chunk, progress)

    trained = trainer.train_chunk(list(chunk.runs), chunk.width, tell, ready, folder, leave, splits)
    low = getattr(trained.net, "mixed_precision", False)
    precision: Any = getattr(chunk.runs[0].recipe, "precision", "float32") if low else "float32"
    made = stamp(of_package()) | {
        "meta/note": trained.note,
        "meta/seconds": trained.seconds / len(chunk.runs),
        "meta/compile_seconds": trained.compile_seconds,
        "meta/precision": jnp.dtype(multiplied_in(precision)).name,
    }
    fitted = []
    for i, run in enumerate(chunk.runs):
        about = {"run": identity(run)} | describe(run)
        rows = pd.DataFrame(
            [about | row | made | {"meta/width": trained.widths[i]} for row in trained.rows[i]]
        )
        net, setting = jax.tree.map(
            lambda leaf, i=i: jnp.asarray(leaf[i]), (trained.net, trained.setting)
        )
        fitted.append(Fitted(run, net, setting.world, setting.encoding, rows))
    return fitted
