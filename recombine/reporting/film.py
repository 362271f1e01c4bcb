"""A film strip: the steps of an episode in a grid world, side by side, so that a person sees what the task is.

Walls are grey, the agent is a dot with an arrow for what it does next, objects are squares that tell their worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recombine.reporting.figure import COLOURS, INK

if TYPE_CHECKING:  # imported where a figure is made: training needs no plotly
    import plotly.graph_objects as go

GAP = 1.5  # squares between two pictures, with room for a caption above each
ARROWS = {(0, 0): "", (-1, 0): "▲", (0, 1): "▶", (1, 0): "▼", (0, -1): "◀"}


class Thing(NamedTuple):
    """An object in a picture: where, what is written on it, and whether it is one to seek."""

    place: tuple[int, int]  # row and column, as the agent's
    text: str
    good: bool


class Picture(NamedTuple):
    """One step: where the agent is and moves to, what is there, and a line about it."""

    agent: tuple[int, int]
    move: tuple[int, int]
    things: Sequence[Thing]
    caption: str


def strip(
    walls: np.ndarray, pictures: Sequence[Picture], title: str, num_columns: int = 4
) -> go.Figure:
    """Draw the pictures of an episode in rows of `num_columns`."""
    import plotly.graph_objects as go

    height, width = walls.shape
    corners = [divmod(i, num_columns) for i in range(len(pictures))]
    tops = [(row * (height + GAP), column * (width + GAP)) for row, column in corners]
    figure = go.Figure()
    for top, left in tops:
        figure.add_heatmap(
            z=np.where(walls, 0.55, 0.12),
            x=left + np.arange(width),
            y=top + np.arange(height),
            zmin=0,
            zmax=1,
            colorscale=[[0, "rgba(128,128,128,0)"], [1, "rgba(128,128,128,1)"]],
            showscale=False,
            hoverinfo="skip",
            xgap=1,
            ygap=1,
        )
    _add_things(figure, pictures, tops)
    agents = [
        (top + p.agent[0], left + p.agent[1]) for p, (top, left) in zip(pictures, tops, strict=True)
    ]
    figure.add_scatter(
        x=[x for _, x in agents],
        y=[y for y, _ in agents],
        mode="markers+text",
        marker={"size": 17, "color": COLOURS[4], "line": {"width": 1.5, "color": INK}},
        text=[ARROWS.get(p.move, "") for p in pictures],
        textfont={"size": 10, "color": "#000000"},
        name="agent, and where it goes",
        hoverinfo="skip",
    )
    for picture, (top, left) in zip(pictures, tops, strict=True):
        place = {"x": left + (width - 1) / 2, "y": top - 0.95, "showarrow": False}
        figure.add_annotation(text=picture.caption, font={"size": 12, "color": INK}, **place)
    return _frame(figure, title, tops, height, width)


def _add_things(
    figure: go.Figure, pictures: Sequence[Picture], tops: Sequence[tuple[float, float]]
) -> None:
    placed = [
        (thing, corner) for p, corner in zip(pictures, tops, strict=True) for thing in p.things
    ]
    for good, name, colour in (
        (True, "object to seek", COLOURS[0]),
        (False, "object to avoid", COLOURS[1]),
    ):
        kept = [(thing, corner) for thing, corner in placed if thing.good is good]
        figure.add_scatter(
            x=[left + thing.place[1] for thing, (_, left) in kept],
            y=[top + thing.place[0] for thing, (top, _) in kept],
            mode="markers+text",
            marker={"size": 26, "symbol": "square", "color": colour},
            text=[thing.text for thing, _ in kept],
            textfont={"size": 9, "color": "#ffffff"},
            name=name,
            hoverinfo="skip",
        )


def _frame(
    figure: go.Figure, title: str, tops: Sequence[tuple[float, float]], height: int, width: int
) -> go.Figure:
    bottom, right = (max(side) for side in zip(*tops, strict=True))
    hidden: dict[str, Any] = {"visible": False, "fixedrange": True}
    return figure.update_layout(
        template={},
        title={"text": title, "x": 0, "xref": "paper", "font": {"size": 16}},
        font={
            "family": "system-ui, -apple-system, 'Segoe UI', sans-serif",
            "size": 13,
            "color": INK,
        },
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        xaxis=hidden | {"range": [-0.6, right + width - 0.4]},
        yaxis=hidden | {"range": [bottom + height - 0.4, -1.6], "scaleanchor": "x"},
        height=120 + round(31 * (bottom + height)),
        margin={"l": 10, "r": 10, "t": 50, "b": 40},
        legend={"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"},
        modebar={"bgcolor": "rgba(0,0,0,0)"},
    )
