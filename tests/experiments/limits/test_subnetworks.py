import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from recombine.experiments.limits import _subnetworks, subnetworks
from recombine.experiments.plots import figures_of
from recombine.parts.prng import new_key
from recombine.parts.relu_products import perceptron_from_layers
from tests.experiments.neutral import FAILED, claims_of

NUM_INPUTS = 3
EFFORT = _subnetworks.Effort(num_steps=100, num_tasks=2, num_eval_tasks=2)


@dataclasses.dataclass(frozen=True)
class TwoMaps:
    """Module m maps x in [0, 1] to `world[m] x`. All weights are 1."""

    num_modules: int = 2

    def weigh(self, key, row):
        return row

    def sample(self, world, key, task, n):
        x = jax.random.uniform(key, (n, NUM_INPUTS))
        return x, x @ jnp.einsum("m,mio->io", task, world)


def modular_network(world):
    """A network with a block of units for each module: relu(x + z_m - 1) is x if m is active."""
    num_modules = len(world)
    of_code = jnp.repeat(jnp.eye(num_modules), NUM_INPUTS, axis=0)
    of_x = jnp.tile(jnp.eye(NUM_INPUTS), (num_modules, 1))
    first = (jnp.concatenate([of_code, of_x], axis=1), -jnp.ones(num_modules * NUM_INPUTS))
    readout = world.reshape(-1, world.shape[-1]).T
    return perceptron_from_layers(first, (readout, jnp.zeros(len(readout))))


@pytest.fixture(scope="module")
def modular():
    """Masks of a network in which modules share no weight."""
    world = jax.random.normal(new_key(0), (2, NUM_INPUTS, 4))
    students = _subnetworks.stack(TwoMaps(), [modular_network(world)], [world])
    # Half of a weight would close all gates, so the first masks keep more.
    setting = _subnetworks.Setting(0.1, 1.5, 0.1)
    return students, _subnetworks.measure(students, setting, EFFORT)


def test_the_masks_of_a_modular_network_are_its_blocks(modular):
    students, found = modular
    np.testing.assert_allclose(found.student, 1, atol=1e-5)
    np.testing.assert_allclose(_subnetworks.effects(found.sub), 1, atol=0.05)
    np.testing.assert_allclose(_subnetworks.effects(found.ablated), -1, atol=0.05)
    assert (found.overlap < found.expected_overlap / 2).all()
    kept = [np.asarray(mask)[0] for mask in found.masks]
    readout = weights_of(students)[1]
    for module in range(2):
        own = slice(module * NUM_INPUTS, (module + 1) * NUM_INPUTS)
        other = slice((1 - module) * NUM_INPUTS, (2 - module) * NUM_INPUTS)
        assert kept[1][module][:, other].sum() == 0
        assert (kept[1][module][:, own] * np.abs(readout[:, own])).sum() > 0.9 * np.abs(
            readout[:, own]
        ).sum()


def weights_of(students):
    return [np.asarray(w)[0] for w in _subnetworks.weights_of(students.nets)]


def test_random_masks_of_the_same_size_find_nothing(modular):
    found = modular[1]
    (of_student,) = _subnetworks.rows(found)
    frame = pd.DataFrame(of_student)
    assert _subnetworks.has_own(frame).all()
    assert not _subnetworks.has_own(frame, "random ").any()
    mask = tuple(jnp.asarray(m[0, 0]) for m in found.masks)
    randoms = [_subnetworks.random_mask(new_key(i), mask) for i in range(2)]
    for layer, first, second in zip(mask, *randoms, strict=True):
        assert layer.sum() == first.sum() == second.sum()
    assert any((a != b).any() for a, b in zip(*randoms, strict=True))


def test_an_ablation_keeps_what_the_subnetwork_removes(modular):
    students = modular[0]
    net = jax.tree.map(lambda leaf: leaf[0], students.nets)
    mask = tuple(jnp.asarray(m[0, 1]) for m in modular[1].masks)
    kept = _subnetworks.weights_of(_subnetworks.masked(net, mask))
    rest = _subnetworks.weights_of(_subnetworks.masked(net, _subnetworks.inverted(mask)))
    for whole, a, b in zip(_subnetworks.weights_of(net), kept, rest, strict=True):
        np.testing.assert_array_equal(a + b, whole)
        np.testing.assert_array_equal(a * b, 0)
    biases = [layer.bias for layer in _subnetworks.masked(net, mask).layers]
    np.testing.assert_array_equal(biases[0], net.layers[0].bias)


def test_effects_compare_the_own_module_with_the_mean_of_others():
    scores = np.array([[[0.9, 0.1, 0.3], [0.0, 0.5, 0.5], [0.6, 0.2, 0.0]]])
    np.testing.assert_allclose(_subnetworks.effects(scores), [[0.7, 0.25, -0.4]])
    np.testing.assert_allclose(_subnetworks.on_others(scores), [[0.2, 0.25, 0.4]])


def test_the_setting_with_the_largest_effect_is_selected(monkeypatch):
    best = _subnetworks.GRID[5]

    def measure(students, setting, effort, seed):
        own = 0.9 if setting == best else 0.5
        sub = np.full((1, 2, 2), 0.1) + own * np.eye(2)
        zeros = np.zeros((1, 2))
        return _subnetworks.Measured(zeros, sub, 0 * sub, sub, sub, zeros, zeros, zeros, ())

    monkeypatch.setattr(_subnetworks, "measure", measure)
    assert len(set(_subnetworks.GRID)) == 8
    assert _subnetworks.select(None, EFFORT) == best


def rows_of(**changes):
    """Made-up rows on which every claim holds. `changes` replace columns by functions of a row."""
    rows = []
    for cell in subnetworks.cells("small"):
        kind = cell["students"]
        quality = {"25% held out": 0.95, "50% held out": 0.8, "75% held out": 0.5}.get(kind, 0.1)
        is_trained = kind != subnetworks.UNTRAINED
        for seed in range(8):
            for module in range(4):
                row = cell | {
                    "run": kind,
                    "step": len(rows),
                    "seed": seed,
                    "module": module,
                    "test/r2": quality + 0.001 * seed if is_trained else 0.0,
                    "student": 0.5 + 0.01 * ((5 * seed + len(kind)) % 7),
                    "subnetwork": 0.9,
                    "ablation": -0.6 * quality if is_trained else 0.0,
                    "ablation, others": 0.6,
                    "random subnetwork": 0.0,
                    "random ablation": -0.1,
                    "size": 0.1,
                    "overlap": 0.2,
                    "overlap by chance": 0.1,
                }
                rows.append(row | {name: change(row) for name, change in changes.items()})
    return pd.DataFrame(rows)


def failing(**changes):
    judged = claims_of(subnetworks, rows_of(**changes))
    return {claim.name for claim in judged if claim.verdict in FAILED}


def test_each_claim_can_fail():
    verdicts = {claim.verdict for claim in claims_of(subnetworks, rows_of())}
    assert verdicts == {"reproduced"}
    assert failing(ablation=lambda row: 0.0 * row["seed"]) == {"own subnetworks", "sign"}
    inverse = {"ablation": lambda row: 0.6 * row["test/r2"] - 0.9 if row["test/r2"] else 0.0}
    assert failing(**inverse) == {"generalization"}
    assert failing(student=lambda row: row["test/r2"]) == {"generalization"}, "it needs no mask"
    assert "untrained networks" in failing(subnetwork=lambda row: 0.1)
    assert failing(**{"ablation, others": lambda row: 0.0}) == {"others survive"}
    as_found = {
        "random subnetwork": lambda row: row["subnetwork"],
        "random ablation": lambda row: row["ablation"],
    }
    assert failing(**as_found) == {"own subnetworks", "random masks"}
    untrained = {"ablation": lambda row: -0.6 if row["test/r2"] == 0 else row["ablation"]}
    assert failing(**untrained) == {"untrained, ablation"}


def check_tiny(rows):
    assert len(rows) == 2 * 3 * 6
    is_untrained = rows["students"] == subnetworks.UNTRAINED
    assert (rows.loc[~is_untrained, "student"].mean()) > rows.loc[is_untrained, "student"].mean()
    assert rows["size"].between(0, 1).all()
    assert len(set(figures_of(subnetworks, rows))) == 3
    assert len(claims_of(subnetworks, rows)) == 7
