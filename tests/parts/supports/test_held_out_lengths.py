import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.families.chain import Chain
from recombine.parts.supports.held_out_lengths import HeldOutLengths

FAMILY = Chain(num_modules=5, max_length=5, max_per_length=100)
ROWS = FAMILY.view("lengths", FAMILY.tasks())
LENGTHS = FAMILY.groups(FAMILY.tasks())["length"]


def test_long_tasks_and_a_fraction_of_the_short_ones_are_test():
    parts = HeldOutLengths(3).parts(ROWS, np.random.default_rng(0), 0.2)
    assert (parts[LENGTHS > 3] == 2).all()
    assert (parts[LENGTHS == 1] == 1).all(), "the shortest are trained"
    short = LENGTHS <= 3
    assert np.count_nonzero(parts[short] == 2) == round(0.2 * np.count_nonzero(short))


@pytest.mark.parametrize("longest", [5, 9])
def test_a_length_that_holds_out_nothing_is_refused(longest):
    with pytest.raises(InputError, match="tasks of length 1 to 5"):
        HeldOutLengths(longest).parts(ROWS, np.random.default_rng(0), 0.2)
