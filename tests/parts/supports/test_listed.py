import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.conditions import compositional, connected, describe, spanned
from recombine.parts.supports.listed import SCHUG_GENERALIZES, SCHUG_SUPPORTS, Listed
from tests.tables import khot_table

# (rank, connected, spanned) for all tasks of at most 3 of 6 modules. Singletons are a basis, so
# they span everything. The even cycle does not span the direction (+1, -1, +1, -1, +1, -1).
FACTS = {
    "singletons": (6, False, True),
    "cycle": (5, True, False),
    "triangles": (6, False, True),
    "singletons_cycle": (6, True, True),
}


@pytest.mark.parametrize("name", FACTS)
def test_the_supports_of_schug_have_the_published_structure(name):
    table = khot_table(6, 3)
    parts = Listed(SCHUG_SUPPORTS[name]).parts(table, np.random.default_rng(0), 0.5)
    train, test = table[parts == 1], table[parts == 2]
    assert len(train) == len(SCHUG_SUPPORTS[name])
    assert len(train) + len(test) == len(table)
    assert compositional(train)
    assert (np.linalg.matrix_rank(train), connected(train), spanned(train, test)) == FACTS[name]


def test_only_the_connected_and_spanned_support_generalized():
    assert {name: linked and full for name, (_, linked, full) in FACTS.items()} == SCHUG_GENERALIZES
    assert SCHUG_SUPPORTS.keys() == SCHUG_GENERALIZES.keys()


def test_two_disjoint_triangles_are_two_components():
    table = khot_table(6, 2)
    parts = Listed(SCHUG_SUPPORTS["triangles"]).parts(table, np.random.default_rng(0), 0.5)
    assert describe(table[parts == 1], table[parts == 2])["num_components"] == 2


def test_held_out_tasks_alone_are_test():
    table = khot_table(5, 2)
    support = Listed(((0, 1), (2, 1)), held_out=((2, 0),))
    parts = support.parts(table, np.random.default_rng(0), 0.5)
    assert table[parts == 2].tolist() == [[1, 0, 1, 0, 0]]
    assert table[parts == 1].tolist() == [[1, 1, 0, 0, 0], [0, 1, 1, 0, 0]]


def test_the_default_works_on_larger_tables():
    table = khot_table(70, 2)
    parts = Listed().parts(table, np.random.default_rng(0), 0.25)
    assert np.count_nonzero(parts == 1) == 12
    assert not table[parts == 1][:, 6:].any()


def test_tasks_with_the_same_modules_are_in_the_same_part():
    table = np.repeat(khot_table(3, 2), 2, axis=0)
    parts = Listed(((0, 1),)).parts(table, np.random.default_rng(0), 0.5)
    assert table[parts == 1].tolist() == [[1, 1, 0]] * 2


@pytest.mark.parametrize(
    ("combinations", "held_out", "message"),
    [
        (((0, 1), (2,), (1, 0)), (), r"\(1, 0\) twice"),
        (((0, 1),), ((2,), (1, 0)), r"\(1, 0\) on both sides"),
        (((0, 0),), (), r"\(0, 0\): a combination consists of distinct"),
        (((0, -1),), (), r"\(0, -1\): a combination consists of distinct"),
        ((), (), "combinations is empty"),
    ],
)
def test_contradictory_lists_are_errors(combinations, held_out, message):
    with pytest.raises(InputError, match=message):
        Listed(combinations, held_out)


@pytest.mark.parametrize("missing", [(0, 1, 2), (1, 4), ()])
def test_the_error_names_a_combination_missing_from_the_table(missing):
    table = khot_table(4, 2)
    for support in (Listed(((0,), missing)), Listed(((0,),), held_out=((1,), missing))):
        with pytest.raises(InputError) as e:
            support.parts(table, np.random.default_rng(0), 0.5)
        assert f"lacks 1 of Listed's combinations, first {missing}:" in str(e.value)


def test_something_must_be_left_to_test():
    with pytest.raises(InputError, match="no test task"):
        Listed(((0,), (1,), (0, 1))).parts(khot_table(2, 2), np.random.default_rng(0), 0.5)
