"""The planner: exact numbers from synthetic curves, scaling laws, and the committed table."""

import json
import math

import pandas as pd
import pytest

import recombine as rc
from benchmarks import plan as plan_script
from recombine.basics.errors import InputError
from recombine.planning import planner
from recombine.storage.table import Table
from recombine.sweeps.run import describe, identity

COLUMNS = ["modules", "hot", "seed", "support/num_train", "r2"]
H200 = "NVIDIA H200"
TARGETS = (0.8, 0.85, 0.9, 0.95, 0.99)


def curves(law, hots=(3,), modules=(8, 16, 32), seeds=3):
    """Scores of 0.8 at law(M, K, seed) / 4 tasks and of 1 at 4 law(M, K, seed): 0.9 in between."""
    runs = []
    for m in modules:
        for k in hots:
            for seed in range(seeds):
                n = law(m, k, seed)
                runs += [[m, k, seed, n / 4, 0.8], [m, k, seed, n * 4, 1.0]]
    return {"student": "synthetic", "num_steps": 5000, "columns": COLUMNS, "runs": runs}


def ask(measured, num_modules, num_hot=3, target=0.9):
    return planner.plan(num_modules, num_hot, target, H200, measured=measured)


def test_a_measured_number_is_where_the_curve_crosses_the_target():
    result = ask(curves(lambda m, k, seed: m**2), 16)
    assert result["needed"] == 256
    assert result["interval"] == pytest.approx([256, 256], abs=1)
    assert not result["extrapolates"]
    assert result["tasks"] == 696
    assert result["share"] == pytest.approx(256 / 696)
    # Halfway in log n is halfway in score.
    assert ask(curves(lambda m, k, seed: m**2), 16, target=0.85)["needed"] == pytest.approx(
        256 / 2, abs=1
    )


def test_the_interval_is_over_seeds_and_reaches_to_the_law():
    result = ask(curves(lambda m, k, seed: m**2 * (1 + seed / 10)), 16)
    assert result["interval"][0] in (255, 256)
    assert result["interval"][1] in (307, 308)
    bent = curves(lambda m, k, seed: m**2 * (2 if m == 16 else 1))
    assert ask(bent, 16)["needed"] == pytest.approx(512, abs=1)
    assert ask(bent, 16)["interval"][0] == pytest.approx(16**2 * 2 ** (1 / 3), abs=2), (
        "the prediction of the law"
    )


def test_the_law_answers_between_measured_numbers():
    result = ask(curves(lambda m, k, seed: 2 * m**1.5), 24)
    assert result["needed"] == math.ceil(2 * 24**1.5)
    assert not result["extrapolates"]
    bent = ask(curves(lambda m, k, seed: 2 * m**1.5 * (2 if m == 16 else 1)), 24)
    assert (
        bent["interval"][0] < bent["needed"] / 1.5 < bent["needed"] * 1.5 < bent["interval"][1]
    ), "the law is off by a factor of 2 at 16"


@pytest.mark.parametrize(
    ("num_modules", "outside"), [(9, False), (31, False), (33, True), (7, True), (64, True)]
)
def test_numbers_outside_the_measured_ones_are_extrapolated(num_modules, outside):
    result = ask(curves(lambda m, k, seed: m**2), num_modules, num_hot=3)
    assert result["extrapolates"] == outside
    assert ("outside the measured 8 to 32" in result["why"]) == outside


def test_another_number_of_active_modules_has_a_wider_interval():
    measured = curves(lambda m, k, seed: m**2 * k, hots=(2, 3))
    known, result = ask(measured, 16, 3), ask(measured, 16, 5)
    assert result["needed"] == known["needed"]
    assert "K=5 was not measured, so the law of K=3 is used" in result["why"]
    assert result["interval"][1] == pytest.approx(known["interval"][1] * 1.5**2, rel=0.01), (
        "two steps of 3/2"
    )
    alone = ask(curves(lambda m, k, seed: m**2), 16, 4)
    assert alone["interval"][1] == pytest.approx(2 * 256, rel=0.01), (
        "without another law: a factor of two"
    )


def test_more_tasks_than_exist_is_a_caveat():
    result = ask(curves(lambda m, k, seed: m**2 * k, hots=(1, 2), modules=(8, 16, 32)), 16, 1)
    assert result["tasks"] == 16
    assert "more than all 16 tasks" in result["why"]


def test_a_target_that_no_run_reached_has_no_law():
    low = curves(lambda m, k, seed: m**2)
    low["runs"] = [[*run[:4], run[4] - 0.05] for run in low["runs"]]
    with pytest.raises(
        InputError,
        match=r"law for R2 0\.999 with .*best score there is 0\.950.*choose another target",
    ):
        ask(low, 16, target=0.999)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 1, 0.9), "modules must be at least 2"),
        ((8, 0, 0.9), "max-active must be from 1"),
        ((8, 9, 0.9), "max-active must be from 1"),
        ((8, 3, 1.0), "between 0 and 1"),
        ((8, 3, float("nan")), "between 0 and 1"),
        ((10**400, 3, 0.9), "modules must be at most 10,000"),
        ((10**4, 5000, 0.9), "lower num_hot"),
    ],
)
def test_bad_arguments_raise_an_error(arguments, message):
    with pytest.raises(InputError, match=message):
        planner.plan(*arguments, H200)


@pytest.mark.parametrize("num_seeds", [0, 10**12, 10**30])
def test_impossible_numbers_of_seeds_raise_an_error(num_seeds):
    with pytest.raises(InputError, match="seeds must be from 1 to 10,000"):
        planner.plan(8, 3, 0.9, H200, num_seeds)


def test_the_largest_numbers_are_planned():
    low, high = planner.plan(1000, 200, 0.95, H200)["interval"]
    assert 1 <= low < high < math.inf


def committed_cells() -> pd.DataFrame:
    """Every M and K of the committed scores, with every target that is asked below."""
    measured = planner.load()
    runs = pd.DataFrame(measured["runs"], columns=measured["columns"])
    cells = []
    for (num_modules, num_hot), own in runs.groupby(["modules", "hot"]):
        by_size = own.groupby("support/num_train")["r2"].agg(["mean", "count"])
        scores = by_size["mean"][by_size["count"] == own["seed"].nunique()]
        for target in TARGETS:
            too_few = scores.index[scores < target].max() if (scores < target).any() else 0
            enough = [size for size in scores.index if size > too_few]
            cells.append((int(num_modules), int(num_hot), target, too_few, enough))
    return pd.DataFrame(cells, columns=["modules", "hot", "target", "too_few", "enough"])


def test_no_plan_contradicts_a_committed_score():
    cells = committed_cells()
    assert len(cells) == 240
    num_refused = 0
    bases = []
    for cell in cells.itertuples():
        try:
            result = planner.plan(cell.modules, cell.hot, cell.target, H200)
        except planner.TargetNotReached:
            assert not cell.enough, "what was measured is answered"
            num_refused += 1
            continue
        low, high = result["interval"]
        assert low <= result["needed"] <= high, cell
        assert result["needed"] > cell.too_few, cell
        assert high > cell.too_few, cell
        bases.append(result["basis"])
        if not cell.enough:
            assert result["basis"] == "extrapolated"
            assert "tasks reach only R2" in result["why"], cell
            continue
        assert low <= cell.enough[0], cell
        assert result["needed"] <= cell.enough[0], cell
        if cell.too_few:
            assert result["basis"] == "measured", cell
    assert num_refused < 10
    assert set(bases) == {"measured", "interpolated", "extrapolated"}


def test_most_intervals_hold_without_the_scores_of_their_cell():
    measured = planner.load()
    is_inside = []
    for cell in committed_cells().itertuples():
        if cell.target not in (0.9, 0.95):
            continue
        others = [run for run in measured["runs"] if run[:2] != [cell.modules, cell.hot]]
        if not (cell.too_few and cell.enough):
            continue
        result = planner.plan(cell.modules, cell.hot, cell.target, H200)
        try:
            blind = ask(measured | {"runs": others}, cell.modules, cell.hot, cell.target)
        except planner.TargetNotReached:
            continue
        low, high = blind["interval"]
        assert blind["basis"] != "measured"
        is_inside.append(low <= result["needed"] <= high)
    assert len(is_inside) > 60, "what was measured, predicted from the other cells"
    assert sum(is_inside) / len(is_inside) >= 0.9


def test_the_interval_grows_with_the_distance_from_what_was_measured():
    def width(num_modules, num_hot):
        low, high = planner.plan(num_modules, num_hot, 0.95, H200)["interval"]
        return high / low

    by_modules = [width(num_modules, 4) for num_modules in (33, 48, 64, 128, 256)]
    assert by_modules == sorted(set(by_modules))
    by_hot = [width(64, num_hot) for num_hot in (6, 7, 8, 9, 10)]
    assert by_hot == sorted(set(by_hot))


def test_a_cell_whose_scores_stay_below_the_target_is_not_answered_by_the_law_alone():
    made = curves(lambda m, k, seed: m**2, modules=(8, 12, 16, 32))
    failing = [[*run[:4], 0.6] if run[0] == 12 else run for run in made["runs"]]
    result = ask(made | {"runs": failing}, 12)
    assert result["basis"] == "extrapolated"
    assert result["needed"] > 4 * 12**2 == max(run[3] for run in failing if run[0] == 12)
    assert "576 tasks reach only R2 0.600" in result["why"]
    easy = [[*run[:4], 0.95] if run[0] == 12 else run for run in made["runs"]]
    result = ask(made | {"runs": easy}, 12)
    assert result["needed"] == 12**2 / 4
    assert "36 tasks, the fewest measured, already reach it" in result["why"]


def test_the_committed_scores_are_those_of_the_tables():
    assert planner.load() == plan_script.measured(), "run python benchmarks/plan.py"


def rows_of_a_sweep(base, r2):
    runs = rc.sweep(base, frac_test=[0.5, 0.75], seed=range(2))
    return pd.DataFrame(
        {
            "run": identity(run),
            "step": run.num_steps,
            **describe(run),
            "support/num_train": round(100 * (1 - run.frac_test)),
            "test/r2": r2,
        }
        for run in runs
    )


def test_scores_of_two_recipes_are_not_mixed(tmp_path):
    earlier, faithful = plan_script.EARLIER_BASE, plan_script.BASES["full"]
    rows = [rows_of_a_sweep(base, r2) for base, r2 in ((earlier, 0.5), (faithful, 0.25))]
    tables = [Table(tmp_path / name) for name in plan_script.TABLES]
    for table in tables:
        table.append(rows[0])
        table.append(rows[1])
        table.note(shown=list(rows[0]["run"]))

    def measured():
        document = plan_script.measured(tmp_path)
        return document["num_steps"], {run[-1] for run in document["runs"]}

    assert measured() == (5000, {0.5})
    tables[0].note(shown=list(rows[1]["run"]))
    assert measured() == (5000, {0.5}), "one of the tables still shows the earlier recipe"
    tables[1].note(shown=list(rows[1]["run"]))
    assert measured() == (8000, {0.25})


def test_the_command_uses_the_committed_scores(call):
    code, out, _ = call(
        "plan",
        "--modules",
        "24",
        "--max-active",
        "3",
        "--target",
        "0.95",
        "--device",
        H200,
        "--json",
    )
    result = json.loads(out)
    assert code == 0
    assert 190 < result["needed"] < 240, "docs/results: M=24, K=3"
    assert result["interval"][0] <= result["needed"] <= result["interval"][1]
    assert 0 < result["seconds"] < 120
    more = call("plan", "--modules", "64", "--max-active", "3", "--device", H200)[1]
    assert "basis:         extrapolated" in more
    assert "extrapolated: M=64 is outside the measured 8 to 32" in more
    assert call("plan", "--modules", "24", "--max-active", "3", "--device", "abacus")[0] == 2


def test_another_k_answers_for_an_easy_one_but_not_for_one_that_fails():
    made = curves(lambda m, k, seed: m**2, hots=(3, 4))
    easy = made | {"runs": [[*run[:4], 0.99] if run[1] == 4 else run for run in made["runs"]]}
    result = ask(easy, 16, num_hot=4)
    assert result["needed"] == 64, "the law says 256, but 64 tasks were measured to be enough"
    assert "K=4 has no scaling law, so the law of K=3 is used" in result["why"]
    assert "64 tasks, the fewest measured, already reach it" in result["why"]
    hard = made | {"runs": [[*run[:4], 0.5] if run[1] == 4 else run for run in made["runs"]]}
    with pytest.raises(
        InputError, match=r"law for R2 0\.9 with K=4: .*; the best score there is 0\.500"
    ):
        ask(hard, 16, num_hot=4)
    with pytest.raises(InputError, match="choose another target"):
        ask(hard, 16, num_hot=5, target=0.3)


def test_a_family_with_too_many_tasks_to_list_is_planned():
    result = planner.plan(60, 5, 0.95, H200)
    assert result["tasks"] == sum(math.comb(60, k) for k in range(1, 6))
    assert 0 < result["needed"] < result["tasks"]
    assert result["seconds"] > 0
