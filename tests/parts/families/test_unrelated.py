import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.families.unrelated import Unrelated
from recombine.parts.prng import new_key

KEY = new_key(0)
FAMILY = Unrelated(num_modules=6, d_input=5, d_hidden=4, num_outputs=2)
sample = jax.jit(Unrelated.sample, static_argnums=(0, 4))
teacher = jax.jit(Unrelated.teacher, static_argnums=0)


def task(*active, num_modules=6, weight=1.0):
    return jnp.zeros(num_modules).at[jnp.array(active)].set(weight)


def test_a_task_is_the_weighted_sum_of_its_combinations_own_modules():
    z = jnp.array([0, 0.5, 0, 0, 1, 0.7])
    x, y = sample(FAMILY, FAMILY.init(KEY), new_key(1), z, 7)
    theta, b, omega = (np.asarray(a, np.float64) for a in teacher(FAMILY, KEY, z))
    assert (theta.shape, b.shape, omega.shape) == ((3, 5, 4), (3, 4), (4, 2))
    weight = (0.5 * theta[0] + theta[1] + 0.7 * theta[2]) / 3**0.5
    bias = (0.5 * b[0] + b[1] + 0.7 * b[2]) / 3**0.5
    np.testing.assert_allclose(y, np.maximum(x @ weight + bias, 0) @ omega, atol=1e-5)
    # A combination of two has only two modules in the sum.
    z = jnp.array([0, 0.5, 0, 0, 1, 0])
    x, y = sample(FAMILY, FAMILY.init(KEY), new_key(1), z, 7)
    theta, b, omega = (np.asarray(a, np.float64) for a in teacher(FAMILY, KEY, z))
    weight, bias = (0.5 * theta[0] + theta[1]) / 3**0.5, (0.5 * b[0] + b[1]) / 3**0.5
    np.testing.assert_allclose(y, np.maximum(x @ weight + bias, 0) @ omega, atol=1e-5)


def test_the_same_combination_always_has_the_same_teacher():
    full = teacher(FAMILY, KEY, task(1, 4))
    half = teacher(FAMILY, KEY, task(1, 4, weight=0.5))
    for array, other_array in zip(full, half, strict=True):
        np.testing.assert_array_equal(array, other_array)
    world = FAMILY.init(KEY)
    again, y, other = (
        sample(FAMILY, w, new_key(1), task(1, 4), 3)[1]
        for w in (world, world, FAMILY.init(new_key(2)))
    )
    np.testing.assert_array_equal(again, y)
    assert not np.allclose(other, y)


def test_no_two_combinations_share_anything():
    rows = jnp.asarray(Unrelated(num_modules=6).tasks(), jnp.float32)
    family = Unrelated(num_modules=6)
    drawn = jax.jit(jax.vmap(lambda z: family.teacher(KEY, z)))(rows)
    for numbers in drawn:
        flat = np.asarray(numbers).reshape(len(rows), -1)
        flat = (flat - flat.mean()) / flat.std()
        correlation = flat @ flat.T / flat.shape[1] - np.eye(len(rows))
        # 48 numbers at least: correlations of 0.14 by chance, of 1 where a module is shared.
        assert np.abs(correlation).max() < 0.75
        assert abs(correlation.mean()) < 0.02


def test_combinations_of_many_modules_have_different_teachers():
    # 8 and 40 are the same bit in words of 32 bits.
    family = Unrelated(num_modules=64)
    teachers = [teacher(family, KEY, task(m, num_modules=64))[2] for m in (8, 40)]
    assert not np.allclose(*teachers)
    family = Unrelated(num_modules=70)  # beyond 64 the stamps are hashes
    readouts = jax.jit(jax.vmap(lambda z: family.teacher(KEY, z)[2]))(jnp.eye(70))
    assert len({np.asarray(readout).tobytes() for readout in readouts}) == 70


@pytest.mark.parametrize("num_active", [1, 3])
def test_answers_are_as_large_as_the_hyperteachers(num_active):
    z = task(*range(num_active), num_modules=8, weight=0.8)
    variances = []
    for family in (Unrelated(num_modules=8), Hyperteacher(num_modules=8)):
        draw = jax.jit(
            jax.vmap(lambda key, family=family: family.sample(family.init(key), key, z, 16)[1])
        )
        y = np.asarray(draw(jax.random.split(KEY, 400)))
        variances.append(y.var(axis=1).mean())
    # 400 teachers have a standard error of 3 percent.
    assert variances[0] == pytest.approx(variances[1], rel=0.1)


def test_the_score_is_the_hyperteachers():
    rng = np.random.default_rng(0)
    y = rng.normal(3, [0.1, 1, 10, 0], (16, 4)).astype(np.float32)
    prediction = (y + rng.normal(0, 0.5, (16, 4))).astype(np.float32)
    for answers in (y, np.zeros_like(y)):
        arrays = jnp.asarray(prediction), jnp.asarray(answers)
        scores = Unrelated().score(*arrays)
        expected = Hyperteacher().score(*arrays)
        assert {name: float(v) for name, v in scores.items()} == {
            name: float(v) for name, v in expected.items()
        }


def test_tasks_and_weights_are_the_hyperteachers():
    family = Unrelated(num_modules=7)
    hyperteacher = Hyperteacher(num_modules=7)
    rows = family.tasks()
    np.testing.assert_array_equal(rows, hyperteacher.tasks())
    row = jnp.asarray(rows[-1])
    np.testing.assert_array_equal(family.weigh(KEY, row), hyperteacher.weigh(KEY, row))
    with pytest.raises(InputError, match=r"Unrelated\.d_input must be at least 1"):
        Unrelated(d_input=0)
    with pytest.raises(InputError, match="num_hot=5"):
        Unrelated(num_modules=4, num_hot=5)
