"""Toy models with known answers: a direction per value, or a direction per combination."""

import numpy as np
import pandas as pd

SHAPES = ("ball", "cone", "cube", "ring")
COLOURS = ("blue", "green", "red")


def samples(num: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    columns = {"shape": rng.choice(SHAPES, num), "colour": rng.choice(COLOURS, num)}
    return pd.DataFrame(columns | {"size": rng.choice([1.0, 2.0, 3.0, 4.0], num)})


def parts(factors: pd.DataFrame, noise: float = 0.3, width: int = 24) -> np.ndarray:
    """Every value has its own direction: probes generalize to held-out combinations."""
    rng = np.random.default_rng(1)
    shape = one_hot(factors["shape"], SHAPES)
    colour = one_hot(factors["colour"], COLOURS)
    code = np.concatenate([shape, colour, factors[["size"]]], axis=1)
    signal = code @ rng.normal(size=(code.shape[1], width))
    return signal + noise * rng.normal(size=(len(code), width))


def wholes(factors: pd.DataFrame, noise: float = 0.3, width: int = 64) -> np.ndarray:
    """Every combination has its own direction: probes do not generalize to held-out ones."""
    rng = np.random.default_rng(2)
    names = factors.astype(str).agg(" ".join, axis=1)
    code = one_hot(names, sorted(names.unique()))
    signal = code @ rng.normal(size=(code.shape[1], width))
    return signal + noise * rng.normal(size=(len(code), width))


def one_hot(values: pd.Series, known) -> np.ndarray:
    return (values.to_numpy()[:, None] == np.array(known)[None]).astype(float)
