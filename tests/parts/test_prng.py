import jax
import jax.numpy as jnp
import numpy as np
import pytest

from recombine.parts.prng import new_key, threefry

ONES, PI = 0xFFFFFFFF, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
# Known answers of Random123 (Salmon et al., kat_vectors): rounds, counter, key, result.
KNOWN = [
    (13, (0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
    (13, (ONES, ONES), (ONES, ONES), (0xFD36D048, 0x2D17272C)),
    (13, PI[:2], PI[2:], (0xBA3E4725, 0xF27D669E)),
    (20, (0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    (20, (ONES, ONES), (ONES, ONES), (0x1CB996FC, 0xBB002BE7)),
    (20, PI[:2], PI[2:], (0xC4923A9C, 0x483DF7A0)),
]
KEY = new_key(7)


@pytest.mark.parametrize(("num_rounds", "counter", "key", "result"), KNOWN)
def test_the_generator_gives_the_known_answers(num_rounds, counter, key, result):
    words = threefry(
        np.array(key, np.uint32), *np.array(counter, np.uint32)[:, None], num_rounds=num_rounds
    )
    assert tuple(int(word[0]) for word in words) == result


def test_draws_use_13_rounds_and_every_counter_once():
    # A key is (0, seed). A draw encrypts (0, 0), (1, 0), … and has all first words first.
    counter = np.arange(3, dtype=np.uint32)
    first, second = threefry(
        np.array([0, 7], np.uint32), counter, np.zeros_like(counter), num_rounds=13
    )
    np.testing.assert_array_equal(jax.random.bits(KEY, (6,)), np.concatenate([first, second]))


def several(key):
    """All uses of a key in one program."""
    return {
        "split": jax.random.key_data(jax.random.split(key, (2, 3))),
        "fold": jax.random.key_data(jax.random.fold_in(key, 5)),
        "bits": jax.random.bits(key, (5,)),
        "uniform": jax.random.uniform(key, (2, 3)),
    }


def test_compiled_and_vmapped_draws_are_the_same_bit_for_bit():
    keys = jax.random.split(KEY, 3)
    single = [several(key) for key in keys]
    compiled = jax.jit(several)(keys[0])
    batched = jax.jit(jax.vmap(several))(keys)
    for name in ("split", "fold", "bits", "uniform"):
        np.testing.assert_array_equal(compiled[name], single[0][name], err_msg=name)
        np.testing.assert_array_equal(
            batched[name], np.stack([draw[name] for draw in single]), err_msg=name
        )
    assert len({np.asarray(draw["bits"]).tobytes() for draw in single}) == 3


def test_splits_folds_and_draws_share_no_numbers():
    num = 2000
    program = jax.jit(lambda key: (jax.random.split(key, num), jax.random.bits(key, (2 * num,))))
    keys, words = program(KEY)
    folded = jax.jit(jax.vmap(jax.random.fold_in, (None, 0)))(KEY, jnp.arange(num))
    pairs = {
        "the key itself": np.asarray(jax.random.key_data(KEY))[None],
        "split": np.asarray(jax.random.key_data(keys)),
        "fold": np.asarray(jax.random.key_data(folded)),
        "bits": np.asarray(words).reshape(2, num).T,
    }
    every = np.concatenate(list(pairs.values()))
    assert len(every) == 3 * num + 1
    assert len({pair.tobytes() for pair in every}) == len(every)


def test_seeds_up_to_the_largest_give_different_keys():
    seeds = [0, 1, 2**31 - 1, 2**31, 2**32 - 1]
    words = [np.asarray(jax.random.bits(new_key(seed), (2,))).tobytes() for seed in seeds]
    assert len(set(words)) == len(seeds)


def chi_square(values, num_bins):
    counts, expected = np.bincount(values, minlength=num_bins), len(values) / num_bins
    return (np.square(counts - expected) / expected).sum()


def test_draws_are_uniform():
    x = np.asarray(jax.jit(lambda: jax.random.uniform(KEY, (100_000,)))(), np.float64)
    assert 0 <= x.min() < x.max() < 1
    # Standard errors: 0.0009 of the mean, 0.0002 of the variance, 0.003 of a correlation.
    assert abs(x.mean() - 1 / 2) < 0.004
    assert abs(x.var() - 1 / 12) < 0.001
    assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 0.013


def test_bytes_are_equally_frequent_within_a_draw_and_across_keys():
    within = np.asarray(jax.jit(lambda: jax.random.bits(KEY, (20_000,)))())

    @jax.jit
    @jax.vmap
    def across(step):
        return jax.random.bits(jax.random.split(jax.random.fold_in(KEY, step))[1], ())

    # Chi-square with 255 degrees of freedom: 255 on average, below 160 or above 370 with
    # probability 1e-6.
    for words in (within, np.asarray(across(jnp.arange(20_000)))):
        for shift in (0, 8, 16, 24):
            assert 160 < chi_square((words >> shift) & 255, 256) < 370
    assert 160 < chi_square((within & 255) ^ (np.roll(within, 1) & 255), 256) < 370


def test_all_widths_and_odd_counts():
    cases = [
        (shape, dtype)
        for shape in ((), (1,), (7,), (3, 5), (0,))
        for dtype in ("uint8", "uint16", "uint32")
    ]
    draws = jax.jit(lambda: [jax.random.bits(KEY, shape, dtype) for shape, dtype in cases])()
    for (shape, dtype), bits in zip(cases, map(np.asarray, draws), strict=True):
        assert (bits.shape, bits.dtype) == (shape, np.dtype(dtype))
        if bits.size > 4:
            # Neither constant nor only in the low bits.
            assert len(np.unique(bits)) > 4
            assert bits.max() > np.iinfo(dtype).max // 2
