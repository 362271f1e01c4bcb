"""What a user brings is named as it was, and refused in one line where it cannot be."""

import numpy as np
import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.probe import Decodability, inputs
from tests.probe.planted import parts, samples


@pytest.fixture(scope="module")
def fitted():
    factors = samples(600)
    return Decodability().fit(parts(factors), factors), factors


def test_numbers_are_told_in_as_many_digits_as_tell_them_apart():
    table = pd.DataFrame({"w": [0.1, 0.25, 1.00000001, 1.00000002], "n": [1, 1, 1, 1]})
    assert inputs.combined(None, table[:2], False)[1] == ["w=0.1, n=1", "w=0.25, n=1"]
    assert len(set(inputs.combined(None, table, False)[1])) == 4


def test_constant_features_are_counted_over_all_blocks(monkeypatch):
    monkeypatch.setattr(inputs, "BLOCK", 4)
    layer = np.zeros((10, 2, 3))
    assert inputs.constant_features(layer) == 6
    layer[9, 0, 1] = 1.0  # differs in the last block only
    layer[:, 1, 0] = np.repeat(
        [1.0, 2.0, 3.0], [4, 4, 2]
    )  # constant in every block, but not over all
    assert inputs.constant_features(layer) == 4
    assert inputs.constant_features(layer.astype(bool)) == 5
    assert inputs.constant_features(np.arange(20.0).reshape(10, 2)) == 0


def test_constant_features_of_a_mapped_file_are_read_in_blocks(monkeypatch, tmp_path):
    monkeypatch.setattr(inputs, "BLOCK", 4)
    lengths = []

    class Mapped(np.memmap):
        def __getitem__(self, index):
            found = super().__getitem__(index)
            lengths.append(len(found))
            return found

    layer = Mapped(tmp_path / "layer", "f4", "w+", shape=(30, 5))
    assert inputs.constant_features(layer) == 5
    assert max(lengths) == 4, "never all 30 samples at a time"


def test_what_else_a_table_holds_does_not_tell_combinations_apart(fitted):
    probe, factors = fitted
    told = probe.rank(factors.assign(number=np.arange(len(factors))), parts(factors))
    assert sorted(told["combination"]) == sorted(probe.combinations_)


def test_combinations_are_called_the_same_whichever_are_ranked():
    rng = np.random.default_rng(0)
    factors = pd.DataFrame(rng.integers(3, size=(300, 2)), columns=["a", "b"])
    probe = Decodability().fit(factors @ rng.normal(size=(2, 8)), factors)
    told = probe.rank([{"a": 0, "b": 1}, {"a": 1, "b": 1}])
    assert set(told["combination"]) == {"a=0, b=1", "a=1, b=1"} <= set(probe.combinations_)
    switches = factors.clip(upper=1)
    probe = Decodability(folds=3).fit(factors @ rng.normal(size=(2, 8)), switches)
    assert set(probe.rank(pd.DataFrame({"a": [1, 1], "b": [0, 1]}))["combination"]) == {
        "a",
        "a + b",
    }


WRONG = {
    "one value for each sample": {"shape": "ball", "colour": "red", "size": 1.0},
    "there is no row of factors": {"shape": [], "colour": [], "size": []},
    "must hold numbers or names, got \\[1\\]": {"shape": [[1]], "colour": ["red"], "size": [1.0]},
    "must hold numbers or names, got 1j": {"shape": ["ball"], "colour": ["red"], "size": [1j]},
    "there is no factor 'size': there are shape, colour": {"shape": ["ball"], "colour": ["red"]},
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_factors_are_told_in_one_line(fitted, words):
    with pytest.raises(InputError, match=words) as refused:
        fitted[0].rank(WRONG[words])
    assert len(str(refused.value).splitlines()) == 1


def test_activations_without_a_shape_are_told():
    with pytest.raises(InputError, match="rows of different lengths"):
        inputs.layers([[1, 2], [3]])
    with pytest.raises(InputError, match="folds must be a whole number, got '5'"):
        Decodability(folds="5").fit(np.zeros((4, 2)), [1, 2, 1, 2])


def test_integers_and_half_floats_are_let_through():
    kinds = (np.int8, np.uint8, np.int64, bool, np.float16, np.float32)
    assert len(
        inputs.layers({str(kind): np.array([[1, 0], [0, 1]], kind) for kind in kinds})
    ) == len(kinds)
    with pytest.raises(InputError, match="in 1 of 2 samples, the first in sample 1"):
        inputs.layers(np.array([[1, 0], [-np.inf, 1]], np.float16))
