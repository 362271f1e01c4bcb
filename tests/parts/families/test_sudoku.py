import math
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.basics.random_streams import generator
from recombine.parts import sudoku_puzzles
from recombine.parts.families.sudoku import Sudoku
from recombine.parts.prng import new_key
from recombine.parts.protocols import Nodes
from recombine.parts.sudoku_puzzles import Shape
from recombine.sweeps.run import Run
from recombine.training.task_sampler import make_split

FOUR = Shape(4, 2, 2)
SIX = Shape(6, 2, 3)
FAMILY = Sudoku()
# The two classes of solutions that do not occur among the stored puzzles: they have few grids.
RARE = (
    "123456456123231645564312312564645231",
    "123456456123231564564231312645645312",
)
NUM_GRIDS = {FOUR: 288, SIX: 28_200_960}  # Felgenhauer and Jarvis 2005; Pettersen 2006


def is_valid(grid: np.ndarray, shape: Shape) -> bool:
    """Whether a complete grid follows the rules, checked without the code under test."""
    n, height, width = shape
    square = grid.reshape(n, n)
    boxes = square.reshape(n // height, height, n // width, width).swapaxes(1, 2).reshape(n, n)
    expected = set(range(1, n + 1))
    return all(
        set(line.tolist()) == expected for view in (square, square.T, boxes) for line in view
    )


def brute_force(puzzle: list[int], shape: Shape) -> list[tuple[int, ...]]:
    """All solutions of a puzzle, by trying every digit in every empty cell in order."""
    n, height, width = shape
    if 0 not in puzzle:
        return [tuple(puzzle)]
    cell = puzzle.index(0)
    row, column = divmod(cell, n)
    used = set()
    for other, digit in enumerate(puzzle):
        r, c = divmod(other, n)
        in_box = r // height == row // height and c // width == column // width
        if r == row or c == column or in_box:
            used.add(digit)
    found = []
    for digit in set(range(1, n + 1)) - used:
        found += brute_force([*puzzle[:cell], digit, *puzzle[cell + 1 :]], shape)
    return found


def test_the_solver_finds_all_solutions_of_small_grids():
    empty = np.zeros(16, np.uint8)
    found = sudoku_puzzles.solutions(FOUR, empty, most=1000)
    assert len(found) == len({tuple(grid) for grid in found}) == NUM_GRIDS[FOUR]
    assert all(is_valid(grid, FOUR) for grid in found)
    rng = generator(0, "puzzles")
    for num_clues in (2, 3, 4, 5, 6):
        puzzle = found[rng.integers(288)].copy()
        puzzle[rng.permutation(16)[num_clues:]] = 0
        expected = [grid for grid in found if (grid[puzzle > 0] == puzzle[puzzle > 0]).all()]
        own = sudoku_puzzles.solutions(FOUR, puzzle, most=1000)
        assert {tuple(grid) for grid in own} == {tuple(grid) for grid in expected}
    contradiction = empty.copy()
    contradiction[:2] = 1
    assert sudoku_puzzles.solutions(FOUR, contradiction) == []


@pytest.mark.parametrize("family", [FAMILY, Sudoku(num_clues=14), Sudoku(4, 2, 2)])
def test_stored_puzzles_have_one_solution_by_brute_force(family):
    stored = family.stored()
    chosen = generator(0, "chosen").permutation(len(stored.puzzles))[:12]
    for puzzle, solution in zip(stored.puzzles[chosen], stored.solutions[chosen], strict=True):
        assert is_valid(solution, family.shape)
        assert brute_force(puzzle.tolist(), family.shape) == [tuple(solution.tolist())]
        if family.num_clues == 14:
            assert np.count_nonzero(puzzle) == 14
            continue
        for clue in np.flatnonzero(puzzle)[:3]:  # no clue can be removed
            without = puzzle.copy()
            without[clue] = 0
            assert len(brute_force(without.tolist(), family.shape)) > 1


def test_the_classes_of_solutions_have_all_grids_between_them():
    """Orbits of the classes must add up to the number of all grids."""
    for shape, family, num_classes in ((FOUR, Sudoku(4, 2, 2), 2), (SIX, FAMILY, 49)):
        stored = family.stored()
        classes, first = np.unique(stored.solution_class, return_index=True)
        forms = {sudoku_puzzles.canonical(shape, stored.solutions[i]) for i in first}
        assert len(classes) == len(forms)
        if shape == SIX:
            rare = [np.array(list(digits), np.uint8) for digits in RARE]
            forms |= {sudoku_puzzles.canonical(SIX, grid) for grid in rare}
        assert len(forms) == num_classes
        group = len(sudoku_puzzles.cell_orders(shape)) * math.factorial(shape.size)
        total = 0
        for form in forms:
            grid = np.frombuffer(form, np.uint8)
            copies = grid[sudoku_puzzles.cell_orders(shape)]
            # A symmetry fixes a grid if the copy is the grid with other names of the digits.
            names = np.zeros((len(copies), shape.size + 1), np.int64)
            np.put_along_axis(names, copies.astype(np.int64), grid[None].astype(np.int64), axis=1)
            renamed = np.take_along_axis(names, copies.astype(np.int64), axis=1)
            total += group // int((renamed == grid).all(axis=1).sum())
        assert total == NUM_GRIDS[shape]
    assert len(Sudoku(4, 2, 2).tasks()) == 36, "minimal 4x4 puzzles that are not copies"


@jax.jit
@jax.vmap
def twins_of(key, row):
    task = FAMILY.weigh(key, row)
    _, y = FAMILY.sample(FAMILY.init(key), key, task, 1)
    return FAMILY.sentence(task) - 1, y.values[0] + 1, y.exists[0]


def test_draws_are_twins_with_their_own_solution():
    rows = jnp.asarray(FAMILY.tasks()[[0, 1]])
    keys = jax.random.split(new_key(0), 6)
    puzzles, solutions, exists = map(np.asarray, twins_of(keys, jnp.tile(rows, (3, 1))))
    assert len(np.unique(puzzles, axis=0)) == 6, "every draw is another copy"
    expected = [sudoku_puzzles.canonical(SIX, np.asarray(row[:-1], np.uint8)) for row in rows]
    for i, (puzzle, solution) in enumerate(zip(puzzles, solutions, strict=True)):
        assert is_valid(solution, SIX)
        assert (solution[puzzle > 0] == puzzle[puzzle > 0]).all()
        assert sudoku_puzzles.canonical(SIX, puzzle.astype(np.uint8)) == expected[i % 2]
        np.testing.assert_array_equal(exists[i], puzzle == 0)


@pytest.mark.parametrize("view", ["puzzles", "solutions"])
def test_no_symmetric_twin_crosses_a_split(view):
    family = Sudoku(num_puzzles=60)
    support = rc.Random() if view == "puzzles" else rc.HeldOutFeatures(view="solutions")
    run = Run(family=family, support=support, encoding=rc.Language(), diagnostics=())
    split, facts = make_split(run, family.modules(family.tasks()))
    stored = family.stored()
    grids = stored.puzzles if view == "puzzles" else stored.solutions
    forms = [sudoku_puzzles.canonical(SIX, grids[i]) for i in split.order]
    train, test = forms[: split.num_train], forms[split.num_train :]
    assert not set(train) & set(test)
    assert len(test) >= 5
    if view == "puzzles":
        assert len(set(forms)) == len(forms), "the table has no copies"
    else:
        assert facts["support/unseen_solutions"] == len(set(test)) > 0


def test_grades_are_those_of_the_rules():
    # One empty cell; and a digit that has one possible cell, which has two candidates.
    solution = FAMILY.stored().solutions[0]
    puzzle = solution.copy()
    puzzle[7] = 0
    assert sudoku_puzzles.grade(SIX, puzzle) == sudoku_puzzles.NAKED_SINGLES
    stored = FAMILY.stored()
    rng = generator(1, "grades")
    orders = sudoku_puzzles.cell_orders(SIX)
    for level in (0, 1, 2):
        puzzle = stored.puzzles[np.flatnonzero(stored.search == level)[0]]
        names = np.append(0, rng.permutation(6) + 1).astype(np.uint8)
        copy = names[puzzle[orders[rng.integers(len(orders))]]]
        assert sudoku_puzzles.grade(SIX, puzzle) == sudoku_puzzles.grade(SIX, copy) == level
        assert naked_singles_solve(puzzle) == (level == 0)
    assert set(np.unique(FAMILY.groups(FAMILY.tasks())["search"])) == {0, 1, 2}


def naked_singles_solve(puzzle: np.ndarray) -> bool:
    """Fill cells with one possible digit until there are none."""
    grid = puzzle.reshape(6, 6).copy()
    is_changed = True
    while is_changed:
        is_changed = False
        for row, column in zip(*np.nonzero(grid == 0), strict=True):
            top, left = row - row % 2, column - column % 3
            box = grid[top : top + 2, left : left + 3]
            used = {*grid[row].tolist(), *grid[:, column].tolist(), *box.reshape(-1).tolist()}
            possible = set(range(1, 7)) - used
            if len(possible) == 1:
                grid[row, column] = possible.pop()
                is_changed = True
    return bool((grid > 0).all())


def test_the_score_counts_empty_cells_only():
    stored = FAMILY.stored()
    is_empty = stored.puzzles[0] == 0
    num_empty = int(is_empty.sum())
    values = jnp.asarray(stored.solutions[:1], jnp.int32) - 1
    y = Nodes(values, jnp.asarray(is_empty[None]), jnp.arange(36)[None])
    score = jax.jit(FAMILY.score)
    right = np.eye(6)[np.asarray(values[0])]

    def score_with_error_at(cell):
        prediction = right.copy()
        prediction[cell] = np.roll(right[cell], 1)
        return score(jnp.asarray(prediction.reshape(1, -1), jnp.float32), y)

    at_clue = score_with_error_at(int(np.argmin(is_empty)))
    assert at_clue["accuracy"] == at_clue["node_accuracy"] == 1
    at_empty = score_with_error_at(int(np.argmax(is_empty)))
    assert at_empty["accuracy"] == 0
    assert at_empty["node_accuracy"] == pytest.approx(1 - 1 / num_empty)


def test_the_table_is_seeded_and_loads_fast():
    sudoku_puzzles.load.cache_clear()
    started = time.process_time()
    rows = FAMILY.tasks()
    assert time.process_time() - started < 2
    assert rows.shape == (1600, 37)
    again = sudoku_puzzles.generate(SIX, 0, 3, seed=0)
    for field in again._fields:
        np.testing.assert_array_equal(getattr(again, field), getattr(FAMILY.stored(), field)[:3])
    other = Sudoku(num_puzzles=3, table_seed=1).tasks()
    assert (other != rows[:3]).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"box_height": 2, "box_width": 2}, "boxes of 2 x 2 cells do not tile .* 6 x 6"),
        ({"num_clues": 37}, "num_clues=37 is more than the 36 cells"),
        ({"num_clues": 36}, "leaves no empty cell"),
        ({"size": 9, "box_height": 3, "box_width": 3}, "size=9 is too large"),
    ],
)
def test_bad_sizes_are_refused_in_one_line(changes, message):
    with pytest.raises(InputError, match=message) as error:
        Sudoku(**changes)
    assert "\n" not in str(error.value)
