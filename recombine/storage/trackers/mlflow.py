"""Copies in MLflow, on its server or in a folder."""

import functools
import os
import re
import time
from pathlib import Path

from recombine.storage.trackers.copy import Copy, Write

SETTINGS = {
    # The file store is the only one that needs neither a server nor a database package.
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
HASH_TAG = "recombine.run"  # holds the hash of a run
MAX_RUNS = 50_000  # that a search returns


def open_mlflow(experiment: str, folder: Path) -> Write:
    """A function that writes copies to the tracking server, or to `folder/mlruns`."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)  # the user's own values stay
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    local_store = (folder / "mlruns").absolute().as_uri()
    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or local_store)

    @functools.cache
    def experiment_id_and_copies() -> tuple[str, dict[str, str]]:
        """The experiment's id, and the id of the copy of each run: its hash -> MLflow's run id."""
        # Called by the first write, because the search is slow and a server may not answer.
        existing = client.get_experiment_by_name(experiment)
        if existing is None:
            experiment_id = client.create_experiment(experiment)
        else:
            experiment_id = existing.experiment_id
        copies = {}
        for run in client.search_runs([experiment_id], max_results=MAX_RUNS):
            if HASH_TAG in run.data.tags:
                copies[run.data.tags[HASH_TAG]] = run.info.run_id
        return experiment_id, copies

    def write(copy: Copy) -> None:
        experiment_id, copies = experiment_id_and_copies()
        tags = {HASH_TAG: copy.run}
        run_id = client.create_run(experiment_id, tags=tags, run_name=copy.name).info.run_id
        # In the local store a parameter is a file: "support" and "support/connected" would collide.
        params = [Param(name.replace("/", "-"), str(v)) for name, v in copy.config.items()]
        now = int(time.time() * 1000)
        metrics = []
        for step, scores in copy.scores.items():
            for name, value in scores.items():
                metrics.append(Metric(_allowed_name(name), value, now, step))
        client.log_batch(run_id, metrics, params)
        client.set_terminated(run_id)
        if copy.run in copies:
            client.delete_run(copies[copy.run])
        copies[copy.run] = run_id

    return write


def _allowed_name(name: str) -> str:
    """A name with the characters that MLflow allows: test/num_hot=2/r2 -> test/num_hot-2/r2."""
    return re.sub(r"[^\w./ -]", "-", name)
