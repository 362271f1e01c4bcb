import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.families.two_hop import ALONE, APART, MIXED, PAIR, TwoHop, _apart, _maps
from recombine.parts.prng import new_key

PAIRS = TwoHop(5, 3)
FACTS = TwoHop(12, 6, facts=True)


def answers(family, row):
    """The sentence, the values and the number of the answer of one row of the table."""
    task = family.weigh(new_key(0), jnp.asarray(row))
    x, y = family.sample((), new_key(0), task, 2)
    assert (x[0] == x[1]).all()
    return family.sentence(task).tolist(), y.values[0].tolist(), int(y.answer[0, 0])


def test_the_table_has_every_instance_once():
    assert len(np.unique(PAIRS.tasks(), axis=0)) == len(PAIRS.tasks()) == 5 * 3 * 3
    rows = FACTS.tasks()
    assert len(np.unique(rows, axis=0)) == len(rows) == 12 * 6 + 12 * 6 * 6
    assert (rows[: 12 * 6, 2] == 0).all()


def test_answers_follow_two_maps():
    first, second = _maps(PAIRS)
    assert (first != second).any()
    for row in PAIRS.tasks()[::7]:
        symbol, r1, r2 = row - 1
        bridge = first[r1, symbol]
        expected = ([row[1], row[2] + 3], [bridge, second[r2, bridge]], 1)
        assert answers(PAIRS, row) == expected


def test_facts_and_inferences_share_one_map():
    first, second = _maps(FACTS)
    np.testing.assert_array_equal(first, second)
    rows = FACTS.tasks()
    fact = rows[20]
    symbol, relation = fact[:2] - 1
    assert answers(FACTS, fact) == ([relation + 1, 0], [first[relation, symbol]] * 2, 0)
    bridge = first[2, 4]
    assert answers(FACTS, [5, 3, 6]) == ([3, 6], [bridge, first[5, bridge]], 1)


def test_kinds_by_hand():
    rows = FACTS.tasks()
    apart = _apart(FACTS)
    assert apart.sum() == 18, "a quarter of 72 facts"
    first, _ = _maps(FACTS)
    kinds = FACTS.groups(rows)["kind"]
    for (symbol, r1, r2), kind in zip((rows - 1).tolist(), kinds, strict=True):
        if r2 < 0:
            assert kind == ALONE
            continue
        used = [apart[r1, symbol], apart[r2, first[r1, symbol]]]
        assert kind == {0: PAIR, 1: MIXED, 2: APART}[sum(used)]
    assert set(kinds) == {ALONE, PAIR, MIXED, APART}
    assert PAIRS.groups(PAIRS.tasks()) == {}


def test_operations_on_wrong_parents():
    task = PAIRS.weigh(new_key(0), jnp.array([1, 2, 3]))
    _, second = _maps(PAIRS)
    values = jnp.array([[0, 4, 0]])
    assert PAIRS.operate((), task, values)[0, 2] == second[2, 4]
    assert PAIRS.graph(task).layer.tolist() == [0, 1, 2]
    fact = FACTS.weigh(new_key(0), jnp.array([1, 2, 0]))
    assert FACTS.graph(fact).layer.tolist() == [0, 1, -1]
    assert FACTS.subgraphs(fact).tolist() == [[1, 0, 0], [1, 2, 0], [1, 2, 0]]


def test_views_by_hand():
    row = np.array([[2, 3, 1]])
    assert np.flatnonzero(PAIRS.view("modules", row)).tolist() == [0, 2]
    assert np.flatnonzero(PAIRS.view("positions", row)).tolist() == [1, 5 + 2, 8 + 0]
    with pytest.raises(InputError, match="no view 'lengths'"):
        PAIRS.view("lengths", row)


def test_tables_that_are_too_large_are_refused():
    with pytest.raises(InputError, match="table of"):
        TwoHop(2000, 2000)
