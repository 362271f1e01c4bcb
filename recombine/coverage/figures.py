"""The three figures of a coverage page: pairs of values, groups of linked values, rarest values.

If there are too many values to draw, the rarest are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from recombine.coverage.coverage import Coverage
from recombine.reporting import figure
from recombine.reporting import page as report

if TYPE_CHECKING:  # imported where a figure is made
    import plotly.graph_objects as go

MAX_VALUES = 60  # values in a figure
MAX_LABELED = 30  # values on the circle with their names
MAX_LABEL_LENGTH = 24  # characters
CELL_PIXELS = 18  # of the matrix of pairs
LETTER_PIXELS = 7
MAX_TICKS = 6  # of the color bar
LINK_COLOR = "rgba(128,128,128,0.35)"
LABEL_DISTANCE = 8  # pixels between a marker and its name

Positions = dict[int, tuple[float, float]]  # of modules


def pairs(coverage: Coverage) -> go.Figure:
    """Draw how many combinations contain each pair of values, with a cross for none.

    Two values of one factor cannot be combined: their cells are empty.
    """
    modules = _drawn_modules(coverage)
    names = _labels(coverage, modules)
    counts = coverage.cooccurrence[np.ix_(modules, modules)]
    possible = _can_combine(coverage, modules)
    title = _title("Combinations that contain each pair of values", coverage)
    drawn = figure.blank(title, "", "", True)
    _add_pair_counts(drawn, names, np.where(possible, counts, 0))
    _add_crosses(drawn, possible & (counts == 0))
    ticks = {
        "tickvals": list(range(len(names))),
        "ticktext": names,
        "showgrid": False,
        "zeroline": False,
    }
    drawn.update_xaxes(**ticks, tickangle=-90, range=[-0.5, len(names) - 0.5])
    drawn.update_yaxes(**ticks, range=[len(names) - 0.5, -0.5])
    height = 130 + CELL_PIXELS * len(names) + LETTER_PIXELS * max(map(len, names))
    return drawn.update_layout(height=max(430, height))


def groups(coverage: Coverage) -> go.Figure:
    """Draw the values on a circle, with a line between two values that share a combination.

    Each group of linked values has its own color and symbol.
    """
    drawn_modules = set(_drawn_modules(coverage).tolist())
    all_groups = [group.tolist() for group in coverage.trained.groups()]
    drawn_groups = [[m for m in group if m in drawn_modules] for group in all_groups]
    positions = _on_circle([module for group in drawn_groups for module in group])
    drawn = figure.blank(_groups_title(coverage, len(all_groups)), "", "", True)
    _add_links(drawn, coverage, positions)
    _add_group_markers(drawn, coverage, drawn_groups, list(map(len, all_groups)), positions)
    if len(positions) <= MAX_LABELED:
        _add_names(drawn, coverage, positions)
    drawn.update_xaxes(visible=False, range=[-2.2, 2.2])
    drawn.update_yaxes(visible=False, range=[-1.15, 1.15], scaleanchor="x")
    return drawn.update_layout(height=520)


def rarest(result: dict[str, Any]) -> go.Figure:
    """Draw the number of combinations of the rarest values, from `Coverage.result`."""
    frame = pd.DataFrame(result["rarest"])
    short = [report.shorten(value, MAX_LABEL_LENGTH) for value in frame["value"]]
    if len(set(short)) == len(short):  # equal labels would share a bar
        frame["value"] = short
    frame["value"] = pd.Categorical(frame["value"], frame["value"])
    drawn = figure.bars(
        frame,
        "value",
        "combinations",
        title="The values in the fewest combinations",
        x_title="",
        y_title="combinations with this value",
    )
    # There is one row per bar: hide the dots and the intervals.
    drawn.update_traces(visible=False, selector={"type": "scatter"})
    return drawn.update_traces(error_y={"visible": False}, selector={"type": "bar"})


def _drawn_modules(coverage: Coverage) -> np.ndarray:
    """The modules in a figure: all, or the rarest. Modules of a factor are next to each other."""
    rarest_first = np.argsort(coverage.trained.counts, kind="stable")
    return np.sort(rarest_first[:MAX_VALUES])


def _labels(coverage: Coverage, modules: Sequence[int] | np.ndarray) -> list[str]:
    names = [report.shorten(coverage.modules.names[m], MAX_LABEL_LENGTH) for m in modules]
    return [report.escape(name) for name in names]


def _title(text: str, coverage: Coverage) -> str:
    num_values = coverage.space.num_modules
    if num_values <= MAX_VALUES:
        return text
    return f"{text} (the {MAX_VALUES} rarest of {num_values} values)"


def _can_combine(coverage: Coverage, modules: np.ndarray) -> np.ndarray:
    """Whether a combination could contain both modules: (modules, modules)."""
    space = coverage.space
    block = space.block_of[modules]
    is_factor = np.array(space.capacities)[block] < 2
    excludes = (block[:, None] == block) & is_factor
    return ~(excludes | np.eye(len(modules), dtype=bool))


def _add_pair_counts(drawn: go.Figure, names: Sequence[str], counts: np.ndarray) -> None:
    highest = float(counts.max())
    drawn.add_heatmap(
        z=np.where(counts > 0, counts, np.nan).tolist(),
        colorscale=[[0, "#cfe6f5"], [1, "#0072B2"]],
        zmin=0,
        zmax=max(1.0, highest),
        colorbar={
            "title": {"text": "combinations"},
            "thickness": 12,
            "dtick": max(1, math.ceil(highest / MAX_TICKS)),
        },
        text=[[f"{first} and {second}" for second in names] for first in names],
        hovertemplate="%{text}: %{z}<extra></extra>",
        xgap=1,
        ygap=1,
    )


def _add_crosses(drawn: go.Figure, never: np.ndarray) -> None:
    """Mark the pairs that no combination contains, from a mask (modules, modules)."""
    rows, columns = np.nonzero(never)
    drawn.add_scatter(
        x=columns.tolist(),
        y=rows.tolist(),
        mode="markers",
        marker={"symbol": "x-thin", "size": 7, "line": {"width": 2, "color": figure.COLOURS[1]}},
        name="in no combination",
        hoverinfo="skip",
    )


def _groups_title(coverage: Coverage, num_groups: int) -> str:
    if num_groups == 1:
        return _title("One group: combinations link all values", coverage)
    return _title(f"{num_groups} groups of values: no combination links two groups", coverage)


def _on_circle(modules: Sequence[int]) -> Positions:
    """Place the modules on a circle, in this order."""
    angles = 2 * np.pi * np.arange(len(modules)) / len(modules)
    points = zip(np.cos(angles), np.sin(angles), strict=True)
    return dict(zip(modules, points, strict=True))


def _add_links(drawn: go.Figure, coverage: Coverage, positions: Positions) -> None:
    """Draw a line between two modules that share a combination."""
    x: list[float | None] = []
    y: list[float | None] = []
    for first in positions:
        for second in positions:
            if first < second and coverage.cooccurrence[first, second] > 0:
                x += [positions[first][0], positions[second][0], None]  # None ends a line
                y += [positions[first][1], positions[second][1], None]
    line = {"color": LINK_COLOR, "width": 1}
    drawn.add_scatter(x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False)


def _add_group_markers(
    drawn: go.Figure,
    coverage: Coverage,
    drawn_groups: Sequence[Sequence[int]],
    group_sizes: Sequence[int],
    positions: Positions,
) -> None:
    """Draw the modules of each group; groups beyond the last color share one legend entry."""
    last_look = len(figure.COLOURS) - 1
    for number, (modules, size) in enumerate(zip(drawn_groups, group_sizes, strict=True)):
        look = min(number, last_look)
        name = f"group {number + 1}: {size} values" if number < last_look else "further groups"
        drawn.add_scatter(
            x=[positions[module][0] for module in modules],
            y=[positions[module][1] for module in modules],
            mode="markers",
            marker={"size": 11, "color": figure.COLOURS[look], "symbol": figure.SYMBOLS[look]},
            name=name,
            showlegend=number <= last_look,
            hovertext=_labels(coverage, modules),
            hovertemplate="%{hovertext}<extra></extra>",
        )


def _add_names(drawn: go.Figure, coverage: Coverage, positions: Positions) -> None:
    """Write the name of each module outside the circle."""
    labels = _labels(coverage, list(positions))
    for (x, y), label in zip(positions.values(), labels, strict=True):
        on_the_right = x > 0
        drawn.add_annotation(
            x=x,
            y=y,
            text=label,
            showarrow=False,
            xanchor="left" if on_the_right else "right",
            xshift=LABEL_DISTANCE if on_the_right else -LABEL_DISTANCE,
        )
