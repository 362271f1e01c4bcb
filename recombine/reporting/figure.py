"""Line, scatter and bar figures, all in one style.

Groups differ in color (Okabe and Ito's palette, safe for color blindness) and in symbol, dash or
pattern. Backgrounds are transparent and text is mid-gray, so that a figure is readable on light and
on dark pages. R2 has no lower bound: values below the axis are drawn on its edge as triangles, and
the hover text has their value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from recombine.basics.errors import require
from recombine.basics.statistics import MIN_BOOTSTRAP_SEEDS, mean_interval

if TYPE_CHECKING:  # imported where a figure is made: training needs no plotly
    import plotly.graph_objects as go

# Okabe & Ito 2008, without black and yellow, which are invisible on one of the two backgrounds.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
# The numbers of these are coprime to the number of colors, so that the first 35 groups differ.
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
PATTERNS = ("", "/", "x", "-", "\\", "+", ".", "|")
INK = "#767676"
GRID = "rgba(128,128,128,0.22)"
LINE = "rgba(128,128,128,0.6)"
FONT = {"family": "system-ui, -apple-system, 'Segoe UI', sans-serif", "size": 13, "color": INK}
TRANSPARENT = "rgba(0,0,0,0)"
R2_FLOOR = -0.5  # the lowest R2 that an axis shows
MAX_LOG_TICKS = 12  # more values of x than this are not all labeled on a logarithmic axis
# Fewer values, such as seeds, have a range instead of a confidence interval.
MIN_VALUES_FOR_INTERVAL = MIN_BOOTSTRAP_SEEDS


class _Group(NamedTuple):
    """The points of one legend entry, and the number that selects its color and symbol."""

    name: str
    number: int
    x: np.ndarray
    y: np.ndarray
    notes: np.ndarray  # the beginning of each point's hover text

    def pick(self, styles: Sequence[str]) -> str:
        return styles[self.number % len(styles)]

    def filter(self, mask: np.ndarray) -> _Group:
        return self._replace(x=self.x[mask], y=self.y[mask], notes=self.notes[mask])


class _Scale(NamedTuple):
    """The range of values that an axis shows. Values outside are drawn on its edge."""

    low: float
    high: float

    def contains(self, values: Any) -> Any:
        return (self.low <= values) & (values <= self.high)

    def clip(self, values: Any) -> np.ndarray:
        return np.clip(np.asarray(values, float), self.low, self.high)

    def text(self, value: float) -> str:
        return f"{value:.3g}" if self.contains(value) else f"{value:.3g} (beyond the axis)"


def lines(
    frame: pd.DataFrame,
    x: str,
    y: str,
    by: str | None = None,
    *,
    title: str,
    x_title: str,
    y_title: str,
    log_x: bool = False,
    y_range: tuple[float, float] | None = None,
    names: Mapping[Any, str] | None = None,
) -> go.Figure:
    """Draw the mean of `y` at each `x`, one line per value of `by`.

    Means have confidence intervals, and every row is a dot. `names` replaces values in the legend
    and on a categorical axis.
    """
    categorical = not pd.api.types.is_numeric_dtype(_column(frame, x))
    groups, x_values = _groups(frame, x, y, by, names, categorical)
    figure = blank(title, x_title, y_title, by is not None)
    scale = _scale(y, y_range)
    for group in groups:
        color = group.pick(COLOURS)
        line = {"color": color, "width": 2, "dash": group.pick(DASHES)}
        marker = {"color": color, "size": 9, "symbol": group.pick(SYMBOLS)}
        figure.add_traces(_points(group, scale))
        means = _means(group, x_values, scale)
        figure.add_scatter(**means, mode="lines+markers", line=line, marker=marker)
    if categorical:
        figure.update_xaxes(type="category", categoryorder="array", categoryarray=x_values)
    elif log_x:
        figure.update_xaxes(type="log")
        if len(x_values) <= MAX_LOG_TICKS:
            labels = [f"{value:g}" for value in x_values]
            figure.update_xaxes(tickvals=x_values, ticktext=labels)
    return _set_range(figure, "y", y, y_range)


def scatter(
    frame: pd.DataFrame,
    x: str,
    y: str,
    by: str | None = None,
    *,
    title: str,
    x_title: str,
    y_title: str,
    fit: bool = False,
    text: str | None = None,
    names: Mapping[Any, str] | None = None,
) -> go.Figure:
    """Draw every row as a point.

    `fit` adds the least squares line of the points. `text` is the column with hover text.
    """
    figure = blank(title, x_title, y_title, by is not None)
    x_scale = _scale(x)
    y_scale = _scale(y)
    groups, _ = _groups(frame, x, y, by, names, note=text or "run")
    for group in groups:
        finite = group.filter(np.isfinite(group.x.astype(float)))
        inside, *outside = _points(finite, y_scale, x_scale)
        figure.add_traces([inside | {"showlegend": True}, *outside])
    if fit:
        _add_fit(figure)
    _set_range(figure, "x", x)
    return _set_range(figure, "y", y)


def bars(
    frame: pd.DataFrame,
    x: str,
    y: str,
    by: str | None = None,
    *,
    title: str,
    x_title: str,
    y_title: str,
    y_range: tuple[float, float] | None = None,
    names: Mapping[Any, str] | None = None,
) -> go.Figure:
    """Draw the mean of `y` per value of `x` as bars, one per value of `by`.

    Means have confidence intervals, and every row is a dot. `names` replaces values in the legend
    and on the x axis.
    """
    # Numbers are categories too. Otherwise the gaps between bars would depend on the numbers.
    groups, x_values = _groups(frame, x, y, by, names, categorical=True)
    figure = blank(title, x_title, y_title, by is not None)
    scale = _scale(y, y_range)
    for group in groups:
        pattern = {"shape": group.pick(PATTERNS), "size": 7, "solidity": 0.25}
        marker = {"color": group.pick(COLOURS), "opacity": 0.7, "pattern": pattern}
        offset = str(group.number)
        figure.add_bar(**_means(group, x_values, scale), marker=marker, offsetgroup=offset)
        figure.add_traces([points | {"offsetgroup": offset} for points in _points(group, scale)])
    # A dot or an interval in the color of its bar would be invisible.
    figure.update_traces(error_y={"color": INK}, selector={"type": "bar"})
    figure.update_traces(marker={"color": INK, "opacity": 0.6}, selector={"type": "scatter"})
    figure.update_layout(barmode="group", scattermode="group", bargap=0.3, scattergap=0.3)
    figure.update_xaxes(
        type="category", categoryorder="array", categoryarray=x_values, showgrid=False
    )
    return _set_range(figure, "y", y, y_range)


def blank(title: str, x_title: str, y_title: str, legend: bool) -> go.Figure:
    """An empty figure in the common style."""
    import plotly.graph_objects as go

    axis = {
        "linecolor": LINE,
        "tickcolor": LINE,
        "zerolinecolor": LINE,
        "gridcolor": GRID,
        "automargin": True,
    }
    return go.Figure(
        layout={
            "template": {},  # plotly's default has a colored background
            "title": {"text": title, "x": 0, "xref": "paper", "y": 0.97, "font": {"size": 16}},
            "xaxis": axis | {"title": {"text": x_title}, "zeroline": False, "ticks": "outside"},
            "yaxis": axis | {"title": {"text": y_title}},
            "font": FONT,
            "paper_bgcolor": TRANSPARENT,
            "plot_bgcolor": TRANSPARENT,
            "height": 430,
            "margin": {"l": 60, "r": 20, "t": 50, "b": 55},
            "legend": {
                "orientation": "h",
                "x": 0,
                "y": 0,
                "yref": "container",
                "yanchor": "bottom",
            },
            "showlegend": legend,
            "hovermode": "closest",
            "modebar": {"bgcolor": TRANSPARENT, "color": LINE, "activecolor": INK},
        }
    )


def _scale(column: str, limits: tuple[float, float] | None = None) -> _Scale:
    """The range that an axis shows: these limits, or that of the column's metric."""
    if limits:
        return _Scale(*limits)
    return _Scale(R2_FLOOR if column.endswith("r2") else -np.inf, np.inf)


def _set_range(
    figure: go.Figure, axis: str, column: str, limits: tuple[float, float] | None = None
) -> go.Figure:
    """Set the range of an axis: these limits, or 0 to 1 for R2 and accuracy, so figures compare.

    A figure without any values gets a note.
    """
    values = _values(figure, axis)
    if not values and axis == "y":
        figure.add_annotation(
            text="no finite values to draw", showarrow=False, xref="paper", yref="paper"
        )
    elif values and limits is None and column.endswith(("r2", "accuracy")):
        limits = (min(0.0, *values) - 0.05, max(1.0, *values) + 0.05)
    return figure.update_layout({f"{axis}axis": {"range": limits}})


def _values(figure: go.Figure, axis: str) -> list[float]:
    """All values on an axis."""
    traces: Any = figure.data
    return [value for trace in traces for value in trace[axis]]


def _column(frame: pd.DataFrame, name: str) -> pd.Series:
    require(name in frame, f"cannot draw: the rows have no column {name!r}")
    return pd.Series(frame[name])


def _groups(
    frame: pd.DataFrame,
    x: str,
    y: str,
    by: str | None,
    names: Mapping[Any, str] | None,
    categorical: bool = False,
    note: str = "run",
) -> tuple[list[_Group], list[Any]]:
    """The points per value of `by`, and the values on the x axis in order.

    On a categorical axis, the values are text. `note` is the column with hover text.
    """
    frame = frame.dropna(subset=[_column(frame, x).name])
    x_column = _column(frame, x)
    x_points = x_column.to_numpy()
    x_values = _ordered(x_column)
    if categorical:
        x_points = np.array([_name(value, names) for value in x_points], object)
        x_values = [_name(value, names) for value in x_values]
    y_points = _column(frame, y).to_numpy(float, na_value=np.nan)
    whole = _Group("runs", 0, x_points, y_points, _notes(frame, note))
    if by is None:
        return [whole], x_values
    by_column = _column(frame, by)
    groups = []
    prefix = f"{by.rpartition('.')[2]} = "  # model.width is shown as width
    for number, value in enumerate(_ordered(by_column)):
        named = whole._replace(name=_name(value, names, prefix), number=number)
        groups.append(named.filter((by_column == value).to_numpy()))
    return groups, x_values


def _notes(frame: pd.DataFrame, column: str) -> np.ndarray:
    """The beginning of each row's hover text; empty for rows without a run's name."""
    if column == "run" and column not in frame:
        return np.array([""] * len(frame), object)
    return np.array([f"{value}<br>" for value in _column(frame, column)], object)


def _ordered(values: pd.Series) -> list[Any]:
    """The distinct values in order: that of the categories, or else ascending, text last."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return [value for value in values.cat.categories if (values == value).any()]
    unique = values.dropna().unique().tolist()
    return sorted(unique, key=lambda value: (isinstance(value, str), value))


def _name(value: Any, names: Mapping[Any, str] | None = None, prefix: str = "") -> str:
    """The name of a value, or else the value as text, with the prefix if it is not text."""
    if names and value in names:
        return names[value]
    if isinstance(value, str):
        return value
    text = f"{value:g}" if isinstance(value, (float, np.floating)) else str(value)
    return prefix + text


def _points(group: _Group, y_scale: _Scale, x_scale: _Scale | None = None) -> list[dict[str, Any]]:
    """A trace with a point per row, and another one for points outside an axis, if there are any.

    Points are large on two scales (a scatter figure), and faint otherwise (beside means).
    """
    group = group.filter(np.isfinite(group.y))
    inside = y_scale.contains(group.y)
    if x_scale:
        inside = inside & x_scale.contains(group.x)
    marker = {
        "symbol": group.pick(SYMBOLS),
        "size": 9 if x_scale else 6,
        "opacity": 0.8 if x_scale else 0.4,
    }
    traces = [_point_trace(group.filter(inside), y_scale, x_scale, marker)]
    if not all(inside):
        edge_marker = {"symbol": "triangle-down-open", "size": 11, "line": {"width": 2}}
        traces.append(_point_trace(group.filter(~inside), y_scale, x_scale, edge_marker))
    return traces


def _point_trace(
    group: _Group, y_scale: _Scale, x_scale: _Scale | None, marker: dict[str, Any]
) -> dict[str, Any]:
    x_text = x_scale.text if x_scale else _name
    hover_texts = [
        f"{note}{x_text(x)}, {y_scale.text(y)}"
        for x, y, note in zip(group.x, group.y, group.notes, strict=True)
    ]
    x = x_scale.clip(group.x) if x_scale else group.x
    trace = {
        "x": x.tolist(),
        "y": y_scale.clip(group.y).tolist(),
        "mode": "markers",
        "marker": marker | {"color": group.pick(COLOURS)},
        "showlegend": False,
    }
    return trace | _legend_and_hover(group, hover_texts)


def _legend_and_hover(group: _Group, hover_texts: list[str]) -> dict[str, Any]:
    return {
        "name": group.name,
        "legendgroup": group.name,
        "hovertext": hover_texts,
        "hovertemplate": "%{hovertext}",
    }


def _means(group: _Group, x_values: list[Any], scale: _Scale) -> dict[str, Any]:
    """A trace with the mean and the interval at each value of x."""
    x = []
    numbers = []
    hover_texts = []
    for x_value in x_values:
        values = group.y[group.x == x_value]
        finite = values[np.isfinite(values)]
        if not len(finite):
            continue
        is_range = len(finite) < MIN_VALUES_FOR_INTERVAL
        low, high = (finite.min(), finite.max()) if is_range else mean_interval(finite)
        x.append(x_value)
        numbers.append((finite.mean(), low, high))
        kind = "range" if is_range else "95% interval"
        hover_text = (
            f"{_name(x_value)}: mean {scale.text(finite.mean())} of {len(finite)}"
            f"<br>{kind} {low:.3g} to {high:.3g}"
        )
        num_left_out = len(values) - len(finite)
        if num_left_out:
            hover_text += f"<br>{num_left_out} not finite"
        hover_texts.append(hover_text)
    mean, low, high = scale.clip(np.reshape(numbers, (-1, 3))).T
    error_bars = {
        "symmetric": False,
        "color": group.pick(COLOURS),
        "thickness": 1.5,
        "width": 4,
        "array": (high - mean).tolist(),
        "arrayminus": (mean - low).tolist(),
    }
    trace = {"x": x, "y": mean.tolist(), "error_y": error_bars}
    return trace | _legend_and_hover(group, hover_texts)


def _add_fit(figure: go.Figure) -> None:
    """Add the least squares line of all points, with its R2 in the legend."""
    x = np.array(_values(figure, "x"), float)
    y = np.array(_values(figure, "y"), float)
    if len(set(x)) < 2:
        return
    line = np.polynomial.Polynomial.fit(x, y, 1)
    residual = ((y - line(x)) ** 2).sum()
    total = ((y - y.mean()) ** 2).sum()
    name = f"least squares, R² = {1 - residual / total:.2f}" if total else "least squares"
    ends = np.array([x.min(), x.max()])
    figure.add_scatter(
        x=ends.tolist(),
        y=line(ends).tolist(),
        mode="lines",
        hoverinfo="skip",
        line={"color": INK, "width": 2, "dash": "dash"},
        name=name,
    )
    figure.update_layout(showlegend=True)
