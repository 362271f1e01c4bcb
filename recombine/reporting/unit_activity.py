"""Unit activity by layer, from the rows of a sweep: one line, a warning, and a figure for the report.

`activity.py` measures the columns `activity/hidden0/dead`, `…/rare`, `…/active` and `…/rank` in every evaluation; this
module summarizes them. Tables without these columns have no line, no warning and no figure. Diverged runs are left out:
the units of a network whose weights are NaN are not dead. Nothing here imports jax.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from recombine.basics.suggest import counted
from recombine.reporting import figure

if TYPE_CHECKING:  # imported where a figure is drawn
    import plotly.graph_objects as go

MEASURES = ("dead", "rare", "active", "rank")
MAX_DEAD = 0.2  # fraction of a layer's units: above it, a warning
MAX_CURVES = 6  # of the figure: a column with more values does not group the runs
NEVER_GROUP_BY = (
    "run",
    "step",
    "seed",
    "diverged",
    "diverged_at",
)  # columns that never group the runs
GROUP_BY_PREFIXES = (
    "model.widths",
    "model",
    "recipe",
)  # prefixes of the columns that group the runs, the preferred one first


def by_layer(rows: pd.DataFrame, keep: Sequence[str] = ()) -> Any:
    """Unit activity at the last row of every run: a line per run and layer, in the order of the layers.

    The columns are `run`, `trained` (false where the learning rate is 0), those to `keep`, `layer` (ordered: hidden2
    before hidden10), `dead`, `rare`, `active` and `rank`. Layers that a run lacks have no line.
    """
    layers = _layers(rows)
    found = pd.DataFrame(columns=pd.Index(["run", "trained", *keep, "layer", *MEASURES]))
    if layers:
        last: Any = _last_finite(rows)
        found = pd.concat([_of_layer(last, layer, keep) for layer in layers], ignore_index=True)
        found = found.dropna(subset=["dead"]).reset_index(drop=True)
    return found.assign(layer=pd.Categorical(found["layer"], layers, ordered=True))


def means(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    """The mean of every measure over the runs, by layer; of the trained runs, where there are any."""
    lines = _trained_or_all(by_layer(rows))
    table = lines.groupby("layer", observed=True)[list(MEASURES)].mean()
    return {
        str(layer): {str(name): float(value) for name, value in line.items()}
        for layer, line in table.iterrows()
    }


def summary_line(rows: pd.DataFrame) -> str | None:
    """The mean fraction of dead units in every layer as one sentence; None where it was not measured.

    Untrained baselines do not count where there are trained runs.
    """
    lines = _trained_or_all(by_layer(rows))
    if not len(lines):
        return None
    listed = ", ".join(f"{_percent(mean['dead'])} {layer}" for layer, mean in means(rows).items())
    number = lines["run"].nunique()
    basis = counted(number, "run" if lines["trained"].any() else "untrained run")
    basis = basis if number == 1 else f"means over {basis}"
    highest = lines.loc[lines["dead"].idxmax()]
    if number > 1 and highest["dead"] > 0:
        basis += f"; highest {_percent(highest['dead'])} in {highest['layer']}"
    return f"Dead units: {listed} ({basis})"


def warning(rows: pd.DataFrame) -> str | None:
    """One line that names the layers of trained runs with more than 20% dead units; None where there are none."""
    widths = "model.widths"
    lines = by_layer(rows, keep=[widths] if widths in rows else [])
    lines = lines[lines["trained"].astype(bool)]
    affected = lines[lines["dead"].round(6) > MAX_DEAD]
    named = []
    for layer, dead in lines.groupby("layer", observed=True)["dead"]:
        above = dead[dead.round(6) > MAX_DEAD]  # rounded: 0.2 as a float32 is above 0.2
        if len(above):
            share = f"up to {_percent(above.max())}, in {len(above)} of {len(dead)} runs"
            named.append(f"{layer} ({share if len(dead) > 1 else _percent(above.max())})")
    if not named:
        return None
    listed = " and ".join([", ".join(named[:-1]), named[-1]]) if len(named) > 1 else named[0]
    if widths in lines and set(affected[widths]) < set(
        lines[widths]
    ):  # only some widths are affected
        listed += (
            f", widths {', '.join(sorted(affected[widths].astype(str).unique(), key=_natural))}"
        )
    return (
        f"Warning: more than {_percent(MAX_DEAD)} of the units are dead in {listed}. "
        "Probe scores of such layers may reflect the recipe, not the task. If training killed them, lower the learning "
        "rate."
    )


def warnings(rows: pd.DataFrame) -> list[str]:
    """All warnings about the units of these runs: one, or none."""
    line = warning(rows)
    return [] if line is None else [line]


def figures(rows: pd.DataFrame) -> dict[str, str]:
    """The figure for a report, by name, as Plotly JSON; none where nothing was measured or plotly is missing."""
    drawn = dead_by_layer(rows) if find_spec("plotly") else None
    return {} if drawn is None else {"dead units by layer": str(drawn.to_json())}


def dead_by_layer(rows: pd.DataFrame) -> go.Figure | None:
    """Draw the fraction of dead units against the layer, a line per value of a swept column with few values."""
    if not _layers(rows):
        return None
    group = _grouping(rows)
    lines = _trained_or_all(by_layer(rows, keep=[group] if group else []))
    if not len(lines):
        return None
    title = "Dead units by hidden layer: the fraction of units that never respond"
    if group is not None:
        title += f", by {group}"
        if not pd.api.types.is_numeric_dtype(lines[group]):
            values = sorted(lines[group].astype(str).unique(), key=_natural)
            lines = lines.assign(**{group: pd.Categorical(lines[group].astype(str), values)})
    return figure.lines(
        lines,
        "layer",
        "dead",
        by=group,
        title=title,
        x_title="hidden layer",
        y_title="fraction of dead units",
        y_range=(-0.03, 1.03),  # markers at 0 and 1 are drawn whole
    )


def _layers(rows: pd.DataFrame) -> list[str]:
    """The layers that the columns name, hidden2 before hidden10."""
    matches = [re.fullmatch(r"activity/(\w+\d)/dead", str(name)) for name in rows]
    return sorted((match[1] for match in matches if match), key=_natural)


def _last_finite(rows: pd.DataFrame) -> Any:
    """The last row of every run that did not diverge."""
    last: Any = rows.groupby("run", sort=False).tail(1)
    return last[~last["diverged"].eq(True)] if "diverged" in last else last


def _of_layer(last: Any, layer: str, keep: Sequence[str]) -> Any:
    """The lines of one layer, NaN where a run lacks it."""
    rate = "recipe.learning_rate"
    lines = last[["run", *keep]].assign(
        trained=~last[rate].eq(0) if rate in last else True, layer=layer
    )
    for name in MEASURES:
        column = f"activity/{layer}/{name}"
        lines[name] = last[column].to_numpy(float, na_value=np.nan) if column in last else np.nan
    return lines[["run", "trained", *keep, "layer", *MEASURES]]


def _trained_or_all(lines: Any) -> Any:
    """The lines of trained runs; all lines where no run is trained."""
    return lines[lines["trained"].astype(bool)] if lines["trained"].any() else lines


def _grouping(rows: pd.DataFrame) -> str | None:
    """The column that gives the figure its lines: swept, with few values, and known for every run that is drawn."""
    lines = _trained_or_all(by_layer(rows))
    last: Any = rows[rows["run"].isin(lines["run"])].groupby("run").tail(1)
    described = [str(name) for name in last if "/" not in str(name) and name not in NEVER_GROUP_BY]
    for name in sorted(described, key=_preference):
        if 1 < last[name].nunique() <= MAX_CURVES and last[name].notna().all():
            return name
    return None


def _preference(column: str) -> int:
    places = [place for place, prefix in enumerate(GROUP_BY_PREFIXES) if column.startswith(prefix)]
    return min(places, default=len(GROUP_BY_PREFIXES))


def _natural(text: str) -> str:
    """A key that sorts numbers inside text as numbers."""
    return re.sub(r"\d+", lambda match: match[0].zfill(9), text)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}".removesuffix(".0") + "%"
