"""Muon: momentum with all singular values near one, in a chosen type."""

import jax
import jax.numpy as jnp
import numpy as np
import optax.contrib
import pytest

from recombine.parts.muon import orthogonalize, scale_by_muon

RNG = np.random.default_rng(0)
SHAPES = [(12, 5), (5, 12), (8, 8)]


def matrices(shape, num=3, least=0.05):
    """Random matrices whose singular values are known: from 1 down to `least`."""
    u, _, v = np.linalg.svd(RNG.normal(size=(num, *shape)), full_matrices=False)
    return np.float32(u * np.geomspace(1, least, min(shape)) @ v)


def polar(x):
    u, _, v = np.linalg.svd(x, full_matrices=False)
    return u @ v


@pytest.mark.parametrize("shape", SHAPES, ids=["tall", "wide", "square"])
def test_singular_values_end_near_one_and_directions_stay(shape):
    x = matrices(shape)
    actual = np.asarray(orthogonalize(jnp.asarray(x)))
    assert actual.shape == x.shape
    assert actual.dtype == np.float32
    sizes = np.linalg.svd(actual, compute_uv=False)
    assert 0.6 < sizes.min() <= sizes.max() < 1.3
    # Only singular values change: in the bases of the gradient the result is diagonal.
    u, _, v = np.linalg.svd(x, full_matrices=False)
    inside = u.mT @ actual @ v.mT
    assert np.abs(inside - inside * np.eye(min(shape))).max() < 1e-3
    cosine = np.vdot(actual, polar(x)) / np.linalg.norm(actual) / np.linalg.norm(polar(x))
    assert cosine > 0.97


@pytest.mark.parametrize("shape", SHAPES, ids=["tall", "wide", "square"])
def test_singular_values_follow_the_quintic_by_hand(shape):
    x = matrices(shape)
    sizes = np.linalg.svd(np.float64(x), compute_uv=False)
    sizes /= np.linalg.norm(sizes, axis=1, keepdims=True)
    for _ in range(5):  # X <- a X + b (X X^T) X + c (X X^T)^2 X, singular value by singular value
        sizes = 3.4445 * sizes - 4.7750 * sizes**3 + 2.0315 * sizes**5
    actual = np.linalg.svd(orthogonalize(jnp.asarray(x)), compute_uv=False)
    np.testing.assert_allclose(actual, -np.sort(-sizes, axis=1), rtol=1e-3)


@pytest.mark.parametrize("shape", SHAPES, ids=["tall", "wide", "square"])
def test_a_batch_is_its_matrices_one_by_one(shape):
    x = matrices(shape) * np.float32([1, 100, 1e-3])[:, None, None]  # each by its own size
    together = np.asarray(orthogonalize(jnp.asarray(x)))
    for i in range(len(x)):
        np.testing.assert_allclose(
            together[i : i + 1], orthogonalize(jnp.asarray(x[i : i + 1])), atol=1e-5
        )


def updates(transformation, gradients):
    """The updates for gradients given along the first axis."""

    @jax.jit
    def program(gradients):
        def step(state, gradient):
            update, state = transformation.update(gradient, state)
            return state, update

        start = transformation.init(jax.tree.map(lambda g: jnp.zeros(g.shape[1:]), gradients))
        return jax.lax.scan(step, start, gradients)[1]

    return jax.tree.map(np.asarray, program(gradients))


def of_optax():
    """The version of optax, with every leaf as a plain matrix."""
    kinds = optax.contrib.MuonDimensionNumbers(reduction_axis=0, output_axis=1)
    return optax.contrib.scale_by_muon(
        weight_dimension_numbers=lambda tree: jax.tree.map(lambda _: kinds, tree)
    )


def lengthened(updates):
    """The updates with longer steps for tall matrices, by sqrt(out / in), as in our version."""
    return {name: u * max(1, u.shape[1] / u.shape[2]) ** 0.5 for name, u in updates.items()}


def test_float32_updates_of_a_constant_gradient_are_optax_s():
    # The momentum is then proportional to the gradient, also with optax's bias correction, and the
    # scale has no effect.
    gradients = {str(shape): np.repeat(matrices(shape, 1), 4, axis=0) for shape in SHAPES}
    actual, expected = (updates(t, gradients) for t in (scale_by_muon(), of_optax()))
    for name, u in lengthened(expected).items():
        np.testing.assert_allclose(actual[name], u, atol=1e-4, err_msg=name)


def test_float32_updates_of_drawn_gradients_are_optax_s_once_its_corrections_are_spent():
    # At step t, optax weighs the newest gradient by (1 - .95^(t+1)) / (1 - .95^t), which is 1 +
    # 2e-7 after 250 steps.
    gradients = {str(s): np.float32(RNG.normal(size=(260, *s))) for s in SHAPES}
    # Two matrices of one shape are one batch.
    gradients["(5, 12) again"] = np.float32(RNG.normal(size=(260, 5, 12)))
    actual, expected = (updates(t, gradients) for t in (scale_by_muon(), of_optax()))
    for name, u in lengthened(expected).items():
        np.testing.assert_allclose(actual[name][250:], u[250:], atol=1e-3, err_msg=name)
        assert np.abs(u[250:] - u[249:-1]).max() > 0.02, "the steps differ from one another"


def test_the_first_step_looks_ahead_and_then_remembers():
    first, second = (matrices((8, 8), 1)[0] for _ in range(2))
    actual = updates(scale_by_muon(momentum=0.5), {"w": np.stack([first, second])})["w"]
    # m1 = .5 g1; m2 = .25 g1 + .5 g2; and Nesterov's .5 m2 + .5 g2 = .125 g1 + .75 g2.
    for step, ahead in zip(actual, (first, 0.125 * first + 0.75 * second), strict=True):
        np.testing.assert_allclose(step, orthogonalize(jnp.asarray(ahead[None]))[0], atol=2e-3)
    assert np.abs(actual[1] - np.asarray(orthogonalize(jnp.asarray(second[None]))[0])).max() > 0.02


def test_bfloat16_stays_within_a_few_percent():
    gradients = {str((m, n)): np.float32(RNG.normal(size=(5, 4 * m, 4 * n))) for m, n in SHAPES}
    exact, low = (
        updates(scale_by_muon(), gradients),
        updates(scale_by_muon(jnp.bfloat16), gradients),
    )
    for name in gradients:
        assert low[name].dtype == np.float32
        error = np.linalg.norm(low[name] - exact[name]) / np.linalg.norm(exact[name])
        # A rounding error is 2^-9; five iterations with slopes up to 3.4 add up about 30 of them.
        assert 1e-3 < error < 0.08, f"{name}: close but not equal, so the type is used"
        assert np.vdot(low[name], exact[name]) > 0.99 * np.linalg.norm(
            exact[name]
        ) * np.linalg.norm(low[name])


def test_momentum_is_kept_in_float32():
    transformation = scale_by_muon(jnp.bfloat16)
    gradient = {"w": jnp.asarray(matrices((8, 8), 1)[0])}
    _, state = transformation.update(gradient, transformation.init(gradient))
    np.testing.assert_allclose(state["w"], 0.05 * gradient["w"], rtol=1e-6)
    assert state["w"].dtype == jnp.float32


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_gradient_is_no_step(dtype):
    actual = updates(
        scale_by_muon(dtype), {str(shape): np.zeros((2, *shape), np.float32) for shape in SHAPES}
    )
    for update in actual.values():
        np.testing.assert_array_equal(update, 0)


def test_a_leaf_of_three_axes_is_a_stack_of_matrices():
    rng = np.random.default_rng(0)
    stack = jnp.asarray(rng.normal(size=(3, 6, 4)), jnp.float32)
    step = scale_by_muon()
    whole, _ = step.update({"w": stack}, step.init({"w": stack}))
    singles = {str(i): matrix for i, matrix in enumerate(stack)}
    single, _ = step.update(singles, step.init(singles))
    np.testing.assert_allclose(whole["w"], jnp.stack(list(single.values())), atol=1e-5)
