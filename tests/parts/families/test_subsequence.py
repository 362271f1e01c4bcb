import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.families.subsequence import Subsequence
from recombine.parts.prng import new_key

FAMILY = Subsequence(listed_length=2, num_longer=40)
SHIFT = FAMILY.max_value + 1


@jax.jit
@jax.vmap
def traced(row):
    task = FAMILY.weigh(new_key(0), row)
    return FAMILY.trace((), task, jnp.ones((1, 1)))[0]


def brute_force(values):
    """The best sum, and the first of the best choices if choices that take earlier come first."""
    choices = [
        choice
        for choice in itertools.product((1, 0), repeat=len(values))
        if not any(a and b for a, b in itertools.pairwise(choice))
    ]
    sums = [sum(a * v for a, v in zip(choice, values, strict=True)) for choice in choices]
    best = max(sums)
    return best, choices[sums.index(best)]


def test_the_solver_agrees_with_brute_force():
    rows = FAMILY.tasks()
    assert len(rows) == 11 + 121 + 8 * 40
    nodes = np.asarray(traced(jnp.asarray(rows)))
    for row, values in zip(rows, nodes, strict=True):
        length = np.count_nonzero(row)
        elements = (row[:length].astype(int) - SHIFT).tolist()
        best, choice = brute_force(elements)
        _, sums, taken = np.split(values, 3)
        assert sums[::-1][0] == best
        assert tuple(taken[:length]) == choice
        assert not taken[length:].any()


def test_a_task_is_one_instance():
    task = FAMILY.weigh(new_key(0), jnp.asarray(FAMILY.tasks()[-1]))
    x, y = FAMILY.sample((), new_key(0), task, 3)
    assert (x == x[0]).all()
    assert (y.values == y.values[0]).all()
    assert FAMILY.deterministic


def test_nodes_of_a_list_by_hand():
    # [3, 4, 2]: sums from the end are 2, 4, 5. The best choice is 3 + 2.
    row = jnp.array([3, 4, 2, 0, 0, 0, 0, 0, 0, 0]) + SHIFT * (jnp.arange(10) < 3)
    task = FAMILY.weigh(new_key(0), row)
    values = FAMILY.trace((), task, jnp.ones((1, 1)))
    assert values[0, 17:20].tolist() == [2, 4, 5]
    assert values[0, 20:23].tolist() == [1, 0, 1]
    graph = FAMILY.graph(task)
    assert graph.layer[17:20].tolist() == [1, 2, 3]
    assert graph.layer[20:23].tolist() == [4, 5, 6]
    # A wrong sum of the last element, 3, changes the sums and decisions that follow from it.
    wrong = values.at[0, 17].set(3)
    operated = FAMILY.operate((), task, wrong)
    assert operated[0, 17:20].tolist() == [2, 4, 6]


def test_subgraphs_are_suffixes_and_whole_lists():
    rows = jnp.array([[1, 5, 7] + [0] * 7, [2, 5, 7] + [0] * 7])
    first, second = (FAMILY.subgraphs(FAMILY.weigh(new_key(0), row)) for row in rows)
    same = (first == second).all(axis=1)
    assert same[17:20].tolist() == [True, True, False], "sums of [7], [5, 7] and the whole list"
    assert not same[20:23].any(), "decisions depend on the whole list"
    rows_of_nodes = np.concatenate([first[17:20], first[20:23]])
    assert len(np.unique(rows_of_nodes, axis=0)) == 6


def test_scores():
    task = FAMILY.weigh(new_key(0), jnp.asarray(FAMILY.tasks()[-1]))
    _, y = FAMILY.sample((), new_key(0), task, 2)
    logits = 9 * jax.nn.one_hot(y.values, 2)
    for prediction in (logits, logits.reshape(2, 20)):
        assert FAMILY.score(prediction, y)["accuracy"] == 1
    wrong = logits.at[0, 4].set(logits[0, 4, ::-1])
    assert FAMILY.score(wrong, y)["accuracy"] == 0.5
    np.testing.assert_allclose(FAMILY.score(wrong, y)["node_accuracy"], 19 / 20)


def test_a_table_that_is_too_large_is_refused():
    with pytest.raises(InputError, match="table of 21,435,887 tasks"):
        Subsequence(listed_length=7, num_longer=1, max_length=7)
    with pytest.raises(InputError, match="max_length must be at least 5"):
        Subsequence(max_length=4)
