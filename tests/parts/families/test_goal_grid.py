import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.basics.random_streams import generator
from recombine.parts import conditions
from recombine.parts.families.goal_grid import WALL_DISTANCE, GoalGrid
from recombine.parts.prng import new_key

MOVES = [(-1, 0), (0, 1), (1, 0), (0, -1)]  # up, right, down, left


def around(walls, cell):
    """The free neighbors of a cell, with the number of the move that leads there."""
    for action, (down, right) in enumerate(MOVES):
        row, column = cell[0] + down, cell[1] + right
        if 0 <= row < 7 and 0 <= column < 7 and not walls[row, column]:
            yield action, (row, column)


def search(walls, cell):
    """The number of moves from this cell to all reachable ones, by breadth-first search."""
    moves, queue = {cell: 0}, collections.deque([cell])
    while queue:
        here = queue.popleft()
        for _, there in around(walls, here):
            if there not in moves:
                moves[there] = moves[here] + 1
                queue.append(there)
    return moves


def cells(plane):
    return [(int(row), int(column)) for row, column in np.argwhere(plane)]


def quadrant(cell):
    return 2 * (cell[0] > 3) + (cell[1] > 3)


@functools.cache
def worlds():
    """100 worlds of five mazes each."""
    return jax.tree.map(
        np.asarray, jax.jit(jax.vmap(GoalGrid().init))(jax.random.split(new_key(0), 100))
    )


def world(number):
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[number]), worlds())


def mazes():
    """The mazes of all worlds, and their distances from cell to cell."""
    return worlds().walls.reshape(-1, 7, 7), worlds().distance.reshape(-1, 7, 7, 7, 7)


@functools.cache
def episodes(decoy):
    """An episode of each of 100 random tasks and worlds: rows, walls, observations, actions."""
    family = GoalGrid(decoy=decoy)
    rows = family.tasks()[np.random.default_rng(0).integers(500, size=100)]

    @jax.jit
    @jax.vmap
    def draw(world, key, row):
        return family.sample(world, key, family.weigh(key, row), 48)

    x, y = map(np.asarray, draw(worlds(), jax.random.split(new_key(1), 100), rows))
    return rows, worlds().walls, x.reshape(100, 48, 7, 7, 7), y


@functools.cache
def beginnings():
    """The first steps of 4000 episodes of one task: find the chair in the top-right quadrant."""
    family = GoalGrid()
    # A maze with long paths within the quadrant, so that start and goal can both be there.
    long = (mazes()[1][:, :4, 4:, :4, 4:] >= 7) & (mazes()[1][:, :4, 4:, :4, 4:] < WALL_DISTANCE)
    number, maze = divmod(int(long.sum(axis=(1, 2, 3, 4)).argmax()), 5)
    task = family.weigh(new_key(0), jnp.array([1, 4, maze, 0]))
    draw = jax.jit(jax.vmap(lambda key: family.sample(world(number), key, task, 1)))
    x, _ = draw(jax.random.split(new_key(2), 4000))
    return worlds().walls[number, maze], np.asarray(x).reshape(4000, 7, 7, 7) > 0


def deviation(counts):
    """The deviation of counts from uniform, in standard deviations of chi-square."""
    counts = np.asarray(counts, float)
    chi_square = (np.square(counts - counts.mean()) / counts.mean()).sum()
    return (chi_square - (len(counts) - 1)) / np.sqrt(2 * (len(counts) - 1))


def test_the_table_lists_every_goal_once():
    family = GoalGrid()
    table = family.tasks()
    assert (family.num_modules, family.num_outputs) == (19, 9)
    assert table.shape == (500, 4)
    assert len({tuple(row) for row in table.tolist()}) == 500
    assert (table.min(axis=0).tolist(), table.max(axis=0).tolist()) == ([0, 0, 0, 0], [3, 4, 4, 4])
    rows = np.array([[0, 0, 0, 0], [3, 1, 4, 2]])
    modules = family.modules(rows)
    assert [np.flatnonzero(row).tolist() for row in modules] == [[0, 4, 9, 14], [3, 5, 13, 16]]
    groups = {name: group.tolist() for name, group in family.groups(rows).items()}
    assert groups == {"quadrant": [0, 3], "interaction": [0, 1]}
    # Weights are the modules themselves.
    weights = jax.jit(jax.vmap(family.weigh, (None, 0)))(new_key(0), table)
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights, family.modules(table))


def test_mazes_are_spanning_trees():
    walls, _ = mazes()
    free = ~walls
    assert (free.sum(axis=(1, 2)) == 31).all()
    assert free[:, ::2, ::2].all()
    assert walls[:, 1::2, 1::2].all()
    # A connected graph of 31 cells with 30 links has no cycle.
    links = (free[:, 1:] & free[:, :-1]).sum(axis=(1, 2)) + (free[:, :, 1:] & free[:, :, :-1]).sum(
        axis=(1, 2)
    )
    assert (links == 30).all()
    assert all(len(search(maze, (0, 0))) == 31 for maze in walls)


def test_mazes_are_random():
    walls, _ = mazes()
    assert len({maze.tobytes() for maze in walls}) > 490  # there are 100,352 spanning trees
    open_ = (~walls).mean(axis=0)
    passage = np.add.outer(np.arange(7), np.arange(7)) % 2 == 1
    assert 0.4 < open_[passage].min() < open_[passage].max() < 0.9
    # Rotated mazes are equally likely. 500 mazes have a standard error of 0.022.
    for turned in (open_.T, open_[::-1], open_[:, ::-1]):
        assert np.abs(open_ - turned).max() < 0.13


def test_distances_are_those_of_a_breadth_first_search():
    walls, distance = mazes()
    for maze, table in zip(walls[:20], distance[:20], strict=True):
        expected = np.full((7, 7, 7, 7), WALL_DISTANCE)
        for cell in cells(~maze):
            for there, moves in search(maze, cell).items():
                expected[*cell, *there] = moves
        np.testing.assert_array_equal(table, expected)


def test_some_start_is_seven_moves_away_from_any_goal():
    walls, distance = mazes()
    farthest = np.where(distance < WALL_DISTANCE, distance, -1).max(axis=(3, 4))
    assert farthest[~walls].min() >= 7
    # This holds for all mazes: corners are free, and the farthest corner is at least 7 rows and
    # columns away from every cell except the middle one, which is a wall.
    away = np.maximum(np.arange(7), np.arange(7)[::-1])
    assert cells(np.add.outer(away, away) < 7) == [(3, 3)]
    assert walls[:, 3, 3].all()
    # No path is longer than an episode.
    assert distance[distance < WALL_DISTANCE].max() <= 30


@pytest.mark.parametrize("decoy", [False, True])
def test_demonstrations_walk_straight_to_the_goal_and_interact(decoy):
    lengths = []
    for row, walls, x, y in zip(*episodes(decoy), strict=True):
        planes = x > 0
        maze = planes[0, 5]
        np.testing.assert_array_equal(maze, walls[row[2]])
        goals = [cell for cell in cells(planes[0, row[3]]) if quadrant(cell) == row[0]]
        assert len(goals) == 1
        moves = search(maze, goals[0])
        (here,) = cells(planes[0, 6])
        length = moves[here]
        assert 7 <= length <= 30
        for step in range(length):
            assert cells(planes[step, 6]) == [here]
            closer = {
                action: cell
                for action, cell in around(maze, here)
                if moves[cell] == moves[here] - 1
            }
            assert y[step] == min(closer)
            here = closer[y[step]]
        assert here == goals[0]
        assert y[length] == 4 + row[1]
        assert (y[length + 1 :] == -1).all()
        assert all(cells(plane) == [here] for plane in planes[length:, 6])
        lengths.append(length)
    assert len(set(lengths)) > 8


def test_observations_have_a_plane_for_each_object_and_for_walls_and_agent():
    _, _, x, _ = episodes(False)
    assert x.shape == (100, 48, 7, 7, 7)
    assert x.dtype == np.float32
    planes = x > 0
    assert (planes[:, :, :5].sum(axis=(2, 3, 4)) == 5).all()
    assert (planes[:, :, 5].sum(axis=(2, 3)) == 18).all()
    assert (planes[:, :, 6].sum(axis=(2, 3)) == 1).all()
    # Only the agent moves.
    np.testing.assert_array_equal(planes[:, :, :6], planes[:, :1, :6].repeat(48, axis=1))
    # The mean square is 1: 24 ones among 343 numbers become sqrt(343 / 24).
    np.testing.assert_allclose(x[planes], np.sqrt(343 / 24), rtol=1e-4)


@pytest.mark.parametrize("decoy", [False, True])
def test_distractors_are_of_other_kinds_except_for_the_decoy(decoy):
    decoys = []
    for row, _, x, _ in zip(*episodes(decoy), strict=True):
        planes = x[0] > 0
        # Five objects on five different free cells.
        assert planes[:5].any(axis=0).sum() == 5
        assert not (planes[:5].any(axis=0) & planes[5]).any()
        own = [quadrant(cell) for cell in cells(planes[row[3]])]
        own.remove(row[0])
        assert len(own) == decoy
        assert row[0] not in own
        decoys += [(row[0], where) for where in own]
    # Every pair of quadrants occurs.
    assert len(set(decoys)) == (12 if decoy else 0)


def test_with_a_decoy_the_quadrant_is_needed():
    wrong = []
    for row, _, x, y in zip(*episodes(True), strict=True):
        planes = x > 0
        (decoy,) = (cell for cell in cells(planes[0, row[3]]) if quadrant(cell) != row[0])
        moves = search(planes[0, 5], decoy)
        for step in np.flatnonzero(y >= 0):
            (here,) = cells(planes[step, 6])
            closer = [
                action for action, cell in around(planes[0, 5], here) if moves[cell] < moves[here]
            ]
            wrong.append((closer[0] if closer else 4 + row[1]) != y[step])
    assert np.mean(wrong) > 0.4, "actions towards the decoy are wrong about half of the time"


def test_positions_and_kinds_are_uniform():
    maze, planes = beginnings()
    goal, start, others = (
        plane.reshape(4000, 49)
        for plane in (planes[:, 0], planes[:, 6], planes[:, 1:5].any(axis=1))
    )
    free = ~maze.ravel()
    inside = np.array([quadrant(divmod(cell, 7)) == 1 for cell in range(49)])
    counts = goal.sum(axis=0)
    assert (counts[~(free & inside)] == 0).all()
    assert deviation(counts[free & inside]) < 5
    both_inside = 0
    for cell in np.flatnonzero(counts):
        moves = search(maze, divmod(int(cell), 7))
        far = np.array([moves.get(divmod(there, 7), 0) >= 7 for there in range(49)])
        starts, distractors = start[goal[:, cell]].sum(axis=0), others[goal[:, cell]].sum(axis=0)
        assert (starts[~far] == 0).all()
        assert deviation(starts[far]) < 5
        both_inside += (far & inside).sum()
        elsewhere = free & (np.arange(49) != cell)
        assert (distractors[~elsewhere] == 0).all()
        assert deviation(distractors[elsewhere]) < 5
    assert both_inside > 10
    # Four distractors on 30 cells are independent of the agent and of each other's kind.
    assert abs((others & start).sum() / 4000 - 4 / 30) < 5 * np.sqrt(4 / 30 * 26 / 30 / 4000)
    kinds = planes[:, 1:5].sum(axis=(2, 3))
    assert deviation(kinds.sum(axis=0)) < 5
    assert (kinds.max(axis=1) == 1).mean() == pytest.approx(
        24 / 4**4, abs=5 * np.sqrt(0.1 * 0.9 / 4000)
    )


def test_few_points_are_the_beginning_of_an_episode_and_many_are_several():
    # The most crowded grid: objects on all free cells, in the shortest episodes.
    family = GoalGrid(num_objects=2, num_distractors=30, horizon=31, decoy=True)

    @jax.jit
    def draw(key):
        task = family.weigh(key, jnp.array([2, 3, 0, 1]))
        return [family.sample(world(1), key, task, n) for n in (31, 4, 70)]

    (x, y), (short_x, short_y), (long_x, long_y) = draw(new_key(3))
    assert (short_x.shape, short_y.shape) == ((4, 4 * 49), (4,))
    np.testing.assert_array_equal(short_x, x[:4])
    np.testing.assert_array_equal(short_y, y[:4])
    assert (long_x.shape, long_y.shape) == ((70, 4 * 49), (70,))
    assert [int((long_y[i : i + 31] == 4 + 3).sum()) for i in (0, 31)] == [1, 1]
    first, second, third = (np.asarray(long_x[i]).reshape(4, 7, 7) > 0 for i in (0, 31, 62))
    for planes in (first, second, third):
        np.testing.assert_array_equal(planes[:2].sum(axis=0), ~planes[2])
        assert planes[1].sum() == 2, "the goal and the decoy"
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, third)


def test_the_smallest_grid_has_a_goal_in_each_quadrant():
    family = GoalGrid(num_interactions=1, num_mazes=1, num_objects=1, num_distractors=0)
    assert family.tasks().tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [3, 0, 0, 0]]


@functools.cache
def pairs():
    """Eight examples of each of 40 tasks of one world."""
    family = GoalGrid(decoy=True)
    rows = family.tasks()[np.random.default_rng(1).permutation(500)[:40]]

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(None, 0, 0))
    def draw(world, key, row):
        return family.examples(world, key, family.weigh(key, row), 8)

    x, y = map(np.asarray, draw(world(7), jax.random.split(new_key(7), 40), rows))
    return rows, worlds().walls[7], x, y


def test_examples_are_true_pairs_of_the_task():
    rows, walls, x, y = pairs()
    assert (x.shape, y.shape) == ((40, 8, 49 + 2 + 5 * 7), (40, 8, 9))
    assert (y.sum(axis=2) == 1).all()
    slots, steps = [], []
    for row, states, actions in zip(rows, x, y, strict=True):
        for state, action in zip(states, actions.argmax(axis=1), strict=True):
            maze, objects = state[:49].reshape(7, 7) > 0, state[51:].reshape(5, 7)
            np.testing.assert_array_equal(maze, walls[row[2]])
            places = (
                np.rint(3 * np.concatenate([state[None, 49:51], objects[:, :2]]) + 3)
                .astype(int)
                .tolist()
            )
            here, *places = map(tuple, places)
            assert places == sorted(set(places)), "in reading order"
            assert (objects[:, 2:].sum(axis=1) == 1).all()
            goals = [
                i for i in range(5) if objects[i, 2 + row[3]] == 1 and quadrant(places[i]) == row[0]
            ]
            assert len(goals) == 1
            moves = search(maze, places[goals[0]])
            closer = [move for move, cell in around(maze, here) if moves[cell] < moves[here]]
            assert action == (closer[0] if closer else 4 + row[1])
            slots.append(goals[0])
            steps.append(moves[here])
    # The goal's position in the list varies, and every stage of an episode occurs.
    assert set(slots) == {0, 1, 2, 3, 4}
    assert set(range(13)) <= set(steps)
    assert 0.04 < np.mean(np.array(steps) == 0) < 0.16, "about one step in eleven is an interaction"


def test_sentences_of_all_goals_are_distinct():
    family = GoalGrid()
    assert len(set(family.vocabulary)) == len(family.vocabulary) == 7 + 19
    words = np.asarray(
        jax.jit(jax.vmap(family.sentence))(family.modules(family.tasks()).astype(np.float32))
    )
    spoken = [" ".join(family.vocabulary[word] for word in sentence) for sentence in words]
    assert len(set(spoken)) == 500
    assert spoken[0] == "In the top-left quadrant, find and sell the chair in maze 1."
    assert spoken[-1] == "In the bottom-right quadrant, find and examine the clock in maze 5."
    by_goal = dict(zip(map(tuple, family.tasks().tolist()), spoken, strict=True))
    assert by_goal[1, 2, 3, 4] == "In the top-right quadrant, find and grab the clock in maze 4."
    assert by_goal[2, 1, 2, 2] == "In the bottom-left quadrant, find and throw the shoes in maze 3."
    assert by_goal[2, 3, 1, 1] == "In the bottom-left quadrant, find and clean the phone in maze 2."
    assert by_goal[0, 4, 0, 3] == "In the top-left quadrant, find and examine the pen in maze 1."


def test_it_trains():
    run = rc.Run(
        family=GoalGrid(),
        model=rc.MLP(widths=(16,)),
        num_points=48,
        num_eval_points=48,
        num_steps=4,
        num_evals=1,
        num_tasks=4,
        num_eval_tasks=8,
        diagnostics=(),
    )
    (row,) = rc.train([run]).to_dict("records")
    for name in (
        "test/accuracy",
        "test/trajectory_accuracy",
        "seen/accuracy",
        "test/quadrant=3/num_tasks",
    ):
        assert np.isfinite(row[name]), name
    assert 0 <= row["test/accuracy"] < 1
    assert row["support/num_test"] == 125
    # Nine actions: a network that knows nothing scores about log 9.
    assert 1.5 < row["test/loss"] < 3.5


@pytest.mark.parametrize("name", ["Random", "Growing", "MissingModule", "Popular", "Unpopular"])
def test_supports_split_a_factored_table(name):
    family, support = GoalGrid(), getattr(rc, name)()
    modules = family.modules(family.tasks())
    for seed in range(5):
        parts = support.parts(modules, generator(seed, "support"), 0.25)
        facts = conditions.describe(modules[parts == 1], modules[parts == 2])
        assert (parts == 2).sum() >= 100
        assert all(facts[promise] for promise in support.guarantees)


def test_four_of_each_kind_can_be_balanced_but_four_and_five_cannot():
    for size, possible in ((4, True), (5, False)):
        family = GoalGrid(num_interactions=size, num_mazes=size, num_objects=size)
        modules, rng = family.modules(family.tasks()), generator(0, "support")
        if possible:
            assert conditions.balanced(modules[rc.Balanced().parts(modules, rng, 0.5) == 1])
        else:
            with pytest.raises(InputError, match="found no 250 balanced train tasks"):
                rc.Balanced().parts(modules, rng, 0.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(
            ({name: 0}, rf"GoalGrid\.{name} must be at least 1")
            for name in ("num_interactions", "num_mazes")
        ),
        ({"num_objects": 0}, r"GoalGrid\.num_objects must be at least 1, got 0"),
        ({"num_distractors": -1}, r"GoalGrid\.num_distractors must be at least 0, got -1"),
        (
            {"num_interactions": 6},
            r"GoalGrid\.num_interactions must be at most 5, the number of words for them, got 6",
        ),
        ({"num_objects": 6}, r"GoalGrid\.num_objects must be at most 5"),
        (
            {"horizon": 30},
            r"GoalGrid\.horizon must be at least 31, the steps of the longest path, got 30",
        ),
        (
            {"num_distractors": 31},
            r"GoalGrid\.num_distractors must be at most 30, the free cells beside the goal, got 31",
        ),
        (
            {"num_distractors": 0, "decoy": True},
            r"GoalGrid\.decoy is one of the distractors: raise num_distractors",
        ),
        ({"num_objects": 1}, r"GoalGrid\.num_objects=1 leaves no other object for a distractor"),
        (
            {"num_objects": 1, "num_distractors": 2, "decoy": True},
            r"GoalGrid\.num_objects=1 leaves no other object",
        ),
        ({"decoy": 1}, r"GoalGrid\.decoy must be True or False, got 1"),
        ({"num_mazes": 2.0}, r"GoalGrid\.num_mazes must be a whole number, got 2\.0"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(InputError, match=message):
        GoalGrid(**fields)


def test_batches_are_whole_episodes():
    with pytest.raises(InputError, match="num_points=8 must be a multiple of 48"):
        rc.Run(family=GoalGrid())
