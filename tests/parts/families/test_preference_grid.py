import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.parts import episodes as episode
from recombine.parts.families.preference_grid import CELLS, PreferenceGrid
from recombine.parts.prng import new_key
from recombine.parts.protocols import Split
from recombine.training.task_sampler import Setting, TaskSampler, make_shared, make_split
from tests.tiny import TINY

FAMILY = PreferenceGrid()
ROOMS = "wwwwwww\nw  w  w\nw  w  w\nww   ww\nw  w  w\nw  w  w\nwwwwwww".splitlines()
STEPS = [(0, 0), (-1, 0), (0, 1), (1, 0), (0, -1)]  # nothing, up, right, down, left


def planned(objects, discount, horizon):
    """Q_1, …, Q_horizon by plain Bellman backups: {(square, objects left): [value of each action]}.

    An independent implementation in float64, with squares and sets of objects instead of arrays.
    """
    free = [(r, c) for r in range(7) for c in range(7) if ROOMS[r][c] == " "]
    sets = [
        frozenset(i for i in range(len(objects)) if n >> i & 1) for n in range(2 ** len(objects))
    ]

    def go(square, left, move):
        to = (square[0] + move[0], square[1] + move[1])
        to = to if to in free else square
        taken = {i for i in left if objects[i][0] == to}
        return (to, left - taken), sum(objects[i][1] for i in taken)

    edges = {(s, left): [go(s, left, move) for move in STEPS] for s in free for left in sets}
    q, history = {state: [0.0] * 5 for state in edges}, []
    for _ in range(horizon):
        q = {
            state: [r + discount * max(q[to]) for to, r in nexts] for state, nexts in edges.items()
        }
        history.append(q)
    return edges, history


def walked(edges, history, start, optimal):
    """The actions from a start, and their discounted return."""
    state, actions, earned = (start, frozenset(range(4))), [], 0.0
    for t in range(len(history)):
        values = history[len(history) - 1 - t if optimal else -1][state]
        best = max(values)
        action = next(a for a, value in enumerate(values) if value >= best - 1e-12)
        actions.append(action)
        if action == 0:
            break
        state, reward = edges[state][action]
        earned += 0.9**t * reward
    return actions + [-1] * (len(history) - len(actions)), earned


@pytest.fixture(scope="module")
def episodes():
    """200 random episodes of random tasks, played by the family with both policies."""
    world = FAMILY.init(new_key(0))
    rows = jnp.asarray(FAMILY.tasks())[np.random.default_rng(0).integers(0, 696, 200)]

    @jax.jit
    @jax.vmap
    def play(key, row):
        z = FAMILY.weigh(key, row)
        optimal = dataclasses.replace(FAMILY, policy="optimal")
        return z, FAMILY.play(world, key, z), optimal.play(world, key, z), FAMILY.gap(world, key, z)

    return np.asarray(world, np.float64), *jax.tree.map(
        np.asarray, play(jax.random.split(new_key(1), 200), rows)
    )


def test_actions_are_those_of_an_independent_planner(episodes):
    world, tasks, played, optimal, gaps = episodes
    lower = 0
    for i, z in enumerate(tasks):
        layout = jax.tree.map(lambda leaf, i=i: leaf[i], played.layout)
        squares = [tuple(CELLS[cell].tolist()) for cell in layout.cells]
        values = [float(world[:, f] @ z.astype(np.float64)) for f in layout.features]
        edges, history = planned(list(zip(squares, values, strict=True)), 0.9, 8)
        start = tuple(CELLS[layout.start].tolist())
        actions, earned = walked(edges, history, start, optimal=False)
        assert played.action[i].tolist() == actions
        np.testing.assert_allclose(gaps[i, 0], earned, atol=1e-5)
        best_actions, best = walked(edges, history, start, optimal=True)
        assert optimal.action[i].tolist() == best_actions
        np.testing.assert_allclose(best, max(history[-1][start, frozenset(range(4))]), atol=1e-9)
        np.testing.assert_allclose(gaps[i, 1], best, atol=1e-5)
        lower += best - earned > 1e-6
    assert 0 < lower < 60, "the published policy is nearly but not quite optimal within 8 steps"


def test_the_published_policy_earns_nearly_the_optimum(episodes):
    earned, optimum = episodes[-1].mean(axis=0)
    assert 0.95 * optimum < earned < optimum


def test_nineteen_cells_and_distinct_places(episodes):
    played = episodes[2]
    assert len(CELLS) == 19
    assert all(ROOMS[r][c] == " " for r, c in CELLS)
    cells = np.concatenate([played.layout.start[:, None], played.layout.cells], axis=1)
    assert all(len(set(row)) == 5 for row in cells.tolist())
    # Every cell and every feature is about equally frequent for the agent and objects (5 sigma).
    for column in cells.T:
        assert np.abs(np.bincount(column, minlength=19) - 200 / 19).max() < 5 * np.sqrt(200 / 19)
    counts = np.bincount(played.layout.features.ravel(), minlength=32)
    assert np.abs(counts - 25).max() < 5 * 5


def test_an_episode_ends_with_nothing(episodes):
    for actions in episodes[2].action.tolist():
        before_end = [action for action in actions if action != -1]
        assert actions == before_end + [-1] * (8 - len(before_end))
        assert 0 not in before_end[:-1]
        assert len(before_end) == 8 or before_end[-1] == 0


def test_the_observation_is_the_grid():
    world, task, key = FAMILY.init(new_key(0)), jnp.eye(16)[3], new_key(5)
    x, y = jax.jit(lambda key: FAMILY.sample(world, key, task, 16))(key)
    assert x.shape == (16, 7 * 7 * 34)
    assert y.shape == (16,)
    second_key = jax.random.split(key, 2)[1]
    played = jax.jit(lambda key: FAMILY.play(world, key, task))(second_key)
    np.testing.assert_array_equal(y[8:], played.action)
    for t in range(8):
        expected = np.zeros((7, 7, 34))
        for cell, feature, present in zip(*played.layout[1:], played.present[t], strict=True):
            expected[*CELLS[cell], feature] += present
        expected[*CELLS[played.cell[t]], 32] = 1
        expected[..., 33] = [[square == "w" for square in row] for row in ROOMS]
        expected /= np.sqrt(np.mean(expected**2) + 1e-6)
        np.testing.assert_allclose(np.asarray(x[8 + t]).reshape(7, 7, 34), expected, atol=1e-4)


def test_objects_are_collected_where_the_agent_steps(episodes):
    played = episodes[2]
    for i in range(200):
        for t in range(7):
            gone = played.layout.cells[i] == played.cell[i, t + 1]
            np.testing.assert_array_equal(played.present[i, t + 1], played.present[i, t] & ~gone)


def test_few_shot_pairs_are_true_and_compact():
    world, task = FAMILY.init(new_key(0)), jnp.zeros(16).at[jnp.array([1, 4])].set(0.7)
    states, action = jax.jit(lambda key: FAMILY.examples(world, key, task, 50))(new_key(2))
    assert states.shape == (50, 19 + 4 * (19 + 32))
    assert action.shape == (50, 5)
    np.testing.assert_array_equal(action.sum(axis=1), 1)
    values = np.asarray(task @ world, np.float64)
    for i in range(0, 50, 7):
        state_bits = np.asarray(states[i]) > 0
        cell = int(np.flatnonzero(state_bits[:19])[0])
        rest = state_bits[19:].reshape(4, 51)
        objects = [
            (tuple(CELLS[np.flatnonzero(o[:19])[0]].tolist()), values[np.flatnonzero(o[19:])[0]])
            for o in rest
            if o.any()
        ]
        _, history = planned(objects, 0.9, 8)
        state = tuple(CELLS[cell].tolist()), frozenset(range(len(objects)))
        assert tuple(CELLS[cell].tolist()) not in [square for square, _ in objects]
        assert int(action[i].argmax()) == int(np.argmax(np.round(history[-1][state], 9)))


ENCODINGS = [
    rc.Identity(),
    rc.Orthogonal(),
    rc.Language(),
    rc.InvertibleNN(),
    rc.IntervalShuffle(),
    rc.FewShot(num_pairs=10),
]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: type(encoding).__name__)
def test_batches_with_every_encoding(encoding):
    family = PreferenceGrid(num_modules=6, num_hot=2, num_features=8)
    run = dataclasses.replace(
        TINY, family=family, encoding=encoding, num_points=8, num_eval_points=8
    )
    shared = make_shared(family)
    split = Split(*make_split(run, family.modules(shared.table))[0])

    @jax.jit
    def draw(key):
        setting = Setting(family.init(key), encoding.init(key, family))
        return TaskSampler(run, jax.tree.map(jnp.asarray, shared), split, setting).draw(
            key, shared.table[:3], 8
        )

    batch = draw(new_key(0))
    assert batch.x.shape == (3, 8, 7 * 7 * 10)
    width = {"Language": 12, "FewShot": 10 * (19 + 4 * (19 + 8) + 5)}.get(
        type(encoding).__name__, 6
    )
    assert batch.code.shape == (3, width)
    assert np.isfinite(batch.code).all()
    assert set(np.unique(batch.y)) <= {-1, 0, 1, 2, 3, 4}


def test_it_trains_from_examples():
    family = PreferenceGrid(num_modules=6, num_hot=2, num_features=8, observation="compact")
    run = dataclasses.replace(
        TINY, family=family, encoding=ENCODINGS[-1], num_points=8, num_eval_points=8
    )
    row = rc.train([run]).iloc[-1]
    assert 0 < row["test/trajectory_accuracy"] < row["test/accuracy"] < 1
    assert np.isfinite(row["test/loss"])
    assert not row["diverged"]


def test_a_student_learns_to_act():
    family = PreferenceGrid(
        num_modules=2, num_hot=1, num_features=2, num_objects=1, observation="compact"
    )
    run = dataclasses.replace(
        TINY,
        family=family,
        model=rc.MLP(widths=(64,)),
        frac_test=0.5,
        support=rc.MissingModule(),
        num_points=8,
        num_eval_points=8,
        num_tasks=32,
        num_steps=300,
        num_evals=1,
    )
    rows = rc.train([run])
    assert rows["seen/accuracy"].iloc[-1] > 0.8
    assert rows["train/loss"].iloc[-1] < np.log(5)


def test_scores_are_those_of_episodes():
    y = jnp.array([1, 2, 0, -1, -1, -1, -1, -1])
    prediction = jax.nn.one_hot(jnp.array([1, 2, 4, 0, 0, 0, 0, 0]), 5)
    scores = FAMILY.score(prediction, y)
    expected = episode.score(prediction, y, 8)
    assert {name: float(v) for name, v in scores.items()} == {
        name: float(v) for name, v in expected.items()
    }
    assert scores["accuracy"] == np.float32(2 / 3)
    assert scores["trajectory_accuracy"] == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_modules": 40},
            "num_modules=40 preferences on num_features=32 are not linearly independent",
        ),
        ({"num_objects": 9}, "num_objects=9 gives too many states: set it to 8"),
        ({"discount": 1.0}, "must be below 1, got 1.0"),
        ({"num_hot": 17}, "lower num_hot"),
    ],
)
def test_invalid_sizes_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(FAMILY, **changes)


def test_numbers_of_points_are_multiples_of_the_horizon():
    with pytest.raises(InputError, match="num_points=12 must be a multiple of 8"):
        rc.Run(family=FAMILY, num_points=12)
    with pytest.raises(InputError, match="num_eval_points=20 must be a multiple of 8"):
        rc.Run(family=FAMILY, num_eval_points=20)
