"""All layers joined into one: what no layer tells alone is read and ranks failures, and what is held out has no say."""

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


def tells(values: pd.Series, known: tuple[str, ...], width: int, seed: int) -> np.ndarray:
    """A layer that tells one factor and nothing else."""
    rng = np.random.default_rng(seed)
    return one_hot(values, known) @ rng.normal(size=(len(known), width)) + 0.2 * rng.normal(
        size=(len(values), width)
    )


@pytest.fixture(scope="module")
def apart():
    """Early layers tell shapes, late ones colours; of held-out combinations some have a wrong shape, some a colour."""
    factors = samples(1600)
    names: pd.Series = factors.astype(str).agg(" ".join, axis=1)
    lost = {
        name: i % 4 for i, name in enumerate(sorted(set(names))[::2])
    }  # 0: its shape, 1: its colour, else nothing
    place, another = names.map(lost), {SHAPES[0]: SHAPES[1], COLOURS[0]: COLOURS[1]}
    shape = factors["shape"].mask(
        place == 0, factors["shape"].map(lambda name: another.get(name, SHAPES[0]))
    )
    colour = factors["colour"].mask(
        place == 1, factors["colour"].map(lambda name: another.get(name, COLOURS[0]))
    )
    layers = {
        "early": tells(shape, SHAPES, 10, 6),
        "late": tells(colour, COLOURS, 7, 7).astype("f4"),
    }
    failed = {name: i < 2 for name, i in lost.items()}
    return layers, factors[["shape", "colour"]], names, place.notna().to_numpy(), failed


def ranked(apart, **options):
    layers, factors, names, held, failed = apart
    probe = Decodability(**options).fit(layers, factors, names, held)
    ranking = probe.rank(factors[held], {name: x[held] for name, x in layers.items()}, names[held])
    return probe, ranking, probe.evaluate(failed)


@pytest.fixture(scope="module")
def whole(apart):
    return ranked(apart, layers="all")


def test_what_each_layer_tells_half_of_is_read_and_ranked_by_all_together(apart, whole):
    best, of_best, told = ranked(apart)
    probe, ranking, found = whole
    assert set(of_best["basis"]) == {best.layer_} < {"early", "late"}
    assert (probe.layer_, set(ranking["basis"])) == ("all layers", {"all layers"})
    assert found["auroc"] > 0.99
    assert (
        told["auroc"] < 0.85
    )  # it cannot see the failures of the factor that its layer does not tell
    seen = probe.scores_[probe.scores_["split"] == "seen"].set_index(["layer", "factor"])["score"]
    assert seen["all layers"].min() > 0.98
    assert max(seen["early", "colour"], seen["late", "shape"]) < 0.6


def test_scores_of_single_layers_stay_as_they_are(apart, whole):
    layers, factors, names, held, _ = apart
    plain, rows = Decodability().fit(layers, factors, names, held), whole[0].scores_
    assert rows["layer"].unique().tolist() == ["early", "late", "all layers"]
    pd.testing.assert_frame_equal(rows[rows["layer"] != "all layers"], plain.scores_)


def test_it_is_the_probe_of_an_array_of_all_features(apart, whole):
    layers, factors, names, held, _ = apart
    by_hand = np.concatenate([layers["early"], layers["late"]], axis=1)
    plain = Decodability().fit(by_hand, factors, names, held)
    assert (whole[0].errors_ == plain.errors_).all()
    columns = ["combination", "error", "probability"]
    expected = plain.rank(factors[held], by_hand[held], names[held])[columns]
    pd.testing.assert_frame_equal(whole[1][columns], expected)
    assert whole[0].score(layers, factors) == plain.score(by_hand, factors)


def test_twice_is_the_same_and_layers_are_told_by_name_not_by_order(apart, whole):
    layers, factors, _, held, _ = apart
    probe, ranking, _ = ranked(apart, layers="all")
    pd.testing.assert_frame_equal(probe.scores_, whole[0].scores_)
    pd.testing.assert_frame_equal(ranking, whole[1])
    turned = {"late": layers["late"], "more": layers["late"][:, :2], "early": layers["early"]}
    pd.testing.assert_frame_equal(probe.predict(turned), probe.predict(layers))
    assert (probe.predict(layers)[~held] == factors[~held]).mean(axis=None) > 0.98


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_what_is_held_out_changes_nothing_of_the_probe(apart, kind):
    layers, factors, names, held, _ = apart
    rng = np.random.default_rng(8)
    ruined = {
        name: np.where(held[:, None], 1e3 * rng.normal(size=x.shape), x)
        for name, x in layers.items()
    }
    probe, twin = (
        Decodability(kind, folds=3, layers="all").fit(x, factors, names, held)
        for x in (layers, ruined)
    )
    assert (probe.errors_ == twin.errors_).all()
    pd.testing.assert_frame_equal(probe.predict(layers), twin.predict(layers))
    assert probe.score(layers, factors) == twin.score(layers, factors)
    scores = [
        one.scores_.groupby(["layer", "split"])["score"].mean()["all layers"]
        for one in (probe, twin)
    ]
    assert scores[0]["seen"] == scores[1]["seen"]
    assert scores[0]["held out"] > scores[1]["held out"] + 0.1  # they are scored all the same


def test_a_log_loss_is_of_all_layers(apart):
    layers, factors, _, held, _ = apart
    known = {name: x[~held][:300] for name, x in layers.items()}
    told: pd.DataFrame = factors[~held][:300]
    found, best = (
        Decodability("logistic", folds=3, layers=which).fit(known, told)
        for which in ("all", "best")
    )
    assert found.log_loss(known, told).mean() < 0.5 * best.log_loss(known, told).mean()


def test_one_layer_is_all_of_them():
    factors, new = samples(500), samples(60, seed=9)
    plain, probe = (
        Decodability(layers=which).fit(parts(factors), factors) for which in ("best", "all")
    )
    assert (plain.layer_, probe.layer_) == ("activations", "all layers")
    pd.testing.assert_frame_equal(plain.predict(parts(new)), probe.predict(parts(new)))
    pd.testing.assert_frame_equal(
        probe.predict({"activations": parts(new)}), probe.predict(parts(new))
    )
    assert (plain.errors_ == probe.errors_).all()
    pipeline = make_pipeline(StandardScaler(), Decodability(layers="all")).fit(
        parts(factors), factors
    )
    assert pipeline.score(parts(factors), factors) > 0.9


def test_the_option_is_one_of_scikit_learns():
    probe = Decodability(layers="all")
    assert probe.get_params() == {"kind": "ridge", "folds": 5, "seed": 0, "layers": "all"}
    assert clone(probe).layers == copy.deepcopy(probe).layers == "all"
    assert probe.set_params(layers="best").layers == "best"


def test_what_a_fitted_probe_reads_does_not_change_with_its_options(apart):
    layers, factors, names, held, _ = apart
    probe = Decodability(layers="all").fit(layers, factors, names, held)
    before = probe.predict(layers)
    pd.testing.assert_frame_equal(probe.set_params(layers="best").predict(layers), before)


WRONG = {
    "one array does not tell layers apart: give a dict by layer, of early, late": lambda layers: (
        layers["early"]
    ),
    "there is no layer 'late': there are early; give early, late": lambda layers: {
        "early": layers["early"]
    },
    "layer 'late' has 6 features, and had 7 when .*: give the same layer": lambda layers: (
        layers | {"late": layers["late"][:, 1:]}
    ),
    "layer 'late' has 9 samples and 'early' has 1600": lambda layers: (
        layers | {"late": layers["late"][:9]}
    ),
}


@pytest.mark.parametrize("words", WRONG)
def test_other_activations_are_told_in_one_line(apart, whole, words):
    layers, factors, *_ = apart
    given = WRONG[words](layers)
    for read in (lambda: whole[0].predict(given), lambda: whole[0].rank(factors, given)):
        with pytest.raises(InputError, match=words) as refused:
            read()
        assert len(str(refused.value).splitlines()) == 1


def test_wrong_options_and_a_layer_of_that_name_are_told():
    factors = samples(200)
    for wrong in ("most", None, ["early"]):
        with pytest.raises(InputError, match=r"^layers must be 'best' or 'all', got "):
            Decodability(layers=wrong).fit(parts(factors), factors)
    named = {"all layers": parts(factors), "late": wholes(factors)}
    with pytest.raises(
        InputError, match="no layer can be called 'all layers', as all of them are: rename it"
    ):
        Decodability(layers="all").fit(named, factors)
    probe = Decodability().fit(named, factors)
    assert probe.layer_ == "all layers"  # only a name, where layers are not joined
    assert len(probe.predict(parts(factors))) == 200


def test_a_layer_that_would_not_be_heard_is_told_of_and_one_that_says_nothing_is_not(apart, whole):
    """At 100 times both factors are read; from 1,000 times on the quiet layer's would be lost without a word."""
    layers, factors, names, held, _ = apart

    def fitted(times, kind="ridge", early=1.0):
        given = {"early": early * layers["early"], "late": times * layers["late"]}
        return Decodability(kind, layers="all").fit(given, factors, names, held), given

    probe, given = fitted(100)
    assert probe.score(given, factors) == pytest.approx(whole[0].score(layers, factors), abs=0.02)
    with pytest.raises(
        InputError, match=r"layer 'late' varies 7.* times as much as 'early', .*: divide each layer"
    ):
        fitted(1000)
    assert fitted(1000, "logistic")[0].layer_ == "all layers"  # standardises what it is given
    assert fitted(1, early=0.0)[0].layer_ == "all layers"
