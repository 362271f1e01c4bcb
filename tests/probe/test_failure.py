"""Rankings find the combinations that a model gets wrong; probabilities and scores are what they are called."""

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

from recombine.basics.errors import InputError
from recombine.probe import Decodability, failure
from tests.probe.planted import parts, samples, wholes


@pytest.fixture(scope="module")
def model():
    """A model that composes but for the combinations of one shape with one colour, or with a rare colour."""
    factors = samples(3000)
    x = parts(factors, width=64)
    broken = ((factors["colour"] == "red") & factors["shape"].isin(["cube", "ring"])).to_numpy()
    x[broken] = wholes(factors)[broken]
    return factors, x, broken


def outcomes(factors, broken):
    names = [
        f"shape={row.shape}, colour={row.colour}, size={row.size:g}" for row in factors.itertuples()
    ]
    return dict(zip(names, broken, strict=True))


def test_broken_combinations_are_ranked_first(model):
    factors, x, broken = model
    new = (factors["size"] == 4).to_numpy() & ~(
        (factors["shape"] == "ball") & (factors["colour"] == "blue")
    ).to_numpy()
    new &= (factors["colour"] != "green").to_numpy()
    probe = Decodability().fit(x[~new], factors[~new])
    ranking = probe.rank(factors[new], x[new])
    assert set(ranking["basis"]) == {"activations"}
    assert set(ranking["probability_of"]) == {"misreading"}
    assert ranking["error"].is_monotonic_decreasing
    assert ranking["probability"].is_monotonic_decreasing
    assert {
        "red" in name and ("cube" in name or "ring" in name) for name in ranking["combination"][:2]
    } == {True}
    found = probe.evaluate(outcomes(factors[new], broken[new]))
    assert found["auroc"] == 1
    assert found["failed"] == pytest.approx(2 / 7)
    assert found["combinations"] == 7


def test_with_outcomes_the_probability_is_that_of_a_failure(model):
    factors, x, broken = model
    new = factors["size"].isin([3, 4]).to_numpy() & (factors["colour"] != "blue").to_numpy()
    half = np.where(factors["size"] == 1, np.nan, broken)  # not known of some
    probe = Decodability().fit(x, factors, held_out=new, outcomes=half)
    ranking = probe.rank(factors[new], x[new])
    assert set(ranking["probability_of"]) == {"failure"}
    found = probe.evaluate(outcomes(factors[new], broken[new]))
    assert found["auroc"] > 0.9
    assert found["brier"] < 0.15
    assert found["calibration_error"] < 0.2


def test_outcomes_of_held_out_combinations_are_never_used(model):
    factors, x, broken = model
    new = (factors["size"] == 4).to_numpy()
    lied = np.where(new, ~broken, broken)
    honest = (
        Decodability().fit(x, factors, held_out=new, outcomes=broken).rank(factors[new], x[new])
    )
    assert honest.equals(
        Decodability().fit(x, factors, held_out=new, outcomes=lied).rank(factors[new], x[new])
    )


def test_without_activations_rare_pairs_come_first(model):
    factors, x, _ = model
    rare = (
        (factors["shape"] == "cone") & (factors["colour"] == "green") & (factors["size"] > 1)
    ).to_numpy()
    probe = Decodability().fit(x[~rare], factors[~rare])
    new = pd.DataFrame(
        {"shape": ["cone", "ball"], "colour": ["green", "green"], "size": [2.0, 2.0]}
    )
    ranking = probe.rank(new)
    assert set(ranking["basis"]) == {"support"}
    assert ranking["combination"].iloc[0] == "shape=cone, colour=green, size=2"


def test_rarity_counts_pairs_and_not_itself():
    known = pd.DataFrame({"a": [0, 0, 1], "b": [0, 0, 1], "c": [0, 1, 1]})
    # (a, b) = (0, 0) twice, (a, c) = (0, 1) once, (b, c) = (0, 1) once; the first row's own pairs are not counted.
    assert failure.rarity(pd.DataFrame({"a": [0], "b": [0], "c": [1]}), known) == pytest.approx(
        [1 / 3 + 1 / 2 + 1 / 2]
    )
    assert failure.rarity(known, known, own=1)[0] == pytest.approx(1 / 2 + 1 + 1)
    assert failure.rarity(pd.DataFrame({"a": [1, 5]}), known[["a"]]) == pytest.approx([1 / 2, 1])


def ranking(errors, probabilities=None):
    given = {"combination": [f"c{i}" for i in range(len(errors))], "error": errors}
    return pd.DataFrame(
        given | {"probability": np.zeros(len(errors)) if probabilities is None else probabilities}
    )


def test_evaluation_by_hand():
    happened = {"c0": True, "c1": False, "c2": True, "c3": False}
    found = failure.evaluate(ranking([4.0, 3.0, 2.0, 1.0], [0.9, 0.9, 0.4, 0.0]), happened)
    assert (
        found["auroc"] == 0.75
    )  # of four pairs of a failure and a success, one is the wrong way round
    assert found["spearman"] == pytest.approx(1 / np.sqrt(5))
    assert found["brier"] == pytest.approx((0.01 + 0.81 + 0.36 + 0) / 4)
    assert found["calibration_error"] == pytest.approx((0.1 + 0.9 + 0.6 + 0.0) / 4)
    graded = failure.evaluate(
        ranking([4.0, 3.0, 2.0, 1.0]), pd.Series([0.7, 0.9, 0.2, 0.1], index=list(happened))
    )
    assert graded["auroc"] == 1  # the two above the median
    assert graded["spearman"] == pytest.approx(0.8)
    assert "brier" not in graded


def test_auroc_is_sklearns():
    rng = np.random.default_rng(0)
    failed, error = rng.random(80) < 0.3, rng.integers(0, 20, 80).astype(float)  # with ties
    found = failure.evaluate(ranking(error), {f"c{i}": one for i, one in enumerate(failed)})
    assert found["auroc"] == pytest.approx(metrics.roc_auc_score(failed, error))
    assert found["auroc_low"] < found["auroc"] < found["auroc_high"]


def test_a_useless_ranking_has_an_interval_around_chance():
    rng = np.random.default_rng(0)
    found = failure.evaluate(
        ranking(rng.random(200)), {f"c{i}": bool(rng.random() < 0.5) for i in range(200)}
    )
    assert found["auroc_low"] < 0.5 < found["auroc_high"]
    assert found["spearman_low"] < 0 < found["spearman_high"]


def test_probabilities_never_fall_and_mean_what_happened():
    rng = np.random.default_rng(0)
    signal = rng.random(4000)
    happened = rng.random(4000) < signal**2
    new = np.array([-1.0, 0.2, 0.5, 0.9, 7.0])
    found = failure.probabilities(signal, happened.astype(float), new)
    assert (np.diff(found) >= 0).all()
    assert found[1:4] == pytest.approx(new[1:4] ** 2, abs=0.08)


def test_outcomes_that_nobody_ranked_are_told():
    with pytest.raises(
        InputError,
        match="outcomes are known of 0 of 2 ranked combinations: name them as the ranking",
    ):
        failure.evaluate(ranking([1.0, 2.0]), {"red": True, "blue": False})


def test_outcomes_are_one_number_for_each_combination():
    ranking = pd.DataFrame(
        {"combination": ["a", "b"], "error": [1.0, 2.0], "probability": [0.0, 1.0]}
    )
    with pytest.raises(InputError, match="true, false or numbers by combination"):
        failure.evaluate(ranking, {"a": "failed", "b": "fine"})
    with pytest.raises(InputError, match="the outcome of 'a' is given more than once"):
        failure.evaluate(ranking, pd.Series([1.0, 0.0, 1.0], index=["a", "a", "b"]))
