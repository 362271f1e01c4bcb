"""Unit activity from rows: the line, the warning, the means, and the figure of a report."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from recombine.cli import output
from recombine.reporting import unit_activity


def rows(dead: dict[str, list[float]], **columns) -> pd.DataFrame:
    """Two rows per run: all units dead at step 0, and these fractions by layer at step 10."""
    num_runs = len(next(iter(dead.values())))
    last = pd.DataFrame(
        {"run": [f"run{i}" for i in range(num_runs)], "step": 10, "seed": range(num_runs)} | columns
    )
    for layer, values in dead.items():
        measured = {"dead": values, "rare": values, "active": 0.5, "rank": 3.0}
        for name, value in measured.items():
            last[f"activity/{layer}/{name}"] = np.where(np.isnan(values), np.nan, value).astype(
                "f4"
            )
    first = last.assign(
        step=0, **{name: np.float32(1) for name in last if name.startswith("activity/")}
    )
    return pd.concat([first, last], ignore_index=True)


def test_layers_are_in_natural_order_and_at_the_last_row():
    lines = unit_activity.by_layer(
        rows({f"hidden{i}": [i / 20] for i in (10, 2, 0)}, width=8), keep=["width"]
    )
    assert list(lines) == ["run", "trained", "width", "layer", "dead", "rare", "active", "rank"]
    layers = ["hidden0", "hidden2", "hidden10"]
    assert lines["layer"].tolist() == list(lines["layer"].cat.categories) == layers
    assert lines["dead"].tolist() == pytest.approx([0.0, 0.1, 0.5]), "1 in the first rows"
    assert lines["width"].tolist() == [8, 8, 8]


def test_a_run_has_lines_for_its_own_layers_only():
    frame = rows({"hidden0": [0.0, 0.1], "hidden1": [math.nan, 0.3]})
    lines = unit_activity.by_layer(frame)
    assert list(zip(lines["run"], lines["layer"], strict=True)) == [
        ("run0", "hidden0"),
        ("run1", "hidden0"),
        ("run1", "hidden1"),
    ]
    assert unit_activity.means(frame) == {
        "hidden0": pytest.approx({"dead": 0.05, "rare": 0.05, "active": 0.5, "rank": 3.0}),
        "hidden1": pytest.approx({"dead": 0.3, "rare": 0.3, "active": 0.5, "rank": 3.0}),
    }


def test_tables_without_the_columns_have_no_line_warning_or_figure():
    older = pd.DataFrame({"run": ["a", "b"], "step": 1, "test/r2": [0.1, 0.2], "activity": 1.0})
    assert len(unit_activity.by_layer(older)) == 0
    assert unit_activity.means(older) == {}
    assert unit_activity.summary_line(older) is None
    assert unit_activity.warning(older) is None
    assert unit_activity.warnings(older) == []
    assert unit_activity.figures(older) == {}
    # The columns exist, but no run has such a layer.
    empty = rows({"hidden0": [math.nan]}).iloc[1:]
    assert unit_activity.summary_line(empty) is None
    assert unit_activity.figures(empty) == {}


def test_the_line_gives_means_and_the_highest():
    dead = {"hidden0": [0.0, 0.0], "hidden1": [0.02, 0.02], "hidden2": [0.001, 0.31]}
    assert unit_activity.summary_line(rows(dead)) == (
        "Dead units: 0% in hidden0, 2% in hidden1, 15.6% in hidden2 "
        "(means over 2 runs; highest of a single run 31% in hidden2)"
    )
    line = unit_activity.summary_line(rows({"feedforward0": [0.0, 0.0]}))
    assert line == "Dead units: 0% in feedforward0 (means over 2 runs)"
    assert (
        unit_activity.summary_line(rows({"hidden0": [0.1]})) == "Dead units: 10% in hidden0 (1 run)"
    )


def test_the_warning_names_layers_of_trained_runs_above_a_fifth():
    assert unit_activity.MAX_DEAD == 0.2
    at_limit = rows({"hidden0": [0.2, 0.2]})
    assert unit_activity.warning(at_limit) is None, "0.2 as a float32 is not above the limit"
    dead = {"hidden0": [0.0, 0.0, 0.0], "hidden1": [0.25, 0.1, 0.1], "hidden10": [0.97, 0.3, 0.0]}
    line = unit_activity.warning(rows(dead))
    assert line == (
        "Warning: more than 20% of the units are dead in hidden1 (up to 25%, in 1 of 3 runs) and "
        "hidden10 (up to 97%, in 2 of 3 runs). Probe scores of such layers may reflect the recipe, "
        "not the task. If the units were alive before training, lower the learning rate."
    )
    assert unit_activity.warnings(rows(dead)) == [line]
    assert "dead in hidden0 (50%). Probe scores" in unit_activity.warning(rows({"hidden0": [0.5]}))


def test_the_warning_names_the_affected_widths():
    narrow = rows({"hidden0": [0.5, 0.1]}, **{"model.widths": ["4x4", "128x128"]})
    assert "in 1 of 2 runs), with widths 4x4. Probe" in unit_activity.warning(narrow)
    both = rows({"hidden0": [0.5, 0.3]}, **{"model.widths": ["4x4", "128x128"]})
    assert "widths" not in unit_activity.warning(both)
    without = rows({"hidden0": [0.5, 0.1]}, **{"model.widths": [None, "128x128"]})
    assert "widths" not in unit_activity.warning(without), "a model without this field"


def test_untrained_runs_neither_warn_nor_count():
    rate = {"recipe.learning_rate": [0.01, 0.0]}
    mixed = rows({"hidden0": [0.1, 0.9]}, **rate)
    assert unit_activity.warning(mixed) is None
    assert unit_activity.summary_line(mixed) == "Dead units: 10% in hidden0 (1 run)"
    assert unit_activity.means(mixed)["hidden0"]["dead"] == pytest.approx(0.1)
    assert "up to 90%, in 1 of 2 runs" in unit_activity.warning(rows({"hidden0": [0.1, 0.9]}))
    unknown = {"recipe.learning_rate": [np.nan, 0.0]}
    without_rate = rows({"hidden0": [0.9, 0.9]}, **unknown)
    assert "hidden0 (90%)" in unit_activity.warning(without_rate), "a recipe without a rate trains"
    untrained = rows({"hidden0": [0.9, 0.9]}, **{"recipe.learning_rate": 0.0})
    assert unit_activity.warning(untrained) is None
    assert "means over 2 untrained runs" in unit_activity.summary_line(untrained)


def test_diverged_runs_are_left_out():
    frame = rows({"hidden0": [0.1, 1.0]}, diverged=[False, True])
    assert unit_activity.warning(frame) is None
    assert unit_activity.summary_line(frame) == "Dead units: 10% in hidden0 (1 run)"


def figure_of(frame: pd.DataFrame) -> dict:
    (text,) = unit_activity.figures(frame).values()
    return json.loads(text)


def lines_of(drawing: dict) -> dict[str, list]:
    """The layers of each line."""
    return {
        trace["name"]: trace["x"] for trace in drawing["data"] if trace["mode"] == "lines+markers"
    }


def test_the_figure_has_a_line_per_width():
    widths = ["128x128x128", "16x16", "16x16"]
    dead = {
        "hidden0": [0.0, 0.1, 0.2],
        "hidden1": [0.5, 0.6, 0.6],
        "hidden2": [0.7, math.nan, math.nan],
    }
    drawing = figure_of(rows(dead, frac_test=[0.1, 0.2, 0.2], **{"model.widths": widths}))
    layers = lines_of(drawing)
    assert list(layers) == ["16x16", "128x128x128"], "in the order of the numbers"
    assert layers["16x16"] == ["hidden0", "hidden1"]
    assert layers["128x128x128"] == ["hidden0", "hidden1", "hidden2"]
    assert drawing["layout"]["title"]["text"].endswith("for each model.widths")
    means = next(trace["y"] for trace in drawing["data"] if trace["mode"] == "lines+markers")
    assert means == pytest.approx([0.15, 0.6])
    low, high = drawing["layout"]["yaxis"]["range"]
    assert low <= 0 < 1 <= high


def test_the_figure_has_one_line_if_no_column_groups_the_runs():
    num_runs = unit_activity.MAX_CURVES + 1
    many = rows(
        {"hidden0": [0.1] * num_runs},
        **{"model.width": range(num_runs), "model": [None] + ["MLP"] * (num_runs - 1)},
    )
    assert list(lines_of(figure_of(many))) == ["runs"]
    few = rows(
        {"hidden0": [0.1] * 4},
        frac_test=[0.1, 0.2] * 2,
        **{"recipe.learning_rate": [0.1, 0.1, 0.2, 0.2]},
    )
    assert list(lines_of(figure_of(few))) == [
        "learning_rate = 0.1",
        "learning_rate = 0.2",
    ]


def test_without_plotly_there_is_no_figure(monkeypatch):
    monkeypatch.setattr(unit_activity, "find_spec", lambda name: None)
    assert unit_activity.figures(rows({"hidden0": [0.1]})) == {}


def test_the_terminal_shows_the_line_and_the_warning(capsys):
    frame = rows({"hidden0": [0.0, 0.0], "hidden1": [0.0, 0.5]}).assign(**{"test/r2": 0.5})
    result = {
        "experiment": "mine",
        "summary": {"best": 0.5},
        "runs": 2,
        "programs": 1,
        "seconds": 1.0,
    }
    output.print_sweep(frame, result | {"warnings": unit_activity.warnings(frame)})
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("  best: 0.500")
    assert lines[first + 1] == unit_activity.summary_line(frame)
    assert lines[first + 2] == unit_activity.warning(frame)
    assert lines[first + 3] == "2 runs in 1 program, 1.0 s"
    output.print_sweep(
        frame.drop(columns=[name for name in frame if name.startswith("activity/")]),
        result | {"warnings": []},
    )
    text = capsys.readouterr().out
    assert "Dead units" not in text
    assert "Warning" not in text
