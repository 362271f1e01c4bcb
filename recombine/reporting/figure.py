"""The few pictures that experiments draw, all with one look.

Groups differ in colour (Okabe and Ito's, safe for the colour-blind) and in symbol, dash or pattern. Grounds
are transparent and inks mid-grey, so a picture reads on light and on dark; the report page sharpens its text.
R2 has no lower bound: values below the axis are drawn on its edge as triangles, their number in the hover.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from recombine.basics.errors import require
from recombine.basics.statistics import interval

if TYPE_CHECKING:  # imported where a figure is made: training needs no plotly
    import plotly.graph_objects as go

# Okabe & Ito 2008, without black and yellow, which vanish on one of the two grounds.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
# These come in numbers coprime to the colours', so that the first 35 groups differ.
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
PATTERNS = ("", "/", "x", "-", "\\", "+", ".", "|")
INK, GRID, LINE = "#767676", "rgba(128,128,128,0.22)", "rgba(128,128,128,0.6)"
R2_FLOOR = -0.5


class _Group(NamedTuple):
    """The points of one legend entry, and the number that gives them their look."""

    name: str
    number: int
    x: np.ndarray
    y: np.ndarray
    notes: np.ndarray

    def pick(self, looks: Sequence[str]) -> str:
        return looks[self.number % len(looks)]

    def keep(self, mask: np.ndarray) -> _Group:
        return self._replace(x=self.x[mask], y=self.y[mask], notes=self.notes[mask])


class _Scale(NamedTuple):
    """The values that an axis shows; those beyond are drawn on its edge."""

    low: float
    high: float

    def holds(self, values: Any) -> Any:
        return (self.low <= values) & (values <= self.high)

    def place(self, values: Any) -> np.ndarray:
        return np.clip(np.asarray(values, float), self.low, self.high)

    def tell(self, value: float) -> str:
        return f"{value:.3g}" if self.holds(value) else f"{value:.3g} (beyond the axis)"


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
    """Draw the mean of `y` at each `x`, one line per value of `by`, with intervals and every row as a dot."""
    spell = not pd.api.types.is_numeric_dtype(_column(frame, x))
    groups, order = _groups(frame, x, y, by, names, spell)
    figure, scale = blank(title, x_title, y_title, by is not None), _scale(y, y_range)
    for group in groups:
        colour = group.pick(COLOURS)
        line = {"color": colour, "width": 2, "dash": group.pick(DASHES)}
        marker = {"color": colour, "size": 9, "symbol": group.pick(SYMBOLS)}
        figure.add_traces(_points(group, scale))
        figure.add_scatter(
            **_means(group, order, scale), mode="lines+markers", line=line, marker=marker
        )
    if spell:
        figure.update_xaxes(type="category", categoryorder="array", categoryarray=order)
    elif log_x:
        ticks = (
            {"tickvals": order, "ticktext": [f"{place:g}" for place in order]}
            if len(order) <= 12
            else {}
        )
        figure.update_xaxes(type="log", **ticks)
    return _fix_range(figure, "y", y, y_range)


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
    """Draw every row as a point; `fit` adds the least squares line of what is drawn, `text` a hover note."""
    figure, across, up = blank(title, x_title, y_title, by is not None), _scale(x), _scale(y)
    for group in _groups(frame, x, y, by, names, note=text or "run")[0]:
        group = group.keep(np.isfinite(group.x.astype(float)))
        cloud, *beyond = _points(group, up, across)
        figure.add_traces([cloud | {"showlegend": True}, *beyond])
    if fit:
        _add_fit(figure)
    return _fix_range(_fix_range(figure, "x", x), "y", y)


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
    """Draw the mean of `y` per value of `x` as bars, one per value of `by`, with intervals and dots."""
    # Numbers are spelled too, or bars would stand as far apart as the numbers do.
    groups, order = _groups(frame, x, y, by, names, spell=True)
    figure, scale = blank(title, x_title, y_title, by is not None), _scale(y, y_range)
    for group in groups:
        pattern = {"shape": group.pick(PATTERNS), "size": 7, "solidity": 0.25}
        marker = {"color": group.pick(COLOURS), "opacity": 0.7, "pattern": pattern}
        beside = {"offsetgroup": str(group.number)}
        figure.add_bar(**_means(group, order, scale), marker=marker, **beside)
        figure.add_traces([points | beside for points in _points(group, scale)])
    # On top of a bar its own colour would not be seen.
    figure.update_traces(error_y={"color": INK}, selector={"type": "bar"})
    figure.update_traces(marker={"color": INK, "opacity": 0.6}, selector={"type": "scatter"})
    figure.update_layout(barmode="group", scattermode="group", bargap=0.3, scattergap=0.3)
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=order, showgrid=False)
    return _fix_range(figure, "y", y, y_range)


def blank(title: str, x_title: str, y_title: str, legend: bool) -> go.Figure:
    """A figure without anything in it, as ours look on light and dark grounds."""
    import plotly.graph_objects as go

    strokes = dict.fromkeys(("linecolor", "tickcolor", "zerolinecolor"), LINE)
    axis = strokes | {"gridcolor": GRID, "automargin": True}
    return go.Figure(
        layout={
            "template": {},  # plotly's own would put a coloured ground under everything
            "title": {"text": title, "x": 0, "xref": "paper", "y": 0.97, "font": {"size": 16}},
            "xaxis": axis | {"title": {"text": x_title}, "zeroline": False, "ticks": "outside"},
            "yaxis": axis | {"title": {"text": y_title}},
            "font": {
                "family": "system-ui, -apple-system, 'Segoe UI', sans-serif",
                "size": 13,
                "color": INK,
            },
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
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
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": LINE, "activecolor": INK},
        }
    )


def _scale(column: str, given: tuple[float, float] | None = None) -> _Scale:
    return (
        _Scale(*given) if given else _Scale(R2_FLOOR if column.endswith("r2") else -np.inf, np.inf)
    )


def _fix_range(figure: go.Figure, axis: str, column: str, given: Any = None) -> go.Figure:
    """Give R2 and accuracy their natural range, so that figures compare; say so where nothing is drawn."""
    values = _values(figure, axis)
    if not values and axis == "y":
        figure.add_annotation(
            text="no finite values to draw", showarrow=False, xref="paper", yref="paper"
        )
    elif values and given is None and column.endswith(("r2", "accuracy")):
        given = (min(0.0, *values) - 0.05, max(1.0, *values) + 0.05)
    return figure.update_layout({f"{axis}axis": {"range": given}})


def _values(figure: go.Figure, axis: str) -> list[float]:
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
    names: Any,
    spell: bool = False,
    note: str = "run",
) -> tuple[list[_Group], list[Any]]:
    """The points per value of `by`, and the places on the x axis in order (as text where `spell` says so)."""
    frame = frame.dropna(subset=[_column(frame, x).name])
    across, up = _column(frame, x), _column(frame, y).to_numpy(float, na_value=np.nan)
    places, order = across.to_numpy(), _ordered(across)
    if spell:
        places = np.array([_name(place, names) for place in places], object)
        order = [_name(place, names) for place in order]
    known = note in frame or note != "run"  # rows made by hand need not tell their runs
    notes = [f"{value}<br>" for value in _column(frame, note)] if known else [""] * len(frame)
    whole = _Group("runs", 0, places, up, np.array(notes, object))
    if by is None:
        return [whole], order
    owners = _column(frame, by)
    return [
        whole._replace(name=_name(owner, names, f"{by} = "), number=number).keep(
            (owners == owner).to_numpy()
        )
        for number, owner in enumerate(_ordered(owners))
    ], order


def _ordered(values: pd.Series) -> list[Any]:
    if isinstance(values.dtype, pd.CategoricalDtype):
        return [value for value in values.cat.categories if (values == value).any()]
    unique = values.dropna().unique().tolist()
    return sorted(unique, key=lambda value: (isinstance(value, str), value))


def _name(value: Any, names: Mapping[Any, str] | None = None, prefix: str = "") -> str:
    """The given name, or the value itself, to which the prefix gives a meaning where it is a bare number."""
    if names and value in names:
        return names[value]
    plain = f"{value:g}" if isinstance(value, (float, np.floating)) else str(value)
    return plain if isinstance(value, str) else prefix + plain


def _points(group: _Group, up: _Scale, across: _Scale | None = None) -> list[dict[str, Any]]:
    """Every row of a group as a point, faint unless on two scales; those beyond an axis are a trace apart."""
    group = group.keep(np.isfinite(group.y))
    inside = up.holds(group.y) & (across.holds(group.x) if across else True)
    size, opacity = (9, 0.8) if across else (6, 0.4)
    within = {"symbol": group.pick(SYMBOLS), "size": size, "opacity": opacity}
    beyond = {"symbol": "triangle-down-open", "size": 11, "line": {"width": 2}}
    traces = [
        _cloud(group.keep(inside), up, across, within),
        _cloud(group.keep(~inside), up, across, beyond),
    ]
    return traces if not all(inside) else traces[:1]


def _cloud(
    group: _Group, up: _Scale, across: _Scale | None, look: dict[str, Any]
) -> dict[str, Any]:
    tell = across.tell if across else _name
    notes = [
        f"{note}{tell(x)}, {up.tell(y)}"
        for x, y, note in zip(group.x, group.y, group.notes, strict=True)
    ]
    drawn = {
        "x": (across.place(group.x) if across else group.x).tolist(),
        "y": up.place(group.y).tolist(),
    }
    look = {"mode": "markers", "marker": look | {"color": group.pick(COLOURS)}, "showlegend": False}
    return drawn | look | _labels(group, notes)


def _labels(group: _Group, notes: list[str]) -> dict[str, Any]:
    return {
        "name": group.name,
        "legendgroup": group.name,
        "hovertext": notes,
        "hovertemplate": "%{hovertext}",
    }


def _means(group: _Group, order: list[Any], scale: _Scale) -> dict[str, Any]:
    places, numbers, notes = [], [], []
    for place in order:
        values = group.y[group.x == place]
        kept = values[np.isfinite(values)]
        if len(kept):
            low, high = interval(kept)
            lost = f"<br>{len(values) - len(kept)} not finite" if len(kept) < len(values) else ""
            spread = f"{'95% interval' if len(kept) > 2 else 'range'} {low:.3g} to {high:.3g}"
            notes.append(
                f"{_name(place)}: mean {scale.tell(kept.mean())} of {len(kept)}<br>{spread}{lost}"
            )
            places.append(place)
            numbers.append((kept.mean(), low, high))
    mean, low, high = scale.place(np.reshape(numbers, (-1, 3))).T
    whisker = {"symmetric": False, "color": group.pick(COLOURS), "thickness": 1.5, "width": 4}
    whisker |= {"array": (high - mean).tolist(), "arrayminus": (mean - low).tolist()}
    return {"x": places, "y": mean.tolist(), "error_y": whisker} | _labels(group, notes)


def _add_fit(figure: go.Figure) -> None:
    x, y = (np.array(_values(figure, axis), float) for axis in ("x", "y"))
    if len(set(x)) < 2:
        return
    line = np.polynomial.Polynomial.fit(x, y, 1)
    missed, spread = ((y - line(x)) ** 2).sum(), ((y - y.mean()) ** 2).sum()
    name = f"least squares, R² = {1 - missed / spread:.2f}" if spread else "least squares"
    ends = np.array([x.min(), x.max()])
    drawn = {"x": ends.tolist(), "y": line(ends).tolist(), "mode": "lines", "hoverinfo": "skip"}
    figure.add_scatter(**drawn, line={"color": INK, "width": 2, "dash": "dash"}, name=name)
    figure.update_layout(showlegend=True)
