"""Probes of all layers joined into one, `layers="all"`."""

import copy

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from recombine.basics.errors import InputError
from recombine.probe import Decodability
from tests.probe.planted import COLOURS, SHAPES, one_hot, parts, samples, wholes


def layer_of_one_factor(
    values: pd.Series, known: tuple[str, ...], width: int, seed: int
) -> np.ndarray:
    """A layer that encodes one factor and nothing else."""
    rng = np.random.default_rng(seed)
    signal = one_hot(values, known) @ rng.normal(size=(len(known), width))
    return signal + 0.2 * rng.normal(size=(len(values), width))


@pytest.fixture(scope="module")
def two_layers():
    """An early layer that encodes shapes and a late one that encodes colours.

    Some held-out combinations have a wrong shape in the early layer, others a wrong colour in the
    late one. These are the failures.
    """
    factors = samples(1600)
    names: pd.Series = factors.astype(str).agg(" ".join, axis=1)
    # Every other combination is held out. 0: its shape is wrong, 1: its colour, 2 and 3: neither.
    kinds = {name: i % 4 for i, name in enumerate(sorted(set(names))[::2])}
    kind = names.map(kinds)
    wrong = {SHAPES[0]: SHAPES[1], COLOURS[0]: COLOURS[1]}
    wrong_shape = factors["shape"].map(lambda name: wrong.get(name, SHAPES[0]))
    wrong_colour = factors["colour"].map(lambda name: wrong.get(name, COLOURS[0]))
    shape = factors["shape"].mask(kind == 0, wrong_shape)
    colour = factors["colour"].mask(kind == 1, wrong_colour)
    layers = {
        "early": layer_of_one_factor(shape, SHAPES, 10, 6),
        "late": layer_of_one_factor(colour, COLOURS, 7, 7).astype("f4"),
    }
    failed = {name: i < 2 for name, i in kinds.items()}
    return layers, factors[["shape", "colour"]], names, kind.notna().to_numpy(), failed


def fit_rank_evaluate(two_layers, **options):
    layers, factors, names, held, failed = two_layers
    probe = Decodability(**options).fit(layers, factors, names, held)
    new = {name: x[held] for name, x in layers.items()}
    ranking = probe.rank(factors[held], new, names[held])
    return probe, ranking, probe.evaluate(failed)


@pytest.fixture(scope="module")
def joined(two_layers):
    return fit_rank_evaluate(two_layers, layers="all")


def test_joined_layers_decode_and_rank_what_no_single_layer_does(two_layers, joined):
    best, best_ranking, best_quality = fit_rank_evaluate(two_layers)
    probe, ranking, quality = joined
    assert set(best_ranking["basis"]) == {best.layer_} < {"early", "late"}
    assert (probe.layer_, set(ranking["basis"])) == ("all layers", {"all layers"})
    assert quality["auroc"] > 0.99
    assert best_quality["auroc"] < 0.85  # blind to failures of the factor that the layer lacks
    seen = probe.scores_[probe.scores_["split"] == "seen"].set_index(["layer", "factor"])["score"]
    assert seen["all layers"].min() > 0.98
    assert max(seen["early", "colour"], seen["late", "shape"]) < 0.6


def test_scores_of_single_layers_do_not_change(two_layers, joined):
    layers, factors, names, held, _ = two_layers
    best = Decodability().fit(layers, factors, names, held)
    scores = joined[0].scores_
    assert scores["layer"].unique().tolist() == ["early", "late", "all layers"]
    corrected = ["p_corrected", "verdict"]  # a further layer is a further test
    single = scores[scores["layer"] != "all layers"].drop(columns=corrected)
    expected = best.scores_.drop(columns=corrected)
    pd.testing.assert_frame_equal(single, expected)


def test_equals_the_probe_of_one_array_of_all_features(two_layers, joined):
    layers, factors, names, held, _ = two_layers
    concatenated = np.concatenate([layers["early"], layers["late"]], axis=1)
    plain = Decodability().fit(concatenated, factors, names, held)
    assert (joined[0].errors_ == plain.errors_).all()
    columns = ["combination", "error", "probability"]
    expected = plain.rank(factors[held], concatenated[held], names[held])[columns]
    pd.testing.assert_frame_equal(joined[1][columns], expected)
    assert joined[0].score(layers, factors) == plain.score(concatenated, factors)


def test_results_are_deterministic_and_do_not_depend_on_the_order_of_layers(two_layers, joined):
    layers, factors, _, held, _ = two_layers
    probe, ranking, _ = fit_rank_evaluate(two_layers, layers="all")
    pd.testing.assert_frame_equal(probe.scores_, joined[0].scores_)
    pd.testing.assert_frame_equal(ranking, joined[1])
    reordered = {"late": layers["late"], "more": layers["late"][:, :2], "early": layers["early"]}
    pd.testing.assert_frame_equal(probe.predict(reordered), probe.predict(layers))
    assert (probe.predict(layers)[~held] == factors[~held]).mean(axis=None) > 0.98


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_held_out_activations_do_not_change_the_probe(two_layers, kind):
    layers, factors, names, held, _ = two_layers
    rng = np.random.default_rng(8)
    ruined = {
        name: np.where(held[:, None], 1e3 * rng.normal(size=x.shape), x)
        for name, x in layers.items()
    }
    probe = Decodability(kind, folds=3, layers="all").fit(layers, factors, names, held)
    other = Decodability(kind, folds=3, layers="all").fit(ruined, factors, names, held)
    assert (probe.errors_ == other.errors_).all()
    pd.testing.assert_frame_equal(probe.predict(layers), other.predict(layers))
    assert probe.score(layers, factors) == other.score(layers, factors)
    scores = probe.scores_.groupby(["layer", "split"])["score"].mean()["all layers"]
    other_scores = other.scores_.groupby(["layer", "split"])["score"].mean()["all layers"]
    assert scores["seen"] == other_scores["seen"]
    assert scores["held out"] > other_scores["held out"] + 0.1  # they are scored all the same


def test_log_loss_uses_all_layers(two_layers):
    layers, factors, _, held, _ = two_layers
    known = {name: x[~held][:300] for name, x in layers.items()}
    known_factors: pd.DataFrame = factors[~held][:300]
    joined = Decodability("logistic", folds=3, layers="all").fit(known, known_factors)
    best = Decodability("logistic", folds=3, layers="best").fit(known, known_factors)
    joined_loss = joined.log_loss(known, known_factors).mean()
    assert joined_loss < 0.5 * best.log_loss(known, known_factors).mean()


def test_joining_a_single_layer_changes_nothing():
    factors, new = samples(500), samples(60, seed=9)
    best = Decodability(layers="best").fit(parts(factors), factors)
    joined = Decodability(layers="all").fit(parts(factors), factors)
    assert (best.layer_, joined.layer_) == ("activations", "all layers")
    pd.testing.assert_frame_equal(best.predict(parts(new)), joined.predict(parts(new)))
    by_name = joined.predict({"activations": parts(new)})
    pd.testing.assert_frame_equal(by_name, joined.predict(parts(new)))
    assert (best.errors_ == joined.errors_).all()
    pipeline = make_pipeline(StandardScaler(), Decodability(layers="all"))
    assert pipeline.fit(parts(factors), factors).score(parts(factors), factors) > 0.9


def test_layers_is_a_parameter_for_scikit_learn():
    probe = Decodability(layers="all")
    assert probe.get_params() == Decodability().get_params() | {"layers": "all"}
    assert clone(probe).layers == copy.deepcopy(probe).layers == "all"
    assert probe.set_params(layers="best").layers == "best"


def test_changing_the_option_does_not_change_a_fitted_probe(two_layers):
    layers, factors, names, held, _ = two_layers
    probe = Decodability(layers="all").fit(layers, factors, names, held)
    before = probe.predict(layers)
    pd.testing.assert_frame_equal(probe.set_params(layers="best").predict(layers), before)


WRONG = {
    "one array does not distinguish layers: provide a dict with early, late": lambda layers: layers[
        "early"
    ],
    "there is no layer 'late': the layers are early; provide early, late": lambda layers: {
        "early": layers["early"]
    },
    "layer 'late' has 6 features, and had 7 when .*: provide the same layer": lambda layers: (
        layers | {"late": layers["late"][:, 1:]}
    ),
    "layer 'late' has 9 samples and 'early' has 1600": lambda layers: (
        layers | {"late": layers["late"][:9]}
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_activations_are_refused_in_one_line(two_layers, joined, message):
    layers, factors, *_ = two_layers
    wrong = WRONG[message](layers)
    for use in (lambda: joined[0].predict(wrong), lambda: joined[0].rank(factors, wrong)):
        with pytest.raises(InputError, match=message) as refused:
            use()
        assert len(str(refused.value).splitlines()) == 1


def test_wrong_options_and_a_reserved_layer_name_are_refused():
    factors = samples(200)
    for wrong in ("most", None, ["early"]):
        with pytest.raises(InputError, match=r"^layers must be 'best' or 'all', got "):
            Decodability(layers=wrong).fit(parts(factors), factors)
    named = {"all layers": parts(factors), "late": wholes(factors)}
    message = "a layer is named 'all layers', the name for all layers concatenated: rename it"
    with pytest.raises(InputError, match=message):
        Decodability(layers="all").fit(named, factors)
    probe = Decodability().fit(named, factors)
    assert probe.layer_ == "all layers"  # an ordinary name if layers are not joined
    assert len(probe.predict(parts(factors))) == 200


def test_layers_of_very_different_scales_are_joined(two_layers, joined):
    """Features are standardized, so the scale of a layer does not matter."""
    layers, factors, names, held, _ = two_layers
    for early_scale, late_scale in ((1.0, 1e4), (1e-4, 1.0)):
        scaled = {"early": early_scale * layers["early"], "late": late_scale * layers["late"]}
        probe = Decodability(layers="all", num_permutations=0).fit(scaled, factors, names, held)
        assert probe.score(scaled, factors) == pytest.approx(
            joined[0].score(layers, factors), abs=0.01
        )
    constant = {"early": 0 * layers["early"], "late": layers["late"]}
    probe = Decodability(layers="all", num_permutations=0).fit(constant, factors, names, held)
    assert probe.constant_features_["early"] == layers["early"].shape[1]
