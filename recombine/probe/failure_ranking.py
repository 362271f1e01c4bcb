"""Scores for failure predictions: rarity, calibrated probabilities, and the quality of a ranking.

A combination is expected to fail if probes that were fitted on other combinations decode its
factors wrongly. Without activations it is expected to fail if its pairs of values are rare among
the others.
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

NUM_CALIBRATION_BINS = 5  # of equal size, by predicted probability


def rarity(rows: Any, known: Any, own: int = 0) -> np.ndarray:
    """How rare each row's pairs of values are among the known rows.

    The sum over pairs of factors of 1 / (1 + number of known rows with the same pair of values).
    Use `own=1` if the rows are themselves known, so that no row counts itself.
    """
    codes = []
    for name in known:
        values = pd.concat([known[name], rows[name]])
        codes.append(pd.factorize(values)[0].astype(np.int64))
    pairs = itertools.combinations(codes, 2) if len(codes) > 1 else [(codes[0], codes[0])]
    total = np.zeros(len(rows))
    for first, second in pairs:
        _, pair = np.unique(first * (second.max() + 1) + second, return_inverse=True)
        count = np.bincount(pair[: len(known)], minlength=pair.max() + 1)
        total += 1 / (1 + count[pair[len(known) :]] - own)
    return total


def probabilities(signal: np.ndarray, happened: np.ndarray, new: np.ndarray) -> np.ndarray:
    """The probability of an event at new signals, by isotonic regression on known events.

    A higher signal never has a lower probability.
    """
    return IsotonicRegression(out_of_bounds="clip").fit(signal, happened).predict(new)


def evaluate(ranking: pd.DataFrame, outcomes: Mapping[Any, Any] | pd.Series) -> dict[str, float]:
    """Compare a ranking with outcomes by combination.

    An outcome is true (failed) or false, or a number that is larger for a worse result. Numbers
    above their median count as failed. Probabilities are evaluated only if outcomes are true or
    false.
    """
    shared = _with_outcomes(ranking, outcomes)
    is_binary = bool(shared["outcome"].isin((0, 1)).all())
    threshold = 0.5 if is_binary else shared["outcome"].median()
    shared["failed"] = shared["outcome"] > threshold
    error, outcome, failed = shared[["error", "outcome", "failed"]].to_numpy(float).T
    scores: dict[str, float] = {
        "combinations": len(shared),
        "failed": float(shared["failed"].mean()),
    }
    for name, measure, truth in (("auroc", auroc, failed), ("spearman", rank_correlation, outcome)):
        low, high = _bounds(measure, error, truth)
        scores |= {name: measure(error, truth), f"{name}_low": low, f"{name}_high": high}
    if is_binary:
        scores |= _calibration(shared["probability"].to_numpy(), shared["failed"].to_numpy())
    return scores


def _with_outcomes(ranking: pd.DataFrame, outcomes: Any) -> Any:
    """The ranked combinations whose outcome is known, with a column `outcome`."""
    try:
        known = pd.Series(outcomes, dtype=float)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"outcomes must be true, false or numbers by combination ({error}): provide a dict or "
            "a Series of them"
        ) from error
    known.index = known.index.map(str)
    duplicates = known.index[known.index.duplicated()].tolist()
    if duplicates:
        raise InputError(
            f"the outcome of {duplicates[0]!r} appears more than once: provide one per combination"
        )
    by_name = ranking.set_index("combination")
    shared: Any = by_name.join(known.rename("outcome"), how="inner").dropna(subset="outcome")
    require(
        len(shared) > 1,
        f"outcomes are known for {len(shared)} of {len(ranking)} ranked combinations: use the "
        f"names of the ranking, for example {ranking['combination'].iloc[0]!r}",
    )
    return shared


def _calibration(probability: np.ndarray, failed: np.ndarray) -> dict[str, float]:
    """The Brier score and the expected calibration error."""
    off = probability - failed
    in_order = off[np.argsort(probability, kind="stable")]
    bins = np.array_split(in_order, NUM_CALIBRATION_BINS)
    summed = sum(abs(of_bin.sum()) for of_bin in bins)
    return {"brier": float(np.square(off).mean()), "calibration_error": float(summed / len(off))}


def _bounds(
    measure: Callable[[np.ndarray, np.ndarray], float], error: np.ndarray, truth: np.ndarray
) -> tuple[float, float]:
    """The 95% bootstrap interval over combinations; draws with a single outcome are skipped."""
    rng = np.random.default_rng(0)
    values = []
    for _ in range(NUM_DRAWS):
        drawn = rng.integers(len(error), size=len(error))
        values.append(measure(error[drawn], truth[drawn]))
    low, high = pd.Series(values).quantile(list(LEVELS))
    return float(low), float(high)
