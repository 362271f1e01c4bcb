import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from recombine.experiments.limits import _coordinate_networks as networks
from recombine.experiments.limits import fractured_images
from recombine.experiments.limits.fractured_images import (
    FACTORED,
    RANDOM,
    SINGLE,
    SPARSE,
    STARTED,
    TRAINED,
)
from recombine.experiments.plots import figures_of
from recombine.parts.prng import new_key
from tests.experiments.neutral import FAILED, claims_of

SIZE = 8
INPUTS = jnp.asarray(networks.pixels(SIZE))
FACTORS = networks.draw_factors(new_key(4), 3)


def test_the_factored_solution_draws_the_target_which_is_symmetric():
    """The target is computed here pixel by pixel."""
    weights = networks.factored_weights(FACTORS, 12)
    drawn = np.asarray(networks.image(weights, INPUTS)).reshape(SIZE, SIZE)
    line = np.linspace(-1, 1, SIZE)
    for i, y in enumerate(line):
        for j, x in enumerate(line):
            value = 0.0
            for c, a, b, e in zip(*map(np.asarray, FACTORS), strict=True):
                value += c * np.exp(-((a * abs(x) + b * y + e) ** 2))
            assert drawn[i, j] == pytest.approx(value, abs=1e-4)
    np.testing.assert_allclose(drawn, drawn[:, ::-1], atol=1e-5)
    wanted = networks.target(FACTORS, INPUTS)
    assert float(networks.r2(weights, wanted, INPUTS)) == pytest.approx(1, abs=1e-5)


def test_asymmetry_is_0_for_even_4_for_odd_and_2_for_one_sided_changes():
    even = np.zeros((SIZE, SIZE))
    even[2, [1, -2]] = 3.0
    odd = even.copy()
    odd[2, 1] = -3.0
    one_sided = even.copy()
    one_sided[2, 1] = 0.0
    moves = jnp.asarray(np.stack([even, odd, one_sided]).reshape(3, -1))
    np.testing.assert_allclose(networks.asymmetry(moves, SIZE), [0, 4, 2], atol=1e-6)


def test_a_change_of_one_factor_is_explained_by_it_and_other_changes_are_not():
    def moved(amplitudes):
        factors = FACTORS._replace(amplitude=FACTORS.amplitude + jnp.array(amplitudes))
        return networks.target(factors, INPUTS) - networks.target(FACTORS, INPUTS)

    noise = jax.random.normal(new_key(1), (SIZE * SIZE,))
    moves = jnp.stack([moved([0.0, 0.1, 0.0]), moved([0.1, 0.1, -0.1]), noise])
    one, several, none = networks.share_of_one_factor(moves, FACTORS, INPUTS)
    assert float(one) == pytest.approx(1, abs=1e-4)
    assert float(several) < 0.9
    assert float(none) < 0.5


def test_a_weight_of_the_factored_solution_moves_its_factor_only():
    weights = networks.factored_weights(FACTORS, 12)
    flat = np.concatenate([np.asarray(weight).ravel() for weight in weights])
    (used,) = np.flatnonzero(flat != 0)[None]
    assert len(used) == 3 + 4 * 3, "three shared units, four numbers for each factor"
    moves = networks.changes(weights, 0.01 * jnp.eye(len(flat))[used], INPUTS)
    shares = np.asarray(networks.share_of_one_factor(moves, FACTORS, INPUTS))
    assert (shares[3:] > 0.99).all(), "the weights behind the shared units"
    assert shares[:3].min() < 0.9, "a shared unit moves all factors"
    np.testing.assert_allclose(networks.asymmetry(moves, SIZE), 0, atol=1e-3)


def test_training_fits_the_image_and_keeps_pruned_weights_at_zero():
    wanted = networks.target(FACTORS, INPUTS)
    start = networks.random_weights(new_key(2), 12)
    mask = networks.largest(start, 30)
    assert sum(int(m.sum()) for m in mask) == 30
    before = networks.r2(jax.tree.map(jnp.multiply, start, mask), wanted, INPUTS)
    weights = networks.train(start, mask, wanted, INPUTS, 300)
    assert float(networks.r2(weights, wanted, INPUTS)) > float(before) + 1
    for weight, kept in zip(weights, mask, strict=True):
        assert not np.asarray(weight)[np.asarray(kept) == 0].any()


def rows_of(sparse=(1.0, 0.2), started=(0.2, 0.5), trained=(1.0, 0.1), random=0.1, r2=0.99):
    """Made-up rows: the symmetry violation and the share of moves of one factor, by network."""
    values = {FACTORED: (0.0, 0.8), TRAINED: trained, SPARSE: sparse, STARTED: started}
    rows = []
    for cell in fractured_images.cells("small"):
        asymmetry, one = values[cell["network"]]
        for seed in range(8):
            for moves in (SINGLE, RANDOM):
                row = cell | {"run": cell["network"], "step": len(rows), "seed": seed}
                row |= {"moves": moves, "r2": r2, "asymmetry": asymmetry + 0.001 * seed}
                rows.append(row | {"one factor": one if moves == SINGLE else random})
    return pd.DataFrame(rows)


def failing(**changes):
    judged = claims_of(fractured_images, rows_of(**changes))
    return {claim.name for claim in judged if claim.verdict in FAILED}


def test_each_claim_can_fail():
    assert {claim.verdict for claim in claims_of(fractured_images, rows_of())} == {"reproduced"}
    assert failing(trained=(0.3, 0.1)) == {"symmetry", "start"}
    assert failing(trained=(1.0, 0.6)) == {"one factor"}
    assert failing(sparse=(0.1, 0.2)) == {"symmetry"}, "sparseness explains it"
    assert failing(sparse=(1.0, 0.7)) == {"one factor"}
    assert failing(started=(1.0, 0.5)) == {"start"}
    assert failing(random=0.5) == {"random directions"}
    without_control = {"equal images", "symmetry", "one factor"}
    assert failing(r2=0.9) == without_control, "sparse networks that draw nothing are no control"


def check_tiny(rows):
    assert len(rows) == 4 * 3 * 2
    singles = rows[rows["moves"] == SINGLE].set_index("network")
    assert singles.loc[FACTORED, "asymmetry"].max() < 1e-3
    assert (singles.loc[FACTORED, "weights"] == 15).all()
    assert (singles.loc[SPARSE, "weights"] <= 45).all()
    assert singles.loc[TRAINED, "weights"].max() > 100
    assert len(figures_of(fractured_images, rows)) == 3
