"""Rankings put failing combinations first; probabilities and scores equal independent values."""

import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

from recombine.basics.errors import InputError
from recombine.probe import Decodability, failure_ranking
from tests.probe.planted import parts, samples, wholes


@pytest.fixture(scope="module")
def model():
    """A model that represents every combination by its factors, except red cubes and red rings."""
    factors = samples(3000)
    x = parts(factors, width=64)
    broken = ((factors["colour"] == "red") & factors["shape"].isin(["cube", "ring"])).to_numpy()
    x[broken] = wholes(factors)[broken]
    return factors, x, broken


def outcomes(factors, broken):
    """Whether each combination is broken, by name."""
    names = [
        f"shape={row.shape}, colour={row.colour}, size={row.size:g}" for row in factors.itertuples()
    ]
    return dict(zip(names, broken, strict=True))


def test_broken_combinations_are_ranked_first(model):
    factors, x, broken = model
    is_blue_ball = (factors["shape"] == "ball") & (factors["colour"] == "blue")
    new = ((factors["size"] == 4) & ~is_blue_ball & (factors["colour"] != "green")).to_numpy()
    probe = Decodability().fit(x[~new], factors[~new])
    ranking = probe.rank(factors[new], x[new])
    assert set(ranking["basis"]) == {"activations"}
    assert set(ranking["probability_of"]) == {"misreading"}
    assert ranking["error"].is_monotonic_decreasing
    assert ranking["probability"].is_monotonic_decreasing
    for name in ranking["combination"][:2]:
        assert "red" in name
        assert "cube" in name or "ring" in name
    quality = probe.evaluate(outcomes(factors[new], broken[new]))
    assert quality["auroc"] == 1
    assert quality["failed"] == pytest.approx(2 / 7)
    assert quality["combinations"] == 7


def test_with_outcomes_the_probability_is_that_of_a_failure(model):
    factors, x, broken = model
    new = factors["size"].isin([3, 4]).to_numpy() & (factors["colour"] != "blue").to_numpy()
    some_outcomes = np.where(factors["size"] == 1, np.nan, broken)  # some are unknown
    probe = Decodability().fit(x, factors, held_out=new, outcomes=some_outcomes)
    ranking = probe.rank(factors[new], x[new])
    assert set(ranking["probability_of"]) == {"failure"}
    quality = probe.evaluate(outcomes(factors[new], broken[new]))
    assert quality["auroc"] > 0.9
    assert quality["brier"] < 0.15
    assert quality["calibration_error"] < 0.2


def test_outcomes_of_held_out_combinations_are_never_used(model):
    factors, x, broken = model
    new = (factors["size"] == 4).to_numpy()
    falsified = np.where(new, ~broken, broken)
    probe = Decodability().fit(x, factors, held_out=new, outcomes=broken)
    other = Decodability().fit(x, factors, held_out=new, outcomes=falsified)
    assert probe.rank(factors[new], x[new]).equals(other.rank(factors[new], x[new]))


def test_without_activations_rare_pairs_are_ranked_first(model):
    factors, x, _ = model
    is_green_cone = (factors["shape"] == "cone") & (factors["colour"] == "green")
    rare = (is_green_cone & (factors["size"] > 1)).to_numpy()
    probe = Decodability().fit(x[~rare], factors[~rare])
    new = pd.DataFrame(
        {"shape": ["cone", "ball"], "colour": ["green", "green"], "size": [2.0, 2.0]}
    )
    ranking = probe.rank(new)
    assert set(ranking["basis"]) == {"support"}
    assert ranking["combination"].iloc[0] == "shape=cone, colour=green, size=2"


def test_rarity_counts_pairs_and_no_row_counts_itself():
    known = pd.DataFrame({"a": [0, 0, 1], "b": [0, 0, 1], "c": [0, 1, 1]})
    # (a, b) = (0, 0) occurs twice, (a, c) = (0, 1) once, (b, c) = (0, 1) once.
    new = pd.DataFrame({"a": [0], "b": [0], "c": [1]})
    assert failure_ranking.rarity(new, known) == pytest.approx([1 / 3 + 1 / 2 + 1 / 2])
    assert failure_ranking.rarity(known, known, own=1)[0] == pytest.approx(1 / 2 + 1 + 1)
    single = failure_ranking.rarity(pd.DataFrame({"a": [1, 5]}), known[["a"]])
    assert single == pytest.approx([1 / 2, 1])


def make_ranking(errors, probabilities=None):
    names = [f"c{i}" for i in range(len(errors))]
    probability = np.zeros(len(errors)) if probabilities is None else probabilities
    return pd.DataFrame({"combination": names, "error": errors, "probability": probability})


def test_evaluation_equals_values_computed_by_hand():
    failed = {"c0": True, "c1": False, "c2": True, "c3": False}
    ranking = make_ranking([4.0, 3.0, 2.0, 1.0], [0.9, 0.9, 0.4, 0.0])
    quality = failure_ranking.evaluate(ranking, failed)
    assert quality["auroc"] == 0.75  # one of four pairs of a failure and a success is misordered
    assert quality["spearman"] == pytest.approx(1 / np.sqrt(5))
    assert quality["brier"] == pytest.approx((0.01 + 0.81 + 0.36 + 0) / 4)
    assert quality["calibration_error"] == pytest.approx((0.1 + 0.9 + 0.6 + 0.0) / 4)
    graded = pd.Series([0.7, 0.9, 0.2, 0.1], index=list(failed))
    quality = failure_ranking.evaluate(make_ranking([4.0, 3.0, 2.0, 1.0]), graded)
    assert quality["auroc"] == 1  # the two above the median
    assert quality["spearman"] == pytest.approx(0.8)
    assert "brier" not in quality


def test_auroc_equals_scikit_learns():
    rng = np.random.default_rng(0)
    failed, error = rng.random(80) < 0.3, rng.integers(0, 20, 80).astype(float)  # with ties
    by_name = {f"c{i}": value for i, value in enumerate(failed)}
    quality = failure_ranking.evaluate(make_ranking(error), by_name)
    assert quality["auroc"] == pytest.approx(metrics.roc_auc_score(failed, error))
    assert quality["auroc_low"] < quality["auroc"] < quality["auroc_high"]


def test_the_interval_of_a_random_ranking_contains_chance():
    rng = np.random.default_rng(0)
    ranking = make_ranking(rng.random(200))
    failed = {f"c{i}": bool(rng.random() < 0.5) for i in range(200)}
    quality = failure_ranking.evaluate(ranking, failed)
    assert quality["auroc_low"] < 0.5 < quality["auroc_high"]
    assert quality["spearman_low"] < 0 < quality["spearman_high"]


def test_probabilities_are_monotonic_and_calibrated():
    rng = np.random.default_rng(0)
    signal = rng.random(4000)
    happened = rng.random(4000) < signal**2
    new = np.array([-1.0, 0.2, 0.5, 0.9, 7.0])
    probability = failure_ranking.probabilities(signal, happened.astype(float), new)
    assert (np.diff(probability) >= 0).all()
    assert probability[1:4] == pytest.approx(new[1:4] ** 2, abs=0.08)


def test_outcomes_of_other_combinations_are_refused():
    message = "outcomes are known for 0 of 2 ranked combinations: use the names of the ranking"
    with pytest.raises(InputError, match=message):
        failure_ranking.evaluate(make_ranking([1.0, 2.0]), {"red": True, "blue": False})


def test_wrong_outcomes_are_refused():
    ranking = pd.DataFrame(
        {"combination": ["a", "b"], "error": [1.0, 2.0], "probability": [0.0, 1.0]}
    )
    with pytest.raises(InputError, match="true, false or numbers by combination"):
        failure_ranking.evaluate(ranking, {"a": "failed", "b": "fine"})
    with pytest.raises(InputError, match="the outcome of 'a' appears more than once"):
        failure_ranking.evaluate(ranking, pd.Series([1.0, 0.0, 1.0], index=["a", "a", "b"]))
