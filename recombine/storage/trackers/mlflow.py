"""Copies in MLflow, on its server or in a folder."""

import functools
import os
import re
import time
from pathlib import Path

from recombine.storage.trackers.copy import Copy, Write

SETTINGS = {
    "MLFLOW_ALLOW_FILE_STORE": "true",  # the only store that needs neither a server nor a database package
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
TAG = "recombine.sweeps.run"


def open_mlflow(experiment: str, folder: Path) -> Write:
    """What writes a copy there."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)  # MLflow reads them at every call; a user's own stay
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(
        os.environ.get("MLFLOW_TRACKING_URI") or (folder / "mlruns").absolute().as_uri()
    )

    @functools.cache
    def place() -> tuple[str, dict[str, str]]:
        # Asked for once and not when opened: a search reads all runs, and a server may not answer.
        found = client.get_experiment_by_name(experiment)
        number = client.create_experiment(experiment) if found is None else found.experiment_id
        runs = client.search_runs([number], max_results=50_000)
        return number, {run.data.tags[TAG]: run.info.run_id for run in runs if TAG in run.data.tags}

    def write(copy: Copy) -> None:
        number, known = place()
        there = client.create_run(number, tags={TAG: copy.run}, run_name=copy.name).info.run_id
        now = int(time.time() * 1000)
        # A parameter "support" is a file in the local store, and so there can be no "support/connected".
        params = [Param(n.replace("/", "-"), str(v)) for n, v in copy.config.items()]
        metrics = [
            Metric(_allowed(n), v, now, step)
            for step, row in copy.scores.items()
            for n, v in row.items()
        ]
        client.log_batch(there, metrics, params)
        client.set_terminated(there)
        if copy.run in known:
            client.delete_run(known[copy.run])
        known[copy.run] = there

    return write


def _allowed(name: str) -> str:
    # MLflow's names have no "=": test/num_hot=2/r2 is test/num_hot-2/r2 there.
    return re.sub(r"[^\w./ -]", "-", name)
