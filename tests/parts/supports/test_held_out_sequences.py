import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.families.chain import Chain
from recombine.parts.supports.held_out_sequences import HeldOutSequences

FAMILY = Chain(num_modules=4, max_length=4, max_per_length=60)


@pytest.mark.parametrize("view", ["modules", "neighbors", "positions"])
@pytest.mark.parametrize("frac_test", [0.2, 0.8])
def test_every_feature_of_the_view_is_trained(view, frac_test):
    rows = FAMILY.view(view, FAMILY.tasks())
    parts = HeldOutSequences(view).parts(rows, np.random.default_rng(1), frac_test)
    assert np.count_nonzero(parts == 2) == round(frac_test * len(rows))
    np.testing.assert_array_equal(rows[parts == 1].any(axis=0), rows.any(axis=0))


def test_too_few_train_tasks_for_all_features_are_refused():
    rows = FAMILY.view("neighbors", FAMILY.tasks())
    with pytest.raises(InputError, match="cannot have all 16 neighbors"):
        HeldOutSequences("neighbors").parts(rows, np.random.default_rng(0), 0.97)
