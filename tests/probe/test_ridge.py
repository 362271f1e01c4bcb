"""The regressions are those of scikit-learn, whatever is left out and whichever is larger, samples or features."""

import numpy as np
import pytest
from sklearn import linear_model as linear

from recombine.probe.ridge import Ridge


@pytest.mark.parametrize("width", [7, 90])  # fewer features than samples, and more
@pytest.mark.parametrize("without", [(), (1,), (0, 2)])
def test_it_is_sklearns_ridge_on_the_samples_that_are_left(width, without):
    rng = np.random.default_rng(0)
    x = rng.normal(
        50, rng.uniform(0.1, 3, width), size=(60, width)
    )  # far from zero, and of different sizes
    y, folds = rng.normal(size=(60, 3)), rng.integers(-1, 3, 60)
    left = (folds >= 0) & ~np.isin(folds, without)
    weight = 0.01 * left.sum() * x[left].var(axis=0).mean()
    expected = linear.Ridge(alpha=weight).fit(x[left], y[left]).predict(x)
    assert np.allclose(Ridge(x, y, folds).fit(frozenset(without), 0.01)(x), expected, atol=1e-8)


def test_blocks_and_low_precision_change_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    x, y, folds = (
        rng.normal(3, 1, size=(50, 4)).astype(np.float16),
        rng.normal(size=(50, 2)),
        np.arange(50) % 3,
    )
    whole = Ridge(x, y, folds).fit(frozenset({1}), 1e-3)(x)
    monkeypatch.setattr("recombine.probe.ridge.BLOCK", 7)
    assert np.allclose(Ridge(x, y, folds).fit(frozenset({1}), 1e-3)(x), whole, atol=1e-9)
    assert np.allclose(
        Ridge(x.astype(float), y, folds).fit(frozenset({1}), 1e-3)(x), whole, atol=1e-9
    )


@pytest.mark.parametrize("width", [3, 30])
def test_a_layer_that_never_changes_reads_the_average(width):
    y = np.arange(20.0)[:, None]
    read = Ridge(np.ones((20, width)), y, np.arange(20) % 3).fit(frozenset(), 1e-3)
    assert np.allclose(read(np.ones((5, width))), y.mean())


def test_what_reads_does_not_keep_the_sums():
    rng = np.random.default_rng(0)
    ridge = Ridge(rng.normal(size=(40, 5)), rng.normal(size=(40, 1)), np.arange(40) % 4)
    reading = ridge.fit(frozenset(), 1e-3)
    kept = [cell.cell_contents for cell in reading.__closure__]
    assert not any(one is ridge for one in kept)


def test_samples_that_are_all_alike_once_folds_are_left_out_read_their_average():
    rng = np.random.default_rng(0)
    folds = np.arange(90) % 3
    x = rng.normal(size=(3, 8))[folds] * 1e3  # as of a model without noise, one combination a fold
    y = rng.normal(size=(3, 2))[folds]
    for penalty in Ridge.penalties:
        read = Ridge(x, y, folds).fit(frozenset({0, 1}), penalty)(x)
        np.testing.assert_allclose(read, np.tile(y[2], (90, 1)), atol=1e-3)
