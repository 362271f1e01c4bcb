"""Suggested combinations, compared with exhaustive search on small tables."""

import itertools

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.coverage import Coverage, expected_drop
from recombine.coverage.advice import Adviser
from recombine.coverage.expected_drop import ExpectedDrop, rarity_drop
from recombine.experiments.ledger import RESULTS
from recombine.experiments.paper import module_frequency, support_conditions
from recombine.parts import conditions


def factored(sizes, num, seed, unseen=()):
    """The coverage of a random table; the last value of the factors in `unseen` never occurs."""
    rng = np.random.default_rng(seed)
    possible = list(itertools.product(*map(range, sizes)))
    allowed = [c for c in possible if all(c[f] < sizes[f] - 1 for f in unseen)]
    rows = [allowed[i] for i in rng.choice(len(allowed), num, replace=False)]
    names = [f"f{i}" for i in range(len(sizes))]
    # One held-out combination makes each unseen value known. The others may be suggested.
    held_out = [next(c for c in possible if c[f] == sizes[f] - 1) for f in unseen]
    held_out_table = pd.DataFrame(held_out, columns=names) if held_out else None
    return Coverage(pd.DataFrame(rows, columns=names), names, held_out=held_out_table)


def sets(num_modules, sizes, num, seed):
    """The coverage of a random table of sets."""
    rng = np.random.default_rng(seed)
    possible = [c for size in sizes for c in itertools.combinations(range(num_modules), size)]
    rows = [possible[i] for i in rng.choice(len(possible), num, replace=False)]
    table = pd.DataFrame({"set": ["+".join(map(str, c)) for c in rows]})
    return Coverage(table, ["set"], separator="+")


def candidates(coverage) -> list[tuple[int, ...]]:
    """Every combination that could be suggested, by listing all."""
    codes = (*coverage.combinations.codes.tolist(), *coverage.held_out.tolist())
    taken = {tuple(code) for code in codes}
    modules = np.arange(coverage.space.num_modules)
    return [code for code in coverage.space.combinations_of(modules) if code not in taken]


def rows_of(coverage, added=()) -> np.ndarray:
    """The table and the added combinations as 0/1 rows."""
    codes = [*coverage.combinations.codes.tolist(), *added]
    modules = range(coverage.space.num_modules)
    return np.array([[module in code for module in modules] for code in codes], np.int8)


def fewest(coverage, is_good) -> int:
    """How many combinations must be added until the rows are good, by exhaustive search."""
    return next(
        num
        for num in range(10)
        for added in itertools.combinations(candidates(coverage), num)
        if is_good(rows_of(coverage, added))
    )


SMALL = [
    *(pytest.param(factored((3, 3, 2), 3, seed), id=f"3x3x2-{seed}") for seed in range(4)),
    *(pytest.param(factored((4, 4), 4, seed), id=f"4x4-{seed}") for seed in range(3)),
    *(
        pytest.param(factored((3, 3, 2), 2, seed, unseen=(0, 1)), id=f"unseen-{seed}")
        for seed in range(2)
    ),
    *(pytest.param(sets(5, (2,), 3, seed), id=f"pairs-{seed}") for seed in range(3)),
    *(pytest.param(sets(6, (1, 3), 3, seed), id=f"sets-{seed}") for seed in range(3)),
]


@pytest.mark.parametrize("coverage", SMALL)
def test_no_fewer_combinations_connect_or_span(coverage):
    connect, span, _ = coverage.suggest(12).goals
    assert connect.suggested == connect.needed == fewest(coverage, conditions.connected)
    assert connect.optimal

    def is_connected_and_spanned(rows):
        return conditions.connected(rows) and np.linalg.matrix_rank(rows) == coverage.space.rank

    assert span.met
    assert span.suggested >= fewest(coverage, is_connected_and_spanned) >= span.needed
    assert span.optimal == (span.suggested == span.needed)
    if len(coverage.space.blocks) > 1:
        assert span.optimal, "what connects factors also spans: every step adds a direction"


def test_a_set_of_all_concepts_does_not_change_the_rank():
    assert sets(4, (4, 2), 3, 0).space.rank == 4
    assert Coverage(pd.DataFrame({"set": ["a;b", "b;a"]}), ["set"]).spanned


@pytest.mark.parametrize("coverage", SMALL)
def test_suggestions_are_new_and_reach_the_goals(coverage):
    suggestions = coverage.suggest(12).suggestions
    codes = [
        tuple(sorted(suggestion.code.tolist(), key=lambda module: (module < 0, module)))
        for suggestion in suggestions
    ]
    assert len(set(codes)) == len(codes) == min(12, len(candidates(coverage)))
    assert set(codes) <= set(candidates(coverage))
    rows = rows_of(coverage, codes)
    assert conditions.connected(rows)
    assert np.linalg.matrix_rank(rows) == coverage.space.rank
    # Each suggestion describes its effect after the suggestions before it.
    for i, suggestion in enumerate(suggestions):
        rows_before = rows_of(coverage, codes[:i])
        rows_after = rows_of(coverage, codes[: i + 1])
        num_groups_before = len(conditions.components(rows_before))
        num_groups_after = len(conditions.components(rows_after))
        assert suggestion.joins - 1 == num_groups_before - num_groups_after
        rank_grows = np.linalg.matrix_rank(rows_after) > np.linalg.matrix_rank(rows_before)
        assert suggestion.spans == rank_grows


def drop_of(rows, missing) -> float:
    """The formula in the docstring of `expected_drop`, combination by combination."""
    counts = rows.sum(0)
    groups = conditions.components(rows)
    group_of = {module: number for number, group in enumerate(groups) for module in group}
    total = 0.0
    for code in missing:
        modules = [module for module in code if module >= 0]
        total += rarity_drop(counts[modules]).sum()
        mixed_groups = {group_of[module] for module in modules if counts[module]}
        row = np.array([[module in modules for module in range(rows.shape[1])]], np.int8)
        if len(mixed_groups) > 1:
            total += expected_drop.DROP_UNMIXED
        elif counts[modules].all() and not conditions.spanned(rows, row):
            total += expected_drop.DROP_UNSPANNED
    return total / max(len(missing), 1)


@pytest.mark.parametrize("coverage", SMALL)
def test_the_expected_drop_follows_its_formula(coverage):
    advice = coverage.suggest(5)
    held_out = {tuple(code) for code in coverage.held_out.tolist()}
    missing = [*candidates(coverage), *held_out]
    codes = [suggestion.code for suggestion in advice.suggestions]
    # The unspanned fraction is estimated from a sample. The rest is exact.
    expected_before = drop_of(rows_of(coverage), missing)
    expected_after = drop_of(rows_of(coverage, codes), missing)
    np.testing.assert_allclose(advice.drop_before, expected_before, atol=0.01)
    np.testing.assert_allclose(advice.drop_after, expected_after, atol=0.01)
    total_gain = sum(suggestion.gain for suggestion in advice.suggestions)
    np.testing.assert_allclose(total_gain, advice.drop_before - advice.drop_after)


@pytest.mark.parametrize("coverage", [factored((4, 3, 2), 14, 0), sets(6, (2, 3), 14, 1)])
def test_the_bound_on_the_lift_holds(coverage):
    assert coverage.connected
    assert coverage.spanned
    advice = coverage.suggest(2)
    share = ExpectedDrop(coverage.trained, len(coverage.combinations.codes)).share

    def lift(added) -> float:
        counts = coverage.trained.counts
        counts_after = counts + rows_of(coverage, added)[-len(added) :].sum(0)
        return share @ (rarity_drop(counts) - rarity_drop(counts_after))

    best = max(lift(added) for added in itertools.combinations(candidates(coverage), 2))
    reached = lift([suggestion.code for suggestion in advice.suggestions])
    (goal,) = (goal for goal in advice.goals if goal.name == "lift")
    assert reached <= best <= reached / goal.share + 1e-12, "the bound is a bound"
    assert reached > 0.9 * best


def test_the_drops_are_those_of_the_committed_tables():
    rows = module_frequency.prepare(rc.Table(RESULTS / "module_frequency.parquet").read())
    for num, drop in expected_drop.DROP_BY_COUNT.items():
        measured = module_frequency.drop(rows, "Unpopular", num)
        assert measured == pytest.approx(drop, abs=0.001)
        assert rarity_drop(np.array([num]))[0] == drop
    rows = support_conditions.prepare(rc.Table(RESULTS / "support_conditions.parquet").read())
    absent = support_conditions.drop("random", "module missing")(rows)
    unmixed = support_conditions.drop("random", "unmixed, as published")(rows)
    drawn_weights = rows[rows["law"] == "discrete"]
    unspanned = support_conditions.drop("spanned", "unspanned")(drawn_weights)
    assert absent == pytest.approx(expected_drop.DROP_ABSENT, abs=0.005)
    assert unmixed == pytest.approx(expected_drop.DROP_UNMIXED, abs=0.005)
    assert unspanned == pytest.approx(expected_drop.DROP_UNSPANNED, abs=0.005)


def test_the_drop_is_convex_in_the_count():
    steps = -np.diff(rarity_drop(np.arange(200)))
    assert (steps > 0).all()
    assert (np.diff(steps) < 1e-12).all(), "the bound on the lift needs convexity"


def test_a_huge_space_is_not_listed():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"f{i}": rng.integers(0, 20, 400).astype(str) for i in range(10)})
    # Three groups that are not linked to the rest.
    frame.loc[390:] = [[f"{letter}{i % 3}" for letter in "abcdefghij"] for i in range(10)]
    coverage = Coverage(frame, list(frame))
    assert coverage.missing["of"] > 10**13
    connect, span, lift = coverage.suggest(30).goals
    assert connect.optimal
    assert span.optimal
    assert connect.suggested == 1, "one combination joins four groups of ten factors"
    assert lift.share > 0.9


def test_too_few_suggestions_do_not_meet_the_goal():
    frame = pd.DataFrame([(i, i) for i in range(6)], columns=["a", "b"])
    connect, span, lift = Coverage(frame, ["a", "b"]).suggest(2).goals
    assert (connect.suggested, connect.needed, connect.met, connect.optimal) == (2, 5, False, False)
    assert not span.met
    assert lift.suggested == 0


@pytest.mark.parametrize(
    ("train", "held_out"),
    [
        ([(1, 0), (2, 1), (0, 0)], [(2, 0)]),
        ([(0, 0, 1), (1, 1, 0)], [(1, 0, 1), (0, 1, 1)]),
        ([(0, 0), (1, 2)], [(1, 0)]),
    ],
)
def test_a_link_is_searched_in_every_factor(train, held_out):
    names = ["a", "b", "c"][: len(train[0])]
    coverage = Coverage(
        pd.DataFrame(train, columns=names),
        names,
        held_out=pd.DataFrame(held_out, columns=names),
    )
    connect, span, _ = coverage.suggest(6).goals
    assert connect.suggested == connect.needed == fewest(coverage, conditions.connected)
    assert connect.optimal
    assert span.suggested >= connect.suggested


def test_combinations_that_span_may_also_connect():
    coverage = Coverage(pd.DataFrame({"set": ["a;b", "c;d", "e;f"]}), ["set"])
    adviser = Adviser(
        coverage.trained, coverage.cooccurrence, coverage.combinations.codes, coverage.held_out
    )
    adviser._find_link = lambda: None
    connect, span, _ = adviser.advise(12).goals
    assert not coverage.connected
    assert connect.met
    assert 0 < connect.suggested <= span.suggested, "counted until the goal is met"


@pytest.mark.parametrize("coverage", SMALL)
def test_suggestions_are_in_greedy_order(coverage):
    drop = ExpectedDrop(coverage.trained, len(coverage.combinations.codes))
    trained = coverage.trained
    codes = [suggestion.code for suggestion in coverage.suggest(12).suggestions]
    for i, code in enumerate(codes):
        drops = [drop(trained.plus(other)) for other in codes[i:]]
        assert drops[0] <= min(drops) + 1e-12
        trained = trained.plus(code)
