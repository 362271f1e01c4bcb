"""Definitions 2.1 and 2.2: which tasks are distinct, how long a description is, and how counts grow."""

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
    found = _definitions.closest(functions, 1e-4)
    assert (found.first, found.second, found.injective) == (1, 4, True)
    assert found.separation == pytest.approx(0.01)
    pairs = [(one, other) for i, one in enumerate(functions) for other in functions[:i]]
    apart = [np.linalg.norm(one - other, axis=-1).mean() / np.sqrt(2) for one, other in pairs]
    assert found.typical == pytest.approx(np.mean(apart))
    assert not _definitions.closest(functions, 0.1).injective, "closer than the tolerance"


@pytest.mark.parametrize("weights", ["khot", "discrete", "continuous"])
def test_a_hyperteacher_is_injective_and_one_with_equal_modules_is_not(weights):
    family = rc.Hyperteacher(4, 2, 4, 4, 4, weights=weights)
    world, tasks = family.init(new_key(0)), _definitions.weighings(family, new_key(1), 2)
    assert _definitions.injective(family, world, tasks, new_key(2), 50, 1e-4).injective
    if weights == "khot":
        found = _definitions.injective(
            family, _definitions.twinned(world), tasks, new_key(2), 50, 1e-4
        )
        assert not found.injective
        assert tasks[[found.first, found.second]].tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]


def test_answers_are_to_the_same_inputs():
    world, tasks = TEACHER.init(new_key(0)), _definitions.weighings(TEACHER, new_key(1), 1)
    x, _ = TEACHER.sample(world, new_key(2), jnp.asarray(tasks[0]), 20)
    found = _definitions.answers(TEACHER, world, tasks, new_key(2), 20)
    np.testing.assert_allclose(found[5], TEACHER.teach(world, jnp.asarray(tasks[5]), x), atol=1e-6)


def test_preferences_that_differ_by_a_factor_are_the_same_task():
    family = rc.PreferenceGrid(4, 2, num_features=6, observation="compact")
    tasks = jnp.array([[0.5, 0, 0, 0], [1.0, 0, 0, 0], [0, 1.0, 0, 0], [0.5, 1.0, 0, 0]])
    found = _definitions.injective(family, family.init(new_key(0)), tasks, new_key(2), 240, 1e-4)
    assert (found.first, found.second, found.separation, found.injective) == (0, 1, 0.0, False)
    assert _definitions.injective(
        family, family.init(new_key(0)), tasks[1:], new_key(2), 240, 1e-4
    ).injective


def test_goals_that_differ_in_their_interaction_are_closest():
    """All else alike, they differ in one step of each episode."""
    family = rc.GoalGrid(2, 2, 2)
    tasks = _definitions.weighings(family, new_key(1), 1)
    found = _definitions.injective(family, family.init(new_key(0)), tasks, new_key(2), 96, 1e-4)
    assert np.flatnonzero(tasks[found.first] != tasks[found.second]).tolist() == [4, 5]
    assert found.separation == pytest.approx(1 / family.horizon)
    assert found.injective


def test_weighings_are_all_distinct_and_of_every_row():
    tasks = _definitions.weighings(TEACHER, new_key(0), 5)
    assert len(np.unique(tasks, axis=0)) == len(tasks) > 2 * len(TEACHER.tasks())
    assert (
        len(np.unique(tasks > 0, axis=0)) == len(TEACHER.tasks()) == _definitions.num_tasks(TEACHER)
    )


def test_descriptions_are_counted():
    assert _definitions.description(rc.Hyperteacher(8, 3)) == 8 * (16 * 16 + 16) + 16 * 16
    assert _definitions.description(rc.PreferenceGrid(8, 3)) == 8 * 32
    assert _definitions.description(rc.GoalGrid()) == 5 * (49 + 49 * 49)
    # Every combination has K modules and a readout of its own.
    assert _definitions.description(rc.Unrelated(8, 3)) == 92 * (3 * (16 * 16 + 16) + 16 * 16)
    assert _definitions.num_tasks(rc.GoalGrid()) == 500


def test_growth_tells_powers_from_exponentials():
    sizes = np.array([4, 6, 8, 12, 16])
    power, exponential = (
        _definitions.growth(sizes, 3.0 * sizes**2),
        _definitions.growth(sizes, 2.0**sizes),
    )
    assert power.power == pytest.approx(2)
    assert power.from_power == pytest.approx(0, abs=1e-12)
    assert not power.exponential
    assert exponential.rate == pytest.approx(np.log(2))
    assert exponential.from_exponential == pytest.approx(0, abs=1e-12)
    assert exponential.exponential
