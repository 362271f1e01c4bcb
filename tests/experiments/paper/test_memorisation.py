import math
from pathlib import Path

import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import memorisation
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity, structure
from recombine.training.program import initialize
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "memorisation.parquet"
TASKS = {4: 10, 8: 100}  # train tasks, by the number of modules
# The width (2, 8, 32 or 128) at which a score reaches the target, exactly.
WIDTHS = {
    ("Hyperteacher", "seen"): {4: 8, 8: 8},
    ("Hyperteacher", "test"): {4: 128, 8: 32},
    ("Unrelated", "seen"): {4: 8, 8: 128},
    ("Unrelated", "test"): {4: math.inf, 8: math.inf},
}


def rows_of(widths, num_seeds=3):
    """Rows with made-up scores: the target from the needed width on, below zero before.

    Scores below zero are lower with fewer modules.
    """
    rows = []
    for family in (rc.Hyperteacher, rc.Unrelated):
        for m, num_tasks in TASKS.items():
            for width in (2, 8, 32, 128):
                run = rc.Run(family=family(num_modules=m), model=rc.MLP((width,) * 3))
                row = {"step": 20, **describe(run), "support/num_train": num_tasks}
                for side in ("seen", "test"):
                    is_wide_enough = width >= widths[family.__name__, side][m]
                    row[f"{side}/r2"] = 0.9 if is_wide_enough else -0.8 / m
                for seed in range(num_seeds):
                    rows.append(row | {"run": f"{identity(run)}-{seed}", "seed": seed})
    return pd.DataFrame(rows)


def prepared(widths):
    return memorisation.prepare(rows_of(widths))


def claims_by_name(widths):
    return {claim.name: claim for claim in claims_of(memorisation, rows_of(WIDTHS | widths))}


def test_both_families_have_the_same_recipe_and_all_widths():
    runs = memorisation.runs("full")
    assert (len(runs), len(set(map(structure, runs)))) == (150, 50)
    assert {run.frac_test for run in runs} == {0.5}
    shared = {
        (run.num_steps, run.num_tasks, run.num_points, run.recipe, run.family.weights)
        for run in runs
    }
    assert len(shared) == 1, "both families are learned in the same way"
    for family in (rc.Hyperteacher, rc.Unrelated):
        of_family = [run for run in runs if isinstance(run.family, family)]
        cells = {(run.family.num_modules, run.model.widths[0]) for run in of_family}
        assert len(cells) == 5 * len(memorisation.WIDTHS[family]["full"])


def test_parameters_are_those_of_the_network():
    run = memorisation.runs("small")[0]
    net = initialize(run)[0]
    count = sum(layer.weight.size + layer.bias.size for layer in net.layers)
    assert memorisation.num_parameters(run.model.widths[0], run.family.num_modules) == count


def test_widths_and_exponents_are_measured():
    summary = memorisation.summary(rows_of(WIDTHS))
    assert summary["Hyperteacher, M=8: width to fit"] == pytest.approx(8)
    assert summary["Hyperteacher, M=8: width to generalise"] == pytest.approx(32)
    assert summary["Unrelated, M=8: width to fit"] == pytest.approx(128)
    fewer = memorisation.num_parameters(8, 4)
    more = memorisation.num_parameters(128, 8)
    # Ten times the tasks.
    assert summary["Unrelated: exponent"] == pytest.approx(math.log10(more / fewer))
    claims = claims_by_name({})
    assert {claim.verdict for claim in claims.values()} == {"reproduced"}
    assert claims["control"].measured == pytest.approx(-0.1)
    difference = summary["Unrelated: exponent"] - summary["Hyperteacher: exponent"]
    assert claims["parameters"].measured == pytest.approx(difference)
    # The gap is from .9 to -.2 with 4 modules, to -.1 with 8.
    assert claims["gap"].measured == pytest.approx(-0.1)
    # Students must be 16 times as wide to generalize with 4 modules, 4 times with 8.
    assert claims["window"].measured == pytest.approx(1 / 4)
    assert claims["window"].interval == pytest.approx((1 / 4, 1 / 4))


@pytest.mark.parametrize(
    ("widths", "failing"),
    [
        ({("Unrelated", "test"): {4: math.inf, 8: 128}}, {"control", "parameters"}),
        ({("Unrelated", "seen"): {4: 8, 8: 8}}, {"parameters"}),
        ({("Hyperteacher", "seen"): {4: 8, 8: math.inf}}, {"parameters", "window", "gap"}),
        ({("Hyperteacher", "seen"): {4: math.inf, 8: 8}}, {"parameters", "window", "gap"}),
        # The narrowest student fits, so the exponent is unknown.
        ({("Hyperteacher", "seen"): {4: 2, 8: 8}}, {"parameters"}),
        ({("Hyperteacher", "test"): {4: 8, 8: 32}}, {"window", "gap"}),
        ({("Hyperteacher", "test"): {4: math.inf, 8: math.inf}}, {"window"}),
        # Students generalize only with more modules.
        ({("Hyperteacher", "test"): {4: math.inf, 8: 128}}, set()),
    ],
)
def test_each_claim_can_fail(widths, failing):
    claims = claims_by_name(widths)
    assert {name for name, claim in claims.items() if claim.verdict != "reproduced"} == failing


def test_the_window_is_compared_with_the_fewest_modules_that_have_one(monkeypatch):
    monkeypatch.setitem(TASKS, 9, 1000)
    widths = {curve: by_modules | {9: 8} for curve, by_modules in WIDTHS.items()}
    widths["Hyperteacher", "test"] = {4: math.inf, 8: 32, 9: 128}
    ratio = memorisation.window_ratio(prepared(widths))
    assert ratio == pytest.approx(16 / 4), "it grows, though 4 modules have no window"


def test_the_fewest_tasks_that_are_never_fitted_count_with_the_widest_student(monkeypatch):
    monkeypatch.setitem(TASKS, 9, 1000)
    widths = {curve: by_modules | {9: math.inf} for curve, by_modules in WIDTHS.items()}
    widths["Unrelated", "seen"] = {4: 8, 8: math.inf, 9: math.inf}
    final = prepared(widths)
    fewer = memorisation.num_parameters(8, 4)
    more = memorisation.num_parameters(128, 8)
    exponent = memorisation.exponent(final, "Unrelated")
    assert exponent == pytest.approx(math.log10(more / fewer))
    exponent = memorisation.exponent(final, "Hyperteacher")
    assert math.isnan(exponent), "a number would favor the claim"


def test_more_tasks_that_are_fitted_count_beside_fewer_that_are_not():
    final = prepared(WIDTHS | {("Unrelated", "seen"): {4: math.inf, 8: 32}})
    fewer = memorisation.num_parameters(128, 4)
    more = memorisation.num_parameters(32, 8)
    exponent = memorisation.exponent(final, "Unrelated")
    assert exponent == pytest.approx(math.log10(more / fewer))


def test_the_widest_student_of_tasks_that_are_never_fitted_is_one_trained_on_them():
    final = prepared(WIDTHS | {("Unrelated", "seen"): {4: 8, 8: math.inf}})
    is_left_out = (final["family"] == "Unrelated") & (final["M"] == 8) & (final["model.width"] != 2)
    fewer = memorisation.num_parameters(8, 4)
    more = memorisation.num_parameters(2, 8)
    exponent = memorisation.exponent(final[~is_left_out], "Unrelated")
    assert exponent == pytest.approx(math.log10(more / fewer))


def test_missing_cells_are_not_yet_run():
    def measured(rows):
        return {claim.name for claim in claims_of(memorisation, rows) if claim.holds is not None}

    rows = rows_of(WIDTHS)
    assert measured(None) == set()
    assert measured(rows[rows["family.num_modules"] == 4]) == set()
    assert measured(rows[rows["family"] == "Unrelated"]) == {"control"}
    assert measured(rows[rows["family"] == "Hyperteacher"]) == {"window", "gap"}
    # Seeds that have not trained everything yet are left out: three of four are judged, two of four
    # are too few.
    rows = rows_of(WIDTHS, num_seeds=4)
    is_begun = rows["family.num_modules"] == 4
    judged = claims_of(memorisation, rows[(rows["seed"] < 3) | is_begun])
    assert {claim.seeds for claim in judged} == {3}
    assert all(claim.holds is not None for claim in judged)
    assert measured(rows[(rows["seed"] < 2) | is_begun]) == set()


def check_tiny(rows):
    widths = [width for name, width in memorisation.summary(rows).items() if "width" in name]
    assert widths == [math.inf] * 6, "20 steps are not enough"
    growth, scores, gap = figures_of(memorisation, rows).values()
    assert len({trace.name for trace in scores.data}) == 4
    assert {trace.name for trace in gap.data} == {"M = 3", "M = 4"}
    assert growth.layout.annotations[0].text == "no finite values to draw"
    holding = {claim.name for claim in claims_of(memorisation, rows) if claim.holds}
    assert not holding & {"parameters", "window"}


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert rows["run"].nunique() == 150
    assert not rows["diverged"].any()
    assert {claim.name: claim.verdict for claim in claims_of(memorisation, rows)} == {
        "control": "reproduced",
        "parameters": "reproduced",
        "window": "reproduced",
        "gap": "reproduced",
    }
    final = memorisation.prepare(rows)
    assert 0 < memorisation.window_ratio(final) < 1
    windows = memorisation.windows(final)
    assert windows == sorted(windows, reverse=True), "the more modules, the narrower"
