"""Theorem 4.1: the decoder, the bound on recovered tasks, the adversary and random errors."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.experiments.theory import _theorem_41 as theorem
from recombine.training.program import initialize

RNG = np.random.default_rng(0)
FUNCTIONS = RNG.normal(size=(12, 60, 3))


def levels(num_tasks, num_inputs, num_apart):
    """Tasks whose answers differ by at least 10 on the first inputs and are equal on the others."""
    functions = np.zeros((num_tasks, num_inputs, 1))
    functions[:, :num_apart, 0] = 10.0 * np.arange(num_tasks)[:, None]
    return functions


def points(models, functions, taus):
    min_apart = theorem.share_apart(functions, taus).min(axis=(1, 2))
    truth = np.arange(len(functions))
    agreements = theorem.agreement(models, functions, taus)
    return [
        theorem.evaluate(agrees, truth, float(apart))
        for agrees, apart in zip(agreements, min_apart, strict=True)
    ]


def test_agreement_equals_a_direct_count():
    taus = np.array([0.5, 1.2, 2.0])
    models = FUNCTIONS + RNG.normal(size=FUNCTIONS.shape)
    shares = theorem.agreement(models, FUNCTIONS, taus)
    for i, j in ((0, 0), (3, 7), (11, 2)):
        distances = np.linalg.norm(models[i] - FUNCTIONS[j], axis=-1) / np.sqrt(3)
        expected = [(distances <= tau).mean() for tau in taus]
        np.testing.assert_array_equal(shares[:, i, j], expected)


def test_shares_and_recovered_tasks_on_a_small_case():
    functions, taus = levels(4, 10, 6), np.array([4.0, 5.0])
    np.testing.assert_allclose(theorem.share_apart(functions, taus)[0], 0.6 + 0.4 * np.eye(4))
    # 2 tau = 10: neighbors do not differ by more than that, other pairs do.
    assert theorem.share_apart(functions, taus)[1][0, 1] == 0.0
    assert theorem.share_apart(functions, taus)[1][0, 2] == pytest.approx(0.6)
    models = functions.copy()
    models[0, :2] = functions[1, :2]
    models[1, :3] = functions[2, :3]
    models[2, :4] = functions[0, :4]
    agrees = theorem.agreement(models, functions, taus[:1])[0]
    truth = np.arange(4)
    np.testing.assert_allclose(theorem.share_wrong(agrees, truth), [0.2, 0.3, 0.4, 0.0])
    # Task 1 agrees with task 2 as often as with itself: a tie fails. Task 2 is taken for task 0.
    assert theorem.recovered(agrees, truth).tolist() == [True, False, False, True]


@pytest.mark.parametrize("scale", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.7])
def test_the_bounds_hold_for_any_model(scale, share):
    """Errors of two kinds: noise on every pair, and other tasks' answers on some of them."""
    taus = np.array([0.05, 0.2, 0.4])
    for seed in range(5):
        rng = np.random.default_rng(seed)
        # Some tasks get much more noise than others.
        noise = scale * rng.exponential(size=(12, 1, 1)) ** 3 * rng.normal(size=FUNCTIONS.shape)
        models = theorem.random_errors(FUNCTIONS, share, rng) + noise
        for point in points(models, FUNCTIONS, taus):
            assert point["recovery/theorem"] >= point["sharp bound"] - 1e-12
            if point["check"]:
                assert point["recovery/theorem"] >= point["bound"] - 1e-12
                assert point["sharp bound"] >= point["bound"]


def test_a_perfect_model_loses_no_task_and_a_permuted_decoder_recovers_none():
    (point,) = points(FUNCTIONS, FUNCTIONS, np.array([0.05]))
    assert point["delta"] == 0.0
    assert point["bound"] == point["recovery/theorem"] == 1.0
    assert point["check"]
    assert point["recovery/permuted"] == 0.0


def test_the_check_is_strict():
    assert theorem.check_holds(0.0399, 0.4)
    assert not theorem.check_holds(0.0401, 0.4)
    assert not theorem.check_holds(0.0, 0.0), (
        "even a perfect model does not distinguish tasks that are equal everywhere"
    )


def test_the_adversary_attains_the_sharp_bound_where_tasks_are_equally_far_apart():
    functions, tau = levels(20, 100, 80), 4.0
    for budget in (0.04, 0.16, 0.2):
        models = theorem.adversary(functions, tau, budget)
        (point,) = points(models, functions, np.array([tau]))
        # 40 of 100 wrong inputs lose a task: a share 2 delta / 0.8 of all tasks.
        assert point["delta"] == pytest.approx(budget)
        assert (
            point["recovery/theorem"]
            == pytest.approx(1 - budget / 0.4)
            == pytest.approx(point["sharp bound"])
        )
    # At delta = (apart / 2)^2, the border of the check, that is the theorem's own bound.
    assert theorem.bound(0.16) == pytest.approx(theorem.sharp_bound(0.16, 0.8))


def test_half_of_an_odd_number_of_inputs_is_rounded_up():
    """Two of three wrong inputs lose a task, one does not."""
    functions = levels(4, 10, 3)
    for budget, lost in ((0.025, 0), (0.05, 1), (0.1, 2)):
        (point,) = points(theorem.adversary(functions, 4.0, budget), functions, np.array([4.0]))
        assert point["delta"] == pytest.approx(0.05 * lost)
        assert point["recovery/theorem"] == 1 - lost / 4


def test_the_cheapest_tasks_go_first():
    """Two pairs of tasks differ on 8 and on 4 of 10 inputs: 4 errors lose the second pair."""
    functions = np.zeros((4, 10, 1))
    functions[0, :8], functions[2:] = 10.0, 50.0
    functions[2, :4] = 60.0
    (point,) = points(theorem.adversary(functions, 4.0, 4 / 40), functions, np.array([4.0]))
    assert (point["delta"], point["recovery/theorem"]) == (pytest.approx(0.1), 0.5)


def test_halfway_between_two_tasks_is_free():
    """Where two tasks differ by tau to 2 tau, the adversary's answer is right for both."""
    functions = np.zeros((2, 10, 1))
    functions[1, :4], functions[1, 4:] = 10.0, 3.0
    # 2 of 20 pairs: for one task, half of the 4 inputs that differ.
    models = theorem.adversary(functions, 2.0, 0.1)
    (point,) = points(models, functions, np.array([2.0]))
    assert (point["delta"], point["recovery/theorem"]) == (pytest.approx(0.1), 0.5)
    too_few = theorem.adversary(functions, 2.0, 0.09)
    assert too_few.tolist() == functions.tolist(), "too few errors to lose a task"


def test_the_number_of_random_errors():
    models = theorem.random_errors(levels(20, 1000, 1000), 0.3, np.random.default_rng(0))
    (point,) = points(models, levels(20, 1000, 1000), np.array([4.0]))
    assert point["delta"] == pytest.approx(0.3, abs=0.02)
    assert point["recovery/theorem"] == 1.0, "each other task gets only a few of them"


def test_actions_are_right_or_wrong():
    functions = np.array([[0, 1, 2, 3], [0, 1, 3, 2]])
    np.testing.assert_allclose(
        theorem.agreement(functions, functions, np.array([0.25]))[0], [[1, 0.5], [0.5, 1]]
    )


def test_the_linear_decoder_chooses_the_nearest_task():
    tasks = RNG.normal(size=(200, 4))
    features = tasks @ RNG.normal(size=(4, 6)) + 3.0
    np.testing.assert_array_equal(
        theorem.decode_linearly(features, tasks, features[:50], tasks[:50]), np.arange(50)
    )


RUN = rc.Run(
    family=rc.Hyperteacher(5, 2, 4, 4, 4),
    model=rc.MLP((8, 6)),
    num_steps=1,
    num_evals=1,
    diagnostics=(),
)


@pytest.mark.parametrize("encoding", [rc.Identity(), rc.IntervalShuffle()])
def test_students_get_codes_and_are_decoded_from_the_deepest_layer(encoding):
    run = dataclasses.replace(RUN, encoding=encoding)
    fitted = rc.fit(run)
    known = theorem.candidates(run.family, fitted.world, 0, 50, (0.5, 0.9))
    student = theorem.decode_student(fitted, initialize(run)[0], known)
    answers = np.stack([np.asarray(fitted.predict(known.x, task)) for task in known.tasks]).astype(
        np.float64
    )
    np.testing.assert_array_equal(
        student.agrees, theorem.agreement(answers, known.functions, known.taus)
    )
    truth = run.family.teach(fitted.world, jnp.asarray(known.tasks[7]), known.x)
    np.testing.assert_allclose(known.functions[7], truth, atol=1e-5)
    assert len(student.held_out) == 4, "a quarter of the 15 tasks"
    # Held-out tasks: linear codes are decoded perfectly, shuffled ones are not.
    assert student.linear["code"][student.held_out].all() == isinstance(encoding, rc.Identity)
    assert set(student.linear) == {"code", "hidden", "untrained"}


def test_tau_comes_from_the_tasks_alone():
    world = initialize(RUN)[1]
    known = theorem.candidates(RUN.family, world, 0, 50, (0.5, 0.9))
    apart = [
        np.sqrt(((function - other) ** 2).mean(axis=-1)).mean()
        for i, function in enumerate(known.functions)
        for other in known.functions[:i]
    ]
    np.testing.assert_allclose(known.taus, np.array([0.25, 0.45]) * min(apart))
    shares = [
        [(np.sqrt(((function - other) ** 2).mean(axis=-1)) > 2 * tau).mean() for tau in known.taus]
        for i, function in enumerate(known.functions)
        for other in known.functions[:i]
    ]
    np.testing.assert_allclose(
        known.apart, np.min(shares, axis=0), err_msg="the check concerns the two closest tasks"
    )
    assert (np.diff(known.apart) <= 0).all(), "with a larger tau, tasks differ on fewer inputs"
