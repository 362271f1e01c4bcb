"""`Coverage`: the conditions, the rarest values, and plain results."""

import itertools
import json
import re

import numpy as np
import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.coverage import Coverage
from recombine.parts import conditions
from recombine.parts.supports.listed import SCHUG_SUPPORTS

KEYS = {
    "compositional",
    "connected",
    "components",
    "balanced",
    "spanned",
    "rarest",
    "missing",
    "suggestions",
}


def as_table(sets) -> pd.DataFrame:
    """Sets of module numbers as a table with one column."""
    return pd.DataFrame({"tags": [";".join(f"c{module}" for module in each) for each in sets]})


@pytest.mark.parametrize("seed", range(6))
def test_sets_have_the_conditions_of_the_lab(seed):
    rng = np.random.default_rng(seed)
    possible = [c for size in (1, 2, 3) for c in itertools.combinations(range(7), size)]
    num_train = rng.integers(4, 14)
    train = [possible[i] for i in rng.choice(len(possible), num_train, replace=False)]
    test = [c for c in possible if c not in train]
    # The lab knows the modules that never occur. A table needs them to be held out.
    all_modules = as_table([(module,) for module in range(7)])
    coverage = Coverage(as_table(train), ["tags"], held_out=all_modules)
    train_rows = np.array([[module in c for module in range(7)] for c in train], np.int8)
    test_rows = np.array([[module in c for module in range(7)] for c in test], np.int8)
    expected = conditions.describe(train_rows, test_rows)
    assert coverage.compositional == expected["compositional"]
    assert coverage.connected == expected["connected"]
    assert coverage.balanced == expected["balanced"]
    # The space has only the sizes that occur.
    possible_rows = np.array([row for row in test_rows if row.sum() in train_rows.sum(1)])
    assert coverage.spanned == conditions.spanned(train_rows, possible_rows)
    group_sizes = [len(group) for group in conditions.components(train_rows)]
    assert [len(group) for group in coverage.components] == group_sizes


def test_the_published_fixtures_have_their_conditions():
    expected = {
        "cycle": (True, False),
        "triangles": (False, True),
        "singletons_cycle": (True, True),
    }
    assert set(expected) == set(SCHUG_SUPPORTS) - {"singletons"}
    for name, connected_and_spanned in expected.items():
        coverage = Coverage(as_table(SCHUG_SUPPORTS[name]), ["tags"])
        assert (coverage.connected, coverage.spanned) == connected_and_spanned, name


@pytest.mark.parametrize("seed", range(6))
def test_factors_are_spanned_if_they_have_the_rank_of_the_product(seed):
    rng = np.random.default_rng(seed)
    every = list(itertools.product("abc", "uv", "xyz"))
    chosen = [every[i] for i in rng.choice(len(every), rng.integers(5, 12), replace=False)]
    coverage = Coverage(pd.DataFrame(chosen, columns=["p", "q", "r"]), ["p", "q", "r"])
    values = [sorted({c[factor] for c in chosen}) for factor in range(3)]
    possible = list(itertools.product(*values))

    def rank(combinations) -> int:
        rows = [
            [float(c[factor] == value) for factor in range(3) for value in values[factor]]
            for c in combinations
        ]
        return np.linalg.matrix_rank(rows)

    assert coverage.spanned == (rank(chosen) == rank(possible))
    assert coverage.missing["of"] == len(possible)
    assert coverage.missing["count"] == len(possible) - len(chosen)
    first = {tuple(combination.values()) for combination in coverage.missing["first"]}
    assert first == set(possible) - set(chosen)


def test_balance_compares_values_of_the_same_factor():
    every = list(itertools.product("ab", "uvwxyz"))
    whole = Coverage(pd.DataFrame(every, columns=["p", "q"]), ["p", "q"])
    assert whole.balanced, "a is in 6 combinations, u in 2"
    assert not Coverage(pd.DataFrame(every[:-3], columns=["p", "q"]), ["p", "q"]).balanced


def test_rarest_counts_combinations_and_examples():
    rows = [("a", "u")] * 5 + [("a", "v"), ("b", "u"), ("b", "v"), ("c", "u")]
    rarest = Coverage(pd.DataFrame(rows, columns=["p", "q"]), ["p", "q"]).rarest
    assert rarest[0] == {"value": "p=c", "combinations": 1, "examples": 1}
    assert rarest[-1] == {"value": "q=u", "combinations": 3, "examples": 7}


def test_held_out_combinations_are_never_suggested_and_their_values_are_known():
    frame = pd.DataFrame([(a, b) for a in "abc" for b in "uvw" if a != b], columns=["p", "q"])
    frame = frame[~frame["p"].isin(["c"]) | (frame["q"] == "u")]
    held_out = pd.DataFrame([("c", "v"), ("c", "w"), ("d", "u")], columns=["p", "q"])
    coverage = Coverage(frame, ["p", "q"], held_out=held_out)
    assert not coverage.compositional
    assert coverage.components[-1] == ["p=d"]
    result = coverage.result(20)
    suggested = {tuple(entry["combination"].values()) for entry in result["suggestions"]}
    assert not suggested & set(held_out.itertuples(index=False, name=None))
    assert len(suggested) == result["missing"]["count"] - 3
    assert Coverage(frame, ["p", "q"]).compositional


def test_the_result_is_plain_json_with_the_promised_keys():
    frame = pd.DataFrame([("a", "u", 1), ("b", "v", 2), ("a", "v", None)], columns=["p", "q", "r"])
    coverage = Coverage(frame.assign(s="same"), ["p", "q", "r", "s"])
    result = json.loads(json.dumps(coverage.result(3)))
    assert result.keys() >= KEYS
    assert result["components"] == [["p=a", "q=u", "r=1"], ["p=b", "q=v", "r=2"]]
    assert result["suggestions"][0]["why"] == "joins 2 groups"
    assert result["notes"] == [
        "s has only one value and was left out",
        "1 of 3 rows have an empty cell and were left out",
    ]


def test_a_complete_table_has_no_suggestions():
    table = pd.DataFrame(itertools.product("ab", "uv"), columns=["p", "q"])
    result = Coverage(table, ["p", "q"]).result()
    assert result["missing"] == {"count": 0, "of": 4, "first": []}
    assert result["suggestions"] == []
    assert result["expected_drop"]["now"] == 0


def test_the_order_of_rows_does_not_matter():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.integers(0, 6, 40) for name in "pqr"})
    shuffled = frame.sample(frac=1, random_state=1)
    first = Coverage(frame, ["p", "q", "r"]).result(10)
    second = Coverage(shuffled, ["p", "q", "r"]).result(10)
    assert first["suggestions"] == second["suggestions"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"factors": "p,q"}, "factors is a list"),
        ({"factors": []}, "no factors"),
        ({"factors": ["p", ""]}, "no factors"),
        ({"factors": ["p"], "separator": ""}, "the separator is empty"),
    ],
)
def test_bad_arguments_raise_an_error(arguments, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Coverage(pd.DataFrame({"p": ["a;b"], "q": ["u"]}), **arguments)
    with pytest.raises(InputError, match="must not be negative"):
        Coverage(as_table([(0, 1)]), ["tags"]).suggest(-1)
