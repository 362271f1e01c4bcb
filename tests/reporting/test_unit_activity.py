"""Unit activity from rows: the line, the warning, the means for scripts, and the figure of a report."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from recombine.cli import results_view
from recombine.reporting import unit_activity


def rows(dead: dict[str, list[float]], **columns) -> pd.DataFrame:
    """Two rows per run: all units dead at step 0, and these fractions by layer at step 10."""
    number = len(next(iter(dead.values())))
    last = pd.DataFrame(
        {"run": [f"run{i}" for i in range(number)], "step": 10, "seed": range(number)} | columns
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


def test_layers_are_in_their_own_order_and_at_the_last_row():
    found = unit_activity.by_layer(
        rows({f"hidden{i}": [i / 20] for i in (10, 2, 0)}, width=8), keep=["width"]
    )
    assert list(found) == ["run", "trained", "width", "layer", "dead", "rare", "active", "rank"]
    assert (
        found["layer"].tolist()
        == list(found["layer"].cat.categories)
        == ["hidden0", "hidden2", "hidden10"]
    )
    assert found["dead"].tolist() == pytest.approx([0.0, 0.1, 0.5]), (
        "not the first row's, which are 1"
    )
    assert found["width"].tolist() == [8, 8, 8]


def test_a_run_has_lines_for_its_own_layers_only():
    found = unit_activity.by_layer(rows({"hidden0": [0.0, 0.1], "hidden1": [math.nan, 0.3]}))
    assert list(zip(found["run"], found["layer"], strict=True)) == [
        ("run0", "hidden0"),
        ("run1", "hidden0"),
        ("run1", "hidden1"),
    ]
    assert unit_activity.means(rows({"hidden0": [0.0, 0.1], "hidden1": [math.nan, 0.3]})) == {
        "hidden0": pytest.approx({"dead": 0.05, "rare": 0.05, "active": 0.5, "rank": 3.0}),
        "hidden1": pytest.approx({"dead": 0.3, "rare": 0.3, "active": 0.5, "rank": 3.0}),
    }


def test_without_the_columns_there_is_nothing_to_say():
    older = pd.DataFrame({"run": ["a", "b"], "step": 1, "test/r2": [0.1, 0.2], "activity": 1.0})
    assert len(unit_activity.by_layer(older)) == 0
    assert unit_activity.means(older) == {}
    assert unit_activity.summary_line(older) is None
    assert unit_activity.warning(older) is None
    assert unit_activity.warnings(older) == []
    assert unit_activity.figures(older) == {}
    empty = rows({"hidden0": [math.nan]}).iloc[
        1:
    ]  # the columns are there, and no run has such a layer
    assert unit_activity.summary_line(empty) is None
    assert unit_activity.figures(empty) == {}


def test_the_line_gives_means_and_the_highest():
    line = unit_activity.summary_line(
        rows({"hidden0": [0.0, 0.0], "hidden1": [0.02, 0.02], "hidden2": [0.001, 0.31]})
    )
    assert (
        line
        == "Dead units: 0% hidden0, 2% hidden1, 15.6% hidden2 (means over 2 runs; highest 31% in hidden2)"
    )
    assert (
        unit_activity.summary_line(rows({"feedforward0": [0.0, 0.0]}))
        == "Dead units: 0% feedforward0 (means over 2 runs)"
    )
    assert unit_activity.summary_line(rows({"hidden0": [0.1]})) == "Dead units: 10% hidden0 (1 run)"


def test_the_warning_names_layers_of_trained_runs_above_a_fifth():
    assert unit_activity.MAX_DEAD == 0.2
    assert unit_activity.warning(rows({"hidden0": [0.2, 0.2]})) is None, (
        "not more than 20%, as a float32 either"
    )
    dead = {"hidden0": [0.0, 0.0, 0.0], "hidden1": [0.25, 0.1, 0.1], "hidden10": [0.97, 0.3, 0.0]}
    line = unit_activity.warning(rows(dead))
    assert line == (
        "Warning: more than 20% of the units are dead in hidden1 (up to 25%, in 1 of 3 runs) and hidden10 (up to 97%, "
        "in 2 of 3 runs). Probe scores of such layers may reflect the recipe, not the task. If training killed them, "
        "lower the learning rate."
    )
    assert unit_activity.warnings(rows(dead)) == [line]
    assert "dead in hidden0 (50%). Probe scores" in unit_activity.warning(rows({"hidden0": [0.5]}))


def test_the_warning_names_the_widths_that_are_affected():
    narrow = rows({"hidden0": [0.5, 0.1]}, **{"model.widths": ["4x4", "128x128"]})
    assert "in 1 of 2 runs), widths 4x4. Probe" in unit_activity.warning(narrow)
    both = rows({"hidden0": [0.5, 0.3]}, **{"model.widths": ["4x4", "128x128"]})
    assert "widths" not in unit_activity.warning(both)


def test_untrained_runs_neither_warn_nor_count():
    rate = {"recipe.learning_rate": [0.01, 0.0]}
    mixed = rows({"hidden0": [0.1, 0.9]}, **rate)
    assert unit_activity.warning(mixed) is None
    assert unit_activity.summary_line(mixed) == "Dead units: 10% hidden0 (1 run)"
    assert unit_activity.means(mixed)["hidden0"]["dead"] == pytest.approx(0.1)
    assert "up to 90%, in 1 of 2 runs" in unit_activity.warning(rows({"hidden0": [0.1, 0.9]}))
    unknown = {"recipe.learning_rate": [np.nan, 0.0]}
    assert "hidden0 (90%)" in unit_activity.warning(rows({"hidden0": [0.9, 0.9]}, **unknown)), (
        "a recipe without a rate"
    )
    alone = rows({"hidden0": [0.9, 0.9]}, **{"recipe.learning_rate": 0.0})
    assert unit_activity.warning(alone) is None
    assert "means over 2 untrained runs" in unit_activity.summary_line(alone)


def test_diverged_runs_are_left_out():
    lost = rows({"hidden0": [0.1, 1.0]}, diverged=[False, True])
    assert unit_activity.warning(lost) is None
    assert unit_activity.summary_line(lost) == "Dead units: 10% hidden0 (1 run)"


def drawn(frame: pd.DataFrame) -> dict:
    (text,) = unit_activity.figures(frame).values()
    return json.loads(text)


def lines_of(drawing: dict) -> dict[str, list]:
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
    drawing = drawn(rows(dead, frac_test=[0.1, 0.2, 0.2], **{"model.widths": widths}))
    found = lines_of(drawing)
    assert list(found) == ["16x16", "128x128x128"], "in the order of the numbers"
    assert found["16x16"] == ["hidden0", "hidden1"]
    assert found["128x128x128"] == ["hidden0", "hidden1", "hidden2"]
    assert drawing["layout"]["title"]["text"].endswith("by model.widths")
    means = next(trace["y"] for trace in drawing["data"] if trace["mode"] == "lines+markers")
    assert means == pytest.approx([0.15, 0.6])
    low, high = drawing["layout"]["yaxis"]["range"]
    assert low <= 0 < 1 <= high


def test_the_figure_is_one_line_where_no_column_groups_the_runs():
    number = unit_activity.MAX_CURVES + 1
    many = rows(
        {"hidden0": [0.1] * number},
        **{"model.width": range(number), "model": [None] + ["MLP"] * (number - 1)},
    )
    assert list(lines_of(drawn(many))) == ["runs"]
    few = rows(
        {"hidden0": [0.1] * 4},
        frac_test=[0.1, 0.2] * 2,
        **{"recipe.learning_rate": [0.1, 0.1, 0.2, 0.2]},
    )
    assert list(lines_of(drawn(few))) == [
        "recipe.learning_rate = 0.1",
        "recipe.learning_rate = 0.2",
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
    results_view.show(frame, result | {"warnings": unit_activity.warnings(frame)})
    said = capsys.readouterr().out.splitlines()
    place = said.index("  best: 0.500")
    assert said[place + 1] == unit_activity.summary_line(frame)
    assert said[place + 2] == unit_activity.warning(frame)
    assert said[place + 3] == "2 runs in 1 program, 1.0 s"
    results_view.show(
        frame.drop(columns=[name for name in frame if name.startswith("activity/")]),
        result | {"warnings": []},
    )
    said = capsys.readouterr().out
    assert "Dead units" not in said
    assert "Warning" not in said
