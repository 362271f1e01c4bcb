import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from recombine.experiments.limits import _adaptation, _subnetworks, expert_vectors
from recombine.experiments.limits.expert_vectors import (
    FULL,
    LORA,
    LORA_MATCHED,
    MAKE,
    METHODS,
    SVF,
    SVF_KEPT,
)
from recombine.experiments.plots import figures_of
from recombine.parts.prng import new_key
from recombine.parts.relu_products import perceptron_from_layers
from tests.experiments.neutral import FAILED, claims_of


@pytest.fixture(scope="module")
def net():
    keys = jax.random.split(new_key(0), 2)
    return perceptron_from_layers(
        (jax.random.normal(keys[0], (6, 5)), jnp.ones(6)),
        (jax.random.normal(keys[1], (3, 6)), jnp.zeros(3)),
    )


def noise_like(tree, scale=0.3):
    leaves, structure = jax.tree.flatten(tree)
    noisy = [
        leaf + scale * jax.random.normal(new_key(i), leaf.shape) for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, noisy)


@pytest.mark.parametrize("method", METHODS)
def test_zero_parameters_give_the_network_itself(net, method):
    make = MAKE[method]
    fixed = make.fixed(net, new_key(1))
    same = make.net_of(net, fixed, make.zeros(net))
    other = make.net_of(net, fixed, noise_like(make.zeros(net)))
    for before, after, moved in zip(*map(_subnetworks.weights_of, (net, same, other)), strict=True):
        np.testing.assert_allclose(after, before, atol=1e-5)
        assert not np.allclose(moved, before, atol=1e-3)


def singular_values(net):
    return [np.linalg.svd(weight)[1] for weight in _subnetworks.weights_of(net)]


def test_svf_multiplies_singular_values(net):
    fixed = MAKE[SVF].fixed(net, None)
    params = [jnp.linspace(0.5, 0.0, 5), jnp.full(3, -0.5)]
    scaled = singular_values(MAKE[SVF].net_of(net, fixed, params))
    first, second = singular_values(net)
    np.testing.assert_allclose(scaled[0], first * np.linspace(1.5, 1.0, 5), rtol=1e-4)
    np.testing.assert_allclose(scaled[1], second / 2, rtol=1e-4)
    params = [jnp.linspace(3.0, -3.0, 5), jnp.zeros(3)]
    kept = singular_values(MAKE[SVF_KEPT].net_of(net, fixed, params))
    assert kept[0].sum() == pytest.approx(first.sum(), rel=1e-4)
    assert not np.allclose(kept[0], first, rtol=0.05)


def test_lora_updates_have_rank_one_and_at_least_as_many_parameters(net):
    for method in (LORA_MATCHED, LORA):
        make = MAKE[method]
        moved = make.net_of(net, make.fixed(net, new_key(1)), noise_like(make.zeros(net)))
        for before, after in zip(*map(_subnetworks.weights_of, (net, moved)), strict=True):
            values = np.linalg.svd(after - before)[1]
            assert values[0] > 0.01
            assert values[1:].max() < 1e-5
    count = {method: expert_vectors.num_parameters(method, net) for method in METHODS}
    assert count[SVF] == count[SVF_KEPT] == 5 + 3
    assert count[LORA_MATCHED] == 6 + 3
    assert count[LORA] == 6 + 5 + 3 + 6
    assert count[FULL] == 6 * 5 + 6 + 3 * 6 + 3


def linear_mix(weights):
    """A network on one input whose answer is (2 + w_0 3 + w_1 5) x."""
    slope = 2.0 + 3.0 * weights[0] + 5.0 * weights[1]
    first = (jnp.array([[0.0, 1.0]]), jnp.zeros(1))
    return perceptron_from_layers(first, (slope * jnp.ones((1, 1)), jnp.zeros(1)))


def test_weights_are_fitted_to_the_examples():
    """Of all weights with the right sum 3 w_0 + 5 w_1 = 7.5, least squares finds the shortest."""
    x = jnp.linspace(0.1, 1.0, 10).reshape(10, 1, 1)
    shots = (x, 9.5 * x, jnp.ones((10, 1)))
    weights = expert_vectors._least_squares(linear_mix, linear_mix(jnp.zeros(2)), shots)
    assert float(3 * weights[0] + 5 * weights[1]) == pytest.approx(7.5, rel=1e-3)
    found = expert_vectors._cross_entropy(linear_mix, shots, new_key(3))
    assert float(3 * found[0] + 5 * found[1]) == pytest.approx(7.5, abs=0.1)


def test_no_expert_sees_two_new_modules_and_the_base_sees_none():
    family = expert_vectors.RUNS["small"].family
    first_new = family.num_modules - expert_vectors.NUM_NEW
    base = expert_vectors.student_run("small", 0, joint=False).support
    joint = expert_vectors.student_run("small", 0, joint=True).support
    assert max(m for tasks in base.combinations for m in tasks) == first_new - 1
    num_new = [sum(m >= first_new for m in tasks) for tasks in joint.combinations]
    assert set(num_new) == {0, 1}
    assert {sum(m >= first_new for m in tasks) for tasks in joint.held_out} == {2}
    rows = _adaptation.rows_with(family, first_new, list(range(first_new)))
    assert (rows[:, first_new] > 0).all()
    assert not rows[:, first_new + 1 :].any()
    assert len(rows) == 1 + 5 + 10, "alone, with one and with two of five known modules"


def rows_of(base=0.0, joint=0.9, permuted=0.0, experts=0.9, **composed):
    """Made-up rows; `composed` are the R2 of the mixtures of each method."""
    values = {SVF: 0.8, SVF_KEPT: 0.5, LORA_MATCHED: 0.5, LORA: 0.6, FULL: 0.7} | composed
    rows = []
    for cell in expert_vectors.cells("small"):
        for seed in range(8):
            for way in expert_vectors.MIXTURES:
                rows.append(
                    cell
                    | {
                        "run": cell["method"],
                        "step": len(rows),
                        "seed": seed,
                        "mixture": way,
                        "composed": values[cell["method"]] + 0.001 * seed,
                        "permuted": permuted,
                        "weights": 0.5,
                        "base": base,
                        "joint": joint,
                        "experts": experts,
                        "parameters": 10,
                    }
                )
    return pd.DataFrame(rows)


def failing(**changes):
    judged = claims_of(expert_vectors, rows_of(**changes))
    return {claim.name for claim in judged if claim.verdict in FAILED}


def test_each_claim_can_fail():
    assert {claim.verdict for claim in claims_of(expert_vectors, rows_of())} == {"reproduced"}
    assert failing(**{LORA: 0.75}) == {"beats LoRA"}, "the larger LoRA counts, too"
    assert failing(**{LORA_MATCHED: 0.75}) == {"beats LoRA"}
    assert failing(joint=1.3) == {"near joint training"}
    assert failing(base=0.85, permuted=0.85) == {"mixing helps"}
    assert failing(**{FULL: 0.85}) == {"full fine-tuning"}
    assert failing(permuted=0.3) == {"beats LoRA", "permuted vectors"}
    assert failing(experts=0.3) == {"experts learn"}


def check_tiny(rows):
    assert len(rows) == 3 * 6 * 3, "seeds, pairs of four new modules, mixtures"
    assert rows["experts"].mean() > rows["base"].mean()
    assert rows["composed"].between(expert_vectors.MIN_R2, 1).all()
    assert len(figures_of(expert_vectors, rows)) == 3
