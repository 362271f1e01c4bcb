"""Copies of finished runs in experiment trackers: W&B, TensorBoard and MLflow (`--log`).

The table remains the record. A tracker gets rows after the table, in a thread of its own; one that
fails is reported once and gets no more rows. A run is copied under its hash, and a second copy
replaces the first. What is constant during a run (its fields, `support/…` and `meta/…`) becomes its
configuration, and every other number a metric at its step.
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
from recombine.basics.suggest import did_you_mean
from recombine.storage.trackers.copy import Copy, Write
from recombine.storage.trackers.mlflow import open_mlflow
from recombine.storage.trackers.tensorboard import open_tensorboard
from recombine.storage.trackers.wandb import open_wandb

MAX_REASON = 200  # characters of an error in a message


@contextlib.contextmanager
def open_trackers(
    names: Iterable[str], experiment: str, folder: str | Path
) -> Iterator[Callable[[pd.DataFrame], None]]:
    """Give a function that copies the rows of finished runs to these trackers.

    At the end, wait until all rows are copied.
    """
    folder = Path(folder)
    folder = folder.parent if folder.suffix == ".parquet" else folder
    names = list(dict.fromkeys(names))
    for name in names:
        require(name in TRACKERS, f"there is no tracker {name!r}: {did_you_mean(name, TRACKERS)}")
    writers = {name: _open(name, experiment, folder) for name in names}
    # A server may need seconds for one run. Meanwhile the next chunk trains.
    pool = ThreadPoolExecutor(1)

    def log(rows: pd.DataFrame) -> None:
        for copy in _copies(rows, experiment):
            for name in names:
                pool.submit(_write, writers, name, copy)

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
        return TRACKERS[name](experiment, folder)
    except InputError:
        raise
    except ImportError as error:
        raise InputError(
            f'{name} is not installed ({_reason(error)}): pip install "recombine[{name}]"'
        ) from error
    except Exception as error:
        raise InputError(
            f"cannot open {name} ({_reason(error)}): check its settings and its version, "
            f"or remove {name} from --log"
        ) from error


def _write(writers: dict[str, Write], name: str, copy: Copy) -> None:
    """Write a copy to a tracker; one that fails is removed from the writers."""
    if name not in writers:
        return
    try:
        writers[name](copy)
    except Exception as error:
        del writers[name]
        say(f"no more rows are sent to {name} ({_reason(error)}); the table has all rows")


def _copies(rows: pd.DataFrame, experiment: str) -> Iterator[Copy]:
    for run, rows_of_run in rows.sort_values("step").groupby("run", sort=False):
        records = rows_of_run.to_dict("records")
        config = {}
        for name, value in records[-1].items():
            if _is_config(name) and not pd.isna(value):
                config[name] = value
        scores = {int(record["step"]): _scores(record) for record in records}
        yield Copy(str(run), f"{experiment}-{str(run)[:8]}", config, scores)


def _scores(record: dict[Any, Any]) -> dict[str, float]:
    """The finite numbers of a row that are not constant during a run."""
    scores = {}
    for name, value in record.items():
        is_number = isinstance(value, int | float) and math.isfinite(value)
        if is_number and not _describes_run(name):
            scores[name] = float(value)
    return scores


def _is_config(name: str) -> bool:
    return _describes_run(name) and name not in ("run", "step")


def _describes_run(name: str) -> bool:
    """Whether a column is constant during a run."""
    return "/" not in name or name.startswith(("support/", "meta/"))


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:MAX_REASON]}"


TRACKERS: dict[str, Callable[[str, Path], Write]] = {
    "wandb": open_wandb,
    "tensorboard": open_tensorboard,
    "mlflow": open_mlflow,
}
