"""The planner: numbers read off made-up curves exactly, laws between and beyond them, and the committed table."""

import json
import math

import pytest

from benchmarks import plan as maker
from recombine.basics.errors import InputError
from recombine.planning import planner

COLUMNS = ["modules", "hot", "seed", "support/num_train", "r2"]
H200 = "NVIDIA H200"


def curves(law, hots=(3,), modules=(8, 16, 32), seeds=3):
    """Scores that reach .9 at law(M, K, seed) tasks: .8 at a quarter of them, 1 at four times as many."""
    runs = []
    for m in modules:
        for k in hots:
            for seed in range(seeds):
                n = law(m, k, seed)
                runs += [[m, k, seed, n / 4, 0.8], [m, k, seed, n * 4, 1.0]]
    return {"student": "made up", "columns": COLUMNS, "runs": runs}


def ask(measured, num_modules, num_hot=3, target=0.9):
    return planner.plan(num_modules, num_hot, target, H200, measured=measured)


def test_a_measured_number_is_read_off_the_curve():
    found = ask(curves(lambda m, k, seed: m**2), 16)
    assert found["needed"] == 256
    assert found["interval"] == pytest.approx([256, 256], abs=1)
    assert not found["extrapolates"]
    assert found["tasks"] == 696
    assert found["share"] == pytest.approx(256 / 696)
    # Halfway in log n is halfway in score.
    assert ask(curves(lambda m, k, seed: m**2), 16, target=0.85)["needed"] == pytest.approx(
        256 / 2, abs=1
    )


def test_the_interval_is_over_seeds_and_reaches_to_the_law():
    found = ask(curves(lambda m, k, seed: m**2 * (1 + seed / 10)), 16)
    assert found["interval"][0] in (255, 256)
    assert found["interval"][1] in (307, 308)
    bent = curves(lambda m, k, seed: m**2 * (2 if m == 16 else 1))
    assert ask(bent, 16)["needed"] == pytest.approx(512, abs=1)
    assert ask(bent, 16)["interval"][0] == pytest.approx(16**2 * 2 ** (1 / 3), abs=2), (
        "what the law of all three says"
    )


def test_between_measured_numbers_the_law_speaks():
    found = ask(curves(lambda m, k, seed: 2 * m**1.5), 24)
    assert found["needed"] == math.ceil(2 * 24**1.5)
    assert not found["extrapolates"]
    bent = ask(curves(lambda m, k, seed: 2 * m**1.5 * (2 if m == 16 else 1)), 24)
    assert (
        bent["interval"][0] < bent["needed"] / 1.5 < bent["needed"] * 1.5 < bent["interval"][1]
    ), "it misses 16 by 2"


@pytest.mark.parametrize(
    ("num_modules", "outside"), [(9, False), (31, False), (33, True), (7, True), (64, True)]
)
def test_beyond_them_it_says_that_it_extrapolates(num_modules, outside):
    found = ask(curves(lambda m, k, seed: m**2), num_modules, num_hot=3)
    assert found["extrapolates"] == outside
    assert ("outside the measured 8 to 32" in found["why"]) == outside


def test_another_number_of_active_modules_is_extrapolated_and_its_interval_wider():
    measured = curves(lambda m, k, seed: m**2 * k, hots=(2, 3))
    known, found = ask(measured, 16, 3), ask(measured, 16, 5)
    assert found["needed"] == known["needed"]
    assert "K=5 was not measured: the law is that of K=3" in found["why"]
    assert found["interval"][1] == pytest.approx(known["interval"][1] * 1.5**2, rel=0.01), (
        "two steps of 3/2"
    )
    alone = ask(curves(lambda m, k, seed: m**2), 16, 4)
    assert alone["interval"][1] == pytest.approx(2 * 256, rel=0.01), (
        "without another law: a factor of two"
    )


def test_more_tasks_than_there_are_is_told():
    found = ask(curves(lambda m, k, seed: m**2 * k, hots=(1, 2), modules=(8, 16, 32)), 16, 1)
    assert found["tasks"] == 16
    assert "more than the 16 tasks that there are" in found["why"]


def test_a_target_that_nobody_reached_has_no_law():
    low = curves(lambda m, k, seed: m**2)
    low["runs"] = [[*run[:4], run[4] - 0.05] for run in low["runs"]]
    with pytest.raises(
        InputError,
        match=r"R2 0\.999 was reached.*best score there is 0\.950.*choose another target",
    ):
        ask(low, 16, target=0.999)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((1, 1, 0.9), "modules must be at least 2"),
        ((8, 0, 0.9), "hot must be from 1"),
        ((8, 9, 0.9), "hot must be from 1"),
        ((8, 3, 1.0), "between 0 and 1"),
        ((8, 3, float("nan")), "between 0 and 1"),
    ],
)
def test_bad_input_is_refused(arguments, told):
    with pytest.raises(InputError, match=told):
        planner.plan(*arguments, H200)


def test_the_committed_numbers_are_of_the_committed_tables():
    assert planner.load() == maker.measured(), "make it anew: python benchmarks/plan.py"


def test_the_command_answers_from_what_was_measured(call):
    code, out, _ = call(
        "plan", "--modules", "24", "--hot", "3", "--target", "0.95", "--device", H200, "--json"
    )
    found = json.loads(out)
    assert code == 0
    assert 190 < found["needed"] < 240, "docs/results: M=24, K=3"
    assert found["interval"][0] <= found["needed"] <= found["interval"][1]
    assert 0 < found["seconds"] < 120
    more = call("plan", "--modules", "64", "--hot", "3", "--device", H200)[1]
    assert "extrapolated: M=64 is outside the measured 8 to 32" in more
    assert call("plan", "--modules", "24", "--hot", "3", "--device", "abacus")[0] == 2


def test_another_k_answers_for_one_that_is_too_easy_but_never_for_one_that_fails():
    made = curves(lambda m, k, seed: m**2, hots=(3, 4))
    easy = made | {"runs": [[*run[:4], 0.99] if run[1] == 4 else run for run in made["runs"]]}
    found = ask(easy, 16, num_hot=4)
    assert found["needed"] == 256
    assert found["why"] == "K=4 tells no law: the law is that of K=3"
    hard = made | {"runs": [[*run[:4], 0.5] if run[1] == 4 else run for run in made["runs"]]}
    with pytest.raises(
        InputError, match=r"with K=4: no law can be fitted; the best score there is 0\.500"
    ):
        ask(hard, 16, num_hot=4)
    with pytest.raises(InputError, match="choose another target"):
        ask(hard, 16, num_hot=5, target=0.3)


def test_more_tasks_than_can_be_listed_are_counted():
    found = planner.plan(60, 5, 0.95, H200)
    assert found["tasks"] == sum(math.comb(60, k) for k in range(1, 6))
    assert 0 < found["needed"] < found["tasks"]
    assert found["seconds"] > 0
