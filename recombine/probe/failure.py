"""Which combinations will fail: how rare they are, probabilities from what is known of others, and how good it was.

A combination is expected to fail where the probes, fitted on others, do not read its factors back from its activations.
Without activations it is expected to fail where its pairs of values are rare among the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from sklearn.isotonic import IsotonicRegression

from recombine.basics.errors import InputError, require
from recombine.basics.statistics import LEVELS, NUM_DRAWS, auroc, rank_correlation

BINS = 5  # of equal size, by predicted probability


def rarity(rows: Any, known: Any, own: int = 0) -> np.ndarray:
    """How rare a row's pairs of values are: the sum over pairs of factors of 1 / (1 + known rows that have it).

    With `own=1` the rows are known ones, and none counts itself.
    """
    codes = [
        pd.factorize(pd.concat([known[name], rows[name]]))[0].astype(np.int64) for name in known
    ]
    pairs = itertools.combinations(codes, 2) if len(codes) > 1 else [(codes[0], codes[0])]
    total = np.zeros(len(rows))
    for one, other in pairs:
        _, both = np.unique(one * (other.max() + 1) + other, return_inverse=True)
        times = np.bincount(both[: len(known)], minlength=both.max() + 1)
        total += 1 / (1 + times[both[len(known) :]] - own)
    return total


def probabilities(signal: np.ndarray, happened: np.ndarray, new: np.ndarray) -> np.ndarray:
    """How probable it is at a new signal, by isotonic regression on known ones: never less at a higher signal."""
    return IsotonicRegression(out_of_bounds="clip").fit(signal, happened).predict(new)


def evaluate(ranking: pd.DataFrame, outcomes: Mapping[Any, Any] | pd.Series) -> dict[str, float]:
    """Compare a ranking with what happened: true or false for failed, or a number that is larger where it was worse.

    Numbers count as failed above their median. Probabilities are judged only where failures are given as such.
    """
    try:
        known = pd.Series(outcomes, dtype=float)
    except (ValueError, TypeError) as error:
        told = "outcomes must be true, false or numbers by combination"
        raise InputError(f"{told}: {error}") from error
    known.index = known.index.map(str)
    twice = known.index[known.index.duplicated()].tolist()
    require(
        not twice,
        f"the outcome of {(*twice, '')[0]!r} is given more than once: give one for each combination",
    )
    shared: Any = (
        ranking.set_index("combination")
        .join(known.rename("outcome"), how="inner")
        .dropna(subset="outcome")
    )
    told = f"outcomes are known of {len(shared)} of {len(ranking)} ranked combinations"
    require(
        len(shared) > 1,
        f"{told}: name them as the ranking does, {ranking['combination'].iloc[0]!r} say",
    )
    plain = bool(shared["outcome"].isin((0, 1)).all())
    shared["failed"] = shared["outcome"] > (0.5 if plain else shared["outcome"].median())
    found: dict[str, float] = {
        "combinations": len(shared),
        "failed": float(shared["failed"].mean()),
    }
    error, outcome, failed = shared[["error", "outcome", "failed"]].to_numpy(float).T
    for name, measure, truth in (("auroc", auroc, failed), ("spearman", rank_correlation, outcome)):
        low, high = _bounds(measure, error, truth)
        found |= {name: measure(error, truth), f"{name}_low": low, f"{name}_high": high}
    if plain:
        off = (shared["probability"] - shared["failed"]).to_numpy()
        bins = np.array_split(
            off[np.argsort(shared["probability"].to_numpy(), kind="stable")], BINS
        )
        found["brier"] = float(np.square(off).mean())
        found["calibration_error"] = float(sum(abs(one.sum()) for one in bins) / len(off))
    return found


def _bounds(
    measure: Callable[[np.ndarray, np.ndarray], float], error: np.ndarray, truth: np.ndarray
) -> tuple[float, float]:
    """The bootstrap 95% interval over combinations; draws of one outcome only are left out."""
    rng = np.random.default_rng(0)
    values = []
    for _ in range(NUM_DRAWS):
        drawn = rng.integers(len(error), size=len(error))
        values.append(measure(error[drawn], truth[drawn]))
    low, high = pd.Series(values).quantile(list(LEVELS))
    return float(low), float(high)
