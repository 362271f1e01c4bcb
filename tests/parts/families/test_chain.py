import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.parts.families.chain import TOLERANCE, Chain
from recombine.parts.prng import new_key
from recombine.parts.protocols import Nodes

SMALL = Chain(num_modules=3, max_length=4, size=5)
CONTINUOUS = Chain(kind="continuous", max_length=10, max_per_length=20)
NUM_POINTS = 4000


def test_the_table_has_every_chain_once_or_a_sample_of_each_length():
    rows = SMALL.tasks()
    expected = {
        chain + (0,) * (4 - length)
        for length in (1, 2, 3, 4)
        for chain in itertools.product((1, 2, 3), repeat=length)
    }
    assert len(rows) == len(expected) == 3 + 9 + 27 + 81
    assert set(map(tuple, rows.tolist())) == expected
    sampled = Chain(num_modules=8, max_length=6, max_per_length=50)
    assert np.bincount(sampled.groups(sampled.tasks())["length"]).tolist() == [0, 8] + [50] * 5


def test_without_repetition_no_module_occurs_twice():
    family = Chain(num_modules=5, max_length=4, repeat=False, max_per_length=70)
    rows = family.tasks()
    assert np.bincount(family.groups(rows)["length"]).tolist() == [0, 5, 20, 60, 70]
    for row in rows:
        words = row[row > 0].tolist()
        assert len(set(words)) == len(words)


@pytest.mark.parametrize("invertible", [True, False])
def test_discrete_answers_are_the_composition_in_order(invertible):
    family = Chain(num_modules=3, max_length=4, size=7, invertible=invertible)
    world = family.init(new_key(3))
    maps = np.asarray(world.maps)
    assert [len(set(row)) == 7 for row in maps.tolist()] == [invertible] * 3
    x, y = family.sample(world, new_key(1), family.task((2, 0, 1)), 9)
    symbol = np.asarray(x).argmax(axis=1)
    expected = [maps[2][symbol], maps[0][maps[2][symbol]], maps[1][maps[0][maps[2][symbol]]]]
    np.testing.assert_array_equal(y.values[:, :3], np.stack(expected, axis=1))
    assert (np.asarray(y.exists) == [True, True, True, False]).all()
    assert (np.asarray(y.answer) == 2).all()


def test_order_matters():
    world = SMALL.init(new_key(0))
    x = jnp.eye(5)
    answers = [SMALL.trace(world, SMALL.task(chain), x)[:, -1] for chain in ((0, 1), (1, 0))]
    assert (answers[0] != answers[1]).any()
    words = [SMALL.modules(np.array([row])) for row in ([1, 2, 0, 0], [2, 1, 0, 0])]
    np.testing.assert_array_equal(*words)
    first, second = (
        SMALL.view("neighbors", np.array([row])) for row in ([1, 2, 0, 0], [2, 1, 0, 0])
    )
    assert (first != second).any()


def test_views_by_hand():
    row = np.array([[2, 3, 3, 0]])
    assert np.flatnonzero(SMALL.view("modules", row)).tolist() == [1, 2]
    assert np.flatnonzero(SMALL.view("neighbors", row)).tolist() == [3 * 1 + 2, 3 * 2 + 2]
    assert np.flatnonzero(SMALL.view("positions", row)).tolist() == [1, 3 + 2, 6 + 2]
    assert np.flatnonzero(SMALL.view("lengths", row)).tolist() == [2]


def test_words_and_float_rows_are_inverse():
    row = jnp.array([3, 1, 0, 0])
    task = SMALL.weigh(new_key(0), row)
    assert task.shape == (12,)
    assert np.flatnonzero(task).tolist() == [2, 3]
    np.testing.assert_array_equal(SMALL.sentence(task), row)
    assert SMALL.vocabulary == ("-", "f0", "f1", "f2")


def by_depth(seed):
    """Values at every depth of one random chain of ten continuous modules."""
    world = CONTINUOUS.init(new_key(seed))
    chain = np.random.default_rng(seed).integers(0, 8, 10).tolist()
    x = jax.random.normal(new_key(seed + 100), (NUM_POINTS, 16))
    values = CONTINUOUS.trace(world, CONTINUOUS.task(chain), x)
    return np.asarray(values, float).transpose(1, 0, 2)


def participation_ratio(h):
    values = np.linalg.eigvalsh(np.cov(h.T))
    return values.sum() ** 2 / np.square(values).sum()


def linear_r2(x, h):
    """R2 of the best linear map, fitted on half of the points."""
    half = len(x) // 2
    with_one = np.column_stack([x, np.ones(len(x))])
    weights = np.linalg.lstsq(with_one[:half], h[:half], rcond=None)[0]
    error = np.square(h[half:] - with_one[half:] @ weights).sum()
    return 1 - error / np.square(h[half:] - h[half:].mean(axis=0)).sum()


@pytest.mark.parametrize("seed", range(5))
def test_continuous_chains_keep_information_with_depth(seed):
    values = by_depth(seed)
    ratios = [participation_ratio(h) for h in values[1:]]
    for h, ratio in zip(values[1:], ratios, strict=True):
        assert h.var(axis=0).sum() / np.square(h).mean(axis=0).sum() >= 0.5
        assert ratio >= ratios[0] / 2
        assert 0.9 < np.sqrt(h.var(axis=0).mean()) < 1.25, "so one tolerance fits all depths"
    linear = [linear_r2(values[0], h) for h in values[1:]]
    assert 0.4 < linear[0] < 0.6, "half of the units of one module are linear"
    assert max(linear[4:]) < 0.1, "depth makes the task nonlinear"


def test_plain_relu_layers_would_lose_the_information():
    rng = np.random.default_rng(0)
    h = rng.normal(size=(NUM_POINTS, 16))
    ratios = []
    for _ in range(10):
        h = np.maximum(h @ (rng.normal(size=(16, 16)) * np.sqrt(2 / 16)), 0)
        ratios.append(participation_ratio(h))
    assert h.var(axis=0).sum() / np.square(h).mean(axis=0).sum() < 0.5
    assert ratios[-1] < ratios[0] / 2


def test_a_continuous_node_is_right_within_the_tolerance():
    true = jnp.zeros((2, 3, 16))
    moved = true.at[0].set(0.9 * TOLERANCE).at[1].set(1.1 * TOLERANCE)
    np.testing.assert_array_equal(CONTINUOUS.right(moved, true), [[True] * 3, [False] * 3])


def test_scores_of_answers_and_of_nodes():
    world = SMALL.init(new_key(0))
    _, y = SMALL.sample(world, new_key(2), SMALL.task((1, 2)), 6)
    nodes = 10 * jax.nn.one_hot(y.values, 5)
    assert SMALL.score(nodes, y)["accuracy"] == 1
    first_wrong = nodes.at[:, 0].set(jnp.roll(nodes[:, 0], 1, axis=-1))
    scores = SMALL.score(first_wrong, y)
    assert scores["accuracy"] == 1
    assert scores["node_accuracy"] == 0.5
    beyond_wrong = nodes.at[:, 3].set(0)
    np.testing.assert_allclose(SMALL.score(beyond_wrong, y)["loss"], SMALL.score(nodes, y)["loss"])
    uniform = SMALL.score(jnp.zeros((6, 5)), y)
    np.testing.assert_allclose(uniform["loss"], np.log(5), rtol=1e-6)


def test_continuous_scores():
    family = Chain(kind="continuous", num_modules=3, max_length=2, size=4)
    _, y = family.sample(family.init(new_key(0)), new_key(2), family.task((1,)), 50)
    answer = y.values[:, 0]
    for prediction in (answer, y.values):
        assert family.score(prediction, y)["r2"] == 1
        assert family.score(prediction, y)["accuracy"] == 1
    mean = jnp.broadcast_to(answer.mean(axis=0), answer.shape)
    assert abs(family.score(mean, y)["r2"]) < 1e-5
    assert family.score(mean, y)["accuracy"] == 0
    off = y._replace(values=y.values.at[:, 1].add(9.0))
    assert family.score(y.values, off)["loss"] == 0, "node 2 does not exist"


def test_operations_on_wrong_parents():
    world = SMALL.init(new_key(0))
    task = SMALL.task((1, 2))
    values = jnp.array([[0, 3, 4, 4, 4]])
    maps = np.asarray(world.maps)
    assert SMALL.operate(world, task, values).tolist() == [[0, maps[1][0], maps[2][3], 4, 4]]
    graph = SMALL.graph(task)
    assert graph.layer.tolist() == [0, 1, 2, -1, -1]
    assert graph.parents[:, 0].tolist() == [-1, 0, 1, 2, 3]
    assert SMALL.subgraphs(task)[2].tolist() == SMALL.subgraphs(SMALL.task((1, 2, 0)))[2].tolist()
    assert SMALL.subgraphs(task)[1].tolist() != SMALL.subgraphs(SMALL.task((2, 1)))[1].tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Chain(num_modules=3, max_length=4, repeat=False), "longer than 3 modules"),
        (lambda: SMALL.task((0,) * 5), "a chain of 5 modules does not fit.*raise Chain.max_length"),
        (lambda: SMALL.task((3,)), "numbered from 0 to 2"),
        (lambda: Chain(max_length=10**6), "too many chains"),
        (lambda: Chain(max_per_length=10**9), "table of 6,000,000,000 tasks"),
        (lambda: SMALL.view("pairs", SMALL.tasks()), "no view 'pairs'"),
    ],
)
def test_bad_input_is_one_clear_line(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_few_shot_codes_show_inputs_and_answers():
    x, answer = SMALL.examples(SMALL.init(new_key(0)), new_key(1), SMALL.task((1, 2)), 3)
    assert x.shape == answer.shape == (3, 5)
    _, y = SMALL.sample(SMALL.init(new_key(0)), new_key(1), SMALL.task((1, 2)), 3)
    assert isinstance(y, Nodes)
    np.testing.assert_array_equal(answer.argmax(axis=1), y.values[:, 1])
    assert rc.FewShot(num_pairs=3).encode(
        (), new_key(0), SMALL.task((1,)), lambda key, n: (x, answer)
    ).shape == (30,)
