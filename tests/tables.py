"""Task tables for tests of supports."""

from itertools import chain, combinations
from math import comb

import numpy as np


def khot_table(num_modules: int, num_hot: int) -> np.ndarray:
    """All rows with 1 to `num_hot` active modules, the complete task table."""
    blocks = []
    for num_active in range(1, min(num_hot, num_modules) + 1):
        num_rows = comb(num_modules, num_active)
        columns = chain.from_iterable(combinations(range(num_modules), num_active))
        active = np.fromiter(columns, np.int64, num_rows * num_active)
        rows = np.zeros((num_rows, num_modules), np.int8)
        np.put_along_axis(rows, active.reshape(num_rows, num_active), 1, axis=1)
        blocks.append(rows)
    return np.concatenate(blocks)
