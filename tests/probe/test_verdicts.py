"""Verdicts on networks whose truth is known, and on data without any structure."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.probe_errors import covers, null_verdict
from recombine.probe import Decodability
from recombine.probe.algebra import Algebra
from recombine.probe.verdicts import significance
from tests.probe.known_truth import activations, grid


def verdicts(probe) -> dict[str, str]:
    return dict(zip(probe.verdicts_["factor"], probe.verdicts_["verdict"], strict=True))


TRUTH = {
    "composed": {"shape": "composed", "color": "absent", "bit": "composed"},
    "memorized": {"shape": "memorized", "color": "memorized", "bit": "memorized"},
    "not linear": {"shape": "composed", "color": "absent", "bit": "present, not linear"},
    "absent": {"shape": "composed", "color": "absent", "bit": "absent"},
}


@pytest.mark.parametrize("kind", TRUTH)
def test_verdicts_are_those_of_the_network(kind):
    rows = grid(0)
    probe = Decodability(progress=False).fit(activations(kind, rows, 0), rows)
    assert verdicts(probe) == TRUTH[kind]


def test_one_sentence_names_the_layer_where_a_factor_composes():
    rows = grid(1)
    layers = {
        "early": activations("absent", rows, 1),
        "late": activations("composed", rows, 2),
    }
    probe = Decodability(progress=False).fit(layers, rows)
    by_factor = probe.verdicts_.set_index("factor")
    assert by_factor.at["bit", "layer"] == "late"
    assert "bit" in probe.sentence_.split(" in layer late")[0]
    assert probe.sentence_.endswith("color is absent.")
    columns = {"verdict", "balanced_accuracy", "majority", "p_value", "selectivity"}
    assert columns <= set(probe.scores_)


def test_what_the_input_already_shows_is_marked():
    rows = grid(2)
    layer, model_input = activations("composed", rows, 2), activations("absent", rows, 3)
    probe = Decodability(progress=False).fit(layer, rows, baseline=model_input)
    by_factor = probe.verdicts_.set_index("factor")
    assert by_factor["in_baseline"].to_dict() == {"shape": True, "color": False, "bit": False}
    assert "shape (already decodable from the input)" in probe.sentence_
    assert set(probe.scores_["layer"]) == {"activations", "baseline"}
    assert probe.layer_ == "activations"


def test_below_eight_held_out_combinations_nothing_is_decided():
    rows = grid(3)
    x = activations("composed", rows, 3)
    held_out = rows["shape"] + rows["color"]
    for places, expected in ((("00", "11", "22"), "undecided"), (("00", "11", "22", "33"), "")):
        probe = Decodability(progress=False).fit(x, rows, held_out=held_out.isin(places))
        kinds = set(probe.verdicts_["verdict"])
        assert (kinds == {"undecided"}) == (expected == "undecided")
    assert probe.verdicts_["verdict"].tolist()[0] == "composed"


def test_factors_that_others_determine_are_undecided():
    rows = grid(4)
    rows["copy"] = rows["shape"].map({"0": "a", "1": "b", "2": "c", "3": "d"})
    probe = Decodability(progress=False).fit(activations("composed", rows, 4), rows)
    by_factor = probe.verdicts_.set_index("factor")
    assert by_factor.at["copy", "verdict"] == by_factor.at["shape", "verdict"] == "undecided"
    assert by_factor.at["copy", "reason"] == "the other factors determine it"
    assert by_factor.at["bit", "verdict"] == "composed"


def test_a_rare_value_that_is_not_encoded_is_absent():
    """Its accuracy is .95: that of always predicting the frequent value."""
    rng = np.random.default_rng(0)
    number = np.arange(2000) % 100
    rare = np.isin(number, rng.choice(100, 5, replace=False))
    shape = rng.integers(3, size=100)[number]
    table = pd.DataFrame({"shape": shape.astype(str), "rare": rare})
    x = np.eye(3)[shape] @ rng.normal(size=(3, 10)) + rng.normal(size=(2000, 10))
    probe = Decodability(progress=False).fit(x, table, combinations=number)
    row = probe.scores_.set_index(["factor", "split"]).loc[("rare", "held out")]
    assert row["score"] == pytest.approx(0.95)
    assert row["majority"] == pytest.approx(0.95)
    assert row["shuffled"] > 0.93  # the control keeps the share of the rare value
    assert row["balanced_accuracy"] == pytest.approx(0.5)
    assert row["p_value"] > 0.1
    assert verdicts(probe)["rare"] == "absent"


def test_a_factor_that_the_layer_does_not_have_gets_no_verdict():
    """The benchmark counts such verdicts over 400 data sets; these are its first twelve."""
    wrong = [null_verdict(seed) not in ("absent", "undecided") for seed in range(12)]
    assert sum(wrong) <= 1


def test_p_values_count_the_observed_score_as_a_draw():
    nulls = np.arange(199.0)[:, None, None] * np.ones((1, 1, 2))
    tested = significance(np.array([[500.0, 99.5]]), nulls)
    assert tested.p_value.tolist() == [[1 / 200, (1 + 99) / 200]]
    assert (tested.p_corrected >= tested.p_value).all()


def test_the_largest_of_many_tests_is_not_significant():
    """Of 40 independent tests without any effect, the best one has a p-value near 1/40."""
    rng = np.random.default_rng(0)
    below = 0
    for _ in range(100):
        nulls = rng.normal(size=(200, 4, 10))
        tested = significance(rng.normal(size=(4, 10)), nulls)
        below += bool((tested.p_corrected <= 0.05).any())
        assert (tested.p_value <= 0.2).any()
    assert below <= 12


def test_intervals_cover_the_true_score():
    """The benchmark has 400 repetitions; .95 of 60 is 57, and 51 are fewer in 1 of 100 cases."""
    covered = [covers(seed, 20, 1.3) for seed in range(60)]
    for name in ("accuracy", "balanced accuracy", "r2"):
        assert sum(each[name] for each in covered) >= 52


@pytest.mark.parametrize("width", [4, 300])  # fewer features than samples, and more
def test_a_layer_that_never_varies_has_no_factor(width):
    """For example the embedding of the first token, which is the same for all samples."""
    rows = grid(5, num_samples=8)
    constant = np.full((len(rows), width), 3.0, np.float32)
    layers = {"token 0": constant, "late": activations("absent", rows, 5)}
    probe = Decodability(progress=False).fit(layers, rows)
    by_layer = probe.to_frame("verdict")
    assert (by_layer.loc["token 0"] == "absent").all()
    assert by_layer.at["late", "shape"] == "composed"
    assert probe.constant_features_ == {"token 0": width, "late": 0}


def test_products_of_a_layers_features_are_summed_once(monkeypatch):
    """Linear and nonlinear probes share these sums, which take most of the time of wide layers."""
    rows = grid(6, num_samples=8)
    widths = []
    original = Algebra.gram

    def count(algebra, h, weights):
        widths.append(h.shape[1])
        return original(algebra, h, weights)

    monkeypatch.setattr(Algebra, "gram", count)
    probe = Decodability(progress=False).fit(activations("composed", rows, 6), rows)
    assert widths.count(24) == probe.folds
