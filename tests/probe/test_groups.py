"""Several rows of activations per sample: factors are repeated, and no sample crosses a split."""

import numpy as np
import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.probe import Decodability
from tests.probe.planted import parts, samples
from tests.probe.test_split import make_split

NUM_SAMPLES = 400


def tokens(seed=0):
    """The sample of every row: between one and five rows per sample, in random order."""
    rng = np.random.default_rng(seed)
    return rng.permutation(np.arange(NUM_SAMPLES).repeat(rng.integers(1, 6, NUM_SAMPLES)))


def test_all_rows_of_a_sample_have_its_role():
    _, _, roles = make_split([10, 7, 9, 8, 6], held=[1])
    groups = np.random.default_rng(0).permutation(np.arange(40).repeat(3))
    of_rows = roles.of_rows(groups)
    assert (of_rows.folds == roles.folds[groups]).all()
    assert (of_rows.reserved == roles.reserved[groups]).all()
    assert of_rows.reserved.sum() == 3 * roles.reserved.sum()


def test_what_only_identifies_a_sample_is_not_decoded_from_its_other_rows():
    """Rows of a sample are alike. Were they fitted on and scored, the factor would be known."""
    rng = np.random.default_rng(0)
    factors = samples(NUM_SAMPLES)
    names = factors["shape"] + factors["colour"]
    factors["random"] = rng.random(NUM_SAMPLES) < 0.5
    groups = tokens()
    own = rng.normal(size=(NUM_SAMPLES, 300))  # the mark of a sample
    x = own[groups] + 0.01 * rng.normal(size=(len(groups), 300))
    table = factors[["shape", "random"]]
    probe = Decodability(num_permutations=0).fit(x, table, names, groups=groups)
    seen = probe.to_frame("balanced_accuracy", "seen")["random"].iloc[0]
    assert seen == pytest.approx(0.5, abs=0.15)
    repeated = table.iloc[groups].reset_index(drop=True)
    leaky = Decodability(num_permutations=0).fit(x, repeated, names.to_numpy()[groups])
    assert leaky.to_frame("balanced_accuracy", "seen")["random"].iloc[0] > 0.9


def test_one_row_per_sample_changes_nothing():
    factors = samples(NUM_SAMPLES)
    x = parts(factors)
    held = (factors["shape"] == "cube") & (factors["colour"] == "red")
    failed = np.random.default_rng(0).random(NUM_SAMPLES) < 0.3
    probe = Decodability("ridge").fit(x, factors, held_out=held, outcomes=failed)
    grouped = Decodability("ridge").fit(
        x, factors, held_out=held, outcomes=failed, groups=np.arange(NUM_SAMPLES)
    )
    pd.testing.assert_frame_equal(grouped.scores_, probe.scores_)
    pd.testing.assert_frame_equal(grouped.rank(factors, x), probe.rank(factors, x))


def test_factors_weights_and_outcomes_of_samples_are_repeated():
    factors = samples(NUM_SAMPLES)
    groups = tokens()
    x = parts(factors)[groups]
    held = ((factors["shape"] == "cube") & (factors["colour"] == "red")).to_numpy()
    weights = np.random.default_rng(1).uniform(0.5, 2, NUM_SAMPLES)
    failed = np.random.default_rng(2).random(NUM_SAMPLES) < 0.5
    probe = Decodability(num_permutations=0)
    probe.fit(x, factors, None, held, failed, baseline=x, sample_weight=weights, groups=groups)
    assert probe.to_frame().loc["activations"].min() > 0.95
    assert len(probe.probe_.errors) == len(groups)
    assert len(probe.outcomes_) == len(factors[~held].drop_duplicates())
    assert (np.isnan(probe.probe_.errors) == held[groups]).all()


def test_wrong_groups_are_refused():
    factors = samples(NUM_SAMPLES)
    groups = tokens()
    x = parts(factors)[groups]
    wrong = {
        "rows of factors": (factors.iloc[groups], groups),
        "groups must have the number of the sample": (factors, groups[1:]),
        "got float64 numbers": (factors, groups + 0.5),
        "every sample needs a row": (factors, np.where(groups == 3, 4, groups)),
        "groups must number the samples from 0": (factors, groups - 1),
    }
    for message, (table, each) in wrong.items():
        with pytest.raises(InputError, match=message):
            Decodability().fit(x, table, groups=each)
    with pytest.raises(InputError, match="edition=1 knows no groups"):
        Decodability("ridge", edition=1).fit(x, factors, groups=groups)
