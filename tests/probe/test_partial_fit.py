"""Probes from running sums equal those of `fit`, and memory does not grow with samples."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from recombine.basics.errors import InputError
from recombine.probe import Decodability
from recombine.probe.running_sums import MIN_BLOCK, Combinations
from recombine.probe.split import Split
from tests.probe.planted import parts, samples

OPTIONS = {"kind": "ridge", "num_permutations": 0, "penalties": (1e-4, 1e-2, 1.0)}


def batches(num, seed=0, sizes=(90, 1, 200, 400)):
    """Slices of random samples, in batches of different sizes."""
    order = np.random.default_rng(seed).permutation(num)
    ends = np.cumsum([sizes[i % len(sizes)] for i in range(num)])
    return [rows for rows in np.split(order, ends) if len(rows)]


def add(probe, layers, factors, held=None, seed=0, weights=None):
    """Add all samples in batches; return the probe and the order of samples."""
    used = batches(len(factors), seed)
    for rows in used:
        probe.partial_fit(
            {name: x[rows] for name, x in layers.items()},
            factors.iloc[rows],
            held_out=None if held is None else held[rows],
            sample_weight=None if weights is None else weights[rows],
        )
    return probe, np.concatenate(used)


def hashed_split(factors, held, order):
    """The roles that batches in this order get, for `fit`."""
    known = Combinations(5, 0)
    numbers = known.number(factors.iloc[order], None, held[order])
    roles = np.empty(len(order), int), np.empty(len(order), bool)
    roles[0][order] = np.where(held[order], -1, np.array(known.folds)[numbers])
    roles[1][order] = known.reserve(numbers)
    return Split(*roles, np.arange(len(order)))


@pytest.mark.parametrize("case", ["best layer", "all layers", "held out", "weights"])
def test_equals_fit_with_the_same_folds(monkeypatch, case):
    factors = samples(1200)
    factors["size"] += 1000.0  # far from zero
    late = parts(factors, noise=1.0, width=30).astype(np.float32)
    layers = {"late": late, "early": 50 + parts(factors, noise=3.0)}
    is_held = case == "held out"
    combination = factors["shape"] + factors["colour"]
    held = (combination.isin(["cubered", "ballblue", "conegreen", "ringred"]) & is_held).to_numpy()
    weights = np.random.default_rng(1).uniform(0.5, 2, 1200) if case == "weights" else None
    probe = Decodability(**OPTIONS, layers="all" if case == "all layers" else "best")
    probe, order = add(probe, layers, factors, held if is_held else None, weights=weights)
    roles = hashed_split(factors, held, order)
    monkeypatch.setattr("recombine.probe.decodability.split", lambda *_: roles)
    expected = clone(probe).fit(
        layers, factors, held_out=held if is_held else None, sample_weight=weights
    )
    assert probe.layer_ == expected.layer_
    np.testing.assert_allclose(probe.coef_, expected.coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(probe.intercept_, expected.intercept_, rtol=1e-6)
    for name, direction in expected.directions_.items():
        np.testing.assert_allclose(probe.directions_[name], direction, rtol=1e-6, atol=1e-9)
    pd.testing.assert_frame_equal(probe.predict(layers), expected.predict(layers), rtol=1e-6)
    rows = ["layer", "factor", "split"]
    mine, theirs = (each.scores_.set_index(rows) for each in (probe, expected))
    assert mine.index.tolist() == theirs.index.tolist()
    assert list(mine) == list(theirs)
    numbers = theirs["measure"] == "r2"
    assert numbers.sum() == len(mine) / 3
    np.testing.assert_allclose(mine["score"][numbers], theirs["score"][numbers], atol=1e-6)
    np.testing.assert_array_equal(mine["penalty"], theirs["penalty"])
    if weights is None:  # the variance that errors are divided by has no weights in fit
        np.testing.assert_allclose(probe.probe_.factor_errors, expected.probe_.factor_errors, 1e-6)


def test_neither_the_order_of_batches_nor_new_values_change_the_folds():
    factors = samples(700)
    layers = {"a": parts(factors)}
    first, _ = add(Decodability(**OPTIONS), layers, factors, seed=1)
    by_value = factors.sort_values("shape")  # the first batches have one shape only
    other = Decodability(**OPTIONS)
    for rows in np.array_split(by_value.index.to_numpy(), 5):
        other.partial_fit(layers["a"][rows], factors.loc[rows])
    assert other.targets_.factors == first.targets_.factors
    assert other.to_frame().loc["activations"].min() > 0.9
    # Another order reserves other samples, so scores agree about as well as random halves do.
    np.testing.assert_allclose(first.to_frame().to_numpy(), other.to_frame().to_numpy(), atol=0.01)
    assert (first.predict(layers["a"])["shape"] == factors["shape"]).mean() > 0.98


def test_results_follow_every_batch_and_memory_does_not_grow():
    factors = samples(4 * MIN_BLOCK)
    x = parts(factors)
    probe = Decodability(**OPTIONS)
    with pytest.raises(NotFittedError):
        probe.predict(x)
    sizes, coefficients = [], []
    for rows in np.array_split(np.arange(len(x)), 8):
        probe.partial_fit(x[rows], factors.iloc[rows])
        coefficients.append(probe.coef_)  # computing results flushes waiting samples
        sizes.append(len(pickle.dumps(probe._sums)))
    assert (coefficients[0] != coefficients[-1]).any()
    assert sizes[-1] < 1.05 * sizes[2]
    restored = copy.deepcopy(probe)
    assert (restored.coef_ == probe.coef_).all()
    assert (restored.partial_fit(x, factors).coef_ != probe.coef_).any()


def test_the_operations_of_pytorch_give_the_same():
    pytest.importorskip("torch")
    factors = samples(300)
    x = parts(factors)
    probe = Decodability(**OPTIONS).partial_fit(x, factors)
    on_device = Decodability(**OPTIONS, device="cpu").partial_fit(x, factors)
    np.testing.assert_allclose(on_device.coef_, probe.coef_, atol=1e-9)
    pd.testing.assert_frame_equal(on_device.scores_, probe.scores_)


def test_a_probe_of_sums_is_saved_and_what_needs_samples_is_refused(tmp_path):
    factors = samples(500)
    x = parts(factors)
    probe = Decodability(**OPTIONS).partial_fit(x, factors)
    loaded = Decodability.load(probe.save(tmp_path / "p.safetensors"))
    pd.testing.assert_frame_equal(loaded.predict(x), probe.predict(x))
    pd.testing.assert_frame_equal(loaded.scores_, probe.scores_)
    assert probe.score(x, factors) > 0.9
    assert len(probe.plot().data) >= 3
    for each in (probe, loaded):
        with pytest.raises(InputError, match="rank needs the errors of all samples"):
            each.rank(factors, x)
    for options in ({}, {"kind": "ridge"}, {"kind": "logistic", "num_permutations": 0}):
        with pytest.raises(InputError, match="set kind='ridge' and num_permutations=0, or use fit"):
            Decodability(**options).partial_fit(x, factors)
    with pytest.raises(InputError, match="this probe was fitted by fit"):
        Decodability(**OPTIONS).fit(x, factors).partial_fit(x, factors)
    assert probe.fit(x, factors).rank(factors).shape[0] == len(probe.combinations_)


def test_batches_that_do_not_fit_are_refused_and_change_nothing():
    factors = samples(300)
    x = parts(factors)
    held = (factors["shape"] == "cube").to_numpy() & (factors["colour"] == "red").to_numpy()
    probe = Decodability(**OPTIONS).partial_fit(x, factors, held_out=held)
    expected = probe.coef_
    wrong = {
        "earlier batches": lambda: probe.partial_fit(x[:, 1:], factors),
        "layers .* same model": lambda: probe.partial_fit({"b": x}, factors),
        "provide the same factors": lambda: probe.partial_fit(x, factors[["shape"]]),
        "'shape' has names in one batch": lambda: probe.partial_fit(x, factors.assign(shape=1.5)),
        "is held out in some samples": lambda: probe.partial_fit(x, factors, held_out=~held),
        "names its combinations": lambda: probe.partial_fit(x, factors, combinations=held),
        "300 rows of factors and 20": lambda: probe.partial_fit(x[:20], factors),
        "more than 200": lambda: probe.partial_fit(
            x, factors.assign(shape=[f"s{i}" for i in range(300)])
        ),
    }
    for message, call in wrong.items():
        with pytest.raises(InputError, match=message):
            call()
        assert (probe.coef_ == expected).all()


def test_data_that_no_probe_can_be_fitted_on_is_refused_when_results_are_used():
    factors = samples(300)
    x = parts(factors)
    few = factors[["shape", "colour"]].query("shape == 'cube' or colour == 'red'")
    with pytest.raises(InputError, match=r"fold [0-4] of 5 has no combination"):
        _ = Decodability(**OPTIONS).partial_fit(x[few.index], few).scores_
    constant = factors.assign(size=0.1)
    with pytest.raises(InputError, match="'size' has one value in all samples"):
        _ = Decodability(**OPTIONS).partial_fit(x, constant).scores_
    held = (factors["shape"] == "cube").to_numpy()
    with pytest.raises(InputError, match=r"'shape' is .*'cube'.* only in held-out combinations"):
        _ = Decodability(**OPTIONS).partial_fit(x, factors, held_out=held).scores_
    own = pd.DataFrame({"name": factors.astype(str).agg(" ".join, axis=1)})
    with pytest.raises(InputError, match="occurs in one combination only"):
        _ = Decodability(**OPTIONS).partial_fit(x, own).coef_
