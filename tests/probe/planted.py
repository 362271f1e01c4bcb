"""Made-up models whose answers are known: parts with directions of their own, and combinations without."""

import numpy as np
import pandas as pd

SHAPES, COLOURS = ("ball", "cone", "cube", "ring"), ("blue", "green", "red")


def samples(num: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {"shape": rng.choice(SHAPES, num), "colour": rng.choice(COLOURS, num)}
    return pd.DataFrame(columns | {"size": rng.choice([1.0, 2.0, 3.0, 4.0], num)})


def parts(factors: pd.DataFrame, noise: float = 0.3, width: int = 24) -> np.ndarray:
    """Every value has a direction of its own: what is read on some combinations is read on all."""
    rng = np.random.default_rng(1)
    code = np.concatenate(
        [one_hot(factors["shape"], SHAPES), one_hot(factors["colour"], COLOURS)], axis=1
    )
    code = np.concatenate([code, factors[["size"]]], axis=1)
    return code @ rng.normal(size=(code.shape[1], width)) + noise * rng.normal(
        size=(len(code), width)
    )


def wholes(factors: pd.DataFrame, noise: float = 0.3, width: int = 64) -> np.ndarray:
    """Every combination has a direction of its own: nothing is learned of one from others."""
    rng = np.random.default_rng(2)
    names = factors.astype(str).agg(" ".join, axis=1)
    code = one_hot(names, sorted(names.unique()))
    return code @ rng.normal(size=(code.shape[1], width)) + noise * rng.normal(
        size=(len(code), width)
    )


def one_hot(values: pd.Series, known) -> np.ndarray:
    return (values.to_numpy()[:, None] == np.array(known)[None]).astype(float)
