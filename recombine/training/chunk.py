"""Chunks: runs of one structure that train side by side, here or on another machine."""

import datetime
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pandas as pd

from recombine.basics.errors import require
from recombine.basics.version import __version__
from recombine.parts.precision import matmul_dtype
from recombine.sweeps.code_hash import hash_of_package
from recombine.sweeps.run import Run, describe, generation, identity, structure, with_starts
from recombine.training import heartbeat, machine, termination, trainer
from recombine.training.checkpoint import drop_all
from recombine.training.executors import remote
from recombine.training.fitted import Fitted, load_network
from recombine.training.task_sampler import Splits

MAX_WIDTH_CPU = 16  # runs of a chunk on a CPU: their rows are written together


class Chunk(NamedTuple):
    """Runs that train side by side, in one program for `width` runs."""

    runs: tuple[Run, ...]
    width: int


ChunkProgressCallback = Callable[[Chunk, trainer.Progress], None]


def make_chunks(runs: Iterable[Run], max_width: int = MAX_WIDTH_CPU) -> list[Chunk]:
    """Divide a sweep into chunks of at most `max_width` runs.

    Equal runs count once. Runs of one structure are grouped, and their chunks have one width. The
    runs from which others start are included, in earlier chunks.
    """
    require(max_width >= 1, f"max_width must be at least 1, got {max_width}")
    groups: dict[tuple[int, Run], dict[Run, None]] = {}
    for run in with_starts(runs):
        groups.setdefault((generation(run), structure(run)), {})[run] = None
    chunks = []
    for unique_runs in groups.values():
        group = list(unique_runs)
        num_chunks = math.ceil(len(group) / max_width)
        width = math.ceil(len(group) / num_chunks)
        for first in range(0, len(group), width):
            chunks.append(Chunk(tuple(group[first : first + width]), width))
    return chunks


def chunk_rows(
    chunk: Chunk,
    keep: str | Path | None = None,
    on_progress: ChunkProgressCallback | None = None,
    compiling: Future[trainer.PreparedChunk] | None = None,
    folder: Path | None = None,
    keep_last_checkpoint: bool = False,
    splits: Splits | None = None,
    starts: Path | None = None,
) -> pd.DataFrame:
    """Train a chunk and return its rows.

    With `keep`, its networks are saved in that folder. With `folder`, its checkpoints are. `starts`
    is the folder with the networks of the runs from which these runs start.
    """
    nets = _load_start_nets(chunk, starts)
    fitted_runs = fit_chunk(
        chunk, on_progress, compiling, folder, keep_last_checkpoint, splits, nets
    )
    if keep is not None:
        for fitted in fitted_runs:
            _save_network(fitted, Path(keep), folder)
    return pd.concat([fitted.rows for fitted in fitted_runs], ignore_index=True)


def _save_network(fitted: Fitted, keep: Path, checkpoints: Path | None) -> None:
    """Save a network. On a full disk, checkpoints are deleted first to make room for it."""
    path = keep / identity(fitted.run)
    try:
        fitted.save(path)
    except OSError:
        if not drop_all(checkpoints):
            raise
        fitted.save(path)


def _load_start_nets(chunk: Chunk, folder: Path | None) -> list[Any] | None:
    """The network that each run starts from; None if the runs of the chunk have no start."""
    starts = [run.start for run in chunk.runs if run.start is not None]
    if not starts or folder is None:
        return None
    # On the host: the device has room for the copies that are trained, not for these as well.
    nets = {
        start: jax.device_get(load_network(start, folder / identity(start)))
        for start in dict.fromkeys(starts)
    }
    return [nets[start] for start in starts]


def remote_chunk_rows(
    packed_runs: str, width: int, keep: str | None, folder: str | None, starts: str | None = None
) -> pd.DataFrame:
    """Train a chunk that another process sent as text (`remote.pack`), and return its rows.

    Checkpoints are written if this machine sees the driver's folder. The end of training is a
    checkpoint too: if the driver is killed before the rows arrive, they are not lost.
    """
    chunk = Chunk(tuple(remote.unpack(packed_runs)), width)
    checkpoint_folder = None
    if folder is not None and Path(folder).parent.is_dir():
        checkpoint_folder = Path(folder)
    path = heartbeat.heartbeat_path(checkpoint_folder, identity(chunk.runs[0]))
    alive = heartbeat.Heartbeat(path)
    alive.beat()
    with termination.stop_on_sigterm():  # a job of a cluster that is pre-empted
        return chunk_rows(
            chunk,
            keep,
            alive.beat,
            folder=checkpoint_folder,
            keep_last_checkpoint=True,
            starts=None if starts is None else Path(starts),
        )


def provenance(code_hash: str) -> dict[str, Any]:
    """The columns that say on which machine, with which code and when rows are made."""
    return machine.columns() | {
        "meta/recombine": __version__,
        "meta/code": code_hash,
        "meta/date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def fit_chunk(
    chunk: Chunk,
    on_progress: ChunkProgressCallback | None = None,
    compiling: Future[trainer.PreparedChunk] | None = None,
    folder: Path | None = None,
    keep_last_checkpoint: bool = False,
    splits: Splits | None = None,
    start_nets: Sequence[Any] | None = None,
) -> list[Fitted]:
    """Train a chunk and return its networks, each with its rows.

    `start_nets` are the networks that the runs start from, if they have a `start`.
    """

    def on_trainer_progress(progress: trainer.Progress) -> None:
        if on_progress is not None:
            on_progress(chunk, progress)

    trained = trainer.train_chunk(
        list(chunk.runs),
        chunk.width,
        on_trainer_progress,
        compiling,
        folder,
        keep_last_checkpoint,
        splits,
        start_nets,
    )
    meta = provenance(hash_of_package()) | {
        "meta/note": trained.note,
        "meta/seconds": trained.seconds / len(chunk.runs),
        "meta/compile_seconds": trained.compile_seconds,
        "meta/precision": _precision(chunk.runs[0], trained.net),
    }
    return [_fitted(run, i, trained, meta) for i, run in enumerate(chunk.runs)]


def _precision(run: Run, net: Any) -> str:
    """The type in which a network's matrices were multiplied."""
    recipe_precision: Any = getattr(run.recipe, "precision", "float32")
    is_mixed = getattr(net, "mixed_precision", False)
    return jnp.dtype(matmul_dtype(recipe_precision if is_mixed else "float32")).name


def _fitted(run: Run, i: int, trained: trainer.TrainedChunk, meta: dict[str, Any]) -> Fitted:
    """Run number i of a trained chunk."""
    run_columns = {"run": identity(run)} | describe(run)
    meta = meta | {"meta/width": trained.widths[i]}
    rows = pd.DataFrame([run_columns | row | meta for row in trained.rows[i]])
    net, setting = jax.tree.map(lambda leaf: jnp.asarray(leaf[i]), (trained.net, trained.setting))
    return Fitted(run, net, setting.world, setting.encoding, rows)
