import itertools
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recombine.basics.errors import InputError
from recombine.parts.conditions import (
    balanced,
    components,
    compositional,
    connected,
    counts,
    describe,
    draw,
    feasible,
    fingerprint,
    least_count,
    mark,
    spanned,
    stamps,
    train_size,
)
from tests.tables import khot_table
from tests.timing import cpu_seconds

repeatable = settings(deadline=None, max_examples=50, derandomize=True)


def rows_of(combinations, num_modules):
    rows = np.zeros((len(combinations), num_modules), np.int8)
    for row, combination in zip(rows, combinations, strict=True):
        row[list(combination)] = 1
    return rows


def merged(rows):
    """Components by repeated merging of sets, an independent and slow implementation."""
    groups = [{m} for m in range(rows.shape[1])]
    for row in rows:
        active = set(np.flatnonzero(row).tolist())
        touched = [group for group in groups if group & active]
        if touched:
            groups = [group for group in groups if not group & active] + [set().union(*touched)]
    return sorted((sorted(group) for group in groups), key=lambda group: (-len(group), group))


def in_span(train, test):
    rank = np.linalg.matrix_rank
    return all(rank(np.vstack([train, row])) == rank(train) for row in test)


@st.composite
def two_sides(draw_from):
    num_modules = draw_from(st.integers(2, 7))
    row = st.lists(st.integers(0, 1), min_size=num_modules, max_size=num_modules)
    return tuple(
        np.array(draw_from(st.lists(row, min_size=1, max_size=8)), np.int8) for _ in range(2)
    )


@repeatable
@given(two_sides())
def test_conditions_agree_with_brute_force(sides):
    train, test = sides
    assert components(train) == merged(train)
    assert compositional(train) == all(column.any() for column in train.T)
    assert connected(train) == (len(merged(train)) == 1)
    assert counts(train).tolist() == [int(column.sum()) for column in train.T]
    assert spanned(train, test) == in_span(train, test)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int64])
def test_describe_agrees_with_the_single_functions(dtype):
    table = khot_table(7, 3).astype(dtype)
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(table))
        train, test = table[order[:5]], table[order[5:9]]
        assert describe(train, test) == {
            "compositional": compositional(train),
            "connected": connected(train),
            "balanced": balanced(train),
            "spanned": spanned(train, test),
            "least_count": least_count(train),
            "num_components": len(components(train)),
        }


def test_absent_modules_are_components_of_their_own():
    assert components(rows_of([(1, 4), (4, 2), (5, 6)], 7)) == [[1, 2, 4], [5, 6], [0], [3]]
    assert not connected(np.zeros((1, 1), np.int8))
    assert connected(np.ones((1, 1), np.int8))


def test_balanced_allows_one_and_not_two():
    assert balanced(rows_of([(0, 1), (0, 2)], 3))
    assert not balanced(rows_of([(0, 1), (0, 2), (0,)], 3))


@pytest.mark.parametrize("num_modules", [5, 6, 7, 8])
def test_a_cycle_of_pairs_spans_the_single_modules_only_when_odd(num_modules):
    # On an even cycle, alternating +1 and -1 is orthogonal to all pairs of neighbors. An odd cycle
    # has no such vector.
    cycle = rows_of([(m, (m + 1) % num_modules) for m in range(num_modules)], num_modules)
    assert connected(cycle)
    assert spanned(cycle, np.eye(num_modules)) == (num_modules % 2 == 1)


def test_an_even_cycle_spans_pairs_at_odd_distance():
    cycle = rows_of([(m, (m + 1) % 6) for m in range(6)], 6)
    assert spanned(cycle, rows_of([(0, 3), (1, 4)], 6))
    assert not spanned(cycle, rows_of([(0, 2)], 6))


def test_one_unspanned_row_among_many_is_noticed():
    # Modules 0 and 1 differ in a single train task out of hundreds of thousands.
    table = khot_table(28, 6)
    together = table[table[:, 0] == table[:, 1]]
    single = rows_of([(0,)], 28)
    assert not spanned(together, np.vstack([together, single]))
    assert spanned(np.vstack([together, single]), table)


def test_feasible_rules_out_54_of_the_576_data_runs():
    impossible = 0
    for num_hot, num_modules in itertools.product(range(2, 8), (8, 16, 24, 32)):
        num_tasks = sum(comb(num_modules, k) for k in range(1, num_hot + 1))
        for frac_test in (0.125, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99):
            impossible += not feasible(
                num_tasks - round(frac_test * num_tasks), num_hot, num_modules
            )
    assert 3 * impossible == 54


@pytest.mark.parametrize("num_modules", [5, 64, 65, 200])
def test_fingerprints_are_distinct_and_linear(num_modules):
    rng = np.random.default_rng(0)
    rows = np.unique(rng.integers(0, 2, (2000, num_modules), np.int8), axis=0)
    stamp = stamps(num_modules)
    assert len(np.unique(fingerprint(rows))) == len(rows)
    row = next(row for row in rows if row[0] and not row[1])
    swapped = row.copy()
    swapped[:2] = 0, 1
    assert fingerprint(swapped[None]) == fingerprint(row[None]) - stamp[:1] + stamp[1:2]


def test_draw_is_uniform_over_the_connected_sets():
    table = khot_table(3, 2)
    good = {s for s in itertools.combinations(range(6), 3) if len(merged(table[list(s)])) == 1}
    rng = np.random.default_rng(0)
    tally = dict.fromkeys(good, 0)
    num = 3000
    for _ in range(num):
        tally[tuple(sorted(draw(table, 3, rng).tolist()))] += 1
    expected = num / len(good)
    assert 1 < len(good) < 20
    assert max(abs(n - expected) for n in tally.values()) < 4.5 * expected**0.5


def test_draw_can_cover_where_it_cannot_connect():
    table = khot_table(9, 3)
    with pytest.raises(InputError, match=r"3\*2\+1 = 7 < 9"):
        draw(table, 3, np.random.default_rng(0))
    rows = table[draw(table, 3, np.random.default_rng(0), linked=False)]
    assert counts(rows).tolist() == [1] * 9
    with pytest.raises(InputError, match="cannot cover 9 modules"):
        draw(table, 2, np.random.default_rng(0), linked=False)


def test_draw_refuses_a_table_that_is_not_connected():
    table = rows_of([(0, 1), (1,), (2, 3), (2,), (3,)], 4)
    with pytest.raises(
        InputError, match="the 5 available tasks do not connect 4 modules: try this"
    ):
        draw(table, 4, np.random.default_rng(0), "try this")


@pytest.mark.parametrize("frac_test", [0.0, 1.0, 0.01, 0.99, -1.0, float("nan")])
def test_both_sides_need_a_task(frac_test):
    with pytest.raises(InputError, match="leaves no train or no test task"):
        train_size(10, frac_test)


@pytest.mark.parametrize("num_tasks", [2, 3, 7, 10, 92, 100, 101, 696, 12345, 1_000_000])
def test_the_fractions_in_the_error_are_valid(num_tasks):
    with pytest.raises(InputError) as error:
        train_size(num_tasks, 1.0)
    least, most = str(error.value).split("choose it from ")[1].split(" to ")
    assert len(most) <= 3 + len(str(num_tasks)), "few digits"
    assert train_size(num_tasks, float(least)) == num_tasks - 1
    assert train_size(num_tasks, float(most)) == 1


def test_train_size_is_what_the_rounded_test_part_leaves():
    assert train_size(696, 0.25) == 522
    assert train_size(10, 0.06) == 9


def test_mark_refuses_an_empty_side():
    assert mark(4, np.array([0]), np.array([3])).tolist() == [1, 0, 0, 2]
    with pytest.raises(InputError, match="no test task"):
        mark(2, np.array([0, 1]))


def test_describing_half_a_million_tasks_takes_about_as_long_as_listing_them():
    table = khot_table(28, 6)
    part = np.random.default_rng(0).random(len(table)) < 0.75
    train, test = table[part], table[~part]
    assert describe(train, test)["least_count"] == train.sum(0).min()
    seconds_to_list = cpu_seconds(lambda: khot_table(28, 6))
    assert cpu_seconds(lambda: describe(train, test)) < 5 * seconds_to_list
