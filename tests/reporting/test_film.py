"""Film strips of episodes."""

import numpy as np

from recombine.reporting import film

WALLS = np.array([[1, 1, 1], [1, 0, 0], [1, 0, 1]], bool)
STEPS = [
    film.Picture(
        (1, 1),
        (0, 1),
        [film.Thing((1, 2), "+1", True), film.Thing((2, 1), "-1", False)],
        "1. right",
    ),
    film.Picture((1, 2), (0, 0), [film.Thing((2, 1), "-1", False)], "2. nothing"),
]


def test_every_step_is_a_picture_with_its_objects():
    figure = film.strip(WALLS, STEPS, "An episode", num_columns=2)
    grids = [trace for trace in figure.data if trace.type == "heatmap"]
    assert len(grids) == 2
    left = grids[1].x[0] - grids[0].x[0]
    assert left > 3, "the second picture is next to the first"
    sought, avoided, agent = (trace for trace in figure.data if trace.type == "scatter")
    assert (list(sought.x), list(sought.y), list(sought.text)) == ([2], [1], ["+1"])
    assert (list(avoided.x), list(avoided.y)) == ([1, 1 + left], [2, 2])
    assert (list(agent.x), list(agent.y), list(agent.text)) == ([1, 2 + left], [1, 1], ["▶", ""])
    assert [note.text for note in figure.layout.annotations] == ["1. right", "2. nothing"]
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1], (
        "rows count downwards, as in a matrix"
    )


def test_a_long_episode_has_several_rows():
    figure = film.strip(WALLS, STEPS * 3, "An episode", num_columns=4)
    tops = [trace.y[0] for trace in figure.data if trace.type == "heatmap"]
    assert tops[:4] == [0] * 4
    assert tops[4] == tops[5] > 3
    assert figure.layout.height > film.strip(WALLS, STEPS, "An episode").layout.height


def test_a_puzzle_shows_given_right_and_wrong_numbers():
    numbers = np.array([[1, 2], [3, 4]])
    is_given = np.array([[True, False], [False, False]])
    is_right = np.array([[True, True], [False, True]])
    pictures = [film.Grid(numbers, is_given, is_right, f"step {i}") for i in range(2)]
    figure = film.grids(pictures, (1, 2), "Puzzle")
    texts = {trace.name: list(trace.text) for trace in figure.data if trace.type == "scatter"}
    assert texts == {"given": ["1"] * 2, "right": ["2", "4"] * 2, "wrong": ["3"] * 2}
    assert [note.text for note in figure.layout.annotations] == ["step 0", "step 1"]
