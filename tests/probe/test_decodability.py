"""Probes find what is planted and nothing else, hold out whole combinations, and fit scikit-learn's tools."""

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


@pytest.fixture(scope="module")
def probed():
    factors = samples(1500)
    noise = np.random.default_rng(3).normal(size=(1500, 8))
    return Decodability().fit(
        {"parts": parts(factors), "wholes": wholes(factors), "noise": noise}, factors
    )


def test_parts_are_read_on_combinations_that_were_left_out(probed):
    for factor, least in (("shape", 0.98), ("colour", 0.98), ("size", 0.97)):
        assert score(probed, "parts", factor, "held out") > least
        assert score(probed, "parts", factor, "seen") > least
    assert probed.layer_ == "parts"
    assert list(probed.scores_["measure"].unique()) == ["accuracy", "r2"]


def test_wholes_are_read_where_they_were_seen_and_nowhere_else(probed):
    assert score(probed, "wholes", "shape", "seen") > 0.95
    assert score(probed, "wholes", "shape", "held out") < 0.45
    assert score(probed, "wholes", "size", "seen") > 0.8
    assert score(probed, "wholes", "size", "held out") < 0.1


def test_the_control_remembers_but_does_not_generalise(probed):
    assert (
        score(probed, "wholes", "shape", "seen", "shuffled") > 0.9
    )  # 48 combinations in 64 directions: memory
    for layer in ("parts", "wholes", "noise"):
        assert score(probed, layer, "shape", "held out", "shuffled") < 0.5
        assert score(probed, layer, "size", "held out", "shuffled") < 0.2


def test_intervals_are_over_combinations(probed):
    rows = probed.scores_
    assert (rows["low"] <= rows["score"]).all()
    assert (rows["score"] <= rows["high"]).all()
    assert (
        score(probed, "noise", "shape", "held out", "high")
        - score(probed, "noise", "shape", "held out", "low")
        > 0.02
    )
    assert score(probed, "noise", "size", "held out", "low") < 0.05


def test_what_is_held_out_by_the_user_is_never_fitted_on():
    factors = samples(900)
    held = (factors["shape"] == "cube") & (factors["colour"] == "red")
    x, plain = parts(factors), parts(factors)
    x[held] = 1e3 * np.random.default_rng(0).normal(
        size=(int(held.sum()), x.shape[1])
    )  # would ruin any fit
    probe = Decodability().fit(x, factors, held_out=held)
    assert score(probe, "activations", "size", "seen") > 0.97
    assert score(probe, "activations", "size", "held out") < 0
    assert np.isnan(probe.probe_.errors[held]).all()
    twin = Decodability().fit(plain, factors, held_out=held)
    assert (twin.errors_ == probe.errors_).all()
    assert (twin.predict(plain) == probe.predict(plain)).all(axis=None)


def test_the_held_out_score_is_that_of_a_plain_nested_fit():
    """Independently: leave out a fold, choose the penalty on the other folds in turn, fit, and predict."""
    factors = samples(400)
    x, y = parts(factors, noise=2.0), factors["size"].to_numpy()
    numbers = pd.factorize(factors.astype(str).agg(" ".join, axis=1))[0]
    probe = Decodability(folds=4).fit(x, factors[["size"]], combinations=numbers)
    cut = split(numbers, np.zeros(400, bool), 4, 0, [])

    def fit(kept, penalty):
        kept = kept & ~cut.aside
        return Ridge(alpha=penalty * kept.sum() * x[kept].var(axis=0).mean()).fit(x[kept], y[kept])

    read, penalties = np.zeros(400), (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    for fold in range(4):
        errors = []
        for penalty in penalties:
            off = [
                fit(~np.isin(cut.folds, (fold, one)), penalty).predict(x[cut.folds == one])
                - y[cut.folds == one]
                for one in range(4)
                if one != fold
            ]
            errors.append((np.concatenate(off) ** 2).mean())
        best = penalties[int(np.argmin(errors))]
        read[cut.folds == fold] = fit(cut.folds != fold, best).predict(x[cut.folds == fold])
    expected = 1 - ((read - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()
    assert score(probe, "activations", "size", "held out") == pytest.approx(expected, abs=1e-9)


def test_the_layer_is_not_chosen_on_held_out_combinations():
    factors = samples(1200)
    held = ((factors["shape"] == "cube") & (factors["colour"] == "red")).to_numpy()
    better, worse = parts(factors), parts(factors, noise=1.5)
    better[held] = wholes(factors)[held][
        :, : better.shape[1]
    ]  # the layer that is best elsewhere fails just there
    probe = Decodability().fit({"worse": worse, "better": better}, factors, held_out=held)
    assert score(probe, "better", "shape", "held out") < score(probe, "worse", "shape", "held out")
    assert probe.layer_ == "better"


def test_logistic_probes_give_accuracies_of_all_factors():
    factors = samples(400)
    probe = Decodability("logistic", folds=3).fit(
        {"parts": parts(factors), "wholes": wholes(factors)}, factors
    )
    assert set(probe.scores_["measure"]) == {"accuracy"}
    assert score(probe, "parts", "size", "held out") > 0.8
    assert score(probe, "wholes", "shape", "seen") > 0.9
    assert score(probe, "wholes", "shape", "held out") < 0.5
    assert probe.predict(parts(factors)).iloc[0].to_dict() == factors.iloc[0].to_dict()


def test_a_log_loss_is_that_of_the_probabilities_of_a_plain_fit():
    factors = samples(300)
    known, x, new = factors[:200], parts(factors)[:200], parts(factors)[200:]
    found = Decodability("logistic", folds=3).fit(x, known).log_loss(new, factors[200:])
    numbers = known.groupby(list(known), sort=False).ngroup().to_numpy()
    rows = split(numbers, np.zeros(200, bool), 3, 0, []).fitted >= 0
    scaler = StandardScaler().fit(x[rows])
    expected = np.zeros(100)
    for name in factors:
        model = LogisticRegression(max_iter=1000).fit(
            scaler.transform(x[rows]), known[name][rows].astype(str)
        )
        places = pd.Index(model.classes_).get_indexer(pd.Index(factors[name][200:].astype(str)))
        expected -= (
            np.log(model.predict_proba(scaler.transform(new))[np.arange(100), places])
            / factors.shape[1]
        )
    assert found == pytest.approx(expected, rel=0.01)
    with pytest.raises(InputError, match="use kind='logistic'"):
        Decodability(folds=3).fit(x, known).log_loss(new, factors[200:])


def test_a_name_that_only_one_fold_has_is_read_wrong_and_is_no_error():
    factors = samples(300)
    factors.loc[
        (factors["shape"] == "cube") & (factors["colour"] == "red") & (factors["size"] == 1),
        "shape",
    ] = "egg"
    for kind in ("ridge", "logistic"):
        assert (
            score(
                Decodability(kind, folds=3).fit(parts(samples(300)), factors),
                "activations",
                "shape",
                "held out",
            )
            < 1
        )


def test_it_works_in_sklearns_pipelines_and_cross_validation():
    factors = samples(600)
    x, groups = parts(factors), factors.astype(str).agg(" ".join, axis=1)
    pipeline = make_pipeline(StandardScaler(), PCA(12), Decodability(folds=4))
    found = cross_val_score(pipeline, x, factors, groups=groups, cv=GroupKFold(3))
    assert len(found) == 3
    assert found.min() > 0.9
    named = make_pipeline(PCA(12), Decodability()).fit(
        x, factors[["size"]], decodability__combinations=groups
    )
    assert named.score(x, factors[["size"]]) > 0.9
    twin = clone(Decodability("logistic", folds=7, seed=3))
    assert twin.get_params() == {"kind": "logistic", "folds": 7, "seed": 3, "layers": "best"}


def test_a_score_is_the_mean_over_factors_of_what_predict_reads():
    factors, new = samples(800), samples(300, seed=9)
    rng = np.random.default_rng(4)
    hidden = rng.normal(size=(8, 20))

    def layer(table):
        code = np.concatenate(
            [one_hot(table["shape"], sorted(set(table["shape"]))), table[["size"]]], axis=1
        )
        return code @ hidden[: code.shape[1]] + 0.5 * rng.normal(size=(len(code), 20))

    probe = Decodability().fit(layer(factors), factors[["shape", "size"]])
    x = layer(new)
    read = probe.predict(x)
    r2 = (
        1
        - ((read["size"] - new["size"]) ** 2).sum()
        / ((new["size"] - new["size"].mean()) ** 2).sum()
    )
    assert probe.score(x, new) == pytest.approx((r2 + (read["shape"] == new["shape"]).mean()) / 2)


def test_binary_factors_are_numbers_and_name_combinations_by_what_is_present():
    rng = np.random.default_rng(0)
    present = rng.integers(0, 2, size=(500, 4)).astype(bool)
    probe = Decodability().fit(
        present @ rng.normal(size=(4, 16)), pd.DataFrame(present, columns=list("abcd"))
    )
    assert set(probe.scores_["measure"]) == {"r2"}
    assert {"none", "a + c", "a + b + c + d"} <= set(probe.combinations_)


def test_logistic_probes_refuse_numbers_without_end():
    factors = samples(1200)
    factors["size"] += np.arange(1200) / 7
    with pytest.raises(
        InputError, match=r"factor 'size' has [0-9]+ different values: use kind='ridge'"
    ):
        Decodability("logistic").fit(
            parts(factors), factors, combinations=factors["shape"] + factors["colour"]
        )


def test_before_it_is_fitted_it_says_so():
    with pytest.raises(NotFittedError):
        Decodability().predict(np.ones((3, 2)))
    factors = samples(200)
    with pytest.raises(NotFittedError, match="call rank before evaluate"):
        Decodability().fit(parts(factors), factors).evaluate({})
    with pytest.raises(InputError, match="kind must be 'ridge' or 'logistic', got 'lasso'"):
        Decodability("lasso").fit(parts(factors), factors)
    with pytest.raises(InputError, match="folds must be at least 3"):
        Decodability(folds=2).fit(parts(factors), factors)


def test_the_example_runs(capsys):
    example = textwrap.dedent(recombine.probe.__doc__.split("\n", 1)[1])
    names = {}
    exec(compile(example, "example", "exec"), names)
    assert names["probe"].scores_["score"].min() > 0.9
    assert "misreading" in capsys.readouterr().out
