"""Random keys that compile quickly: Threefry-2x32 with 13 unrolled rounds, for `jax.random`.

JAX's own Threefry runs 20 rounds in a loop, which XLA compiles slowly for every vmapped draw on a
CPU, and a program has dozens of draws. 13 is the smallest number of rounds that passes all of the
BigCrush tests (Salmon et al., SC 2011). All functions are elementwise in the key, so a draw under
`vmap` equals the same draw without it.
"""

import math
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import define_prng_impl
from jaxtyping import Array, PRNGKeyArray, UInt32

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA
# The second word of the counter differs between the three uses, so that they never share numbers.
BITS = 0
SPLIT = 1
FOLD = 2


def threefry(
    key: UInt32[Array, "2"], x0: Array, x1: Array, num_rounds: int = 13
) -> tuple[Array, Array]:
    """Encrypt the words (x0, x1) with a key: one step of the counter-based generator."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(PARITY))
    x0 = x0 + schedule[0]
    x1 = x1 + schedule[1]
    for i in range(num_rounds):
        rotation = ROTATIONS[i // 4 % 2][i % 4]
        x0 = x0 + x1
        x1 = x0 ^ ((x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation)))
        if i % 4 == 3:
            j = i // 4 + 1
            x0 = x0 + schedule[j % 3]
            x1 = x1 + schedule[(j + 1) % 3] + np.uint32(j)
    return x0, x1


def _seed(seed: Array) -> UInt32[Array, "2"]:
    return jnp.stack([jnp.zeros((), np.uint32), seed.astype(np.uint32)])


def _split(key: UInt32[Array, "2"], shape: tuple[int, ...]) -> UInt32[Array, "... 2"]:
    counter = jax.lax.iota(np.uint32, math.prod(shape))
    words = threefry(key, counter, jnp.full_like(counter, SPLIT))
    # Without the barrier, XLA fuses a key into its draws and computes it again for every number.
    return jax.lax.optimization_barrier(jnp.stack(words, axis=-1).reshape(*shape, 2))


def _fold_in(key: UInt32[Array, "2"], data: Any) -> UInt32[Array, "2"]:
    words = threefry(key, data.astype(np.uint32), jnp.uint32(FOLD))
    return jax.lax.optimization_barrier(jnp.stack(words))


def _bits(key: UInt32[Array, "2"], width: int, shape: tuple[int, ...]) -> Array:
    count = math.prod(shape) * max(1, width // 32)
    counter = jax.lax.iota(np.uint32, (count + 1) // 2)
    words = jnp.concatenate(threefry(key, counter, jnp.full_like(counter, BITS)))[:count]
    if width == 64:
        words = words.astype(np.uint64)
        words = (words[: count // 2] << np.uint64(32)) | words[count // 2 :]
    return words.reshape(shape).astype(f"uint{width}")


_IMPL = define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_bits,
    fold_in=_fold_in,
    name="threefry13",
    tag="tf13",
)


def new_key(seed: int) -> PRNGKeyArray:
    """A key for `jax.random` that uses the generator of this file."""
    return jax.random.key(seed, impl=_IMPL)


def stream(key: PRNGKeyArray, name: str) -> PRNGKeyArray:
    """The key of a named random stream; streams of different names share no random numbers."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))
