import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.conditions import spanned
from recombine.parts.supports.missing_module import MissingModule
from tests.tables import khot_table


@pytest.mark.parametrize("num_missing", [1, 3])
def test_the_last_modules_are_in_every_test_task_and_no_train_task(num_missing):
    table = khot_table(16, 3)
    parts = MissingModule(num_missing).parts(table, np.random.default_rng(0), 0.25)
    missing = table[:, -num_missing:].any(1)
    assert ((parts == 2) == missing).all()
    assert np.count_nonzero(parts == 1) == min(522, np.count_nonzero(~missing))
    assert not spanned(table[parts == 1], table[parts == 2])


def test_the_counts_at_the_papers_size():
    # With the last module: itself, 15 pairs, C(15,2) = 105 triples.
    parts = MissingModule().parts(khot_table(16, 3), np.random.default_rng(0), 0.25)
    assert np.bincount(parts).tolist() == [53, 522, 121]


def test_some_module_must_be_left():
    with pytest.raises(InputError, match="leaves none of 4 modules"):
        MissingModule(4).parts(khot_table(4, 2), np.random.default_rng(0), 0.25)
    with pytest.raises(InputError, match="num_missing must be at least 1"):
        MissingModule(0)
