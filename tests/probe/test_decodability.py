"""Probes decode what is planted and nothing else, hold out combinations, and fit scikit-learn."""

import textwrap

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import recombine.probe
from recombine.basics.errors import InputError
from recombine.probe import Decodability
from recombine.probe.split import split
from tests.probe.planted import one_hot, parts, samples, wholes


def score(probe, layer, factor, split, column="score"):
    rows = probe.scores_.set_index(["layer", "factor", "split"])
    return rows.loc[(layer, factor, split), column]


def r2(predicted, true):
    return 1 - ((predicted - true) ** 2).sum() / ((true - true.mean()) ** 2).sum()


@pytest.fixture(scope="module")
def probe():
    factors = samples(1500)
    noise = np.random.default_rng(3).normal(size=(1500, 8))
    layers = {"parts": parts(factors), "wholes": wholes(factors), "noise": noise}
    return Decodability().fit(layers, factors)


def test_factors_with_directions_are_decoded_on_held_out_combinations(probe):
    for factor, minimum in (("shape", 0.98), ("colour", 0.98), ("size", 0.97)):
        assert score(probe, "parts", factor, "held out") > minimum
        assert score(probe, "parts", factor, "seen") > minimum
    assert probe.layer_ == "parts"
    assert list(probe.scores_["measure"].unique()) == ["accuracy", "r2"]


def test_combinations_with_directions_are_decoded_only_where_they_were_seen(probe):
    assert score(probe, "wholes", "shape", "seen") > 0.95
    assert score(probe, "wholes", "shape", "held out") < 0.45
    assert score(probe, "wholes", "size", "seen") > 0.8
    assert score(probe, "wholes", "size", "held out") < 0.1


def test_the_permuted_label_control_memorizes_but_does_not_generalize(probe):
    # 48 combinations in 64 directions can be memorized.
    assert score(probe, "wholes", "shape", "seen", "shuffled") > 0.9
    for layer in ("parts", "wholes", "noise"):
        assert score(probe, layer, "shape", "held out", "shuffled") < 0.5
        assert score(probe, layer, "size", "held out", "shuffled") < 0.2


def test_intervals_are_over_combinations(probe):
    rows = probe.scores_
    assert (rows["low"] <= rows["score"]).all()
    assert (rows["score"] <= rows["high"]).all()
    low = score(probe, "noise", "shape", "held out", "low")
    high = score(probe, "noise", "shape", "held out", "high")
    assert high - low > 0.02
    assert score(probe, "noise", "size", "held out", "low") < 0.05


def test_probes_are_never_fitted_on_held_out_combinations():
    factors = samples(900)
    held = (factors["shape"] == "cube") & (factors["colour"] == "red")
    x, ruined = parts(factors), parts(factors)
    rng = np.random.default_rng(0)
    ruined[held] = 1e3 * rng.normal(size=(int(held.sum()), x.shape[1]))  # would ruin any fit
    probe = Decodability().fit(ruined, factors, held_out=held)
    assert score(probe, "activations", "size", "seen") > 0.97
    assert score(probe, "activations", "size", "held out") < 0
    assert np.isnan(probe.probe_.errors[held]).all()
    other = Decodability().fit(x, factors, held_out=held)
    assert (other.errors_ == probe.errors_).all()
    assert (other.predict(x) == probe.predict(x)).all(axis=None)


def test_held_out_scores_equal_a_plain_nested_cross_validation():
    """Independently: leave out a fold, choose the penalty on the other folds, fit, and predict."""
    factors = samples(400)
    x, y = parts(factors, noise=2.0), factors["size"].to_numpy()
    numbers = pd.factorize(factors.astype(str).agg(" ".join, axis=1))[0]
    penalties = (1e-4, 1e-2, 1.0)
    probe = Decodability(folds=4, num_permutations=0, penalties=penalties)
    probe.fit(x, factors[["size"]], combinations=numbers)
    roles = split(numbers, np.zeros(400, bool), 4, 0, [])

    def predict(target_fold, excluded_folds, penalty):
        rows = ~np.isin(roles.folds, excluded_folds) & ~roles.reserved
        model = make_pipeline(StandardScaler(), Ridge(alpha=penalty * rows.sum()))
        return model.fit(x[rows], y[rows]).predict(x[roles.folds == target_fold])

    predicted = np.zeros(400)
    for fold in range(4):
        errors = []
        for penalty in penalties:
            off = [
                predict(inner, (fold, inner), penalty) - y[roles.folds == inner]
                for inner in range(4)
                if inner != fold
            ]
            errors.append((np.concatenate(off) ** 2).mean())
        best = penalties[int(np.argmin(errors))]
        predicted[roles.folds == fold] = predict(fold, (fold,), best)
    expected = r2(predicted, y)
    assert score(probe, "activations", "size", "held out") == pytest.approx(expected, abs=1e-9)


def test_the_layer_is_not_chosen_on_held_out_combinations():
    factors = samples(1200)
    held = ((factors["shape"] == "cube") & (factors["colour"] == "red")).to_numpy()
    better, worse = parts(factors), parts(factors, noise=1.5)
    # The layer that is best on train combinations fails on held-out ones.
    better[held] = wholes(factors)[held][:, : better.shape[1]]
    probe = Decodability().fit({"worse": worse, "better": better}, factors, held_out=held)
    assert score(probe, "better", "shape", "held out") < score(probe, "worse", "shape", "held out")
    assert probe.layer_ == "better"


def test_logistic_probes_score_all_factors_by_accuracy():
    factors = samples(400)
    layers = {"parts": parts(factors), "wholes": wholes(factors)}
    probe = Decodability("logistic", folds=3).fit(layers, factors)
    assert set(probe.scores_["measure"]) == {"accuracy"}
    assert score(probe, "parts", "size", "held out") > 0.8
    assert score(probe, "wholes", "shape", "seen") > 0.9
    assert score(probe, "wholes", "shape", "held out") < 0.5
    assert probe.predict(parts(factors)).iloc[0].to_dict() == factors.iloc[0].to_dict()


def test_names_are_decoded_by_logistic_regressions_with_the_penalty_of_the_table():
    """Independently: scikit-learn's, at the same penalty per sample and mean variance."""
    factors = samples(300)
    known, x, new = factors[:200], parts(factors, noise=1.5)[:200], parts(factors)[200:]
    # Above a penalty of 0.1 the map of the penalty path is kept (layer_probe.py).
    penalties = (1e-3, 1e-2, 1e-1)
    probe = Decodability("logistic", folds=3, num_permutations=0, penalties=penalties).fit(x, known)
    losses = probe.log_loss(new, factors[200:])
    numbers = known.groupby(list(known), sort=False).ngroup().to_numpy()
    rows = split(numbers, np.zeros(200, bool), 3, 0, []).fit_folds >= 0
    scaler = StandardScaler().fit(x[rows])
    expected = np.zeros(100)
    for name in factors:
        values = known[name][rows].astype(str)
        shares = values.value_counts(normalize=True)
        decay = (shares * (1 - shares)).mean() * probe.scores_.set_index("factor").at[
            name, "penalty"
        ].iloc[0]
        model = LogisticRegression(C=1 / (decay * rows.sum()), max_iter=5000, tol=1e-8)
        model.fit(scaler.transform(x[rows]), values)
        probability = model.predict_proba(scaler.transform(new))
        truth = pd.Index(model.classes_).get_indexer(pd.Index(factors[name][200:].astype(str)))
        expected -= np.log(probability[np.arange(100), truth]) / factors.shape[1]
        assert np.allclose(probe.predict_proba(new)[name], probability, atol=0.01)
    assert np.abs(losses - expected).mean() < 0.02
    with pytest.raises(InputError, match="use kind='logistic'"):
        Decodability(folds=3, num_permutations=0).fit(x, known).log_loss(new, factors[200:])


def test_a_value_that_occurs_in_one_fold_only_is_decoded_wrongly_without_an_error():
    factors = samples(300)
    rows = (factors["shape"] == "cube") & (factors["colour"] == "red") & (factors["size"] == 1)
    factors.loc[rows, "shape"] = "egg"
    for kind in ("ridge", "logistic"):
        probe = Decodability(kind, folds=3).fit(parts(samples(300)), factors)
        assert score(probe, "activations", "shape", "held out") < 1


def test_works_in_scikit_learns_pipelines_and_cross_validation():
    factors = samples(600)
    x, groups = parts(factors), factors.astype(str).agg(" ".join, axis=1)
    pipeline = make_pipeline(StandardScaler(), PCA(12), Decodability(folds=4))
    scores = cross_val_score(pipeline, x, factors, groups=groups, cv=GroupKFold(3))
    assert len(scores) == 3
    assert scores.min() > 0.9
    named = make_pipeline(PCA(12), Decodability()).fit(
        x, factors[["size"]], decodability__combinations=groups
    )
    assert named.score(x, factors[["size"]]) > 0.9
    copied = clone(Decodability("logistic", folds=7, seed=3, names=["a"]))
    changed = {"kind": "logistic", "folds": 7, "seed": 3, "names": ["a"]}
    assert copied.get_params() == Decodability().get_params() | changed


def test_the_score_is_the_mean_over_factors_of_what_predict_returns():
    factors, new = samples(800), samples(300, seed=9)
    rng = np.random.default_rng(4)
    weights = rng.normal(size=(8, 20))

    def layer(table):
        shape = one_hot(table["shape"], sorted(set(table["shape"])))
        code = np.concatenate([shape, table[["size"]]], axis=1)
        return code @ weights[: code.shape[1]] + 0.5 * rng.normal(size=(len(code), 20))

    probe = Decodability().fit(layer(factors), factors[["shape", "size"]])
    x = layer(new)
    predicted = probe.predict(x)
    accuracy = (predicted["shape"] == new["shape"]).mean()
    expected = (r2(predicted["size"], new["size"]) + accuracy) / 2
    assert probe.score(x, new) == pytest.approx(expected)


@pytest.mark.parametrize(("kind", "measure"), [(bool, "accuracy"), (float, "r2")])
def test_booleans_are_names_and_name_combinations_by_what_is_present(kind, measure):
    rng = np.random.default_rng(0)
    present = rng.integers(0, 2, size=(500, 4)).astype(kind)
    activations = present @ rng.normal(size=(4, 16))
    table = pd.DataFrame(present, columns=list("abcd"))
    probe = Decodability(num_permutations=0).fit(activations, table)
    assert set(probe.scores_["measure"]) == {measure}
    assert {"none", "a + c", "a + b + c + d"} <= set(probe.combinations_)
    assert (probe.predict(activations).round() == table).all(axis=None)


def test_logistic_probes_refuse_factors_with_too_many_values():
    factors = samples(1200)
    factors["size"] += np.arange(1200) / 7
    names = factors["shape"] + factors["colour"]
    message = r"factor 'size' has [0-9]+ different values, more than 200: probe it as numbers"
    with pytest.raises(InputError, match=message):
        Decodability("logistic").fit(parts(factors), factors, combinations=names)


def test_wrong_options_and_a_wrong_order_of_calls_are_refused():
    with pytest.raises(InputError, match="num_permutations must be at least 200, or 0"):
        Decodability(num_permutations=50).fit(np.ones((3, 2)), [1, 2, 3])
    with pytest.raises(NotFittedError):
        Decodability().predict(np.ones((3, 2)))
    factors = samples(200)
    with pytest.raises(NotFittedError, match="call rank before evaluate"):
        Decodability().fit(parts(factors), factors).evaluate({})
    with pytest.raises(InputError, match="kind must be 'auto', 'ridge' or 'logistic', got 'lasso'"):
        Decodability("lasso").fit(parts(factors), factors)
    with pytest.raises(InputError, match="folds must be at least 3"):
        Decodability(folds=2).fit(parts(factors), factors)


def test_the_example_of_the_package_runs(capsys):
    example = textwrap.dedent(recombine.probe.__doc__.split("\n", 1)[1])
    names = {}
    exec(compile(example, "example", "exec"), names)
    assert names["probe"].scores_["score"].min() > 0.9
    assert "misreading" in capsys.readouterr().out
