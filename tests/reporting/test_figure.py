"""Line, scatter and bar figures."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.basics.statistics import mean_interval
from recombine.reporting import figure

TITLES = {"title": "A title", "x_title": "width", "y_title": "test R²"}


def runs(values: dict[tuple, list[float]]) -> pd.DataFrame:
    """Rows from {(width, support): [test R2, ...]}."""
    return pd.DataFrame(
        [
            {"run": f"{width}{support}{seed}", "width": width, "support": support, "test/r2": value}
            for (width, support), row in values.items()
            for seed, value in enumerate(row)
        ]
    )


@pytest.fixture
def frame() -> pd.DataFrame:
    return runs(
        {
            (16, "random"): [0.1, 0.2, 0.6],
            (128, "random"): [0.9, 0.8],
            (64, "random"): [0.5],
            (16, "split"): [0.0, -40.0],
            (128, "split"): [0.1, math.nan],
        }
    )


def named(drawn, name, mode):
    """The only trace with this name and this mode or type."""
    (trace,) = (
        trace
        for trace in drawn.data
        if trace.name == name and mode in (trace.type, trace.to_plotly_json().get("mode"))
    )
    return trace


def test_lines_draw_the_means_in_order_with_intervals(frame):
    drawn = figure.lines(frame, "width", "test/r2", "support", log_x=True, **TITLES)
    line = named(drawn, "random", "lines+markers")
    assert line.x == (16, 64, 128)
    np.testing.assert_allclose(line.y, [0.3, 0.5, 0.85])
    # Two values have a range, and one value has none.
    np.testing.assert_allclose(line.error_y.array[1:], [0, 0.05], atol=1e-12)
    np.testing.assert_allclose(line.error_y.arrayminus[1:], [0, 0.05], atol=1e-12)
    low, high = 0.3 - line.error_y.arrayminus[0], 0.3 + line.error_y.array[0]
    assert (low, high) == pytest.approx(mean_interval([0.1, 0.2, 0.6]))
    assert drawn.layout.xaxis.type == "log"
    assert drawn.layout.xaxis.ticktext == ("16", "64", "128")


def test_every_row_is_a_dot(frame):
    drawn = figure.lines(frame, "width", "test/r2", "support", **TITLES)
    dots = named(drawn, "random", "markers")
    assert sorted(dots.y) == [0.1, 0.2, 0.5, 0.6, 0.8, 0.9]
    assert dots.hovertext[0].startswith("16random0")


@pytest.mark.parametrize("kind", [figure.lines, figure.bars])
def test_values_far_below_zero_are_drawn_on_the_edge(frame, kind):
    drawn = kind(frame, "width", "test/r2", "support", **TITLES)
    y = [value for trace in drawn.data for value in trace.y]
    assert min(y) == figure.R2_FLOOR
    assert drawn.layout.yaxis.range[0] > figure.R2_FLOOR - 0.1
    beyond = [trace for trace in drawn.data if "triangle-down" in str(trace.marker)]
    assert len(beyond) == 1
    assert "-40 (beyond the axis)" in beyond[0].hovertext[0]
    means = [
        trace for trace in drawn.data if trace.error_y.array is not None and trace.name == "split"
    ]
    assert "mean -20 (beyond the axis)" in means[0].hovertext[0]
    assert "1 not finite" in means[0].hovertext[1]
    assert all(length >= 0 for length in (*means[0].error_y.array, *means[0].error_y.arrayminus))


def test_other_scores_are_not_clipped(frame):
    drawn = figure.lines(
        frame.rename(columns={"test/r2": "test/loss"}), "width", "test/loss", **TITLES
    )
    assert min(value for trace in drawn.data for value in trace.y) == -40
    assert drawn.layout.yaxis.range is None


def test_a_given_range_is_kept_and_clips(frame):
    drawn = figure.lines(frame, "width", "test/r2", y_range=(0.0, 0.5), **TITLES)
    assert drawn.layout.yaxis.range == (0.0, 0.5)
    assert {min(trace.y) for trace in drawn.data} == {0.0}
    assert max(value for trace in drawn.data for value in trace.y) == 0.5


def test_scatter_fits_a_least_squares_line():
    x = np.linspace(0.0, 1.0, 11)
    noise = np.where(np.arange(11) % 2, 0.05, -0.05)
    frame = pd.DataFrame({"x": x, "test/r2": 0.2 + 0.5 * x + noise, "support": "random"})
    drawn = figure.scatter(frame, "x", "test/r2", "support", fit=True, text="support", **TITLES)
    slope, offset = np.polyfit(x, frame["test/r2"], 1)
    score = np.corrcoef(x, frame["test/r2"])[0, 1] ** 2
    line = drawn.data[-1]
    assert line.name == f"least squares, R² = {score:.2f}"
    np.testing.assert_allclose(line.y, [offset, offset + slope])
    assert drawn.data[0].hovertext[0].startswith("random<br>")
    assert drawn.layout.showlegend


def test_scatter_leaves_out_values_that_are_not_finite(frame):
    frame = frame.assign(probe=[math.inf, *np.linspace(0, 1, len(frame) - 1)])
    drawn = figure.scatter(frame, "probe", "test/r2", **TITLES)
    assert sum(len(trace.x) for trace in drawn.data) == len(frame) - 2  # one infinite x, one NaN y
    assert "Infinity" not in drawn.to_json()


def test_a_fit_needs_two_values_of_x():
    frame = pd.DataFrame({"x": [1.0, 1.0], "y": [0.0, 1.0]})
    assert len(figure.scatter(frame, "x", "y", fit=True, **TITLES).data) == 1


def test_bars_are_in_order_and_side_by_side(frame):
    drawn = figure.bars(
        frame, "width", "test/r2", "support", names={"random": "Random!", 16: "tiny"}, **TITLES
    )
    assert drawn.layout.xaxis.categoryarray == ("tiny", "64", "128")
    bar = named(drawn, "Random!", "bar")
    assert bar.x == ("tiny", "64", "128")
    assert bar.offsetgroup == named(drawn, "Random!", "markers").offsetgroup
    assert bar.offsetgroup != named(drawn, "split", "bar").offsetgroup


def test_text_on_the_x_axis_keeps_the_order_of_its_categories():
    layers = pd.Categorical(["pre1", "in", "out"], categories=["in", "pre1", "out"])
    frame = pd.DataFrame({"layer": layers, "y": [1.0, 2.0, 3.0]})
    drawn = figure.lines(frame, "layer", "y", **TITLES)
    assert drawn.layout.xaxis.categoryarray == ("in", "pre1", "out")
    assert drawn.data[-1].y == (2.0, 1.0, 3.0)


def test_35_groups_differ_in_color_symbol_or_dash():
    frame = pd.DataFrame({"x": 1.0, "y": 1.0, "group": range(35)})
    drawn = figure.lines(frame, "x", "y", "group", **TITLES)
    lines = [trace for trace in drawn.data if trace.mode == "lines+markers"]
    assert len({(trace.line.color, trace.line.dash) for trace in lines}) == 35
    assert len({(trace.line.color, trace.marker.symbol) for trace in lines}) == 35
    assert lines[9].name == "group = 9"


def test_a_figure_without_finite_values_has_a_note(frame):
    drawn = figure.lines(
        frame.assign(**{"test/r2": math.nan}), "width", "test/r2", "support", **TITLES
    )
    assert drawn.layout.annotations[0].text == "no finite values to draw"
    assert not figure.lines(frame, "width", "test/r2", **TITLES).layout.annotations


def test_unknown_columns_raise_an_error(frame):
    figure.lines(frame, "width", "test/r2", "support", **TITLES)
    for wrong in ({"x": "widht"}, {"y": "test/r"}, {"by": "suport"}):
        columns = {"x": "width", "y": "test/r2", "by": "support"} | wrong
        with pytest.raises(InputError, match=f"no column '{next(iter(wrong.values()))}'"):
            figure.lines(frame, **columns, **TITLES)


def test_backgrounds_are_transparent_and_axes_have_titles(frame):
    drawn = json.loads(figure.lines(frame, "width", "test/r2", **TITLES).to_json())
    assert drawn["layout"]["paper_bgcolor"] == drawn["layout"]["plot_bgcolor"] == "rgba(0,0,0,0)"
    assert drawn["layout"]["xaxis"]["title"]["text"] == "width"
    assert drawn["layout"]["yaxis"]["title"]["text"] == "test R²"
    assert drawn["layout"]["title"]["text"] == "A title"
