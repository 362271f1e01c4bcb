from itertools import chain, combinations
from math import comb

import numpy as np


def khot_table(num_modules: int, num_hot: int) -> np.ndarray:
    """All rows with 1 to `num_hot` active modules, the complete task table."""
    blocks = []
    for k in range(1, min(num_hot, num_modules) + 1):
        num = comb(num_modules, k)
        active = np.fromiter(
            chain.from_iterable(combinations(range(num_modules), k)), np.int64, num * k
        )
        rows = np.zeros((num, num_modules), np.int8)
        np.put_along_axis(rows, active.reshape(num, k), 1, axis=1)
        blocks.append(rows)
    return np.concatenate(blocks)
