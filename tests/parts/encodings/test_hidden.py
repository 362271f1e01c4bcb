import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.encodings.hidden import Hidden
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.prng import new_key
from recombine.sweeps.run import Run, structure

TASK = jnp.array([0.5, 0, 1, 0, 0.7])


def codes(frac_hidden, num=2000):
    encode = jax.jit(jax.vmap(lambda key: Hidden(frac_hidden).encode((), key, TASK, None)))
    return np.asarray(encode(jax.random.split(new_key(0), num)))


def test_a_fraction_is_hidden_and_the_code_has_the_mask():
    weights, visible = np.split(codes(0.3), 2, axis=1)
    assert set(np.unique(visible)) == {0, 1}
    np.testing.assert_array_equal(weights, visible * np.asarray(TASK))
    # Standard errors: 0.005 of the mean of 10,000 draws, 0.022 of correlations of 2,000.
    assert visible.mean() == pytest.approx(0.7, abs=0.02)
    assert np.abs(np.corrcoef(visible.T) - np.eye(5)).max() < 0.1


def test_nothing_or_everything_can_be_hidden():
    np.testing.assert_array_equal(
        codes(0, 50), np.tile(np.concatenate([TASK, np.ones(5)]), (50, 1))
    )
    np.testing.assert_array_equal(codes(1, 50), np.zeros((50, 10)))
    assert Hidden().num_tokens(Hyperteacher()) == 0


def test_all_fractions_share_a_program():
    first, second = (Run(encoding=Hidden(frac)) for frac in (0.1, 0.9))
    assert first != second
    assert structure(first) == structure(second)


@pytest.mark.parametrize("frac_hidden", [-0.1, 1.1, float("nan")])
def test_fractions_lie_between_0_and_1(frac_hidden):
    with pytest.raises(InputError, match=r"Hidden\.frac_hidden must lie between 0 and 1"):
        Hidden(frac_hidden)
