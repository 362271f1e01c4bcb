import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.parts.encodings.interval_shuffle import IntervalShuffle
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.prng import new_key

# A permutation without a fixed point: interval i is moved to interval TO[i].
TO = (3, 7, 0, 9, 5, 8, 2, 1, 6, 4)


@jax.jit
def shuffle(to, task):
    return IntervalShuffle(len(to)).encode(to, new_key(0), task, None)


def encode(values, to=TO):
    values = np.atleast_1d(np.asarray(values, np.float32))
    # All inputs have the same length, so that all tests use one compiled program.
    code = np.asarray(shuffle(np.array(to, np.int32), np.resize(values, 1000)))
    assert code.dtype == np.float32
    return code[: len(values)]


@pytest.mark.parametrize("tenths", range(10))
def test_a_weight_on_a_border_is_in_the_interval_above(tenths):
    # 0.6 as 6/10, 0.1 * 6, 0.7 - 0.1 and in float32: some are below the border, some above.
    weights = [
        tenths / 10,
        0.1 * tenths,
        (tenths + 1) / 10 - 0.1,
        np.float32(tenths) / np.float32(10),
    ]
    weights += [
        np.float32(0.1) * np.float32(tenths),
        np.float32(tenths + 1) / np.float32(10) - np.float32(0.1),
    ]
    weights += [np.nextafter(weights[3], np.float32(2)), np.nextafter(weights[3], np.float32(-1))]
    np.testing.assert_allclose(encode(weights), TO[tenths] / 10, atol=1e-5)


def test_the_position_within_an_interval_is_kept():
    positions = np.array([0.01, 0.25, 0.5, 0.75, 0.99])
    for interval, moved in enumerate(TO):
        np.testing.assert_allclose(
            encode((interval + positions) / 10), (moved + positions) / 10, atol=1e-6
        )


def test_one_stays_and_zero_moves():
    np.testing.assert_array_equal(encode([1, 1, 1]), [1, 1, 1])
    assert float(encode(np.nextafter(np.float32(1), np.float32(0)))[0]) == pytest.approx(
        1, abs=1e-6
    )
    np.testing.assert_allclose(encode([0, 0]), [0.3, 0.3], atol=1e-6)


def test_keep_zero_leaves_absent_modules_at_zero():
    code = IntervalShuffle(keep_zero=True).encode(
        jnp.array(TO), new_key(0), jnp.array([0, 0.05, 0.5, 1]), None
    )
    np.testing.assert_allclose(code, [0, 0.35, 0.8, 1], atol=1e-6)
    assert IntervalShuffle().keep_zero is False, "the public code moves them"


def test_intervals_are_permuted_and_no_two_weights_meet():
    grid = (np.arange(1000) + 0.5) / 1000
    code = encode(grid)
    np.testing.assert_allclose(np.sort(code), grid, atol=1e-6)
    assert np.abs(code - grid).min() > 0.09
    # Neither linear nor monotone in the task.
    assert np.corrcoef(code, grid)[0, 1] < 0.5


def test_other_numbers_of_intervals():
    np.testing.assert_allclose(
        encode([0.0, 0.3, 0.5, 0.75, 1.0], (2, 0, 3, 1)), [0.5, 0.05, 0.75, 0.25, 1.0], atol=1e-6
    )


def test_the_permutation_is_drawn():
    family = Hyperteacher()
    drawn = [np.asarray(IntervalShuffle().init(new_key(seed), family)) for seed in range(4)]
    assert all(sorted(to.tolist()) == list(range(10)) for to in drawn)
    assert len({to.tobytes() for to in drawn}) == 4
    assert IntervalShuffle(4).init(new_key(0), family).shape == (4,)
    assert IntervalShuffle().num_tokens(family) == 0


def test_one_interval_could_not_be_shuffled():
    with pytest.raises(
        InputError, match=r"IntervalShuffle\.num_intervals must be at least 2, got 1"
    ):
        IntervalShuffle(1)
