"""`edition=1` gives the numbers of the first probe, which committed tables were made with.

`first_edition.json` was written by that probe, before it was replaced, on the data below.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.probe import Decodability
from tests.probe.planted import parts, samples, wholes

EXPECTED = json.loads((Path(__file__).parent / "first_edition.json").read_text())


def data():
    factors = samples(420)
    held = ((factors["shape"] == "cube") & (factors["colour"] == "red")).to_numpy()
    names = factors.astype(str).agg(" ".join, axis=1)
    bright = np.random.default_rng(5).random(420) < 0.5
    factors["bright"] = bright
    layers = {
        "parts": parts(factors, noise=2.0) + bright[:, None].astype(float),
        "wholes": 100 * wholes(factors.drop(columns="bright").assign(bright=bright), width=500),
    }
    numbers = factors[["size"]].assign(
        w=factors["size"] * 2 + (factors["shape"] == "cone"), bright=bright
    )
    return layers, factors, numbers, names, held


OPTIONS = {
    "ridge best": ("ridge", "best", "factors"),
    "ridge all": ("ridge", "all", "numbers"),
    "logistic best": ("logistic", "best", "factors"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_scores_and_rankings_are_those_of_the_first_edition(name):
    kind, use_layers, table = OPTIONS[name]
    layers, factors, numbers, names, held = data()
    of_probe: pd.DataFrame = factors if table == "factors" else numbers
    probe = Decodability(kind, layers=use_layers, edition=1)
    probe.fit(layers, of_probe, names, held)
    new = {layer: x[held] for layer, x in layers.items()}
    ranking = probe.rank(of_probe[held], new, names[held].to_numpy())
    expected = EXPECTED[name]
    assert probe.layer_ == expected["layer"]
    np.testing.assert_allclose(probe.scores_["score"], expected["score"], atol=1e-9)
    np.testing.assert_allclose(probe.scores_["shuffled"], expected["shuffled"], atol=1e-9)
    np.testing.assert_allclose(probe.errors_, expected["errors"], rtol=1e-9)
    assert ranking["combination"].tolist() == expected["ranking"]
    np.testing.assert_allclose(ranking["error"], expected["rank_error"], rtol=1e-9)
    np.testing.assert_allclose(ranking["probability"], expected["probability"], atol=1e-9)


def test_without_held_out_combinations():
    layers, _, numbers, names, _ = data()
    probe = Decodability("ridge", edition=1).fit(layers, numbers, names)
    expected = EXPECTED["ridge in turn"]
    np.testing.assert_allclose(probe.scores_["score"], expected["score"], atol=1e-9)
    np.testing.assert_allclose(probe.errors_, expected["errors"], rtol=1e-9)


def test_the_first_edition_needs_an_explicit_kind():
    factors = samples(200)
    with pytest.raises(InputError, match="edition=1 needs kind='ridge' or kind='logistic'"):
        Decodability(edition=1).fit(parts(factors), factors)
