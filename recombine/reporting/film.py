"""Draw an episode in a grid world, or a puzzle being solved, as a film strip.

In a grid world, walls are gray. The agent is a dot with an arrow for its next move. Objects are
squares with their reward as text. In a puzzle, given numbers are gray, and answers are colored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recombine.reporting.figure import COLOURS, FONT, INK, TRANSPARENT

if TYPE_CHECKING:  # imported where a figure is made: training needs no plotly
    import plotly.graph_objects as go

GAP = 1.5  # grid squares between two pictures, with room for a caption above each
PIXELS_PER_SQUARE = 31
ARROWS = {(0, 0): "", (-1, 0): "▲", (0, 1): "▶", (1, 0): "▼", (0, -1): "◀"}

Corner = tuple[float, float]  # the row and column of a picture's upper left square


class Thing(NamedTuple):
    """An object in a picture."""

    position: tuple[int, int]  # row and column
    text: str
    good: bool  # whether the agent should reach it


class Picture(NamedTuple):
    """One step of an episode."""

    agent: tuple[int, int]  # row and column
    move: tuple[int, int]  # the change of row and column
    things: Sequence[Thing]
    caption: str


class Grid(NamedTuple):
    """One state of a puzzle of numbers: arrays of shape (height, width)."""

    numbers: np.ndarray
    is_given: np.ndarray
    is_right: np.ndarray
    caption: str


def strip(
    walls: np.ndarray, pictures: Sequence[Picture], title: str, num_columns: int = 4
) -> go.Figure:
    """Draw the pictures of an episode in rows of `num_columns`.

    `walls` is a mask (height, width).
    """
    import plotly.graph_objects as go

    height, width = walls.shape
    corners = _corners(len(pictures), height, width, num_columns)
    figure = go.Figure()
    for corner in corners:
        _add_walls(figure, walls, corner)
    _add_objects(figure, pictures, corners, True, "object to seek", COLOURS[0])
    _add_objects(figure, pictures, corners, False, "object to avoid", COLOURS[1])
    _add_agents(figure, pictures, corners)
    _add_captions(figure, [picture.caption for picture in pictures], corners, width)
    bottom = max(top for top, _ in corners) + height
    right = max(left for _, left in corners) + width
    return _set_layout(figure, title, bottom, right)


def grids(
    pictures: Sequence[Grid], box: tuple[int, int], title: str, num_columns: int = 4
) -> go.Figure:
    """Draw the states of a puzzle in rows of `num_columns`. `box` is the height and width of a box
    of cells; neighboring boxes have different shades.
    """
    import plotly.graph_objects as go

    height, width = pictures[0].numbers.shape
    corners = _corners(len(pictures), height, width, num_columns)
    rows, columns = np.indices((height, width))
    shades = (rows // box[0] + columns // box[1]) % 2 == 1
    figure = go.Figure()
    for corner in corners:
        _add_walls(figure, shades, corner)
    kinds = (("given", INK), ("right", COLOURS[2]), ("wrong", COLOURS[1]))
    for name, color in kinds:
        _add_numbers(figure, pictures, corners, name, color)
    _add_captions(figure, [picture.caption for picture in pictures], corners, width)
    bottom = max(top for top, _ in corners) + height
    right = max(left for _, left in corners) + width
    return _set_layout(figure, title, bottom, right)


def _add_numbers(
    figure: go.Figure, pictures: Sequence[Grid], corners: Sequence[Corner], name: str, color: str
) -> None:
    """Draw the numbers that are given, right or wrong, of all pictures."""
    x, y, texts = [], [], []
    for picture, (top, left) in zip(pictures, corners, strict=True):
        masks = {
            "given": picture.is_given,
            "right": ~picture.is_given & picture.is_right,
            "wrong": ~picture.is_given & ~picture.is_right,
        }
        for row, column in zip(*np.nonzero(masks[name]), strict=True):
            x.append(left + int(column))
            y.append(top + int(row))
            texts.append(str(picture.numbers[row, column]))
    figure.add_scatter(
        x=x,
        y=y,
        mode="text",
        text=texts,
        textfont={"size": 15, "color": color},
        name=name,
        hoverinfo="skip",
    )


def _corners(num_pictures: int, height: int, width: int, num_columns: int) -> list[Corner]:
    """The corners of pictures in rows of `num_columns`."""
    corners = []
    for i in range(num_pictures):
        row, column = divmod(i, num_columns)
        corners.append((row * (height + GAP), column * (width + GAP)))
    return corners


def _add_captions(
    figure: go.Figure, captions: Sequence[str], corners: Sequence[Corner], width: int
) -> None:
    for caption, (top, left) in zip(captions, corners, strict=True):
        figure.add_annotation(
            text=caption,
            font={"size": 12, "color": INK},
            x=left + (width - 1) / 2,
            y=top - 0.95,
            showarrow=False,
        )


def _add_walls(figure: go.Figure, walls: np.ndarray, corner: Corner) -> None:
    top, left = corner
    height, width = walls.shape
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


def _add_objects(
    figure: go.Figure,
    pictures: Sequence[Picture],
    corners: Sequence[Corner],
    good: bool,
    name: str,
    color: str,
) -> None:
    """Draw the good or the bad objects of all pictures."""
    x = []
    y = []
    texts = []
    for picture, (top, left) in zip(pictures, corners, strict=True):
        for thing in picture.things:
            if thing.good is good:
                x.append(left + thing.position[1])
                y.append(top + thing.position[0])
                texts.append(thing.text)
    figure.add_scatter(
        x=x,
        y=y,
        mode="markers+text",
        marker={"size": 26, "symbol": "square", "color": color},
        text=texts,
        textfont={"size": 9, "color": "#ffffff"},
        name=name,
        hoverinfo="skip",
    )


def _add_agents(figure: go.Figure, pictures: Sequence[Picture], corners: Sequence[Corner]) -> None:
    x = []
    y = []
    for picture, (top, left) in zip(pictures, corners, strict=True):
        x.append(left + picture.agent[1])
        y.append(top + picture.agent[0])
    figure.add_scatter(
        x=x,
        y=y,
        mode="markers+text",
        marker={"size": 17, "color": COLOURS[4], "line": {"width": 1.5, "color": INK}},
        text=[ARROWS.get(picture.move, "") for picture in pictures],
        textfont={"size": 10, "color": "#000000"},
        name="agent and its next move",
        hoverinfo="skip",
    )


def _set_layout(figure: go.Figure, title: str, bottom: float, right: float) -> go.Figure:
    """Hide the axes and set the size, from the number of squares down and across."""
    hidden: dict[str, Any] = {"visible": False, "fixedrange": True}
    return figure.update_layout(
        template={},
        title={"text": title, "x": 0, "xref": "paper", "font": {"size": 16}},
        font=FONT,
        paper_bgcolor=TRANSPARENT,
        plot_bgcolor=TRANSPARENT,
        xaxis=hidden | {"range": [-0.6, right - 0.4]},
        yaxis=hidden | {"range": [bottom - 0.4, -1.6], "scaleanchor": "x"},
        height=120 + round(PIXELS_PER_SQUARE * bottom),
        margin={"l": 10, "r": 10, "t": 50, "b": 40},
        legend={"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"},
        modebar={"bgcolor": TRANSPARENT},
    )
