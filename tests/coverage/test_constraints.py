"""Forbidden combinations, costs, declared values and numbers of examples, by exhaustive search."""

import itertools
import math
import re

import numpy as np
import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.coverage import Coverage, page
from recombine.coverage.constraints import parse_declared, parse_partial
from recombine.coverage.expected_drop import rarity_drop
from recombine.parts import conditions

NAMES = ["a", "b", "c"]
CASES = 60  # random tables of each kind


def random_case(seed: int, with_costs: bool) -> Coverage:
    """A small table with random forbidden combinations, and perhaps a cost of each combination."""
    rng = np.random.default_rng(seed)
    sizes = [(3, 3), (3, 2, 2), (4, 2), (3, 3, 2)][seed % 4]
    names = NAMES[: len(sizes)]
    every = list(itertools.product(*map(range, sizes)))
    num_rows = int(rng.integers(2, 5))
    rows = [every[i] for i in rng.choice(len(every), num_rows, replace=False)]
    forbid = []
    for _ in range(int(rng.integers(0, 9))):
        chosen = rng.choice(len(sizes), int(rng.integers(2, len(sizes) + 1)), replace=False)
        forbid.append({names[i]: int(rng.integers(sizes[i])) for i in chosen})
    if seed % 5 == 0:  # nothing may be combined with the first value of a
        others = zip(names[1:], sizes[1:], strict=True)
        forbid += [{"a": 0, name: value} for name, size in others for value in range(size)]
    costs = None
    if with_costs:
        costs = pd.DataFrame(every, columns=names)
        costs["cost"] = rng.integers(1, 6, len(every))
    values = {name: list(range(size)) for name, size in zip(names, sizes, strict=True)}
    table = pd.DataFrame(rows, columns=names)
    return Coverage(table, names, forbid=forbid, costs=costs, values=values)


def is_allowed(coverage: Coverage, code) -> bool:
    return not any(rule <= set(code) for rule in coverage.space.forbidden)


def candidates(coverage: Coverage) -> list[tuple[int, ...]]:
    """Every combination that could be suggested, by listing all."""
    taken = set(map(tuple, coverage.combinations.codes.tolist()))
    every = itertools.product(*(block.tolist() for block in coverage.space.blocks))
    return [code for code in every if code not in taken and is_allowed(coverage, code)]


def as_rows(coverage: Coverage, added=()) -> np.ndarray:
    codes = [*coverage.combinations.codes.tolist(), *added]
    modules = range(coverage.space.num_modules)
    return np.array([[module in code for module in modules] for code in codes], np.int8)


def least(coverage: Coverage, is_good, cost_of) -> float:
    """The least cost of combinations that make the rows good; infinity if there are none."""
    possible = candidates(coverage)
    best = math.inf
    if not is_good(as_rows(coverage, possible)):
        return best
    for num in range(len(possible) + 1):
        cheapest = sum(sorted(map(cost_of, possible))[:num])
        if cheapest >= best or num > 6:
            break
        for added in itertools.combinations(possible, num):
            cost = sum(map(cost_of, added))
            if cost < best and is_good(as_rows(coverage, added)):
                best = cost
    return best


def goals_of(coverage: Coverage) -> list:
    """The goals with as many suggestions as there are candidates, and what makes rows good."""
    full_rank = np.linalg.matrix_rank(as_rows(coverage, candidates(coverage)))

    def connects_and_spans(rows) -> bool:
        return conditions.connected(rows) and np.linalg.matrix_rank(rows) == full_rank

    connect, span, _ = coverage.suggest(30).goals
    return [(connect, conditions.connected), (span, connects_and_spans)]


def test_the_advice_with_forbidden_combinations_is_as_good_as_it_claims():
    num_optimal = num_met = num_impossible = num_fewest = 0
    for seed in range(CASES):
        coverage = random_case(seed, with_costs=False)
        for goal, is_good in goals_of(coverage):
            fewest = least(coverage, is_good, lambda code: 1)
            assert goal.met == goal.possible == (not math.isinf(fewest)), (seed, goal)
            if goal.met:
                assert goal.needed <= fewest <= goal.suggested, (seed, goal)
                assert not goal.optimal or goal.suggested == fewest
                num_met += 1
                num_optimal += goal.optimal
                num_fewest += goal.suggested == fewest
            else:
                num_impossible += 1
    assert num_impossible > 4
    assert num_met > 60
    assert num_optimal > 0.9 * num_met
    assert num_fewest > 0.95 * num_met


def test_the_advice_with_costs_is_as_good_as_it_claims():
    num_optimal = num_met = num_cheapest = 0
    for seed in range(CASES):
        coverage = random_case(seed, with_costs=True)

        def cost_of(code, coverage=coverage) -> float:
            return float(coverage.costs(np.array([code]))[0])

        for goal, is_good in goals_of(coverage):
            lowest = least(coverage, is_good, cost_of)
            assert goal.met == goal.possible == (not math.isinf(lowest)), (seed, goal)
            if not goal.met:
                continue
            assert goal.min_cost <= lowest + 1e-9 <= goal.cost + 2e-9, (seed, goal)
            assert not goal.optimal or goal.cost == pytest.approx(lowest)
            if len(coverage.space.blocks) == 2:
                assert goal.optimal, "links between two factors form a tree"
            num_met += 1
            num_optimal += goal.optimal
            num_cheapest += goal.cost == pytest.approx(lowest)
    assert num_met > 60
    assert num_optimal > 0.7 * num_met
    assert num_cheapest > 0.85 * num_met


@pytest.mark.parametrize("seed", range(6))
def test_the_bound_on_the_lift_holds_with_costs_and_a_budget(seed):
    rng = np.random.default_rng(seed)
    every = pd.DataFrame(itertools.product(range(4), range(3), range(2)), columns=NAMES)
    costs = every.assign(cost=rng.integers(1, 6, len(every)))
    table = every.drop(rng.choice(len(every), 9, replace=False))
    coverage = Coverage(table, NAMES, costs=costs)
    assert coverage.connected
    assert coverage.spanned
    advice = coverage.suggest(9, budget=7.0)
    *_, goal = advice.goals
    assert 0 < advice.cost == goal.cost <= 7
    possible = candidates(coverage)
    share = np.array([np.isin(np.arange(9), code) for code in possible]).mean(axis=0)
    counts = coverage.trained.counts

    def lift(added) -> float:
        more = np.sum([np.isin(np.arange(9), code) for code in added], axis=0)
        return float(share @ (rarity_drop(counts) - rarity_drop(counts + more)))

    def cost(added) -> float:
        return float(coverage.costs(np.array(added)).sum())

    subsets = [s for num in range(1, 8) for s in itertools.combinations(possible, num)]
    best = max(lift(added) for added in subsets if cost(added) <= advice.cost)
    reached = lift([suggestion.code for suggestion in advice.suggestions])
    assert reached <= best + 1e-12 <= reached / goal.share + 1e-9
    assert reached > 0.8 * best


def test_possible_combinations_are_counted_without_listing_them():
    for seed in range(CASES):
        coverage = random_case(seed, with_costs=False)
        space = coverage.space
        every = itertools.product(*(block.tolist() for block in space.blocks))
        possible = [code for code in every if is_allowed(coverage, code)]
        assert space.num_possible == len(possible)
        assert space.num_containing == [
            sum(module in code for code in possible) for module in range(space.num_modules)
        ]
        assert list(space.combinations_of(np.arange(space.num_modules))) == possible
        present = set(map(tuple, coverage.combinations.codes.tolist()))
        assert coverage.missing["count"] == len(set(possible) - present)


def test_sets_with_rules_are_counted_too():
    table = pd.DataFrame({"k": ["x", "y", "x"], "t": ["p;q;r", "s", ""]})
    forbid = [{"t": ["p", "s"]}, {"k": "y", "t": "q"}, "k=x,t=r,t=q"]
    coverage = Coverage(table, ["k", "t"], sets=["t"], forbid=forbid)
    every = [
        (k, *subset)
        for k in "xy"
        for size in (0, 1, 3)
        for subset in itertools.combinations("pqrs", size)
    ]
    possible = [
        each
        for each in every
        if not {"p", "s"} <= set(each)
        and not {"y", "q"} <= set(each)
        and not {"x", "r", "q"} <= set(each)
    ]
    assert coverage.space.num_possible == len(possible)
    listed = coverage.space.combinations_of(np.arange(coverage.space.num_modules))
    assert len(list(listed)) == len(possible)


def test_when_every_link_is_banned_the_answer_says_so(tmp_path):
    pd.DataFrame([("fish", "swim"), ("bird", "fly")], columns=["shape", "action"]).to_csv(
        tmp_path / "t.csv", index=False
    )
    forbid = ["shape=fish,action=fly", "shape=bird,action=swim"]
    result, lines = page.answer(tmp_path / "t.csv", "shape,action", forbid=forbid)
    assert result["suggestions"] == []
    assert result["missing"] == {"count": 0, "of": 2, "first": []}
    assert result["goals"][0]["possible"] is False
    text = "\n".join(lines)
    assert "to connect all values: not possible: every combination that links two groups" in text
    assert "no combination can be added" in text
    one_link, lines = page.answer(tmp_path / "t.csv", "shape,action", forbid=forbid[:1])
    assert [each["combination"]["shape"] for each in one_link["suggestions"]] == ["bird"]
    assert one_link["goals"][0]["optimal"]


def test_banned_links_of_a_huge_space_are_found_without_listing_it():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"f{i}": rng.integers(0, 14, 400).astype(str) for i in range(4)})
    frame.loc[399] = ["x"] * 4
    names = list(frame)
    forbid = [
        {names[i]: "x", names[j]: str(value)}
        for i, j in itertools.permutations(range(4), 2)
        for value in range(14)
    ]
    connect, _, _ = Coverage(frame, names, forbid=forbid).suggest(3).goals
    assert (connect.suggested, connect.met, connect.possible) == (0, False, False)
    most = [rule for rule in forbid if not (rule.get("f0") == "x" and "0" in rule.values())]
    advice = Coverage(frame, names, forbid=most).suggest(1)
    assert advice.goals[0].met, "only x, 0, 0, 0 is left"


def test_declared_values_may_occur():
    table = pd.DataFrame([("ball", "red"), ("cube", "red"), ("ball", "blue")], columns=["s", "c"])
    coverage = Coverage(table, ["s", "c"], values={"s": ["star"], "c": ["red"]})
    assert coverage.missing["of"] == 6
    assert not coverage.compositional
    assert coverage.rarest[0] == {"value": "s=star", "combinations": 0, "examples": 0}
    suggested = [each["combination"]["s"] for each in coverage.result(3)["suggestions"]]
    assert "star" in suggested
    single = table.assign(s="ball")
    assert Coverage(single, ["s", "c"], values={"s": ["cube"]}).missing["of"] == 4


def test_examples_count_for_balance_and_advice():
    rows = (
        [("red", "ball")] * 1000 + [("red", "cube")] * 1000 + [("blue", "ball"), ("blue", "cube")]
    )
    coverage = Coverage(pd.DataFrame(rows, columns=["c", "s"]), ["c", "s"])
    assert coverage.balanced_combinations
    assert not coverage.balanced_examples
    assert not coverage.balanced
    assert coverage.examples_ratio == 1000
    result = coverage.result(5)
    assert {each["combination"]["c"] for each in result["suggestions"]} == {"blue"}
    assert all(not each["new"] and each["examples"] > 1 for each in result["suggestions"])
    assert "few examples of c=blue" in result["suggestions"][0]["why"]
    assert any("not in examples" in line for line in page.lines(result))
    equal = Coverage(
        pd.DataFrame(rows[:1] * 7 + rows[-2:] * 7 + [rows[1500]] * 7, columns=["c", "s"]),
        ["c", "s"],
    )
    assert equal.balanced
    assert equal.result(5)["suggestions"] == []


def test_a_covered_table_says_that_nothing_is_worth_adding():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 25, (40_000, 5))
    table = pd.DataFrame(rows, columns=list("abcde"))
    result = Coverage(table, list("abcde"), examples_needed=1).result(20)
    assert result["missing"]["count"] > 9_000_000
    assert result["suggestions"] == []
    assert result["stopped"] == "gain"
    assert any(line.startswith("nothing is worth adding") for line in page.lines(result))


def test_costs_choose_cheap_combinations_and_keep_to_the_budget(tmp_path):
    table = pd.DataFrame([("a", "x"), ("b", "y")], columns=["p", "q"])
    costs = pd.DataFrame({"p": ["a", "b"], "cost": [9.0, 2.0]})
    costs.to_csv(tmp_path / "costs.csv", index=False)
    for source in (costs, tmp_path / "costs.csv", str(tmp_path / "costs.csv")):
        result = Coverage(table, ["p", "q"], costs=source).result(1)
        assert result["suggestions"][0]["combination"] == {"p": "b", "q": "x"}
        assert (result["suggestions"][0]["cost"], result["cost"]) == (2.0, 2.0)
        assert result["goals"][0]["optimal"]
    coverage = Coverage(table, ["p", "q"], costs=costs)
    assert coverage.result(5, budget=1.5)["stopped"] == "budget"
    assert coverage.result(5, budget=1.5)["suggestions"] == []
    assert coverage.result(5, budget=2.5)["cost"] == 2.0
    whole = pd.DataFrame({"p": ["b", ""], "q": ["x", "y"], "cost": [7.0, 1.0]})
    cheapest = Coverage(table, ["p", "q"], costs=whole).result(1)["suggestions"][0]
    assert cheapest["combination"] == {"p": "a", "q": "y"}, "an empty cell means any value"


def test_a_cost_column_of_the_table_estimates_the_missing_combinations():
    every = list(itertools.product("abc", "xyz"))
    cost = {(p, q): 10 + "abc".index(p) + 3 * "xyz".index(q) for p, q in every}
    rows = [(p, q, cost[p, q]) for p, q in every if (p, q) != ("a", "x")]
    table = pd.DataFrame(rows, columns=["p", "q", "price"])
    coverage = Coverage(table, ["p", "q"], costs="price")
    (suggestion,) = coverage.result(5)["suggestions"]
    assert suggestion["combination"] == {"p": "a", "q": "x"}
    assert min(c for *_, c in rows) <= suggestion["cost"] < np.mean([c for *_, c in rows])
    present = coverage.costs(coverage.combinations.codes)
    assert present.tolist() == [c for *_, c in rows]
    with pytest.raises(InputError, match="a cost must be a positive number"):
        Coverage(table.assign(price=0), ["p", "q"], costs="price")
    with pytest.raises(InputError, match="must hold numbers"):
        Coverage(table.assign(price="dear"), ["p", "q"], costs="price")


def test_sets_beside_factors():
    table = pd.DataFrame(
        {
            "shape": ["ball", "ball", "cube", "cube", "disc"],
            "tags": ["red;small", "small;red", "", "blue", "old"],
        }
    )
    coverage = Coverage(table, ["shape", "tags"], sets=["tags"])
    assert coverage.space.sizes == ((1,), (0, 1, 2))
    assert coverage.missing["of"] == 3 * (1 + 4 + 6)
    assert len(coverage.combinations.codes) == 4, "the order in a set does not matter"
    assert coverage.combinations.examples.max() == 2
    assert [len(group) for group in coverage.components] == [3, 2, 2]
    assert coverage.describe(coverage.combinations.codes[0]) == {
        "shape": "ball",
        "tags": ["red", "small"],
    }
    connect, span, _ = coverage.suggest(20).goals
    assert connect.optimal
    assert connect.suggested == 1, "a set of two tags joins three groups with a shape"
    assert span.met
    lists = table.assign(tags=[text.split(";") if text else [] for text in table["tags"]])
    same = Coverage(lists, ["shape", "tags"], sets=["tags"])
    assert same.result(5) == coverage.result(5)
    assert any("{" in line for line in page.lines(coverage.result(5)))


@pytest.mark.parametrize("seed", range(4))
def test_mixed_tables_have_the_rank_of_all_their_combinations(seed):
    rng = np.random.default_rng(seed)
    tags = ["", "p", "q", "p;q", "q;r", "r", "p;q;r"]
    rows = {"k": rng.choice(["x", "y"], 8), "t": rng.choice(tags, 8), "u": rng.choice(tags[1:], 8)}
    coverage = Coverage(pd.DataFrame(rows), ["k", "t", "u"], sets=["t", "u"])
    space = coverage.space
    every = list(space.combinations_of(np.arange(space.num_modules)))
    assert len(every) == space.num_possible
    matrix = np.array([[module in code for module in range(space.num_modules)] for code in every])
    assert np.linalg.matrix_rank(matrix.astype(float)) == space.rank
    assert matrix.sum(axis=0).tolist() == space.num_containing
    advice = coverage.suggest(8)
    assert len({tuple(sorted(s.code.tolist())) for s in advice.suggestions}) == 8
    assert advice.goals[0].met


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"forbid": [{"shap": "ball"}]}, "forbid: there is no factor 'shap': did you mean shape?"),
        ({"forbid": [{"shape": "bal"}]}, "forbid: shape has no value 'bal': did you mean ball?"),
        ({"forbid": ["shape=ball,shape=cube"]}, "a combination has one value of shape"),
        ({"forbid": ["shape"]}, "write COLUMN=VALUE"),
        ({"forbid": "shape=ball"}, "forbid is a list"),
        ({"forbid": [{"size": "m"}]}, "size has only one value"),
        ({"forbid": [{"shape": "ball"}, {"shape": "cube"}]}, "every combination is forbidden"),
        ({"values": {"shapes": ["x"]}}, "there is no factor 'shapes': did you mean shape?"),
        ({"values": {"shape": "star"}}, "values lists the values"),
        ({"sets": ["tags"]}, "the column of sets 'tags' is not among the factors"),
        ({"sets": "shape"}, "sets is a list of columns"),
        ({"costs": "price"}, "the table has no column 'price'"),
        ({"costs": pd.DataFrame({"cost": [1]})}, "has no column of a factor"),
        ({"examples_needed": 0}, "must be at least 1"),
    ],
)
def test_bad_constraints_raise_an_error(arguments, message):
    frame = pd.DataFrame(
        [("ball", "red", "m"), ("cube", "blue", "m")], columns=["shape", "colour", "size"]
    )
    with pytest.raises(InputError, match=re.escape(message)):
        Coverage(frame, list(frame), **arguments)


def test_texts_are_parsed():
    assert parse_partial('shape=fish, action="fly, high"') == {
        "shape": ["fish"],
        "action": ["fly, high"],
    }
    assert parse_declared(["a=x,y", "b=z", "a=w"]) == {"a": ["x", "y", "w"], "b": ["z"]}
    with pytest.raises(InputError, match="not closed"):
        parse_partial('a="x')
    with pytest.raises(InputError, match="write COLUMN=VALUE,VALUE"):
        parse_declared(["a="])


def test_the_page_shows_the_options_and_the_imbalance(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("shape,action\n" + "fish,swim\n" * 50 + "bird,fly\n")
    out = tmp_path / "page.html"
    forbid = ["shape=fish,action=fly"]
    page.answer(table, "shape,action", out=out, forbid=forbid, budget=3.0)
    text = out.read_text()
    command = "--factors shape,action --forbid shape=fish,action=fly --budget 3.0"
    assert command in text
    assert "Not balanced: not in examples: a value has 50 times those of another." in text
