import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import linear_model

from recombine.basics.errors import InputError
from recombine.parts.decoder import fit_ridges, r2_by_column, solve_spd
from recombine.parts.diagnostics import linear_decodability
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch, Observation, Split
from recombine.sweeps.run import Run, label
from recombine.training.scheduler import train
from recombine.training.task_sampler import Setting, TaskSampler, make_shared, make_split

KEY = new_key(0)


@jax.jit
def solve(a, b):
    return jax.vmap(solve_spd)(a, b)


def predict(layers, y, new, l2):
    """Fit all layers together and predict from new features, compiled as in a run."""
    layers, new = jax.tree.map(np.float32, (layers, new))
    program = jax.jit(
        lambda h, y, new: {name: f(new[name]) for name, f in fit_ridges(h, y, l2).items()}
    )
    return jax.tree.map(np.asarray, program(layers, np.float32(y), new))


def r2(prediction, y):
    return 1 - np.sum((prediction - y) ** 2, axis=0) / np.sum((y - y.mean(axis=0)) ** 2, axis=0)


def tasks(rng, n, num_modules=6):
    """Rows with three active modules each, weighed 0.5 to 1."""
    active = rng.random((n, num_modules)).argsort(axis=1) < 3
    return active * rng.integers(5, 11, (n, num_modules)) / 10


@pytest.mark.parametrize("size", [1, 5, 32, 100])
def test_the_solver_agrees_with_numpy(size):
    rng = np.random.default_rng(size)
    roots = rng.normal(size=(2, size, size))
    a = roots @ roots.transpose(0, 2, 1) / size + 0.1 * np.eye(size)
    b = rng.normal(size=(2, size, 3))
    np.testing.assert_allclose(
        solve(np.float32(a), np.float32(b)), np.linalg.solve(a, b), rtol=1e-3, atol=1e-3
    )


def test_ridges_agree_with_scikit_learn():
    rng, n, l2 = np.random.default_rng(0), 40, 0.02
    layers = {
        "narrow": rng.normal(3, 2, (n, 7)),
        "square": rng.normal(size=(n, n)),
        "wide": rng.normal(-1, 1, (n, 90)),
    }
    new = {name: rng.normal(h.mean(), 2, (20, h.shape[1])) for name, h in layers.items()}
    y = layers["narrow"] @ rng.normal(size=(7, 3)) + rng.normal(5, 1, (n, 3))
    for name, prediction in predict(layers, y, new, l2).items():
        h = layers[name]
        # Relative to the mean variance of a feature, times n because scikit-learn penalizes a sum.
        alpha = l2 * n * np.square(h - h.mean(axis=0)).mean()
        ridge = linear_model.Ridge(alpha=alpha, fit_intercept=True).fit(h, y)
        np.testing.assert_allclose(
            prediction, ridge.predict(new[name]), rtol=1e-3, atol=1e-3, err_msg=name
        )


def test_the_papers_ridge_penalises_the_intercept_too():
    rng, n = np.random.default_rng(1), 40
    layers = {"narrow": rng.normal(3, 2, (n, 7)), "wide": rng.normal(-1, 1, (n, 90))}
    new = {name: rng.normal(size=(20, h.shape[1])) for name, h in layers.items()}
    y = rng.normal(5, 1, (n, 3))
    for name, prediction in predict(layers, y, new, None).items():
        h = np.hstack([layers[name], np.ones((n, 1))])
        weights = np.linalg.solve(h.T @ h + np.eye(h.shape[1]), h.T @ y)
        np.testing.assert_allclose(
            prediction, np.hstack([new[name], np.ones((20, 1))]) @ weights, atol=1e-3
        )


def test_a_planted_code_is_decoded_despite_zeros_and_offsets():
    rng = np.random.default_rng(2)
    mixing = 2 * np.linalg.qr(rng.normal(size=(6, 6)))[0]

    def layer(y):
        # One feature is nearly always zero: the public code then drops the row's intercept.
        return np.hstack([y @ mixing + 100, rng.random((len(y), 1)) < 0.1])

    y, y_new = tasks(rng, 200), tasks(rng, 100)
    h, h_new = layer(y), layer(y_new)
    prediction = predict({"h": h}, y, {"h": h_new}, 1e-3)["h"]
    assert r2(prediction, y_new).min() >= 0.999
    # The control: without an intercept the best fit fails, so the offset really matters.
    assert r2(h_new @ np.linalg.lstsq(h, y, rcond=None)[0], y_new).min() < 0.9


def test_permuted_labels_score_at_chance():
    rng = np.random.default_rng(3)
    (y, h), (y_new, h_new) = (
        (y, np.hstack([y, rng.normal(size=(2500, 2))]))
        for y in (tasks(rng, 2500), tasks(rng, 2500))
    )
    # d = 8 useless features cost d/n = 0.003 of R2. The features encode the task, so a chance
    # correlation of 1/sqrt(n) between true and permuted labels changes a module's score by
    # 2/sqrt(n) = 0.04. The test allows three times that.
    noise = r2(predict({"h": h}, rng.permutation(y), {"h": h_new}, 1e-3)["h"], y_new)
    assert np.abs(noise).max() < 0.12
    assert abs(noise.mean()) < 0.05
    assert r2(predict({"h": h}, y, {"h": h_new}, 1e-3)["h"], y_new).min() > 0.999


def test_scores_do_not_depend_on_a_layers_scale():
    rng = np.random.default_rng(4)
    mixing = rng.normal(size=(6, 12))
    (y, h), (y_new, h_new) = (
        (y, y @ mixing + rng.normal(2, 0.5, (len(y), 12)))
        for y in (tasks(rng, 100), tasks(rng, 100))
    )
    scales = {"small": 1e-3, "plain": 1.0, "large": 1e3}

    def scores(l2):
        layers, new = ({name: scale * a for name, scale in scales.items()} for a in (h, h_new))
        return {name: r2(p, y_new).mean() for name, p in predict(layers, y, new, l2).items()}

    ours, paper = scores(1e-3), scores(None)
    assert 0.3 < ours["plain"] < 0.95
    assert ours["small"] == pytest.approx(ours["plain"], abs=1e-3)
    assert ours["large"] == pytest.approx(ours["plain"], abs=1e-3)
    # The paper's constants do depend on it: tiny features are regularized away.
    assert paper["small"] < 0.05 < 0.3 < paper["plain"]


@pytest.mark.parametrize("l2", [1e-3, None])
def test_dead_layers_score_zero_and_not_nan(l2):
    rng = np.random.default_rng(5)
    y, y_new = tasks(rng, 64), tasks(rng, 64)
    values = {"zero": 0.0, "tenth": 0.1, "large": 1234.5}
    layers = {name: np.full((64, 5), value) for name, value in values.items()}
    for name, prediction in predict(layers, y, layers, l2).items():
        assert np.isfinite(prediction).all(), name
        if l2 is not None:
            np.testing.assert_allclose(
                prediction, np.broadcast_to(y.mean(axis=0), y.shape), atol=1e-3, err_msg=name
            )
            assert -0.1 < r2(prediction, y_new).min() <= r2(prediction, y_new).max() < 0.001


def test_r2_by_column_is_nan_where_there_is_nothing_to_explain():
    rng = np.random.default_rng(6)
    y = tasks(rng, 50)
    prediction = y + rng.normal(0, 0.1, y.shape)
    y[:, 2], prediction[:, 4] = 0.7, y[:, 4].mean()
    scores = np.asarray(jax.jit(r2_by_column)(np.float32(prediction), np.float32(y)))
    varies = np.arange(6) != 2
    np.testing.assert_allclose(scores[varies], r2(prediction, y)[varies], atol=1e-4)
    assert scores[4] == pytest.approx(0, abs=1e-5)
    assert np.isnan(scores[2])
    assert (scores[[0, 1, 3, 5]] > 0.5).all()


def test_it_measures_every_layer_of_a_network():
    family = Hyperteacher(num_modules=6, num_hot=2, d_input=4, d_hidden=4, num_outputs=3)
    run = Run(family=family, model=MLP(widths=(8, 8)), num_eval_points=2)
    diagnostic = LinearDecodability(num_fit=64, num_seen=32, num_test=32)
    shared = make_shared(family)
    split, _ = make_split(run, shared.table)

    example = Batch(np.zeros((2, 4)), np.zeros((2, 3)), np.zeros(6), np.zeros(6))
    shapes = jax.eval_shape(lambda: (family.init(KEY), run.model.init(KEY, example, 3)))
    # Any numbers will do for the teacher and the network, and NumPy's need no compiling.
    rng = np.random.default_rng(7)
    world, net = jax.tree.map(lambda a: np.float32(rng.normal(0, 0.3, a.shape)), shapes)

    @jax.jit
    def measure(key, shared, split, world, net):
        return diagnostic.measure(
            key, TaskSampler(run, shared, Split(*split), Setting(world, ()), net)
        )

    scores = measure(KEY, shared, split, world, net)
    layers = ["pre0", "hidden0", "pre1", "hidden1", "code", "output"]
    expected = {
        f"{layer}/{side}/{name}"
        for layer in layers
        for side in ("seen", "test")
        for name in ("r2", "module=*/r2")
    }
    assert scores.keys() == expected | {
        f"{which}/{side}/r2" for which in ("best", "deepest") for side in ("seen", "test")
    }
    for name, score in scores.items():
        assert score.shape == ((6,) if "*" in name else ()), name
        if "*" in name:
            assert float(scores[name.replace("/module=*", "")]) == pytest.approx(
                np.nanmean(score), abs=1e-4
            )
    # The code is the task itself; the last layer has 3 numbers, too few for 6 modules.
    assert float(scores["code/test/r2"]) > 0.999
    assert float(scores["output/seen/r2"]) < 0.9


def planted(qualities, last_only=False):
    """A stub `Lab` whose layers are tasks plus noise: {layer: (noise in train, noise in test)}."""

    def observe(key, part, n, net=None):
        rng = np.random.default_rng(["train", "test"].index(part))
        y = np.float32(tasks(rng, n))
        activations = {}
        for layer, noise in qualities.items():
            points = slice(2, None) if last_only else slice(None)
            h = rng.normal(size=(n, 3, 6))
            h[:, points] = y[:, None] + noise[part == "test"] * h[:, points]
            activations[layer] = jnp.asarray(np.float32(h))
        batch = Batch(np.zeros((n, 3, 1)), np.zeros((n, 3, 1)), jnp.asarray(y), jnp.asarray(y))
        return Observation(batch, batch.y, activations)

    absent = dict.fromkeys(["net", "family", "world", "table", "split", "encoding"])
    return SimpleNamespace(observe=observe, look=observe, **absent)


def measured(lab, **fields):
    diagnostic = LinearDecodability(num_fit=100, num_seen=100, num_test=100, **fields)
    return jax.tree.map(np.asarray, jax.jit(lambda: diagnostic.measure(KEY, lab))())


def test_the_best_layer_is_chosen_on_seen_tasks():
    # hidden0 is perfect on train tasks and noise on test tasks; hidden1 is fair on both.
    layers = {
        "pre0": (9, 9),
        "hidden0": (0, 9),
        "pre1": (9, 9),
        "hidden1": (0.2, 0.2),
        "output": (0, 0),
    }
    scores = measured(planted(layers))
    assert scores["hidden0/seen/r2"] > 0.99
    assert scores["hidden0/test/r2"] < 0 < 0.3 < scores["hidden1/test/r2"]
    assert scores["best/seen/r2"] == scores["hidden0/seen/r2"]
    assert scores["best/test/r2"] == scores["hidden0/test/r2"]
    assert scores["deepest/test/r2"] == scores["hidden1/test/r2"]


def test_the_deepest_layer_is_the_last_hidden_one_also_beyond_ten():
    noises = {
        f"{kind}{i}": (0.01 * (i + 1), 0.01 * (2 * i + (kind == "pre")))
        for i in (0, 9, 11)
        for kind in ("pre", "hidden")
    }
    scores = measured(planted(noises | {"output": (0.5, 0.5)}))
    # All layers have different scores, so equal scores identify the layer.
    assert len({float(scores[f"{layer}/test/r2"]) for layer in noises}) == 6
    assert scores["deepest/test/r2"] == scores["hidden11/test/r2"]
    assert scores["deepest/seen/r2"] == scores["hidden11/seen/r2"]


def test_the_default_uses_all_points_and_the_papers_variant_the_last():
    lab = planted({"pre0": (0, 0), "hidden0": (0, 0), "output": (0, 0)}, last_only=True)
    default = measured(lab)
    paper = measured(lab, paper=True)
    # Noise in two of three points: the best slope is 1/3 or less.
    assert default["pre0/test/r2"] < 0.4
    assert paper["pre0/test/r2"] > 0.9
    # Its penalty of 1 costs a few hundredths of R2 with 100 tasks of variance 0.15.
    assert default["code/test/r2"] > 0.999 > paper["code/test/r2"] > 0.9
    assert not any("hidden" in name for name in paper)
    assert paper["deepest/test/r2"] == paper["pre0/test/r2"]


def test_variants_have_different_labels():
    assert label(LinearDecodability()) == "LinearDecodability"
    assert label(LinearDecodability(paper=True)) == "LinearDecodability-paper"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_fit": 1}, r"LinearDecodability\.num_fit must be at least 2"),
        ({"num_test": 0}, r"LinearDecodability\.num_test must be at least 2"),
        ({"num_seen": 2.5}, r"LinearDecodability\.num_seen must be a whole number"),
        ({"l2": -1}, r"LinearDecodability\.l2 must be at least 0"),
        ({"l2": 0}, r"LinearDecodability\.l2 must be above 0"),
        ({"l2": float("nan")}, r"LinearDecodability\.l2"),
        ({"paper": 1}, r"LinearDecodability\.paper must be True or False"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(InputError, match=message):
        LinearDecodability(**fields)


def evenly_spaced(split, n):
    return np.asarray(linear_decodability._evenly_spaced(split, n)).tolist()


def test_probes_fitted_on_all_tasks_use_every_task_whatever_the_split():
    orders = np.array([4, 2, 0, 1, 3, 5, 9, 9])  # six tasks are used
    for num_train in (1, 3, 5):
        split = Split(jnp.array(orders), jnp.int32(num_train), jnp.int32(6 - num_train))
        assert set(evenly_spaced(split, 6)) == {0, 1, 2, 3, 4, 5}
        assert set(evenly_spaced(split, 13)) == {0, 1, 2, 3, 4, 5}
        for n in (41, 175, 696):
            every = Split(jnp.arange(n), jnp.int32(n - 5), jnp.int32(5))
            assert sorted(evenly_spaced(every, n)) == list(range(n))
        assert evenly_spaced(split, 3) == [4, 0, 3], "every second task"
    assert label(LinearDecodability(fit_on="all")) == "LinearDecodability-all"


def test_few_train_tasks_limit_the_usual_probe_but_not_the_one_of_all_tasks():
    base = Run(model=MLP((16,)), num_steps=1, num_evals=1, frac_test=0.9, num_eval_tasks=16)
    sizes = {"num_fit": 128, "num_seen": 64, "num_test": 64, "by_module": False}
    probes = LinearDecodability(**sizes), LinearDecodability(fit_on="all", **sizes)
    rows = train(dataclasses.replace(base, diagnostics=probes))
    last = rows.iloc[-1]
    fitted_on_train, fitted_on_all = (last[f"{label(probe)}/hidden0/test/r2"] for probe in probes)
    assert fitted_on_train < fitted_on_all - 0.1, "nine train tasks are too few for eight modules"
    assert not [
        name for name in rows if "/module=" in name and name.startswith("LinearDecodability")
    ]
    assert "LinearDecodability/best/test/r2" in rows
    assert "LinearDecodability-all/best/test/r2" not in rows, "it would be chosen on test tasks"
