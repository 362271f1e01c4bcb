"""Figures of an experiment as data.

    FIGURES = [
        curve("test/r2", against="model.width", color="encoding", name="width", title="Wider is
        better", log_x=True), curve("test/r2", against="num_train", color="M", each="K",
        name="{}-active", title="Up to {} active modules"), custom("needed", draw_needed),
    ]

`figures_of(module, rows)` draws them from the prepared rows of the experiment (`claim.prepared`).
Axes have standard titles (`AXIS_TITLES`) unless others are given. A figure whose rows or columns
are missing is left out. An experiment in a user's file may define a function `figures(rows)` that
gives Plotly figures by name instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from recombine.experiments.claim import Frame, Select, prepared
from recombine.reporting import figure

if TYPE_CHECKING:
    import plotly.graph_objects as go

Drawn = dict[str, "go.Figure"]
AXIS_TITLES = {
    "test/r2": "R² on held-out combinations",
    "seen/r2": "R² on train combinations",
    "model.width": "width of the hidden layers",
    "model.depth": "hidden layers",
    "num_train": "train tasks",
    "frac_test": "fraction of tasks held out",
    "encoding": "encoding of the task",
    "support": "training support",
    "M": "modules M",
}


@dataclass(frozen=True)
class Plot:
    """One figure, or one per value of a column (`each`; its value replaces {} in the name and the
    title).
    """

    name: str
    draw: Callable[..., go.Figure]  # lines, scatter or bars of reporting.figure
    x: str
    y: str
    title: str
    color: str | None = None
    rows: Select | None = None
    each: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[[go.Figure, Frame], Any] | None = None  # changes the figure, given its rows

    def figures(self, frame: Frame) -> Drawn:
        """The figures by name; none if rows or columns are missing."""
        selected = frame if self.rows is None else self.rows(frame)
        columns = {self.x, self.y} | {column for column in (self.color, self.each) if column}
        if selected is None or len(selected) == 0 or not columns <= set(selected):
            return {}
        if self.each is None:
            return {self.name: self._figure(selected, self.title)}
        return {
            self.name.format(value): self._figure(group, self.title.format(value))
            for value, group in selected.groupby(self.each, observed=True)
        }

    def _figure(self, rows: Frame, title: str) -> go.Figure:
        axes = {
            "x_title": AXIS_TITLES.get(self.x, self.x),
            "y_title": AXIS_TITLES.get(self.y, self.y),
        }
        options = axes | dict(self.options)
        drawn = self.draw(rows, self.x, self.y, by=self.color, title=title, **options)
        if self.finish is not None:
            self.finish(drawn, rows)
        return drawn


@dataclass(frozen=True)
class CustomPlot:
    """A figure that a function of the prepared rows draws; the function may give None."""

    name: str
    draw: Callable[[Frame], go.Figure | None]

    def figures(self, frame: Frame) -> Drawn:
        """The figure by name."""
        drawn = self.draw(frame)
        return {} if drawn is None else {self.name: drawn}


def curve(
    y: str,
    *,
    against: str,
    name: str,
    title: str,
    color: str | None = None,
    rows: Select | None = None,
    each: str | None = None,
    finish: Callable[[go.Figure, Frame], Any] | None = None,
    **options: Any,
) -> Plot:
    """Mean of `y` at each value of `against`, one line per value of `color`. `options` are those of
    `figure.lines`.
    """
    return Plot(name, figure.lines, against, y, title, color, rows, each, options, finish)


def bars(
    y: str,
    *,
    against: str,
    name: str,
    title: str,
    color: str | None = None,
    rows: Select | None = None,
    each: str | None = None,
    finish: Callable[[go.Figure, Frame], Any] | None = None,
    **options: Any,
) -> Plot:
    """Mean of `y` as bars. `options` are those of `figure.bars`."""
    return Plot(name, figure.bars, against, y, title, color, rows, each, options, finish)


def scatter(
    y: str,
    *,
    against: str,
    name: str,
    title: str,
    color: str | None = None,
    rows: Select | None = None,
    each: str | None = None,
    finish: Callable[[go.Figure, Frame], Any] | None = None,
    **options: Any,
) -> Plot:
    """Every row as a point. `options` are those of `figure.scatter`."""
    return Plot(name, figure.scatter, against, y, title, color, rows, each, options, finish)


def custom(name: str, draw: Callable[[Frame], go.Figure | None]) -> CustomPlot:
    """A figure that a function of the prepared rows draws."""
    return CustomPlot(name, draw)


def log_ticks(counts: Any) -> dict[str, Any]:
    """Ticks of a logarithmic axis of counts: powers of ten, and 2 and 5 between them if they fit.

    For `update_xaxes` and `update_yaxes`, where the counts are too close to label every one.
    """
    digits = (1, 2, 5) if counts.max() < 10_000 * counts.min() else (1,)
    return {
        "tickvals": [digit * 10**power for power in range(7) for digit in digits],
        "ticktext": None,
        "tickformat": "~s",
    }


def figures_of(module: Any, rows: pd.DataFrame) -> Drawn:
    """The figures of an experiment by name, in its order.

    A function `figures(rows)` of the experiment takes precedence over its list `FIGURES`.
    """
    if hasattr(module, "figures"):
        return module.figures(rows)
    if not hasattr(module, "FIGURES"):
        return {}
    frame = prepared(module, rows)
    drawn: Drawn = {}
    for plot in module.FIGURES:
        drawn |= plot.figures(frame)
    return drawn
