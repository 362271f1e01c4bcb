import jax.numpy as jnp
import numpy as np
import pytest

from recombine.parts.encodings.orthogonal import Orthogonal
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.prng import new_key


def matrix(num_modules, seed=0):
    return np.asarray(
        Orthogonal().init(new_key(seed), Hyperteacher(num_modules=num_modules, num_hot=1))
    )


@pytest.mark.parametrize("num_modules", [1, 2, 7, 16])
def test_the_matrix_is_orthogonal(num_modules):
    q = matrix(num_modules)
    assert q.shape == (num_modules, num_modules)
    np.testing.assert_allclose(q @ q.T, np.eye(num_modules), atol=1e-5)
    np.testing.assert_allclose(q.T @ q, np.eye(num_modules), atol=1e-5)


def test_the_code_is_q_z_and_keeps_norms_and_angles():
    q, rng = matrix(7), np.random.default_rng(0)
    tasks = rng.uniform(0, 1, (2, 7)).astype(np.float32)
    codes = [
        np.asarray(Orthogonal().encode(jnp.asarray(q), new_key(1), jnp.asarray(z), None))
        for z in tasks
    ]
    for code, z in zip(codes, tasks, strict=True):
        np.testing.assert_allclose(
            code, [sum(q[i, j] * z[j] for j in range(7)) for i in range(7)], atol=1e-5
        )
        assert np.linalg.norm(code) == pytest.approx(np.linalg.norm(z), rel=1e-5)
    assert codes[0] @ codes[1] == pytest.approx(tasks[0] @ tasks[1], rel=1e-5)


def test_every_key_mixes_all_modules_in_its_own_way():
    first = matrix(16)
    second = matrix(16, seed=1)
    # Entries of a uniform orthogonal matrix have variance 1/M, far from the identity.
    for q in (first, second):
        assert np.abs(q).max() < 0.9
        assert abs(np.trace(q)) < 4
    assert np.abs(first - second).max() > 0.3
    assert abs((first * second).sum()) < 5


def test_codes_are_float_vectors():
    assert Orthogonal().num_tokens(Hyperteacher()) == 0
