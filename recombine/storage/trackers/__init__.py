"""Copies of finished runs in W&B, TensorBoard and MLflow, for those who compare their runs there (`--log`).

The table stays what counts: a mirror is written after it, by a thread of its own, and one that fails is reported once
and left out. A run is copied under its hash; copied again, it takes the place of its earlier copy. What stays the
same during a run (its fields, its support, `meta/`) is its configuration there, every other number a metric at its
step.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.basics.console import say
from recombine.basics.errors import InputError, require
from recombine.basics.suggest import nearest
from recombine.storage.trackers.copy import Copy, Write
from recombine.storage.trackers.mlflow import open_mlflow
from recombine.storage.trackers.tensorboard import open_tensorboard
from recombine.storage.trackers.wandb import open_wandb


@contextlib.contextmanager
def open_mirrors(
    names: Iterable[str], experiment: str, folder: str | Path
) -> Iterator[Callable[[pd.DataFrame], None]]:
    """Give a function that copies the rows of finished runs to these places; leaving waits until all are copied."""
    folder = Path(folder)
    folder = folder.parent if folder.suffix == ".parquet" else folder
    names = list(dict.fromkeys(names))
    for name in names:
        require(name in MIRRORS, f"there is no mirror {name!r}: {nearest(name, MIRRORS)}")
    mirrors = {name: _open(name, experiment, folder) for name in names}
    pool = ThreadPoolExecutor(
        1
    )  # a server may take seconds for a run, and the next chunk trains meanwhile

    def log(rows: pd.DataFrame) -> None:
        for copy in _copies(rows, experiment):
            for name in names:
                pool.submit(_write, mirrors, name, copy)

    try:
        yield log
        pool.shutdown()
    except BaseException:  # Ctrl-C, also while it waits
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    finally:
        pool.shutdown()


def _open(name: str, experiment: str, folder: Path) -> Write:
    try:
        return MIRRORS[name](experiment, folder)
    except InputError:
        raise
    except ImportError as error:
        raise InputError(
            f'{name} is not installed ({_line(error)}): pip install "recombine[{name}]"'
        ) from error
    except Exception as error:
        raise InputError(
            f"{name} cannot be opened ({_line(error)}): check its settings and version, or leave it out"
        ) from error


def _write(mirrors: dict[str, Write], name: str, copy: Copy) -> None:
    if name in mirrors:
        try:
            mirrors[name](copy)
        except Exception as error:
            del mirrors[name]
            say(f"{name} gets no more rows, the table has them all: {_line(error)}")


def _copies(rows: pd.DataFrame, experiment: str) -> Iterator[Copy]:
    for run, lines in rows.sort_values("step").groupby("run", sort=False):
        records = lines.to_dict("records")
        scores = {
            int(r["step"]): {n: float(v) for n, v in r.items() if _is_score(n, v)} for r in records
        }
        config = {
            n: v
            for n, v in records[-1].items()
            if _describes(n) and n not in ("run", "step") and not pd.isna(v)
        }
        yield Copy(str(run), f"{experiment}-{str(run)[:8]}", config, scores)


def _describes(name: str) -> bool:
    return "/" not in name or name.startswith(("support/", "meta/"))


def _is_score(name: str, value: Any) -> bool:
    return not _describes(name) and isinstance(value, int | float) and math.isfinite(value)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


MIRRORS: dict[str, Callable[[str, Path], Write]] = {
    "wandb": open_wandb,
    "tensorboard": open_tensorboard,
    "mlflow": open_mlflow,
}
