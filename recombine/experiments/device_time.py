"""Device time in the record: total by kind of device, and compared with the public code."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from recombine.basics.console import duration
from recombine.basics.suggest import counted
from recombine.experiments.ledger import device_seconds, shown
from recombine.storage.table import Table

Line = Mapping[str, Any]  # of the ledger: one claim
# Our experiments for the first three sweeps of the public code, which vary size, data and support.
PUBLIC_SWEEPS = ("scaling_width", "scaling_data", "support_conditions")
NUM_PUBLIC_RUNS = 774  # in these three sweeps of the public code
PAPER_WIDTHS = "1024x1024x1024x1024"


def claims_by_experiment(claims: Sequence[Line]) -> dict[str, list[Line]]:
    """The claims of each experiment."""
    groups = itertools.groupby(claims, lambda claim: claim["experiment"])
    return {name: list(group) for name, group in groups}


def device_time_text(claims: Sequence[Line]) -> str:
    """The time of each kind of device, for example `20 s on cpu`."""
    seconds_by_device: Counter[str] = Counter()
    for first, *_ in claims_by_experiment(claims).values():
        seconds_by_device[first["device"]] += first["seconds"]
    texts = [
        f"{duration(seconds)} on {device}"
        for device, seconds in sorted(seconds_by_device.items())
        if device
    ]
    return " and ".join(texts) or "none"


def section(claims: Sequence[Line], tables: Sequence[Table]) -> str:
    """The section of the page: all runs, the runs of the paper's MLP, and the public sweeps."""
    total = (
        f"All runs together took {device_time_text(claims)}, compilation included. If two sweeps "
        "shared a device, its time counts for both." + _runs_without_verdict(tables)
    )
    paragraphs = ["## Device time", total, _paper_models(tables), _public_sweeps(claims)]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def _runs_without_verdict(tables: Iterable[Table]) -> str:
    """A sentence on the runs that are in the tables but belong to no claim."""
    rows = [_not_shown(table) for table in tables]
    num_runs = _num_runs(rows)
    if not num_runs:
        return ""
    time = duration(sum(map(device_seconds, rows)))
    runs = counted(num_runs, "more run")
    return f" The tables hold {runs} that no verdict uses, with a device time of {time}."


def _not_shown(table: Table) -> pd.DataFrame:
    rows = table.read()
    if rows.empty:
        return pd.DataFrame({"run": []})
    return rows.loc[~rows["run"].isin(shown(table)["run"]), :]


def _num_runs(tables: Iterable[pd.DataFrame]) -> int:
    return sum(len(set(rows["run"])) for rows in tables)


def _paper_models(tables: Iterable[Table]) -> str:
    """A paragraph that compares the runs of the paper's MLP with the public code."""
    from recombine.planning.bench.speed import PUBLIC_SECONDS

    rows = [_of_paper_model(shown(table)) for table in tables]
    num_runs = _num_runs(rows)
    if not num_runs:
        return ""
    seconds = sum(map(device_seconds, rows))
    public_seconds = num_runs * PUBLIC_SECONDS
    return (
        f"{num_runs} of the runs train the paper's MLP (4 layers of 1024) on the hyperteacher on "
        f"an H200, with several recipes. They took {duration(seconds)}. The public code needs "
        f"{PUBLIC_SECONDS:g} s for the 290,000 steps of one such run on the same GPU, without "
        f"compilation: {duration(public_seconds)} for {num_runs} runs one after the other, "
        f"{public_seconds / seconds:,.0f} times as long."
    )


def _of_paper_model(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of trained 4x1024 MLPs on the hyperteacher, made on an H200."""
    if "model.widths" not in rows:
        return pd.DataFrame({"run": []})
    is_model = (rows["model"] == "MLP") & (rows["model.widths"] == PAPER_WIDTHS)
    is_family = rows["family"] == "Hyperteacher"
    is_h200 = rows["meta/device"].str.contains("H200", na=False)
    is_trained = rows.get("recipe.learning_rate", 1) != 0  # leaves out untrained baselines
    return rows.loc[is_model & is_family & is_h200 & is_trained, :]


def _public_sweeps(claims: Sequence[Line]) -> str:
    """A paragraph on the public code's first three sweeps, if all are there at full scale."""
    from recombine.planning.bench.speed import PUBLIC_SECONDS

    by_experiment = claims_by_experiment(claims)
    lines = [by_experiment[name][0] for name in by_experiment if name in PUBLIC_SWEEPS]
    is_complete = len(lines) == len(PUBLIC_SWEEPS) and all(
        line["runs"] and line["scale"] == "full" for line in lines
    )
    if not is_complete:
        return ""
    num_runs = sum(line["runs"] for line in lines)
    seconds_per_run = sum(line["seconds"] for line in lines) / num_runs
    names = [f"`{name}`" for name in PUBLIC_SWEEPS]
    return (
        f"The public code's first three sweeps vary size, data and support, in {NUM_PUBLIC_RUNS} "
        "runs. Our goal was to train them in one hour on an H200. The experiments "
        f"{', '.join(names[:-1])} and {names[-1]} have {num_runs} runs at full scale and took "
        f"{device_time_text(lines)}; at this rate {NUM_PUBLIC_RUNS} runs take "
        f"{duration(seconds_per_run * NUM_PUBLIC_RUNS)}. The public code would need "
        f"{duration(num_runs * PUBLIC_SECONDS)} for {num_runs} runs one after the other, at "
        f"{PUBLIC_SECONDS:g} s each."
    )
