import pandas as pd
import pytest

from recombine.experiments.claim import where
from recombine.experiments.plots import bars, curve, custom, figures_of, log_ticks, scatter

ROWS = pd.DataFrame(
    {
        "run": ["a", "b", "c", "d"],
        "step": 1,
        "seed": 0,
        "K": [2, 2, 3, 3],
        "model.widths": ["8x8", "16x16", "8x8", "16x16"],
        "test/r2": [0.1, 0.2, 0.3, 0.4],
    }
)


class Experiment:
    FIGURES = [
        curve("test/r2", against="model.width", color="K", name="width", title="Width"),
        bars("test/r2", against="model.width", each="K", name="{}-active", title="K = {}"),
        scatter("test/r2", against="model.width", rows=where({"K": 9}), name="none", title="None"),
        scatter("loss", against="model.width", name="no column", title="None"),
        custom("number", lambda frame: None),
    ]


def test_figures_are_drawn_from_the_prepared_rows():
    drawn = figures_of(Experiment, ROWS)
    assert list(drawn) == ["width", "2-active", "3-active"]
    assert drawn["width"].layout.xaxis.title.text == "width of the hidden layers"
    assert drawn["width"].layout.yaxis.title.text == "R² on held-out combinations"
    assert drawn["3-active"].layout.title.text == "K = 3"
    (means,) = [trace for trace in drawn["3-active"].data if trace.type == "bar"]
    assert list(means.y) == pytest.approx([0.3, 0.4])


def test_a_function_figures_takes_precedence():
    class Own(Experiment):
        figures = staticmethod(lambda rows: {"own": len(rows)})

    assert figures_of(Own, ROWS) == {"own": 4}


def test_finish_changes_the_figure():
    class Finished:
        FIGURES = [
            curve(
                "test/r2",
                against="model.width",
                name="width",
                title="Width",
                finish=lambda drawn, rows: drawn.add_hline(len(rows)),
            )
        ]

    assert figures_of(Finished, ROWS)["width"].layout.shapes[0].y0 == 4


def test_ticks_between_powers_of_ten_need_room():
    assert log_ticks(pd.Series([3, 3000]))["tickvals"][:4] == [1, 2, 5, 10]
    assert log_ticks(pd.Series([3, 30_000]))["tickvals"][:4] == [1, 10, 100, 1000]
