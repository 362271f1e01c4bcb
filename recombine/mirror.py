"""Copies of finished runs in W&B, TensorBoard and MLflow, for those who compare their runs there (`--log`).

The table stays what counts: a mirror is written after it, by a thread of its own, and one that fails is told once and
left out. A run is copied under its hash; copied again, it takes the place of its earlier copy. What stays the same
during a run (its fields, its support, `meta/`) is its configuration there, every other number a metric at its step.
"""

import contextlib
import functools
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console

from recombine.core import InputError, require
from recombine.hint import nearest

# A finished run is not watched, and a server that does not answer must not hold up the sweep's end.
_WANDB: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "x_disable_stats": True,
    "init_timeout": 30,
    "finish_timeout": 60,
    "finish_timeout_raises": True,
}
_MLFLOW = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # the only store that needs neither a server nor a database package
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_TAG = "recombine.run"


class Copy(NamedTuple):
    """One finished run as a mirror is given it."""

    run: str
    name: str
    config: dict[str, Any]
    scores: dict[int, dict[str, float]]


Write = Callable[[Copy], None]


@contextlib.contextmanager
def open_mirrors(names: Iterable[str], experiment: str, folder: str | Path) -> Iterator[Callable[[pd.DataFrame], None]]:
    """Give a function that copies the rows of finished runs to these places; leaving waits until all are copied."""
    folder = Path(folder)
    folder = folder.parent if folder.suffix == ".parquet" else folder
    names = list(dict.fromkeys(names))
    for name in names:
        require(name in MIRRORS, f"there is no mirror {name!r}: {nearest(name, MIRRORS)}")
    mirrors = {name: _open(name, experiment, folder) for name in names}
    pool = ThreadPoolExecutor(1)  # a server may take seconds for a run, and the next chunk trains meanwhile

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
        raise InputError(f'{name} is not installed ({_line(error)}): pip install "recombine[{name}]"') from error
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
            told = f"recombine: {name} gets no more rows, the table has them all: {_line(error)}"
            Console(stderr=True).print(told, soft_wrap=True, markup=False, highlight=False)


def _copies(rows: pd.DataFrame, experiment: str) -> Iterator[Copy]:
    for run, lines in rows.sort_values("step").groupby("run", sort=False):
        records = lines.to_dict("records")
        scores = {int(r["step"]): {n: float(v) for n, v in r.items() if _is_score(n, v)} for r in records}
        config = {n: v for n, v in records[-1].items() if _describes(n) and n not in ("run", "step") and not pd.isna(v)}
        yield Copy(str(run), f"{experiment}-{str(run)[:8]}", config, scores)


def _describes(name: str) -> bool:
    return "/" not in name or name.startswith(("support/", "meta/"))


def _is_score(name: str, value: Any) -> bool:
    return not _describes(name) and isinstance(value, int | float) and math.isfinite(value)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _wandb(experiment: str, folder: Path) -> Write:
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    known = wandb.login(prompt=False, verify=False)
    mode = None if known else os.environ.get("WANDB_MODE") or "offline"
    require(
        mode in (None, "offline", "dryrun", "disabled"),
        f"WANDB_MODE is {mode}, but nobody is logged in to W&B: call `wandb login` first, or set it to offline",
    )
    folder.mkdir(parents=True, exist_ok=True)  # wandb would go elsewhere

    def write(copy: Copy) -> None:
        with wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "recombine",
            group=experiment,
            id=copy.run,
            name=copy.name,
            config=copy.config,
            dir=os.environ.get("WANDB_DIR") or folder,
            mode=mode,  # pyright: ignore[reportArgumentType]
            reinit="create_new",  # a run of the caller's own goes on
            settings=wandb.Settings(**_WANDB),
        ) as there:
            for step, scores in copy.scores.items():
                there.log(scores, step=step)

    return write


def _tensorboard(experiment: str, folder: Path) -> Write:
    from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    def write(copy: Copy) -> None:
        place = folder / "tensorboard" / copy.run
        earlier = list(place.glob("events.out.tfevents.*"))
        writer = EventFileWriter(str(place))
        writer.add_event(Event(wall_time=time.time(), summary=hparams_pb(copy.config, trial_id=copy.name)))
        for step, scores in copy.scores.items():
            values = [Summary.Value(tag=name, simple_value=value) for name, value in scores.items()]
            writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        writer.close()
        for file in earlier:
            file.unlink()

    return write


def _mlflow(experiment: str, folder: Path) -> Write:
    for name, value in _MLFLOW.items():
        os.environ.setdefault(name, value)  # MLflow reads them at every call; a user's own stay
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlruns").absolute().as_uri())

    @functools.cache
    def place() -> tuple[str, dict[str, str]]:
        # Asked for once and not when opened: a search reads all runs, and a server may not answer.
        found = client.get_experiment_by_name(experiment)
        number = client.create_experiment(experiment) if found is None else found.experiment_id
        runs = client.search_runs([number], max_results=50_000)
        return number, {run.data.tags[_TAG]: run.info.run_id for run in runs if _TAG in run.data.tags}

    def write(copy: Copy) -> None:
        number, known = place()
        there = client.create_run(number, tags={_TAG: copy.run}, run_name=copy.name).info.run_id
        now = int(time.time() * 1000)
        # A parameter "support" is a file in the local store, and so there can be no "support/connected".
        params = [Param(n.replace("/", "-"), str(v)) for n, v in copy.config.items()]
        metrics = [Metric(_allowed(n), v, now, step) for step, row in copy.scores.items() for n, v in row.items()]
        client.log_batch(there, metrics, params)
        client.set_terminated(there)
        if copy.run in known:
            client.delete_run(known[copy.run])
        known[copy.run] = there

    return write


def _allowed(name: str) -> str:
    # MLflow's names have no "=": test/num_hot=2/r2 is test/num_hot-2/r2 there.
    return re.sub(r"[^\w./ -]", "-", name)


MIRRORS: dict[str, Callable[[str, Path], Write]] = {"wandb": _wandb, "tensorboard": _tensorboard, "mlflow": _mlflow}
