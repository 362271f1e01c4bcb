from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.diagnostics.factorization import Factorization, _apart
from recombine.parts.models.mlp import MLP
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch, Observation, Split
from recombine.sweeps import discovery
from recombine.sweeps.run import Run
from recombine.training.task_sampler import Laboratory, Setting, make_shared, make_split

NUM_TRAIN, NUM_TEST, NUM_MODULES, NUM_POINTS = 200, 100, 6, 8
KEY = new_key(0)
DRAW = np.random.default_rng(0)
TABLE = (
    (DRAW.random((NUM_TRAIN + NUM_TEST, NUM_MODULES)).argsort(axis=1) < 3)
    * DRAW.integers(5, 11, (300, 6))
    / 10
)
PARTS = 3 * np.linalg.qr(DRAW.normal(size=(12, NUM_MODULES)))[0].T
BENT = np.tanh(TABLE @ DRAW.normal(size=(NUM_MODULES, 12)))  # not additive
FIT = np.r_[np.arange(100), 100 + np.arange(100)]


def lab(noise=0.0, **layers):
    """A laboratory whose layers are what the given arrays have in the table's rows, plus noise at every point."""

    def look(key, rows, net=None):
        place, made = rows[:, 0], {}
        for name, h in layers.items():
            error = noise * jax.random.normal(key, (len(place), NUM_POINTS, h.shape[1]))
            made[name] = jnp.asarray(h, jnp.float32)[place][:, None] + error
        task = jnp.asarray(TABLE, jnp.float32)[place]
        return Observation(Batch(task, task, task, task), task, made)

    def observe(key, part, n, net=None):
        first, count = (0, NUM_TRAIN) if part == "train" else (NUM_TRAIN, NUM_TEST)
        return look(key, table[first + jnp.arange(n) % count])

    table = jnp.arange(len(TABLE))[:, None]
    split = Split(jnp.arange(len(TABLE)), jnp.int32(NUM_TRAIN), jnp.int32(NUM_TEST))
    absent = dict.fromkeys(["net", "family", "world", "encoding"])
    return SimpleNamespace(observe=observe, look=look, table=table, split=split, **absent)


def measured(lab, l2=1e-6):
    diagnostic = Factorization(num_fit=NUM_TRAIN, num_seen=NUM_TRAIN, num_test=NUM_TEST, l2=l2)
    return {
        name: float(score)
        for name, score in jax.jit(lambda: diagnostic.measure(KEY, lab))().items()
    }


def fitted(h, rows=FIT):
    """The additive model by NumPy: the mean and the parts."""
    ones = np.ones((len(rows), 1))
    return np.linalg.lstsq(np.hstack([ones, TABLE[rows]]), h[rows], rcond=None)[0]


def r2(h, rows):
    prediction = np.hstack([np.ones((len(rows), 1)), TABLE[rows]]) @ fitted(h)
    return 1 - np.sum((h[rows] - prediction) ** 2) / np.sum((h[rows] - h[rows].mean(axis=0)) ** 2)


def test_a_sum_of_orthogonal_parts_is_found_whole():
    h = 5 + TABLE @ PARTS
    found = measured(lab(hidden0=h))
    for name in ("seen/r2", "test/r2", "seen/whitened_r2", "test/whitened_r2", "cos_within"):
        assert found[f"hidden0/{name}"] == pytest.approx(1, abs=1e-3), name
    assert found["hidden0/cos_across"] < 1e-3
    variances = np.linalg.eigvalsh(np.cov(h[:NUM_TRAIN].T))
    assert found["hidden0/rank"] == pytest.approx(
        variances.sum() ** 2 / np.square(variances).sum(), rel=1e-3
    )


def test_it_agrees_with_numpy_where_the_layer_is_no_sum():
    found, test = measured(lab(hidden0=BENT)), NUM_TRAIN + np.arange(NUM_TEST)
    assert 0.2 < r2(BENT, test) < 0.95
    assert found["hidden0/seen/r2"] == pytest.approx(r2(BENT, FIT), abs=1e-3)
    assert found["hidden0/test/r2"] == pytest.approx(r2(BENT, test), abs=1e-3)
    root = np.linalg.inv(np.linalg.cholesky(np.cov(BENT[FIT].T)))
    assert found["hidden0/test/whitened_r2"] == pytest.approx(r2(BENT @ root.T, test), abs=1e-3)
    units = [
        parts[1:] / np.linalg.norm(parts[1:], axis=1, keepdims=True)
        for parts in map(fitted, [BENT] * 3, HALVES)
    ]
    across = np.abs(units[0] @ units[0].T)[~np.eye(NUM_MODULES, dtype=bool)].mean()
    assert found["hidden0/cos_across"] == pytest.approx(across, abs=1e-3)
    assert found["hidden0/cos_within"] == pytest.approx(
        np.abs((units[1] * units[2]).sum(axis=1)).mean(), abs=1e-3
    )


HALVES = FIT, FIT[:100], FIT[100:]


def test_what_points_add_to_a_mean_is_left_out():
    h = TABLE @ PARTS
    found = measured(lab(noise=2.0, hidden0=h))
    spread = np.square(h - h.mean(axis=0)).sum(axis=1).mean()
    error = 2.0**2 * h.shape[1] / NUM_POINTS
    assert spread / (spread + error) < 0.7, "with squares in place of products R2 could not be more"
    assert found["hidden0/seen/r2"] == pytest.approx(1, abs=0.1)
    assert found["hidden0/test/r2"] == pytest.approx(1, abs=0.1)


def test_parts_of_shuffled_tasks_explain_nothing():
    found = measured(lab(hidden0=TABLE @ PARTS))
    # M parts fitted to n unrelated tasks cost M/n of the variance, give or take as much.
    assert abs(found["hidden0/test/shuffled_r2"]) < 3 * NUM_MODULES / NUM_TRAIN


def test_what_does_not_matter():
    rotation = np.linalg.qr(DRAW.normal(size=(12, 12)))[0]
    mixing = rotation * np.linspace(0.3, 3, 12)
    found = measured(lab(hidden0=BENT, hidden1=7 + 20 * BENT @ rotation, hidden2=BENT @ mixing))
    for name in ("test/r2", "test/whitened_r2", "cos_across", "cos_within", "rank"):
        assert found[f"hidden1/{name}"] == pytest.approx(found[f"hidden0/{name}"], abs=2e-3), name
    assert found["hidden2/test/whitened_r2"] == pytest.approx(
        found["hidden0/test/whitened_r2"], abs=2e-3
    )
    assert abs(found["hidden2/test/r2"] - found["hidden0/test/r2"]) > 0.01, (
        "unequal directions count unequally"
    )


def test_parts_that_depend_on_their_company_differ_between_halves():
    signs = DRAW.choice([-1.0, 1.0], size=(len(TABLE), 12))
    found = measured(lab(hidden0=TABLE @ PARTS, hidden1=TABLE @ PARTS * signs))
    assert found["hidden0/cos_within"] > 0.99
    assert found["hidden1/cos_within"] < 0.5


@pytest.mark.parametrize("num_train", [1, 2, 3, 10])
def test_halves_share_no_task_and_hold_no_test_task(num_train):
    split = Split(jnp.arange(20)[::-1], np.int32(num_train), np.int32(20 - num_train))
    one, other = (set(np.asarray(rows).tolist()) for rows in _apart(split, 8))
    assert one | other <= set(range(20 - num_train, 20))
    assert num_train == 1 or not one & other
    assert abs(len(one) - len(other)) <= 1


def test_dead_layers_have_no_score_and_a_module_without_a_part_does_not_matter():
    two = (
        TABLE @ np.eye(NUM_MODULES, 12) * (np.arange(12) < 2)
    )  # the parts of the other modules are nothing
    found = measured(
        lab(hidden0=0 * BENT, hidden9=two, hidden11=TABLE @ PARTS + 0.2 * BENT, output=BENT[:, :2])
    )
    assert all(
        np.isnan(found[f"hidden0/{name}"]) for name in ("test/r2", "test/whitened_r2", "cos_across")
    )
    assert found["hidden9/test/r2"] == pytest.approx(1, abs=1e-3)
    # The deepest layer is the last hidden one, also beyond ten.
    deepest = {name: score for name, score in found.items() if name.startswith("deepest/")}
    assert len(deepest) == 8
    assert all(
        score == found[name.replace("deepest", "hidden11")] for name, score in deepest.items()
    )
    assert len({found[f"{layer}/test/r2"] for layer in ("hidden9", "hidden11", "output")}) == 3


@pytest.mark.parametrize("cls", discovery.parts()["family"].values(), ids=lambda cls: cls.__name__)
def test_it_measures_students_of_every_family(cls):
    family = cls()
    steps = getattr(family, "horizon", 4)
    run = Run(family=family, model=MLP(widths=(8,)), num_points=steps, num_eval_points=steps)
    shared = make_shared(family)
    split, _ = make_split(run, family.modules(shared.table))

    def measure(key):
        world = family.init(key)
        lab = Laboratory(
            run,
            shared,
            Split(*map(jnp.asarray, split)),
            Setting(world, run.encoding.init(key, family)),
        )
        lab.shared = shared._replace(table=jnp.asarray(shared.table))
        lab.table = lab.shared.table
        batch = lab.draw(key, lab.table[:1], steps)
        lab.net = run.model.init(key, jax.tree.map(lambda leaf: leaf[0], batch), family.num_outputs)
        return Factorization(num_fit=8, num_seen=8, num_test=8).measure(key, lab)

    found = jax.eval_shape(measure, KEY)
    assert {name.split("/")[0] for name in found} == {"pre0", "hidden0", "output", "deepest"}
    assert {score.shape for score in found.values()} == {()}


def test_bad_sizes():
    with pytest.raises(InputError, match="num_fit"):
        Factorization(num_fit=2)
    with pytest.raises(InputError, match="l2"):
        Factorization(l2=0.0)
