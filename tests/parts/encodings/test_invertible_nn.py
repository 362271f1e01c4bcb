import jax
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.encodings.invertible_nn import InvertibleNN
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.prng import new_key


def shapes(num_modules, num_layers=3):
    """Half of the modules (rounded down, then up, …) -> 2M -> 2M -> scale and shift of others."""
    kept = [
        num_modules // 2 if i % 2 == 0 else num_modules - num_modules // 2
        for i in range(num_layers)
    ]
    return [
        [(k, 2 * num_modules), (2 * num_modules,) * 2, (2 * num_modules, 2 * (num_modules - k))]
        for k in kept
    ]


def weights(num_modules, scale, num_layers=3):
    rng = np.random.default_rng(0)
    return tuple(
        tuple(np.float32(rng.normal(0, scale, shape)) for shape in layer)
        for layer in shapes(num_modules, num_layers)
    )


@jax.jit
def encode_and_decode(params, tasks):
    """The codes of some tasks, and the tasks decoded from them."""
    codes = jax.vmap(lambda z: InvertibleNN().encode(params, new_key(1), z, None))(tasks)
    return codes, jax.vmap(lambda code: InvertibleNN().decode(params, code))(codes)


def by_hand(params, z):
    """The coupling layers in NumPy, in float64; layers alternate in which half they keep."""
    z = np.array(z, np.float64)
    half = len(z) // 2
    for i, layer in enumerate(params):
        first, second, last = (np.float64(w) for w in layer)
        kept, moved = (
            (slice(None, half), slice(half, None))
            if i % 2 == 0
            else (slice(half, None), slice(None, half))
        )
        h = 1 / (1 + np.exp(-z[kept] @ first))
        h = 1 / (1 + np.exp(-h @ second))
        s, t = np.split(h @ last, 2)
        z[moved] = z[moved] * (1 + np.tanh(s) / 2) + t
    return z


@pytest.mark.parametrize("num_modules", [2, 3, 7, 16])
@pytest.mark.parametrize("scale", [0.1, 1.0])
def test_the_task_can_be_recovered(num_modules, scale):
    tasks = np.float32(np.random.default_rng(1).uniform(0, 1, (3, num_modules)))
    params = weights(num_modules, scale)
    codes, recovered = encode_and_decode(params, tasks)
    np.testing.assert_allclose(recovered, tasks, atol=1e-5 if scale < 1 else 1e-4)
    np.testing.assert_allclose(codes, [by_hand(params, z) for z in tasks], atol=1e-5)
    assert np.abs(codes - tasks).min() > 1e-4, "every entry is changed by some coupling"


def test_couplings_take_turns():
    z = np.float32([[0.5, 0, 1, 0.7, 0.6]])
    after_one, _ = encode_and_decode(weights(5, 1.0, num_layers=1), z)
    np.testing.assert_array_equal(after_one[:, :2], z[:, :2])
    assert np.abs(after_one[:, 2:] - z[:, 2:]).min() > 0.01
    params = weights(5, 1.0, num_layers=2)
    after_two, recovered = encode_and_decode(params, z)
    np.testing.assert_allclose(after_two[:, 2:], after_one[:, 2:], atol=1e-6)
    assert np.abs(after_two[:, :2] - z[:, :2]).min() > 0.01
    np.testing.assert_allclose(recovered, z, atol=1e-5)


@pytest.mark.parametrize(("scale", "least", "most"), [(1.0, 0.1, 2.0), (0.1, 1e-4, 1e-2)])
def test_the_code_is_not_affine_in_the_task(scale, least, most):
    # An affine map takes midpoints to midpoints. With the published scale of 0.1 the code nearly
    # does.
    tasks = np.float32([np.zeros(16), np.ones(16), np.full(16, 0.5)])
    codes, _ = encode_and_decode(weights(16, scale), tasks)
    assert least < np.abs(codes[2] - (codes[0] + codes[1]) / 2).max() < most


@pytest.mark.parametrize("num_modules", [2, 3, 7, 16])
def test_the_networks_have_two_hidden_layers_of_width_2m(num_modules):
    family = Hyperteacher(num_modules=num_modules, num_hot=1)
    params = jax.eval_shape(lambda: InvertibleNN().init(new_key(0), family))
    assert [[w.shape for w in layer] for layer in params] == shapes(num_modules)


def test_weights_are_small_and_normal():
    params = jax.jit(lambda: InvertibleNN().init(new_key(0), Hyperteacher()))()
    drawn = np.concatenate([np.ravel(w) for layer in params for w in layer])
    assert len(drawn) == 3 * (8 * 32 + 32 * 32 + 32 * 16)
    assert drawn.std() == pytest.approx(0.1, rel=0.05)
    assert abs(drawn.mean()) < 0.007
    assert np.abs(drawn).max() > 0.3, "normal, not truncated"
    assert len(np.unique(drawn)) > 0.99 * len(drawn), "no two layers are alike"


def test_one_module_cannot_be_coupled():
    assert InvertibleNN().num_tokens(Hyperteacher()) == 0
    with pytest.raises(InputError, match="at least 2 modules"):
        InvertibleNN().init(new_key(0), Hyperteacher(num_modules=1, num_hot=1))


@pytest.mark.parametrize(
    ("fields", "name"), [({"num_layers": 0}, "num_layers"), ({"scale": -1}, "scale")]
)
def test_errors_name_the_field(fields, name):
    with pytest.raises(InputError, match=rf"InvertibleNN\.{name}"):
        InvertibleNN(**fields)
