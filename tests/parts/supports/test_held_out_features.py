import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.families.chain import Chain
from recombine.parts.supports.held_out_features import HeldOutFeatures

FAMILY = Chain(num_modules=6, max_length=5, max_per_length=200)


@pytest.mark.parametrize("view", ["neighbors", "positions"])
@pytest.mark.parametrize("seed", range(3))
def test_held_out_features_are_in_every_test_task_and_in_no_train_task(view, seed):
    rows = FAMILY.view(view, FAMILY.tasks())
    parts = HeldOutFeatures(view).parts(rows, np.random.default_rng(seed), 0.25)
    unseen = ~rows[parts == 1].any(axis=0) & rows.any(axis=0)
    assert unseen.sum() >= 1
    assert rows[parts == 2][:, unseen].any(axis=1).all()
    assert 0 < (parts == 2).mean() <= 0.25
    modules = FAMILY.modules(FAMILY.tasks())
    assert modules[parts == 1].any(axis=0).all(), "every module is trained"


def test_what_cannot_be_held_out_is_refused_in_one_line():
    # Every task has both features, so holding out one loses the other.
    rows = np.ones((4, 2), np.int8)
    with pytest.raises(InputError, match="cannot hold out any of 2 neighbors of 4 tasks"):
        HeldOutFeatures().parts(rows, np.random.default_rng(0), 0.25)
