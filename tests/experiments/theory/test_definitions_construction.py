"""Definitions 2.1 and 2.2: distinct tasks, lengths of descriptions, and growth of counts."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.experiments.theory import _definitions
from recombine.parts.prng import new_key

TEACHER = rc.Hyperteacher(4, 2, 4, 4, 4)


def test_the_closest_pair_is_found():
    functions = np.random.default_rng(0).normal(size=(6, 40, 2))
    functions[4] = functions[1] + 0.01
    pair = _definitions.closest(functions, 1e-4)
    assert (pair.first, pair.second, pair.injective) == (1, 4, True)
    assert pair.separation == pytest.approx(0.01)
    distances = [
        np.linalg.norm(first - second, axis=-1).mean() / np.sqrt(2)
        for first, second in itertools.combinations(functions, 2)
    ]
    assert pair.typical == pytest.approx(np.mean(distances))
    assert not _definitions.closest(functions, 0.1).injective, "closer than the tolerance"


@pytest.mark.parametrize("weights", ["khot", "discrete", "continuous"])
def test_a_hyperteacher_is_injective_and_one_with_equal_modules_is_not(weights):
    family = rc.Hyperteacher(4, 2, 4, 4, 4, weights=weights)
    world, tasks = family.init(new_key(0)), _definitions.weighted_tasks(family, new_key(1), 2)
    assert _definitions.closest_tasks(family, world, tasks, new_key(2), 50, 1e-4).injective
    if weights == "khot":
        pair = _definitions.closest_tasks(
            family, _definitions.with_equal_modules(world), tasks, new_key(2), 50, 1e-4
        )
        assert not pair.injective
        assert tasks[[pair.first, pair.second]].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]


def test_answers_are_to_the_same_inputs():
    world, tasks = TEACHER.init(new_key(0)), _definitions.weighted_tasks(TEACHER, new_key(1), 1)
    x, _ = TEACHER.sample(world, new_key(2), jnp.asarray(tasks[0]), 20)
    outputs = _definitions.answers(TEACHER, world, tasks, new_key(2), 20)
    np.testing.assert_allclose(
        outputs[5], TEACHER.teach(world, jnp.asarray(tasks[5]), x), atol=1e-6
    )


def test_preferences_that_differ_by_a_factor_are_the_same_task():
    family = rc.PreferenceGrid(4, 2, num_features=6, observation="compact")
    tasks = jnp.array([[0.5, 0, 0, 0], [1.0, 0, 0, 0], [0, 1.0, 0, 0], [0.5, 1.0, 0, 0]])
    pair = _definitions.closest_tasks(family, family.init(new_key(0)), tasks, new_key(2), 240, 1e-4)
    assert (pair.first, pair.second, pair.separation, pair.injective) == (0, 1, 0.0, False)
    assert _definitions.closest_tasks(
        family, family.init(new_key(0)), tasks[1:], new_key(2), 240, 1e-4
    ).injective


def test_goals_that_differ_in_their_interaction_are_closest():
    """If all else is equal, they differ in one step of each episode."""
    family = rc.GoalGrid(2, 2, 2)
    tasks = _definitions.weighted_tasks(family, new_key(1), 1)
    pair = _definitions.closest_tasks(family, family.init(new_key(0)), tasks, new_key(2), 96, 1e-4)
    assert np.flatnonzero(tasks[pair.first] != tasks[pair.second]).tolist() == [4, 5]
    assert pair.separation == pytest.approx(1 / family.horizon)
    assert pair.injective


def test_weighted_tasks_are_distinct_and_cover_every_row():
    tasks = _definitions.weighted_tasks(TEACHER, new_key(0), 5)
    assert len(np.unique(tasks, axis=0)) == len(tasks) > 2 * len(TEACHER.tasks())
    num_combinations = len(np.unique(tasks > 0, axis=0))
    assert num_combinations == len(TEACHER.tasks()) == _definitions.num_tasks(TEACHER)


def test_descriptions_are_counted():
    assert _definitions.description_length(rc.Hyperteacher(8, 3)) == 8 * (16 * 16 + 16) + 16 * 16
    assert _definitions.description_length(rc.PreferenceGrid(8, 3)) == 8 * 32
    assert _definitions.description_length(rc.GoalGrid()) == 5 * (49 + 49 * 49)
    # Every combination has its own K modules and readout.
    assert _definitions.description_length(rc.Unrelated(8, 3)) == 92 * (
        3 * (16 * 16 + 16) + 16 * 16
    )
    assert _definitions.num_tasks(rc.GoalGrid()) == 500


def test_growth_distinguishes_powers_from_exponentials():
    sizes = np.array([4, 6, 8, 12, 16])
    power = _definitions.growth(sizes, 3.0 * sizes**2)
    exponential = _definitions.growth(sizes, 2.0**sizes)
    assert power.power == pytest.approx(2)
    assert power.power_error == pytest.approx(0, abs=1e-12)
    assert not power.is_exponential
    assert exponential.rate == pytest.approx(np.log(2))
    assert exponential.exponential_error == pytest.approx(0, abs=1e-12)
    assert exponential.is_exponential
