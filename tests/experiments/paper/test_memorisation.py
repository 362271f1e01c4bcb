import math
from pathlib import Path

import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import memorisation
from recombine.sweeps.run import describe, identity, structure
from recombine.training.program import fresh

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
    """Rows with made-up scores: on the target where a student is as wide as it must be; before, below zero, the lower
    the fewer modules there are."""
    made = []
    for kind in (rc.Hyperteacher, rc.Unrelated):
        for m, tasks in TASKS.items():
            for width in (2, 8, 32, 128):
                run = rc.Run(family=kind(num_modules=m), model=rc.MLP((width,) * 3))
                row = {"step": 20, **describe(run), "support/num_train": tasks}
                for side in ("seen", "test"):
                    row[f"{side}/r2"] = 0.9 if width >= widths[kind.__name__, side][m] else -0.8 / m
                made += [
                    row | {"run": f"{identity(run)}-{seed}", "seed": seed}
                    for seed in range(num_seeds)
                ]
    return pd.DataFrame(made)


def claims_of(widths):
    return {claim.name: claim for claim in memorisation.claims(rows_of(WIDTHS | widths))}


def test_the_sweep_is_the_one_that_is_promised():
    runs = memorisation.runs("full")
    assert (len(runs), len(set(map(structure, runs)))) == (150, 50)
    assert {run.frac_test for run in runs} == {0.5}
    shared = {
        (run.num_steps, run.num_tasks, run.num_points, run.recipe, run.family.weights)
        for run in runs
    }
    assert len(shared) == 1, "both families are learned in the same way"
    for kind in (rc.Hyperteacher, rc.Unrelated):
        cells = {
            (run.family.num_modules, run.model.widths[0])
            for run in runs
            if isinstance(run.family, kind)
        }
        assert len(cells) == 5 * len(memorisation.WIDTHS[kind]["full"])


def test_parameters_are_those_of_the_network():
    run = memorisation.runs("small")[0]
    net = fresh(run)[0]
    count = sum(layer.weight.size + layer.bias.size for layer in net.layers)
    assert memorisation.num_parameters(run.model.widths[0], run.family.num_modules) == count


def test_widths_and_exponents_are_read_off():
    rows = rows_of(WIDTHS)
    found = memorisation.summary(rows)
    assert found["Hyperteacher, M=8: width to fit"] == pytest.approx(8)
    assert found["Hyperteacher, M=8: width to generalise"] == pytest.approx(32)
    assert found["Unrelated, M=8: width to fit"] == pytest.approx(128)
    few, many = (memorisation.num_parameters(width, m) for width, m in ((8, 4), (128, 8)))
    assert found["Unrelated: exponent"] == pytest.approx(
        math.log10(many / few)
    )  # ten times the tasks
    claims = claims_of({})
    assert {claim.verdict for claim in claims.values()} == {"reproduced"}
    assert claims["control"].measured == pytest.approx(-0.1)
    assert claims["parameters"].measured == pytest.approx(
        found["Unrelated: exponent"] - found["Hyperteacher: exponent"]
    )
    assert claims["gap"].measured == pytest.approx(
        -0.1
    )  # from .9 to -.2 with 4 modules, to -.1 with 8
    # Sixteen times as wide with 4 modules, four times with 8.
    assert claims["window"].measured == pytest.approx(1 / 4)
    assert claims["window"].interval == pytest.approx((1 / 4, 1 / 4))


@pytest.mark.parametrize(
    ("widths", "failing"),
    [
        ({("Unrelated", "test"): {4: math.inf, 8: 128}}, {"control", "parameters"}),
        ({("Unrelated", "seen"): {4: 8, 8: 8}}, {"parameters"}),
        ({("Hyperteacher", "seen"): {4: 8, 8: math.inf}}, {"parameters", "window", "gap"}),
        ({("Hyperteacher", "seen"): {4: math.inf, 8: 8}}, {"parameters", "window", "gap"}),
        (
            {("Hyperteacher", "seen"): {4: 2, 8: 8}},
            {"parameters"},
        ),  # the narrowest fits: no exponent is known
        ({("Hyperteacher", "test"): {4: 8, 8: 32}}, {"window", "gap"}),
        ({("Hyperteacher", "test"): {4: math.inf, 8: math.inf}}, {"window"}),
        (
            {("Hyperteacher", "test"): {4: math.inf, 8: 128}},
            set(),
        ),  # only with more modules does it generalise
    ],
)
def test_each_claim_can_fail(widths, failing):
    assert {name for name, claim in claims_of(widths).items() if not claim.holds} == failing


def test_the_window_is_compared_with_the_fewest_modules_that_have_one(monkeypatch):
    monkeypatch.setitem(TASKS, 9, 1000)
    widths = {cell: of | {9: 8} for cell, of in WIDTHS.items()}
    never = widths | {("Hyperteacher", "test"): {4: math.inf, 8: 32, 9: 128}}
    assert memorisation.closing(rows_of(never)) == pytest.approx(16 / 4), (
        "it grows, though 4 modules have no window"
    )


def test_the_fewest_tasks_that_are_never_fitted_count_with_the_widest(monkeypatch):
    few, many = (memorisation.num_parameters(width, m) for width, m in ((8, 4), (128, 8)))
    never = {("Unrelated", "seen"): {4: 8, 8: math.inf, 9: math.inf}}
    monkeypatch.setitem(TASKS, 9, 1000)
    rows = rows_of({cell: widths | {9: math.inf} for cell, widths in WIDTHS.items()} | never)
    assert memorisation.power(rows, "Unrelated") == pytest.approx(math.log10(many / few))
    assert math.isnan(memorisation.power(rows, "Hyperteacher")), (
        "there it would be in favour of the claim"
    )


def test_only_students_that_were_trained_on_them_count_for_tasks_that_are_never_fitted():
    rows = rows_of(WIDTHS | {("Unrelated", "seen"): {4: 8, 8: math.inf}})
    narrow = (
        (rows["family"] == "Unrelated")
        & (rows["family.num_modules"] == 8)
        & (rows["model.widths"] != "2x2x2")
    )
    few, many = (memorisation.num_parameters(width, m) for width, m in ((8, 4), (2, 8)))
    assert memorisation.power(rows[~narrow], "Unrelated") == pytest.approx(math.log10(many / few))


def test_missing_cells_are_not_yet_run():
    def ready(rows):
        return {claim.name for claim in memorisation.claims(rows) if claim.holds is not None}

    rows = rows_of(WIDTHS)
    assert ready(None) == set()
    assert ready(rows[rows["family.num_modules"] == 4]) == set()
    assert ready(rows[rows["family"] == "Unrelated"]) == {"control"}
    assert ready(rows[rows["family"] == "Hyperteacher"]) == {"window", "gap"}
    # A seed that has not trained everything yet.
    assert len(ready(rows[(rows["seed"] == 0) | (rows["family.num_modules"] == 4)])) == 4


def test_tiny_runs_end_to_end():
    rows = rc.train(memorisation.runs("tiny"))
    found = memorisation.summary(rows)
    assert [width for name, width in found.items() if "width" in name] == [math.inf] * 6, (
        "20 steps are not enough"
    )
    growth, scores, gap = memorisation.figures(rows).values()
    assert len({trace.name for trace in scores.data}) == 4
    assert {trace.name for trace in gap.data} == {"M = 3", "M = 4"}
    assert growth.layout.annotations[0].text == "no finite values to draw"
    assert not {claim.name for claim in memorisation.claims(rows) if claim.holds} & {
        "parameters",
        "window",
    }


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert set(rows["run"]) == set(map(identity, memorisation.runs(table.meta()["scale"])))
    assert not rows["diverged"].any()
    assert {claim.name: claim.verdict for claim in memorisation.claims(rows)} == {
        "control": "reproduced",
        "parameters": "reproduced",
        "window": "reproduced",
        "gap": "reproduced",
    }
    assert 0 < memorisation.closing(rows) < 1
    windows = list(memorisation.window(rows).values())
    assert windows == sorted(windows, reverse=True), "the more modules, the narrower"
