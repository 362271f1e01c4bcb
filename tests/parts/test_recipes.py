import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from recombine.basics.errors import InputError
from recombine.parts.models.mlp import MLP
from recombine.parts.precision import matmul_dtype
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch
from recombine.parts.recipes.fast import Fast, _optimizer_names
from recombine.parts.recipes.paper import Paper
from recombine.sweeps.canonical_fields import canonical_fields
from recombine.sweeps.run import Run, identity, knobs, restore_knobs, structure

RNG = np.random.default_rng(0)
WEIGHTS = {"matrix": np.float32(RNG.normal(size=(4, 3))), "vector": np.float32(RNG.normal(size=5))}


def updates(recipe, num_steps, gradients, weights):
    """The updates of each step of a run, given its gradients, in one program."""

    @jax.jit
    def program(gradients, weights):
        optimiser = recipe.optimiser(num_steps)

        def step(carry, gradient):
            weights, state = carry
            update, state = optimiser.update(gradient, state, weights)
            return (optax.apply_updates(weights, update), state), update

        return jax.lax.scan(step, (weights, optimiser.init(weights)), gradients)[1]

    return jax.tree.map(np.asarray, program(gradients, weights))


def adam_by_hand(gradients, weights, learning_rate, weight_decay, nesterov=False):
    """AdamW (Loshchilov and Hutter 2019) in float64, optionally with Nesterov (Dozat 2016)."""
    w, m, v, steps = np.float64(weights), 0.0, 0.0, []
    for t, g in enumerate(np.float64(gradients), start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        ahead = (
            0.9 * m / (1 - 0.9 ** (t + 1)) + 0.1 * g / (1 - 0.9**t)
            if nesterov
            else m / (1 - 0.9**t)
        )
        step = ahead / (np.sqrt(v / (1 - 0.999**t)) + 1e-8) + weight_decay * w
        steps.append(-learning_rate * step)
        w = w + steps[-1]
    return np.stack(steps)


def test_the_papers_recipe_is_adamw_with_decay_on_matrices_only():
    gradients = jax.tree.map(lambda w: np.float32(RNG.normal(size=(3, *w.shape))), WEIGHTS)
    actual = updates(Paper(learning_rate=0.01, weight_decay=0.5), 3, gradients, WEIGHTS)
    for name, decay in (("matrix", 0.5), ("vector", 0.0)):
        expected = adam_by_hand(gradients[name], WEIGHTS[name], 0.01, decay)
        np.testing.assert_allclose(actual[name], expected, rtol=1e-4, atol=1e-7, err_msg=name)
    assert Paper() == Paper(learning_rate=3e-4, weight_decay=0.003)


def test_the_papers_learning_rate_is_constant():
    # With a constant gradient, every step of Adam is the learning rate, whatever the length of the
    # run.
    for num_steps in (20, 300_000):
        actual = updates(
            Paper(learning_rate=0.01, weight_decay=0),
            num_steps,
            np.full((20, 3), -2.0, np.float32),
            np.zeros(3),
        )
        np.testing.assert_allclose(actual, 0.01, rtol=1e-4)


def test_the_warm_up_of_the_papers_recipe_grows_linearly_and_ends():
    recipe = Paper(learning_rate=0.01, weight_decay=0, frac_warmup=0.2)
    actual = updates(recipe, 20, np.full((20, 3), -2.0, np.float32), np.zeros(3))
    fraction = np.array([0.25, 0.5, 0.75] + [1.0] * 17)
    np.testing.assert_allclose(actual[:, 0], 0.01 * fraction, rtol=1e-4)


def test_options_of_the_papers_recipe_change_no_earlier_hash():
    plain = Run(recipe=Paper())
    assert identity(plain) == identity(Run(recipe=Paper(frac_warmup=0.0, ema=0.0)))
    others = [Run(recipe=Paper(frac_warmup=0.1)), Run(recipe=Paper(ema=0.9))]
    assert len({identity(run) for run in (plain, *others)}) == 3
    assert "ema" not in canonical_fields(Paper())
    with pytest.raises(InputError, match=r"Paper\.ema must be below 1, got 1\.0"):
        Paper(ema=1)
    with pytest.raises(InputError, match=r"Paper\.frac_warmup must be below 1, got 1\.5"):
        Paper(frac_warmup=1.5)


@pytest.mark.parametrize(("frac_warmup", "warmup"), [(0.1, 4), (0.0, 1)])
def test_the_fast_learning_rate_warms_up_and_falls_as_a_cosine(frac_warmup, warmup):
    recipe = Fast(learning_rate=0.02, frac_warmup=frac_warmup, final=0.1, vector_rate=0.5)
    gradients = np.full((43, 3), -2.0, np.float32)
    # Adam's steps at a rate of 1, which are not quite 1 because of Nesterov's momentum.
    actual = updates(recipe, 40, gradients, np.zeros(3)) / adam_by_hand(
        gradients, np.zeros(3), 1, 0, nesterov=True
    )
    steps = np.arange(43)
    # Linear from 0 to the peak, then half a cosine to 10 percent of it at step 40, then constant.
    decay = 0.1 + 0.9 * (1 + np.cos(math.pi * np.clip((steps - warmup) / (40 - warmup), 0, 1))) / 2
    np.testing.assert_allclose(
        actual[:, 0], 0.01 * np.where(steps < warmup, steps / warmup, decay), rtol=1e-3, atol=1e-6
    )


def test_fast_updates_of_matrices_are_orthogonal_and_of_vectors_adams():
    # (out, in) as in equinox. Updates of a tall matrix are longer by sqrt(out / in).
    weights = {
        "tall": np.zeros((16, 4), np.float32),
        "wide": np.zeros((4, 16), np.float32),
        "vector": np.zeros(5),
    }
    gradients = jax.tree.map(
        lambda w: np.float32(np.repeat(RNG.normal(size=(1, *w.shape)), 3, axis=0)), weights
    )
    for name in ("tall", "wide"):
        u, _, v = np.linalg.svd(gradients[name], full_matrices=False)
        gradients[name] = np.float32(u * np.array([1, 0.3, 0.1, 0.03]) @ v)
    actual = updates(
        Fast(learning_rate=0.02, frac_warmup=0, final=1, vector_rate=0.3), 3, gradients, weights
    )
    for name, length in (("tall", 2.0), ("wide", 1.0)):
        u, sizes, v = np.linalg.svd(actual[name][2] / 0.02, full_matrices=False)
        # Newton-Schulz gives singular values between 0.7 and 1.2; the gradient's differ by a factor
        # of 33.
        assert 0.6 * length < sizes.min() <= sizes.max() < 1.3 * length
        # Up to that, it is minus the polar factor of the gradient.
        gu, _, gv = np.linalg.svd(gradients[name][0], full_matrices=False)
        assert np.vdot(u @ v, -gu @ gv) > 0.97 * 4
    expected = adam_by_hand(gradients["vector"], np.zeros(5), 0.3 * 0.02, 0, nesterov=True)
    np.testing.assert_array_equal(actual["vector"][0], 0)  # the warm-up's first step
    np.testing.assert_allclose(actual["vector"][1:], expected[1:], rtol=1e-3)


@pytest.mark.parametrize("recipe", [Paper(), Fast(frac_warmup=0)])
def test_knobs_may_be_traced(recipe):
    gradients = jax.tree.map(lambda w: jnp.asarray(RNG.normal(size=w.shape), jnp.float32), WEIGHTS)
    blank, steps = structure(Run(recipe=recipe)), 2

    def last_update(values):
        # As in a run: values are restored without checks, which a traced number would not pass.
        optimiser = restore_knobs(blank, values).recipe.optimiser(10)
        state, update = optimiser.init(WEIGHTS), None
        for _ in range(steps):
            update, state = optimiser.update(gradients, state, WEIGHTS)
        return update

    values = {
        "recipe.learning_rate": np.float32([0.01, 0.03]),
        "recipe.weight_decay": np.float32([0.0, 0.5]),
    }
    if isinstance(recipe, Fast):
        values["recipe.vector_rate"] = np.float32([1.0, 1.0])
    assert values.keys() == knobs(Run(recipe=recipe)).keys()
    together = jax.jit(jax.vmap(last_update))(values)
    first, second = (jax.tree.map(lambda a, i=i: np.asarray(a[i]), together) for i in (0, 1))
    # A step is proportional to the rate, and decay adds -rate x decay x weight to matrices only.
    np.testing.assert_allclose(second["vector"], 3 * first["vector"], rtol=1e-3)
    expected = 3 * first["matrix"] - 0.03 * 0.5 * WEIGHTS["matrix"]
    np.testing.assert_allclose(second["matrix"], expected, rtol=1e-3, atol=1e-6)
    assert np.abs(first["vector"]).min() > 1e-3


@pytest.mark.parametrize(
    ("recipe", "fields", "message"),
    [
        (Paper, {"learning_rate": -1e-3}, r"Paper\.learning_rate must be at least 0"),
        (
            Paper,
            {"learning_rate": float("nan")},
            r"Paper\.learning_rate must be at least 0, got nan",
        ),
        (Paper, {"weight_decay": -1}, r"Paper\.weight_decay"),
        (Paper, {"learning_rate": "fast"}, r"Paper\.learning_rate must be a number, got 'fast'"),
        (Fast, {"learning_rate": None}, r"Fast\.learning_rate must be a number"),
        (Fast, {"frac_warmup": 1}, r"Fast\.frac_warmup must be below 1"),
        (Fast, {"frac_warmup": -0.1}, r"Fast\.frac_warmup"),
        (Fast, {"ema": 1.0}, r"Fast\.ema must be below 1"),
        (Fast, {"ema": True}, r"Fast\.ema must be a number"),
        (Fast, {"final": -1}, r"Fast\.final"),
        (Fast, {"vector_rate": -0.1}, r"Fast\.vector_rate must be at least 0, got -0\.1"),
        (Fast, {"vector_rate": float("nan")}, r"Fast\.vector_rate must be at least 0, got nan"),
        (Fast, {"vector_rate": "slow"}, r"Fast\.vector_rate must be a number, got 'slow'"),
        (
            Fast,
            {"precision": "half"},
            r"Fast\.precision must be one of 'float32', 'bfloat16', 'auto', got 'half'",
        ),
        (
            Paper,
            {"precision": jnp.bfloat16},
            r"Paper\.precision must be one of 'float32', 'bfloat16', 'auto'",
        ),
    ],
)
def test_errors_name_the_field(recipe, fields, message):
    with pytest.raises(InputError, match=message):
        recipe(**fields)


def test_auto_is_float32_on_a_cpu_and_bfloat16_elsewhere(monkeypatch):
    assert jax.default_backend() == "cpu"
    assert matmul_dtype("auto") == matmul_dtype("float32") == jnp.float32
    assert matmul_dtype("bfloat16") == jnp.bfloat16
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert matmul_dtype("auto") == matmul_dtype("bfloat16") == jnp.bfloat16
    assert matmul_dtype("float32") == jnp.float32
    assert (Paper().precision, Fast().precision) == ("float32", "auto"), (
        "the paper's runs are float32"
    )


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_paper_s_first_moment_is_kept_in_the_recipe_s_type(precision):
    optimiser = Paper(precision=precision).optimiser(10)
    state = optimiser.init(WEIGHTS)
    for _ in range(2):
        update, state = optimiser.update(WEIGHTS, state, WEIGHTS)
    moments = optax.tree.get(state, "mu"), optax.tree.get(state, "nu")
    assert {leaf.dtype for leaf in jax.tree.leaves(moments[0])} == {jnp.dtype(precision)}
    assert {leaf.dtype for leaf in jax.tree.leaves(moments[1])} == {jnp.dtype("float32")}
    assert {leaf.dtype for leaf in jax.tree.leaves(update)} == {jnp.dtype("float32")}


def test_the_paper_s_bfloat16_updates_are_near_the_float32_ones():
    gradients = jax.tree.map(lambda w: np.float32(RNG.normal(size=(5, *w.shape))), WEIGHTS)
    exact, low = (
        updates(Paper(learning_rate=0.01, precision=p), 5, gradients, WEIGHTS)
        for p in ("float32", "bfloat16")
    )
    for name in WEIGHTS:
        # Adam's steps have the size of the rate; bfloat16 rounds the momentum by a factor of 2^-9.
        np.testing.assert_allclose(low[name], exact[name], atol=0.02 * 0.01, err_msg=name)
        assert np.abs(low[name] - exact[name]).max() > 0


def test_the_vector_rate_changes_vectors_alone():
    gradients = jax.tree.map(lambda w: np.float32(RNG.normal(size=(3, *w.shape))), WEIGHTS)
    full, slow, none = (
        updates(Fast(0.02, frac_warmup=0, vector_rate=rate), 3, gradients, WEIGHTS)
        for rate in (1.0, 0.1, 0.0)
    )
    np.testing.assert_array_equal(full["matrix"], slow["matrix"])
    np.testing.assert_allclose(slow["vector"], 0.1 * full["vector"], rtol=1e-5)
    assert not none["vector"].any()
    assert full["vector"][1:].all()


def test_embeddings_learn_by_adam_and_matrices_by_muon():
    example = Batch(jnp.zeros((4, 3)), jnp.zeros((4, 2)), jnp.zeros(5, jnp.int32), jnp.zeros(5))
    net = MLP(widths=(8,), tokens="embed", d_embed=4).init(new_key(0), example, 2, num_tokens=7)
    names = _optimizer_names(net)
    assert names.embedding.weight == "adam"
    assert [(layer.weight, layer.bias) for layer in names.layers] == [("muon", "adam")] * 2
    assert _optimizer_names(
        {"stack": jnp.zeros((3, 4, 5)), "embedding_like": jnp.zeros((2, 2))}
    ) == {
        "stack": "muon",
        "embedding_like": "muon",
    }
