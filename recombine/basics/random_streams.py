"""Named random streams of NumPy, for random numbers that are drawn outside of JAX."""

import zlib

import numpy as np


def generator(seed: int, name: str) -> np.random.Generator:
    """The random generator of a seed and a name. Different names give independent numbers."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])
