import itertools

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.coverage import Coverage, advice, outlook
from recombine.experiments.claim import RESULTS
from recombine.experiments.paper import module_frequency, support_conditions
from recombine.parts import conditions


def factored(sizes, num, seed, unseen=()):
    """A random table, every possible combination, and what is held out: all that have the last value of a factor."""
    rng = np.random.default_rng(seed)
    every = list(itertools.product(*map(range, sizes)))
    plain = [c for c in every if all(c[f] < sizes[f] - 1 for f in unseen)]
    rows = [plain[i] for i in rng.choice(len(plain), num, replace=False)]
    names = [f"f{i}" for i in range(len(sizes))]
    # Only named, so that its values are known; all but one combination of them may be suggested.
    held = [next(c for c in every if c[f] == sizes[f] - 1) for f in unseen]
    given = {"held_out": pd.DataFrame(held, columns=names)} if held else {}
    return Coverage(pd.DataFrame(rows, columns=names), names, **given)


def sets(num_modules, sizes, num, seed):
    rng = np.random.default_rng(seed)
    every = [c for size in sizes for c in itertools.combinations(range(num_modules), size)]
    rows = [every[i] for i in rng.choice(len(every), num, replace=False)]
    return Coverage(
        pd.DataFrame({"set": ["+".join(map(str, c)) for c in rows]}), ["set"], separator="+"
    )


def free(coverage) -> list[tuple[int, ...]]:
    """Every combination that could be suggested, found by listing all."""
    taken = {tuple(c) for c in (*coverage.combinations.codes.tolist(), *coverage.held_out.tolist())}
    return [
        c for c in coverage.space.among(np.arange(coverage.space.num_modules)) if c not in taken
    ]


def rows_of(coverage, more=()) -> np.ndarray:
    codes = [*coverage.combinations.codes.tolist(), *more]
    return np.array(
        [[m in code for m in range(coverage.space.num_modules)] for code in codes], np.int8
    )


def fewest(coverage, good) -> int:
    """How many combinations must be added until the rows are good, by trying all."""
    return next(
        num
        for num in range(10)
        for more in itertools.combinations(free(coverage), num)
        if good(rows_of(coverage, more))
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

    def both(rows):
        return conditions.connected(rows) and np.linalg.matrix_rank(rows) == coverage.space.rank

    assert span.met
    assert span.suggested >= fewest(coverage, both) >= span.needed
    assert span.optimal == (span.suggested == span.needed)
    if len(coverage.space.blocks) > 1:
        assert span.optimal, "what connects factors also spans: every step adds a direction"


def test_a_set_of_everything_is_no_trap():
    assert sets(4, (4, 2), 3, 0).space.rank == 4
    assert Coverage(pd.DataFrame({"set": ["a;b", "b;a"]}), ["set"]).spanned


@pytest.mark.parametrize("coverage", SMALL)
def test_suggestions_are_new_and_make_good_what_was_lacking(coverage):
    found = coverage.suggest(12).suggestions
    codes = [tuple(sorted(one.code.tolist(), key=lambda m: (m < 0, m))) for one in found]
    assert len(set(codes)) == len(codes) == min(12, len(free(coverage)))
    assert set(codes) <= set(free(coverage))
    after = rows_of(coverage, codes)
    assert conditions.connected(after)
    assert np.linalg.matrix_rank(after) == coverage.space.rank
    # Every one tells what it does after those before it.
    for place, one in enumerate(found):
        before, then = (
            len(conditions.components(rows_of(coverage, codes[:n]))) for n in (place, place + 1)
        )
        assert one.joins - 1 == before - then
        before, then = (
            np.linalg.matrix_rank(rows_of(coverage, codes[:n])) for n in (place, place + 1)
        )
        assert one.spans == (then > before)


def drop_of(coverage, rows, missing) -> float:
    """The model that `outlook` writes down, combination by combination."""
    counts, groups = rows.sum(0), conditions.components(rows)
    number = {module: place for place, group in enumerate(groups) for module in group}
    total = 0.0
    for code in missing:
        held = [module for module in code if module >= 0]
        total += outlook.rarity(counts[held]).sum()
        met = {number[module] for module in held if counts[module]}
        row = np.array([[module in held for module in range(rows.shape[1])]], np.int8)
        if len(met) > 1:
            total += outlook.UNMIXED
        elif counts[held].all() and not conditions.spanned(rows, row):
            total += outlook.UNSPANNED
    return total / max(len(missing), 1)


@pytest.mark.parametrize("coverage", SMALL)
def test_the_expected_drop_is_the_model_that_is_written_down(coverage):
    found, held = coverage.suggest(5), {tuple(c) for c in coverage.held_out.tolist()}
    missing = [*free(coverage), *held]
    codes = [one.code for one in found.suggestions]
    # What is not spanned is told from a sample: the rest is exact.
    np.testing.assert_allclose(found.drop, drop_of(coverage, rows_of(coverage), missing), atol=0.01)
    np.testing.assert_allclose(
        found.left, drop_of(coverage, rows_of(coverage, codes), missing), atol=0.01
    )
    np.testing.assert_allclose(sum(one.gain for one in found.suggestions), found.drop - found.left)


@pytest.mark.parametrize("coverage", [factored((4, 3, 2), 14, 0), sets(6, (2, 3), 14, 1)])
def test_the_lift_is_as_near_to_the_best_as_it_says(coverage):
    assert coverage.connected
    assert coverage.spanned
    found, share = (
        coverage.suggest(2),
        advice.Outlook(coverage.trained, len(coverage.combinations.codes)).share,
    )

    def lifted(more) -> float:
        before = coverage.trained.counts
        return share @ (
            outlook.rarity(before)
            - outlook.rarity(before + rows_of(coverage, more)[-len(more) :].sum(0))
        )

    best = max(lifted(more) for more in itertools.combinations(free(coverage), 2))
    reached = lifted([one.code for one in found.suggestions])
    (goal,) = (goal for goal in found.goals if goal.name == "lift")
    assert reached <= best <= reached / goal.share + 1e-12, "the bound is a bound"
    assert reached > 0.9 * best


def test_rarity_is_what_the_lab_measured():
    rows = module_frequency._last(rc.Table(RESULTS / "module_frequency.parquet").read())
    for num, drop in outlook.RARE.items():
        found = module_frequency.drop(rows, "Unpopular", "support.num_tasks", num)
        assert found == pytest.approx(drop, abs=0.001)
        assert outlook.rarity(np.array([num]))[0] == drop
    rows = support_conditions._last(rc.Table(RESULTS / "support_conditions.parquet").read())
    measured = {
        outlook.ABSENT: support_conditions._drop(rows, "random", "module missing"),
        outlook.UNMIXED: support_conditions._drop(rows, "random", "unmixed, as published"),
        outlook.UNSPANNED: support_conditions._drop(rows, "spanned", "unspanned", "discrete"),
    }
    for drop, found in measured.items():
        assert found == pytest.approx(drop, abs=0.005)


def test_rarity_falls_ever_more_slowly():
    drops = outlook.rarity(np.arange(200))
    steps = -np.diff(drops)
    assert (steps > 0).all()
    assert (np.diff(steps) < 1e-12).all(), (
        "convex, or the bound on what can be lifted would be none"
    )


def test_a_huge_space_is_advised_on_without_listing_it():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({f"f{i}": rng.integers(0, 20, 400).astype(str) for i in range(10)})
    # Three blocks that never meet the rest.
    frame.loc[390:] = [[f"{c}{i % 3}" for c in "abcdefghij"] for i in range(10)]
    coverage = Coverage(frame, list(frame))
    assert coverage.missing["of"] > 10**13
    connect, span, lift = coverage.suggest(30).goals
    assert connect.optimal
    assert span.optimal
    assert connect.suggested == 1, "four groups of ten factors"
    assert lift.share > 0.9


def test_a_budget_that_is_too_small_says_so():
    frame = pd.DataFrame([(i, i) for i in range(6)], columns=["a", "b"])
    connect, span, lift = Coverage(frame, ["a", "b"]).suggest(2).goals
    assert (connect.suggested, connect.needed, connect.met, connect.optimal) == (2, 5, False, False)
    assert not span.met
    assert lift.suggested == 0


@pytest.mark.parametrize(
    ("train", "held"),
    [
        ([(1, 0), (2, 1), (0, 0)], [(2, 0)]),
        ([(0, 0, 1), (1, 1, 0)], [(1, 0, 1), (0, 1, 1)]),
        ([(0, 0), (1, 2)], [(1, 0)]),
    ],
)
def test_what_would_link_is_looked_for_in_every_factor(train, held):
    names = ["a", "b", "c"][: len(train[0])]
    frames = [pd.DataFrame(rows, columns=names) for rows in (train, held)]
    coverage = Coverage(frames[0], names, held_out=frames[1])
    connect, span, _ = coverage.suggest(6).goals
    assert connect.suggested == connect.needed == fewest(coverage, conditions.connected)
    assert connect.optimal
    assert span.suggested >= connect.suggested


def test_what_links_may_be_what_spans_where_nothing_links_more():
    coverage = Coverage(pd.DataFrame({"set": ["a;b", "c;d", "e;f"]}), ["set"])
    adviser = advice.Adviser(
        coverage.trained, coverage.together, coverage.combinations.codes, coverage.held_out
    )
    adviser._link = lambda: None
    connect, span, _ = adviser.advise(12).goals
    assert not coverage.connected
    assert connect.met
    assert 0 < connect.suggested <= span.suggested, (
        "told by when it is reached, not by what looked for it"
    )


@pytest.mark.parametrize("coverage", SMALL)
def test_each_suggestion_is_the_best_of_those_that_follow(coverage):
    expected, trained = (
        advice.Outlook(coverage.trained, len(coverage.combinations.codes)),
        coverage.trained,
    )
    codes = [one.code for one in coverage.suggest(12).suggestions]
    for place, code in enumerate(codes):
        left = [expected.drop(trained.plus(other)) for other in codes[place:]]
        assert left[0] <= min(left) + 1e-12
        trained = trained.plus(code)
