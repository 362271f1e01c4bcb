"""Named random streams of NumPy, for what is drawn on the host."""

import zlib

import numpy as np


def generator(seed: int, name: str) -> np.random.Generator:
    """A generator of its own for every seed and name: different names never share random numbers."""
    return np.random.default_rng([seed, zlib.crc32(name.encode())])
