import itertools
import json
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.coverage import Coverage
from recombine.parts import conditions
from recombine.parts.supports.listed import FIXTURES

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


def khot(combinations, column: str = "tags") -> pd.DataFrame:
    return pd.DataFrame(
        {column: [";".join(f"c{m}" for m in combination) for combination in combinations]}
    )


@pytest.mark.parametrize("seed", range(6))
def test_sets_meet_the_conditions_that_the_lab_computes(seed):
    rng = np.random.default_rng(seed)
    every = [c for size in (1, 2, 3) for c in itertools.combinations(range(7), size)]
    chosen = [every[i] for i in rng.choice(len(every), rng.integers(4, 14), replace=False)]
    rest = [c for c in every if c not in chosen]
    # The lab knows of modules that never occur; a table knows them from what is held out.
    coverage = Coverage(khot(chosen), ["tags"], held_out=khot([(m,) for m in range(7)]))
    rows, others = (
        np.array([[m in c for m in range(7)] for c in part], np.int8) for part in (chosen, rest)
    )
    told = conditions.describe(rows, others)
    assert coverage.compositional == told["compositional"]
    assert coverage.connected == told["connected"]
    assert coverage.balanced == told["balanced"]
    # Only sizes that occur count.
    reach = np.array([row for row in others if row.sum() in rows.sum(1)])
    assert coverage.spanned == conditions.spanned(rows, reach)
    assert [len(group) for group in coverage.components] == [
        len(group) for group in conditions.components(rows)
    ]


def test_the_published_fixtures_are_told_apart():
    found = {
        name: Coverage(khot(given), ["tags"])
        for name, given in FIXTURES.items()
        if name != "singletons"
    }
    assert {name: (c.connected, c.spanned) for name, c in found.items()} == {
        "cycle": (True, False),
        "triangles": (False, True),
        "singletons_cycle": (True, True),
    }


@pytest.mark.parametrize("seed", range(6))
def test_factors_are_spanned_when_their_rank_is_that_of_the_product(seed):
    rng = np.random.default_rng(seed)
    every = list(itertools.product("abc", "uv", "xyz"))
    chosen = [every[i] for i in rng.choice(len(every), rng.integers(5, 12), replace=False)]
    coverage = Coverage(pd.DataFrame(chosen, columns=["p", "q", "r"]), ["p", "q", "r"])
    seen = [sorted({c[f] for c in chosen}) for f in range(3)]
    ranks = [
        np.linalg.matrix_rank([[float(c[f] == v) for f in range(3) for v in seen[f]] for c in part])
        for part in (chosen, list(itertools.product(*seen)))
    ]
    assert coverage.spanned == (ranks[0] == ranks[1])
    assert coverage.missing["of"] == np.prod([len(values) for values in seen])
    assert coverage.missing["count"] == coverage.missing["of"] - len(chosen)
    first = {tuple(one.values()) for one in coverage.missing["first"]}
    assert first == set(itertools.product(*seen)) - set(chosen)


def test_values_of_a_factor_are_compared_with_each_other():
    every = list(itertools.product("ab", "uvwxyz"))
    assert Coverage(pd.DataFrame(every, columns=["p", "q"]), ["p", "q"]).balanced, (
        "a in 6 combinations, u in 2"
    )
    assert not Coverage(pd.DataFrame(every[:-3], columns=["p", "q"]), ["p", "q"]).balanced


def test_rarest_tells_combinations_and_examples():
    frame = pd.DataFrame(
        [("a", "u")] * 5 + [("a", "v"), ("b", "u"), ("b", "v"), ("c", "u")], columns=["p", "q"]
    )
    rarest = Coverage(frame, ["p", "q"]).rarest
    assert rarest[0] == {"value": "p=c", "combinations": 1, "examples": 1}
    assert rarest[-1] == {"value": "q=u", "combinations": 3, "examples": 7}


def test_held_out_combinations_are_never_suggested_and_their_values_are_known():
    frame = pd.DataFrame([(a, b) for a in "abc" for b in "uvw" if a != b], columns=["p", "q"])
    frame = frame[~frame["p"].isin(["c"]) | (frame["q"] == "u")]
    held = pd.DataFrame([("c", "v"), ("c", "w"), ("d", "u")], columns=["p", "q"])
    coverage = Coverage(frame, ["p", "q"], held_out=held)
    assert not coverage.compositional
    assert coverage.components[-1] == ["p=d"]
    result = coverage.result(20)
    told = {tuple(one["combination"].values()) for one in result["suggestions"]}
    assert not told & set(held.itertuples(index=False, name=None))
    assert len(told) == result["missing"]["count"] - 3
    assert Coverage(frame, ["p", "q"]).compositional


def test_the_result_is_plain_json_with_the_promised_keys():
    frame = pd.DataFrame([("a", "u", 1), ("b", "v", 2), ("a", "v", None)], columns=["p", "q", "r"])
    result = json.loads(
        json.dumps(Coverage(frame.assign(s="same"), ["p", "q", "r", "s"]).result(3))
    )
    assert result.keys() >= KEYS
    assert result["components"] == [["p=a", "q=u", "r=1"], ["p=b", "q=v", "r=2"]]
    assert result["suggestions"][0]["why"] == "joins 2 groups"
    assert result["notes"] == [
        "s has one value and was left out",
        "1 of 3 rows have an empty cell and were left out",
    ]


def test_nothing_to_add_where_everything_is_there():
    result = Coverage(
        pd.DataFrame(itertools.product("ab", "uv"), columns=["p", "q"]), ["p", "q"]
    ).result()
    assert result["missing"] == {"count": 0, "of": 4, "first": []}
    assert result["suggestions"] == []
    assert result["expected_drop"]["now"] == 0


def test_the_same_table_gets_the_same_advice_in_any_order():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({name: rng.integers(0, 6, 40) for name in "pqr"})
    first, second = (
        Coverage(f, ["p", "q", "r"]).result(10)
        for f in (frame, frame.sample(frac=1, random_state=1))
    )
    assert first["suggestions"] == second["suggestions"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"factors": "p,q"}, "factors is a list"),
        ({"factors": []}, "no factors"),
        ({"factors": ["p", ""]}, "no factors"),
        ({"factors": ["p"], "separator": ""}, "the separator is empty"),
    ],
)
def test_mistakes_are_told(given, words):
    with pytest.raises(InputError, match=re.escape(words)):
        Coverage(pd.DataFrame({"p": ["a;b"], "q": ["u"]}), **given)
    with pytest.raises(InputError, match="must not be negative"):
        Coverage(khot([(0, 1)]), ["tags"]).suggest(-1)


def test_it_needs_no_jax():
    code = (
        "import sys, recombine.coverage.page; sys.exit(bool({'jax', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
