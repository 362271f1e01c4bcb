"""Combinations are named by the user's values, and wrong inputs are refused in one line."""

import numpy as np
import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.probe import Decodability, input_validation
from tests.probe.planted import parts, samples


@pytest.fixture(scope="module")
def fitted():
    factors = samples(600)
    return Decodability().fit(parts(factors), factors), factors


def test_numbers_in_names_have_enough_digits_to_differ():
    table = pd.DataFrame({"w": [0.1, 0.25, 1.00000001, 1.00000002], "n": [1, 1, 1, 1]})
    _, names = input_validation.number_combinations(None, table[:2], False)
    assert names == ["w=0.1, n=1", "w=0.25, n=1"]
    _, names = input_validation.number_combinations(None, table, False)
    assert len(set(names)) == 4


def test_constant_features_are_counted_over_all_blocks(monkeypatch):
    monkeypatch.setattr(input_validation, "BLOCK_SAMPLES", 4)
    layer = np.zeros((10, 2, 3))
    assert input_validation.constant_features(layer) == 6
    layer[9, 0, 1] = 1.0  # differs in the last block only
    layer[:, 1, 0] = np.repeat([1.0, 2.0, 3.0], [4, 4, 2])  # constant in each block, not over all
    assert input_validation.constant_features(layer) == 4
    assert input_validation.constant_features(layer.astype(bool)) == 5
    assert input_validation.constant_features(np.arange(20.0).reshape(10, 2)) == 0


def test_constant_features_of_a_mapped_file_are_counted_in_blocks(monkeypatch, tmp_path):
    monkeypatch.setattr(input_validation, "BLOCK_SAMPLES", 4)
    lengths = []

    class Mapped(np.memmap):
        def __getitem__(self, index):
            block = super().__getitem__(index)
            lengths.append(len(block))
            return block

    layer = Mapped(tmp_path / "layer", "f4", "w+", shape=(30, 5))
    assert input_validation.constant_features(layer) == 5
    assert max(lengths) == 4, "never all 30 samples at a time"


def test_additional_columns_do_not_define_combinations(fitted):
    probe, factors = fitted
    ranking = probe.rank(factors.assign(number=np.arange(len(factors))), parts(factors))
    assert sorted(ranking["combination"]) == sorted(probe.combinations_)


def test_names_of_combinations_do_not_depend_on_which_are_ranked():
    rng = np.random.default_rng(0)
    factors = pd.DataFrame(rng.integers(3, size=(300, 2)), columns=["a", "b"])
    probe = Decodability().fit(factors @ rng.normal(size=(2, 8)), factors)
    ranking = probe.rank([{"a": 0, "b": 1}, {"a": 1, "b": 1}])
    assert set(ranking["combination"]) == {"a=0, b=1", "a=1, b=1"} <= set(probe.combinations_)
    binary = factors.clip(upper=1)
    probe = Decodability(folds=3).fit(factors @ rng.normal(size=(2, 8)), binary)
    ranking = probe.rank(pd.DataFrame({"a": [1, 1], "b": [0, 1]}))
    assert set(ranking["combination"]) == {"a", "a + b"}


WRONG = {
    "one value for each sample": {"shape": "ball", "colour": "red", "size": 1.0},
    "there is no row of factors": {"shape": [], "colour": [], "size": []},
    "must hold numbers or names, got \\[1\\]": {"shape": [[1]], "colour": ["red"], "size": [1.0]},
    "must hold numbers or names, got 1j": {"shape": ["ball"], "colour": ["red"], "size": [1j]},
    "there is no factor 'size': the factors are shape, colour": {
        "shape": ["ball"],
        "colour": ["red"],
    },
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_factors_are_refused_in_one_line(fitted, message):
    with pytest.raises(InputError, match=message) as refused:
        fitted[0].rank(WRONG[message])
    assert len(str(refused.value).splitlines()) == 1


def test_ragged_activations_and_a_wrong_number_of_folds_are_refused():
    with pytest.raises(InputError, match="rows of different lengths"):
        input_validation.check_layers([[1, 2], [3]])
    with pytest.raises(InputError, match="folds must be a whole number, got '5'"):
        Decodability(folds="5").fit(np.zeros((4, 2)), [1, 2, 1, 2])


def test_integers_and_half_precision_are_accepted():
    kinds = (np.int8, np.uint8, np.int64, bool, np.float16, np.float32)
    layers = {str(kind): np.array([[1, 0], [0, 1]], kind) for kind in kinds}
    assert len(input_validation.check_layers(layers)) == len(kinds)
    with pytest.raises(InputError, match="in 1 of 2 samples, the first in sample 1"):
        input_validation.check_layers(np.array([[1, 0], [-np.inf, 1]], np.float16))
