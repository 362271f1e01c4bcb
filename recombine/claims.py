"""The ledger: what was published, what we measured, and whether it holds, one line per claim.

Nothing is typed in by hand: each experiment's `claims(rows)` computes its numbers from the committed rows
`results/NAME.parquet`, so the ledger cannot disagree with them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.core import InputError
from recombine.table import Table

COLUMNS = (
    *("experiment", "name", "statement", "source", "published", "measured", "interval", "control"),
    *("runs", "date", "verdict", "command"),
)


@dataclass(frozen=True)
class Claim:
    """One published statement, and what we found; `holds` is None until the experiment has run."""

    name: str
    statement: str
    source: str
    published: str
    measured: float | None
    holds: bool | None
    control: str = ""
    interval: tuple[float, float] | None = None
    better: bool = False

    @property
    def verdict(self) -> str:
        """`reproduced`, `better`, `not reproduced` or `not yet run`."""
        if self.holds is None:
            return "not yet run"
        if not self.holds:
            return "not reproduced"
        return "better" if self.better else "reproduced"


def last(rows: pd.DataFrame) -> Any:
    """The last evaluation of every run: what most claims are about."""
    return rows[rows["step"] == rows.groupby("run")["step"].transform("max")].copy()


def needed(tasks: Iterable[float], shares: Iterable[float], target: float) -> float:
    """How many tasks it takes to reach a target: where the curve through the measured points last crosses it, on a
    logarithmic axis. Infinity where the most tasks do not reach it; the fewest where they already do."""
    points = sorted(zip(tasks, shares, strict=True))
    if not points or not points[-1][1] >= target:  # also where it is NaN
        return math.inf
    for (few, low), (many, high) in reversed(list(itertools.pairwise(points))):
        if math.isnan(low):
            return float(many)
        if low < target:
            return float(few * (many / few) ** ((target - low) / (high - low)))
    return float(points[0][0])


def ratio(tasks: float, others: float) -> float | None:
    """How many times as many; infinity where only the second number is known, None where not even that."""
    return None if math.isinf(others) else float(tasks / others)


def ledger(experiments: Mapping[str, Any], results: Path) -> pd.DataFrame:
    """Return one line per claim of these experiment modules, measured on the packed tables in `results`."""
    told = [
        line
        for name, module in experiments.items()
        if hasattr(module, "claims")
        for line in _lines(name, module, Table(results / f"{name}.parquet"))
    ]
    return pd.DataFrame(told, columns=list(COLUMNS))


def _lines(name: str, module: Any, table: Table) -> list[dict[str, Any]]:
    rows, meta = table.read(), table.meta()
    command = meta.get("command") or f"recombine run {name} --scale {meta.get('scale', 'full')}"
    try:
        claims = module.claims(rows if len(rows) else None)
    except KeyError as error:
        if rows.empty:
            raise
        raise InputError(f"{table.path} has no column {error}: make it anew with `{command}`") from error
    shared = {
        "experiment": name,
        "runs": rows["run"].nunique() if len(rows) else 0,
        "date": meta.get("date", ""),
        "command": command,
    }
    return [shared | vars(claim) | {"verdict": claim.verdict} for claim in claims]
