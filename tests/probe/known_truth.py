"""Networks whose verdicts are known: composed, memorized, not linear, and without a factor."""

import numpy as np
import pandas as pd

NUM_VALUES = 4
NUM_SAMPLES = 20  # of every combination


def grid(seed: int, num_samples: int = NUM_SAMPLES) -> pd.DataFrame:
    """All combinations of two factors of names and one of bits, in random order."""
    rng = np.random.default_rng(seed)
    shape, color, bit = np.meshgrid(range(NUM_VALUES), range(NUM_VALUES), range(2))
    columns = {"shape": shape, "color": color, "bit": bit}
    rows = pd.DataFrame({name: values.ravel() for name, values in columns.items()})
    rows = rows.loc[rng.permutation(rows.index.repeat(num_samples))].reset_index(drop=True)
    return rows.astype(str)


def one_hot(column: pd.Series) -> np.ndarray:
    return np.eye(NUM_VALUES)[column.astype(int)]


def activations(kind: str, rows: pd.DataFrame, seed: int, width: int = 24) -> np.ndarray:
    """A layer that encodes the shape linearly, and the bit as `kind` says."""
    rng = np.random.default_rng([seed, 1])
    signal = one_hot(rows["shape"]) @ rng.normal(size=(NUM_VALUES, width))
    noise = 0.5 * rng.normal(size=(len(rows), width))
    sign = 2.0 * rows["bit"].astype(int).to_numpy() - 1
    if kind == "composed":
        signal = signal + np.outer(sign, rng.normal(size=width))
    elif kind == "memorized":  # by a lookup of the combination
        number = rows.groupby(list(rows), sort=True).ngroup()
        signal = rng.normal(size=(number.max() + 1, width))[number]
    elif kind == "not linear":  # the product of two directions is the bit
        first = rng.choice([-1.0, 1.0], len(rows))
        signal = signal + np.outer(first, rng.normal(size=width))
        signal = signal + np.outer(first * sign, rng.normal(size=width))
    else:
        assert kind == "absent"
    return signal + noise
