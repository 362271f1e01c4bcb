from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.diagnostics.factorization import Factorization, _two_halves
from recombine.parts.models.mlp import MLP
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch, Observation, Split
from recombine.sweeps import discovery
from recombine.sweeps.run import Run
from recombine.training.task_sampler import Setting, TaskSampler, make_shared, make_split

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
    """A stub `Lab` whose layers are the rows of the given arrays, plus noise at every point."""

    def look(key, rows, net=None):
        index = rows[:, 0]
        activations = {}
        for name, h in layers.items():
            error = noise * jax.random.normal(key, (len(index), NUM_POINTS, h.shape[1]))
            activations[name] = jnp.asarray(h, jnp.float32)[index][:, None] + error
        task = jnp.asarray(TABLE, jnp.float32)[index]
        return Observation(Batch(task, task, task, task), task, activations)

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
    """The additive model fitted by NumPy: the mean, then the module vectors."""
    ones = np.ones((len(rows), 1))
    return np.linalg.lstsq(np.hstack([ones, TABLE[rows]]), h[rows], rcond=None)[0]


def r2(h, rows):
    prediction = np.hstack([np.ones((len(rows), 1)), TABLE[rows]]) @ fitted(h)
    return 1 - np.sum((h[rows] - prediction) ** 2) / np.sum((h[rows] - h[rows].mean(axis=0)) ** 2)


def test_a_sum_of_orthogonal_parts_is_fully_explained():
    h = 5 + TABLE @ PARTS
    scores = measured(lab(hidden0=h))
    for name in ("seen/r2", "test/r2", "seen/whitened_r2", "test/whitened_r2", "cos_within"):
        assert scores[f"hidden0/{name}"] == pytest.approx(1, abs=1e-3), name
    assert scores["hidden0/cos_across"] < 1e-3
    variances = np.linalg.eigvalsh(np.cov(h[:NUM_TRAIN].T))
    assert scores["hidden0/rank"] == pytest.approx(
        variances.sum() ** 2 / np.square(variances).sum(), rel=1e-3
    )


def test_it_agrees_with_numpy_on_a_layer_that_is_not_additive():
    scores, test = measured(lab(hidden0=BENT)), NUM_TRAIN + np.arange(NUM_TEST)
    assert 0.2 < r2(BENT, test) < 0.95
    assert scores["hidden0/seen/r2"] == pytest.approx(r2(BENT, FIT), abs=1e-3)
    assert scores["hidden0/test/r2"] == pytest.approx(r2(BENT, test), abs=1e-3)
    root = np.linalg.inv(np.linalg.cholesky(np.cov(BENT[FIT].T)))
    assert scores["hidden0/test/whitened_r2"] == pytest.approx(r2(BENT @ root.T, test), abs=1e-3)
    units = [
        parts[1:] / np.linalg.norm(parts[1:], axis=1, keepdims=True)
        for parts in map(fitted, [BENT] * 3, HALVES)
    ]
    across = np.abs(units[0] @ units[0].T)[~np.eye(NUM_MODULES, dtype=bool)].mean()
    assert scores["hidden0/cos_across"] == pytest.approx(across, abs=1e-3)
    assert scores["hidden0/cos_within"] == pytest.approx(
        np.abs((units[1] * units[2]).sum(axis=1)).mean(), abs=1e-3
    )


HALVES = FIT, FIT[:100], FIT[100:]


def test_the_sampling_error_of_means_is_removed():
    h = TABLE @ PARTS
    scores = measured(lab(noise=2.0, hidden0=h))
    variance = np.square(h - h.mean(axis=0)).sum(axis=1).mean()
    error = 2.0**2 * h.shape[1] / NUM_POINTS
    assert variance / (variance + error) < 0.7, "the largest R2 with squares instead of products"
    assert scores["hidden0/seen/r2"] == pytest.approx(1, abs=0.1)
    assert scores["hidden0/test/r2"] == pytest.approx(1, abs=0.1)


def test_parts_fitted_on_permuted_tasks_explain_nothing():
    scores = measured(lab(hidden0=TABLE @ PARTS))
    # M vectors fitted to n unrelated tasks lose about M/n of the variance.
    assert abs(scores["hidden0/test/shuffled_r2"]) < 3 * NUM_MODULES / NUM_TRAIN


def test_rotation_scale_and_offset_do_not_matter():
    rotation = np.linalg.qr(DRAW.normal(size=(12, 12)))[0]
    mixing = rotation * np.linspace(0.3, 3, 12)
    scores = measured(lab(hidden0=BENT, hidden1=7 + 20 * BENT @ rotation, hidden2=BENT @ mixing))
    for name in ("test/r2", "test/whitened_r2", "cos_across", "cos_within", "rank"):
        assert scores[f"hidden1/{name}"] == pytest.approx(scores[f"hidden0/{name}"], abs=2e-3), name
    assert scores["hidden2/test/whitened_r2"] == pytest.approx(
        scores["hidden0/test/whitened_r2"], abs=2e-3
    )
    assert abs(scores["hidden2/test/r2"] - scores["hidden0/test/r2"]) > 0.01, (
        "raw R2 weighs directions by their variance"
    )


def test_parts_that_depend_on_other_modules_differ_between_halves():
    signs = DRAW.choice([-1.0, 1.0], size=(len(TABLE), 12))
    scores = measured(lab(hidden0=TABLE @ PARTS, hidden1=TABLE @ PARTS * signs))
    assert scores["hidden0/cos_within"] > 0.99
    assert scores["hidden1/cos_within"] < 0.5


@pytest.mark.parametrize("num_train", [1, 2, 3, 10])
def test_halves_share_no_task_and_hold_no_test_task(num_train):
    split = Split(jnp.arange(20)[::-1], np.int32(num_train), np.int32(20 - num_train))
    first, second = (set(np.asarray(rows).tolist()) for rows in _two_halves(split, 8))
    assert first | second <= set(range(20 - num_train, 20))
    assert num_train == 1 or not first & second
    assert abs(len(first) - len(second)) <= 1


def test_dead_layers_have_no_score_and_a_module_without_a_part_does_not_matter():
    # Only the first two modules have a vector.
    two = TABLE @ np.eye(NUM_MODULES, 12) * (np.arange(12) < 2)
    scores = measured(
        lab(hidden0=0 * BENT, hidden9=two, hidden11=TABLE @ PARTS + 0.2 * BENT, output=BENT[:, :2])
    )
    assert all(
        np.isnan(scores[f"hidden0/{name}"])
        for name in ("test/r2", "test/whitened_r2", "cos_across")
    )
    assert scores["hidden9/test/r2"] == pytest.approx(1, abs=1e-3)
    # hidden11 is deeper than hidden9.
    deepest = {name: score for name, score in scores.items() if name.startswith("deepest/")}
    assert len(deepest) == 8
    assert all(
        score == scores[name.replace("deepest", "hidden11")] for name, score in deepest.items()
    )
    assert len({scores[f"{layer}/test/r2"] for layer in ("hidden9", "hidden11", "output")}) == 3


@pytest.mark.parametrize("cls", discovery.parts()["family"].values(), ids=lambda cls: cls.__name__)
def test_it_measures_students_of_every_family(cls):
    family = cls()
    steps = getattr(family, "horizon", 4)
    run = Run(family=family, model=MLP(widths=(8,)), num_points=steps, num_eval_points=steps)
    shared = make_shared(family)
    split, _ = make_split(run, family.modules(shared.table))

    def measure(key):
        world = family.init(key)
        lab = TaskSampler(
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

    scores = jax.eval_shape(measure, KEY)
    assert {name.split("/")[0] for name in scores} == {"pre0", "hidden0", "output", "deepest"}
    assert {score.shape for score in scores.values()} == {()}


def test_bad_sizes():
    with pytest.raises(InputError, match="num_fit"):
        Factorization(num_fit=2)
    with pytest.raises(InputError, match="l2"):
        Factorization(l2=0.0)
