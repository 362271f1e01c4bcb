import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.families.hyperteacher import Hyperteacher, Teacher
from recombine.parts.prng import new_key
from recombine.parts.protocols import Split
from recombine.sweeps.run import Run
from recombine.training.task_sampler import Setting, TaskSampler, make_shared


def teacher(family):
    rng = np.random.default_rng(0)
    modules = rng.normal(size=(family.num_modules, family.d_input, family.d_hidden))
    biases = rng.normal(size=(family.num_modules, family.d_hidden))
    readout = rng.normal(size=(family.d_hidden, family.num_outputs))
    return jax.tree.map(np.float32, Teacher((modules,), (biases,), readout))


def pairs(code, family, num_pairs):
    """The points and answers in a code: first all points, then all answers."""
    x, y = np.split(np.asarray(code), [num_pairs * family.d_input])
    return x.reshape(num_pairs, -1), y.reshape(num_pairs, -1)


def test_the_code_is_fifty_true_pairs_of_the_task():
    family, encoding = Hyperteacher(), FewShot()
    world, z = teacher(family), np.zeros(16, np.float32)
    z[[2, 5]] = 0.6, 1.0

    @jax.jit
    def encode(key, z):
        return encoding.encode((), key, z, lambda key, n: family.sample(world, key, z, n))

    codes = [np.asarray(encode(new_key(seed), z)) for seed in (0, 0, 1)]
    assert codes[0].shape == (1600,)
    assert codes[0].dtype == np.float32
    x, y = pairs(codes[0], family, 50)
    assert x.shape == y.shape == (50, 16)
    # f_z(x) = Omega^T relu((sum z Theta)^T x + sum z b) with z divided by sqrt(3)
    theta, b, omega = (
        np.asarray(a, np.float64) for a in (world.modules[0], world.biases[0], world.readout)
    )
    weight, bias = (0.6 * theta[2] + theta[5]) / 3**0.5, (0.6 * b[2] + b[5]) / 3**0.5
    np.testing.assert_allclose(y, np.maximum(x @ weight + bias, 0) @ omega, atol=1e-4)
    # The same key gives the same pairs, another key other pairs.
    np.testing.assert_array_equal(codes[0], codes[1])
    other, _ = pairs(codes[2], family, 50)
    assert len({row.tobytes() for row in np.concatenate([x, other])}) == 100


def test_the_points_to_be_predicted_are_not_among_the_pairs():
    family = Hyperteacher(num_modules=3, num_hot=2, d_input=4, d_hidden=4, num_outputs=2)
    run = Run(family=family, encoding=FewShot(num_pairs=8))
    lab = TaskSampler(
        run, make_shared(family), Split(*map(jnp.int32, (0, 1, 1))), Setting(teacher(family), ())
    )
    rows = jnp.asarray(family.tasks()[:2])
    batch = jax.jit(lab.draw, static_argnums=2)(new_key(0), rows, 16)
    assert batch.code.shape == (2, 8 * (4 + 2))
    points = [*np.asarray(batch.x).reshape(-1, 4)]
    for code in batch.code:
        points += [*pairs(code, family, 8)[0]]
    assert len({point.tobytes() for point in points}) == 2 * (16 + 8)


def test_at_least_one_pair_is_required():
    assert FewShot().num_tokens(Hyperteacher()) == 0
    with pytest.raises(InputError, match=r"FewShot\.num_pairs must be at least 1, got 0"):
        FewShot(0)
