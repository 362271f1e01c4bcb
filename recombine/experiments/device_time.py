"""What the record says of device time: by kind of device, and beside the public code."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from recombine.basics.console import duration
from recombine.experiments.claim import device_seconds, shown
from recombine.storage.table import Table

Line = Mapping[str, Any]  # of the ledger
# The public code's first three sweeps, of size, data and support, as they are called here; and how many runs they have.
FIRST, PUBLIC_RUNS = ("scaling_width", "scaling_data", "support_conditions"), 774


def by_experiment(found: Sequence[Line]) -> dict[str, list[Line]]:
    """The lines of each experiment."""
    return {
        name: list(claims)
        for name, claims in itertools.groupby(found, lambda line: line["experiment"])
    }


def took(found: Sequence[Line]) -> str:
    """The time of each kind of device."""
    seconds: Counter[str] = Counter()
    for first, *_ in by_experiment(found).values():
        seconds[first["device"]] += first["seconds"]
    told = [f"{duration(value)} on {device}" for device, value in sorted(seconds.items()) if device]
    return " and ".join(told) or "none"


def section(found: Sequence[Line], tables: Sequence[Table]) -> str:
    """The page's section: what all runs took, those of the 4x1024 MLP, and the public code's first sweeps."""
    told = (
        f"{took(found)}: the training of all runs, and what they waited for their programs. Sweeps that shared a "
        "device count it each."
    )
    parts = [told + _more(tables), _students(tables), _first_sweeps(found)]
    return "\n\n".join(["## Device time", *filter(None, parts)]) + "\n"


def _more(tables: Iterable[Table]) -> str:
    """What the runs took that the tables hold, but do not show."""
    rows = [_unshown(table) for table in tables]
    num_runs = sum(len(set(one["run"])) for one in rows)
    if not num_runs:
        return ""
    took = duration(sum(map(device_seconds, rows)))
    return f" Further runs in the tables, which are no part of what is judged: {num_runs}, {took}."


def _unshown(table: Table) -> pd.DataFrame:
    rows = table.read()
    return (
        rows.loc[~rows["run"].isin(shown(table)["run"]), :]
        if len(rows)
        else pd.DataFrame({"run": []})
    )


def _students(tables: Iterable[Table]) -> str:
    """The runs of the paper's architecture beside the public code."""
    from recombine.planning.bench.speed import PUBLIC_SECONDS

    rows = [_of_the_paper(shown(table)) for table in tables]
    num_runs, ours = sum(len(set(one["run"])) for one in rows), sum(map(device_seconds, rows))
    if not num_runs:
        return ""
    public = num_runs * PUBLIC_SECONDS
    return (
        f"{num_runs} of the runs train an MLP of 4 layers of 1024 on the hyperteacher on an H200, by several recipes; "
        f"they took {duration(ours)}. The public code needs {PUBLIC_SECONDS:g} s for the steps of one such run on the "
        "same GPU (290,000, whatever the task; compilation not counted): "
        f"{duration(public)} for {num_runs} in a row, {public / ours:,.0f} times as long."
    )


def _of_the_paper(rows: pd.DataFrame) -> pd.DataFrame:
    if "model.widths" not in rows:
        return pd.DataFrame({"run": []})
    student = (rows["model"] == "MLP") & (rows["model.widths"] == "1024x1024x1024x1024")
    on_h200 = rows["meta/device"].str.contains("H200", na=False)
    trained = (
        rows.get("recipe.learning_rate", 1) != 0
    )  # controls that were never trained do not count
    return rows.loc[student & on_h200 & trained & (rows["family"] == "Hyperteacher"), :]


def _first_sweeps(found: Sequence[Line]) -> str:
    """The public code's first three sweeps, which were to take an hour; nothing unless all are there at full scale."""
    from recombine.planning.bench.speed import PUBLIC_SECONDS

    lines = [claims[0] for name, claims in by_experiment(found).items() if name in FIRST]
    if len(lines) < len(FIRST) or not all(
        line["runs"] and line["scale"] == "full" for line in lines
    ):
        return ""
    num_runs, seconds = sum(line["runs"] for line in lines), sum(line["seconds"] for line in lines)
    (*names, last), public = [f"`{name}`" for name in FIRST], num_runs * PUBLIC_SECONDS
    return (
        f"The public code's first three sweeps, of size, data and support, have {PUBLIC_RUNS} runs; the aim was "
        f"one hour on an H200. Here they are {', '.join(names)} and {last}: {num_runs} runs at full scale, "
        f"{took(lines)}; at that rate {PUBLIC_RUNS} take {duration(seconds / num_runs * PUBLIC_RUNS)}. The public "
        f"code would take {duration(public)} for {num_runs} in a row, at {PUBLIC_SECONDS:g} s each."
    )
