"""Unit activity by layer, from the rows of a sweep: a line, a warning, and a figure for the report.

`activity.py` measures the columns `activity/hidden0/dead`, `…/rare`, `…/active` and `…/rank` in
every evaluation. This module summarizes them. Tables without these columns get no line, no warning
and no figure. Diverged runs are left out: units whose weights are NaN are not dead.
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
MAX_DEAD = 0.2  # of a layer's units: a higher fraction raises a warning
MAX_CURVES = 6  # in the figure: a column with more values does not group the runs
NEVER_GROUP_BY = ("run", "step", "seed", "diverged", "diverged_at")
GROUP_BY_PREFIXES = ("model.widths", "model", "recipe")  # of columns, the preferred one first
WIDTHS = "model.widths"
LEARNING_RATE = "recipe.learning_rate"


def by_layer(rows: pd.DataFrame, keep: Sequence[str] = ()) -> Any:
    """Unit activity at the last row of every run: a line per run and layer, ordered by layer.

    The columns are `run`, `trained` (false if the learning rate is 0), the columns to `keep`,
    `layer` (ordered: hidden2 before hidden10), `dead`, `rare`, `active` and `rank`. A run has lines
    only for its own layers.
    """
    layers = _layers(rows)
    if layers:
        last = _last_finite(rows)
        lines = pd.concat([_layer_lines(last, layer, keep) for layer in layers], ignore_index=True)
        lines = lines.dropna(subset=["dead"]).reset_index(drop=True)
    else:
        lines = pd.DataFrame(columns=pd.Index(["run", "trained", *keep, "layer", *MEASURES]))
    return lines.assign(layer=pd.Categorical(lines["layer"], layers, ordered=True))


def means(rows: pd.DataFrame) -> dict[str, dict[str, float]]:
    """The mean of every measure over the runs, by layer; over trained runs if there are any."""
    lines = _trained_or_all(by_layer(rows))
    table = lines.groupby("layer", observed=True)[list(MEASURES)].mean()
    return {
        str(layer): {str(name): float(value) for name, value in line.items()}
        for layer, line in table.iterrows()
    }


def summary_line(rows: pd.DataFrame) -> str | None:
    """The mean fraction of dead units in every layer as one sentence; None if not measured.

    Untrained baselines do not count if there are trained runs.
    """
    lines = _trained_or_all(by_layer(rows))
    if not len(lines):
        return None
    dead = ", ".join(f"{_percent(mean['dead'])} in {layer}" for layer, mean in means(rows).items())
    num_runs = lines["run"].nunique()
    runs = counted(num_runs, "run" if lines["trained"].any() else "untrained run")
    if num_runs == 1:
        return f"Dead units: {dead} ({runs})"
    highest = lines.loc[lines["dead"].idxmax()]
    if highest["dead"] > 0:
        runs += f"; highest of a single run {_percent(highest['dead'])} in {highest['layer']}"
    return f"Dead units: {dead} (means over {runs})"


def warning(rows: pd.DataFrame) -> str | None:
    """One line with the layers of trained runs that have too many dead units, or None."""
    lines = by_layer(rows, keep=[WIDTHS] if WIDTHS in rows else [])
    lines = lines[lines["trained"].astype(bool)]
    layers = []
    for layer, dead in lines.groupby("layer", observed=True)["dead"]:
        affected = dead[_too_many(dead)]
        if not len(affected):
            continue
        if len(dead) > 1:
            share = f"up to {_percent(affected.max())}, in {len(affected)} of {len(dead)} runs"
        else:
            share = _percent(affected.max())
        layers.append(f"{layer} ({share})")
    if not layers:
        return None
    return (
        f"Warning: more than {_percent(MAX_DEAD)} of the units are dead in "
        f"{_enumerate(layers)}{_affected_widths(lines)}. "
        "Probe scores of such layers may reflect the recipe, not the task. "
        "If the units were alive before training, lower the learning rate."
    )


def _too_many(dead: pd.Series) -> pd.Series:
    return dead.round(6) > MAX_DEAD  # rounded: 0.2 as a float32 is above 0.2


def _enumerate(items: list[str]) -> str:
    """The items as text: a, b and c."""
    return " and ".join([", ".join(items[:-1]), items[-1]]) if len(items) > 1 else items[0]


def _affected_widths(lines: Any) -> str:
    """The widths of runs with too many dead units, if other widths have none."""
    if WIDTHS not in lines:
        return ""
    affected = lines.loc[_too_many(lines["dead"]), WIDTHS]
    # A model without the field `widths` has no value here, so its runs cannot be named by widths.
    if affected.isna().any() or not set(affected) < set(lines[WIDTHS].dropna()):
        return ""
    return f", with widths {_enumerate(sorted(affected.unique(), key=_natural_key))}"


def warnings(rows: pd.DataFrame) -> list[str]:
    """All warnings about the units of these runs: one or none."""
    line = warning(rows)
    return [] if line is None else [line]


def figures(rows: pd.DataFrame) -> dict[str, str]:
    """The figure for a report, by name, as Plotly JSON.

    There is none if nothing was measured or plotly is not installed.
    """
    drawn = dead_by_layer(rows) if find_spec("plotly") else None
    return {} if drawn is None else {"dead units by layer": str(drawn.to_json())}


def dead_by_layer(rows: pd.DataFrame) -> go.Figure | None:
    """Draw the fraction of dead units by layer, a line per value of a swept column."""
    if not _layers(rows):
        return None
    group_by = _column_to_group_by(rows)
    lines = _trained_or_all(by_layer(rows, keep=[group_by] if group_by else []))
    if not len(lines):
        return None
    title = "Dead units by hidden layer (fraction of units that never respond)"
    if group_by is not None:
        title += f", for each {group_by}"
        if not pd.api.types.is_numeric_dtype(lines[group_by]):
            text = lines[group_by].astype(str)
            order = sorted(text.unique(), key=_natural_key)
            lines = lines.assign(**{group_by: pd.Categorical(text, order)})
    return figure.lines(
        lines,
        "layer",
        "dead",
        by=group_by,
        title=title,
        x_title="hidden layer",
        y_title="fraction of dead units",
        y_range=(-0.03, 1.03),  # so that markers at 0 and 1 are not cut
    )


def _layers(rows: pd.DataFrame) -> list[str]:
    """The layers with measured activity, hidden2 before hidden10."""
    matches = [re.fullmatch(r"activity/(\w+\d)/dead", str(name)) for name in rows]
    return sorted((match[1] for match in matches if match), key=_natural_key)


def _last_finite(rows: pd.DataFrame) -> Any:
    """The last row of every run that did not diverge."""
    last: Any = rows.groupby("run", sort=False).tail(1)
    return last[~last["diverged"].eq(True)] if "diverged" in last else last


def _layer_lines(last: Any, layer: str, keep: Sequence[str]) -> Any:
    """The lines of one layer, from the last row of every run; NaN for a run without the layer."""
    trained = ~last[LEARNING_RATE].eq(0) if LEARNING_RATE in last else True
    lines = last[["run", *keep]].assign(trained=trained, layer=layer)
    for name in MEASURES:
        column = f"activity/{layer}/{name}"
        lines[name] = last[column].to_numpy(float, na_value=np.nan) if column in last else np.nan
    return lines[["run", "trained", *keep, "layer", *MEASURES]]


def _trained_or_all(lines: Any) -> Any:
    """The lines of trained runs; all lines if no run is trained."""
    return lines[lines["trained"].astype(bool)] if lines["trained"].any() else lines


def _column_to_group_by(rows: pd.DataFrame) -> str | None:
    """The column whose values are the lines of the figure, or None.

    It is swept, has few values, and is known for every run in the figure.
    """
    runs = _trained_or_all(by_layer(rows))["run"]
    last: Any = rows[rows["run"].isin(runs)].groupby("run").tail(1)
    columns = [str(name) for name in last if "/" not in str(name) and name not in NEVER_GROUP_BY]
    for name in sorted(columns, key=_preference):
        if 1 < last[name].nunique() <= MAX_CURVES and last[name].notna().all():
            return name
    return None


def _preference(column: str) -> int:
    """The position of a column's first prefix in GROUP_BY_PREFIXES."""
    positions = [i for i, prefix in enumerate(GROUP_BY_PREFIXES) if column.startswith(prefix)]
    return min(positions, default=len(GROUP_BY_PREFIXES))


def _natural_key(text: str) -> str:
    """A key that sorts numbers inside text as numbers."""
    return re.sub(r"\d+", lambda match: match[0].zfill(9), text)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}".removesuffix(".0") + "%"
