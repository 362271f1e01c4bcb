"""The ridge regressions equal scikit-learn's, with any folds left out, in any shape."""

import numpy as np
import pytest
from sklearn import linear_model as linear
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from recombine.probe.algebra import make_algebra
from recombine.probe.ridge import PENALTIES, Ridge, constant_features


def fit(x, y, folds, without=frozenset(), penalty=0.01, **options):
    """A ridge regression as a map from activations to targets."""
    ridge = Ridge(x, y, folds, **options)
    return ridge.in_model_units(ridge.fit(frozenset(without), [penalty])[0])


@pytest.mark.parametrize("without", [(), (1,), (0, 2)])
def test_equals_scikit_learns_ridge_on_standardized_samples(without):
    rng = np.random.default_rng(0)
    scales = rng.uniform(1e-4, 3, 7)
    x = rng.normal(50, scales, size=(60, 7))  # far from zero
    x[:, 3] = 5.0
    y = rng.normal(size=(60, 3))
    folds = rng.integers(-1, 3, 60)
    remaining = (folds >= 0) & ~np.isin(folds, without)
    model = make_pipeline(StandardScaler(), linear.Ridge(alpha=0.01 * remaining.sum()))
    expected = model.fit(x[remaining], y[remaining]).predict(x)
    assert np.allclose(fit(x, y, folds, without)(x), expected, atol=1e-8)


@pytest.mark.parametrize("width", [7, 90])  # fewer features than samples, and more
def test_weights_count_as_repeated_samples(width):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, width)), rng.normal(size=(60, 3))
    folds = rng.integers(0, 3, 60)
    times = rng.integers(1, 4, 60)
    model = make_pipeline(StandardScaler(), linear.Ridge(alpha=0.01 * times.sum()))
    expected = model.fit(x.repeat(times, axis=0), y.repeat(times, axis=0)).predict(x)
    assert np.allclose(fit(x, y, folds, weights=times.astype(float))(x), expected, atol=1e-8)


def test_wide_layers_are_standardized_over_the_samples_that_may_be_fitted_on():
    rng = np.random.default_rng(0)
    x = rng.normal(50, rng.uniform(1e-4, 3, 90), size=(60, 90))
    x[:, 3] = 5.0
    y = rng.normal(size=(60, 3))
    folds = np.arange(60) % 3
    used = folds != 1
    model = make_pipeline(StandardScaler(), linear.Ridge(alpha=0.01 * used.sum()))
    expected = model.fit(x[used], y[used]).predict(x)
    never = frozenset({1})
    assert np.allclose(fit(x, y, folds, never, never=never)(x), expected, atol=1e-8)
    ruined = np.where(used[:, None], x, 1e3)
    assert np.allclose(fit(ruined, y, folds, never, never=never)(x), expected, atol=1e-8)


def test_features_that_never_vary_are_left_out_and_counted():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(60, 1))
    for width in (5, 90):
        x = rng.normal(size=(60, width)).astype(np.float32)
        x[:, 1] = 1e4 + 1e-4 * rng.normal(size=60)  # rounding of float32
        x[:, 2] = 0
        ridge = Ridge(x, y, np.arange(60) % 3)
        assert constant_features(ridge) == 2
        weights = ridge.in_model_units(ridge.fit(frozenset(), [0.01])[0]).weights
        assert (weights[1:3] == 0).all()
        assert (weights[3:] != 0).all()


def test_block_size_and_low_precision_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(3, 1, size=(50, 4)).astype(np.float16)
    y = rng.normal(size=(50, 2))
    folds = np.arange(50) % 3
    expected = fit(x, y, folds, {1})(x)
    monkeypatch.setattr("recombine.probe.ridge.BLOCK_SAMPLES", 7)
    assert np.allclose(fit(x, y, folds, {1})(x), expected, atol=1e-9)
    assert np.allclose(fit(x.astype(float), y, folds, {1})(x), expected, atol=1e-9)


@pytest.mark.parametrize("width", [3, 30])
def test_a_constant_layer_predicts_the_mean(width):
    y = np.arange(20.0)[:, None]
    decode = fit(np.ones((20, width)), y, np.arange(20) % 3)
    assert np.allclose(decode(np.ones((5, width))), y.mean())


def test_identical_remaining_samples_predict_their_mean():
    rng = np.random.default_rng(0)
    folds = np.arange(90) % 3
    x = rng.normal(size=(3, 8))[folds] * 1e3  # a model without noise, one combination per fold
    y = rng.normal(size=(3, 2))[folds]
    for penalty in PENALTIES:
        predicted = fit(x, y, folds, {0, 1}, penalty)(x)
        np.testing.assert_allclose(predicted, np.tile(y[2], (90, 1)), atol=1e-3)


def test_the_operations_of_pytorch_give_the_same():
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for width in (7, 90):
        x, y = rng.normal(size=(60, width)), rng.normal(size=(60, 3))
        folds = np.arange(60) % 3
        expected = fit(x, y, folds)(x)
        on_device = fit(x, y, folds, algebra=make_algebra("cpu"))(x)
        assert np.allclose(on_device, expected, atol=1e-9)
