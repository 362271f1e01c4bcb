"""Factors as columns of numbers, how well they are read, and intervals over combinations.

A factor of numbers is one column and is scored by R2; one of names has a column per name and is scored by accuracy.
The error of a reading is the same for both: |read - true|^2 over the factor's columns, relative to their variance, so
that 1 is what guessing the average would give.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from recombine.basics.errors import require
from recombine.basics.statistics import LEVELS

MOST_NAMES = 200  # of one factor: each is a column, and more are hardly names
NUM_DRAWS = 300  # of combinations, as `bootstrap` takes of seeds
FLAT = 1e-12  # variance that is rounding
LEAST = 1e-15  # probability, so that no loss is infinite


class Factor(NamedTuple):
    """One factor: its columns among the targets, and the names they stand for, or none where it is a number."""

    name: str
    columns: slice
    values: tuple[Any, ...] = ()

    @property
    def measure(self) -> str:
        """What it is scored by."""
        return "accuracy" if self.values else "r2"


class Targets:
    """How the factors of a table become columns of numbers."""

    def __init__(self, factors: pd.DataFrame, named: bool):
        self.factors: list[Factor] = []
        for name in factors:
            values: tuple[Any, ...] = ()
            if named or not pd.api.types.is_numeric_dtype(factors[name]):
                values = tuple(
                    sorted(factors[name].unique(), key=lambda value: (str(type(value)), value))
                )
                told = "use kind='ridge'" if named else "give it as numbers"
                require(
                    len(values) <= MOST_NAMES,
                    f"factor {name!r} has {len(values)} different values: {told}",
                )
            start = self.factors[-1].columns.stop if self.factors else 0
            self.factors.append(
                Factor(str(name), slice(start, start + max(1, len(values))), values)
            )
        y = self.encode(factors)
        self.variance = np.array([y[:, f.columns].var(axis=0).sum() for f in self.factors])

    @property
    def width(self) -> int:
        """How many columns there are."""
        return self.factors[-1].columns.stop

    def encode(self, factors: pd.DataFrame) -> np.ndarray:
        """The columns of these samples."""
        missing = [factor.name for factor in self.factors if factor.name not in factors]
        require(
            not missing,
            f"there is no factor {(*missing, '')[0]!r}: there are {', '.join(map(str, factors))}",
        )
        return np.concatenate([self._columns(factors, factor) for factor in self.factors], axis=1)

    def _columns(self, factors: pd.DataFrame, factor: Factor) -> np.ndarray:
        column = factors[factor.name]
        if not factor.values:
            told = f"factor {factor.name!r} holds numbers where the probe was fitted: {column.iloc[0]!r} is none"
            require(pd.api.types.is_numeric_dtype(column), told)
            return column.to_numpy(float)[:, None]
        place = pd.Index(factor.values).get_indexer(pd.Index(column))
        if (place < 0).any():
            unseen = column.iloc[int(np.argmax(place < 0))]
            told = f"factor {factor.name!r} is {str(unseen)!r} only in combinations that are held out or new"
            require(False, f"{told}: no probe can learn to read it; leave these out")
        return np.eye(len(factor.values))[place]

    def decode(self, read: np.ndarray) -> pd.DataFrame:
        """What was read, as values of the factors."""
        found = {
            f.name: (_pick(read, f) if f.values else read[:, f.columns.start]) for f in self.factors
        }
        return pd.DataFrame(found)

    def errors(self, read: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The error of every sample and factor; 1 is what guessing the average would give."""
        squared = (read - y) ** 2
        summed = np.stack([squared[:, f.columns].sum(axis=1) for f in self.factors], axis=1)
        return summed / self.variance

    def log_losses(self, read: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The log loss of every sample and factor, what was read being probabilities of names."""
        given = np.stack([(read * y)[:, f.columns].sum(axis=1) for f in self.factors], axis=1)
        return -np.log(np.clip(given, LEAST, 1))

    def misread(self, read: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Whether a sample has a factor that is read as another name, or off by more than its standard deviation."""
        wrong = np.greater(self.errors(read, y), 1)
        for place, factor in enumerate(self.factors):
            if factor.values:
                wrong[:, place] = self._wrong(read, y, factor)
        return np.any(wrong, axis=1)

    def score(self, read: np.ndarray, y: np.ndarray) -> np.ndarray:
        """R2 or accuracy of every factor."""
        return self._shares(self._all_sums(read, y, np.zeros(len(y), int)).sum(axis=1))

    def scores(self, read: np.ndarray, y: np.ndarray, combinations: np.ndarray) -> np.ndarray:
        """R2 or accuracy of every factor, and its 95% interval over combinations: factors x 3."""
        _, groups = np.unique(combinations, return_inverse=True)
        sums = self._all_sums(read, y, groups)
        rng, num = np.random.default_rng(0), sums.shape[1]
        draws = []
        for _ in range(NUM_DRAWS):
            times = np.bincount(rng.integers(num, size=num), minlength=num)
            draws.append(self._shares(np.einsum("c,fcs->fs", times, sums)))
        bounds = pd.DataFrame(draws).quantile(list(LEVELS)).to_numpy()
        if num == 1:  # one combination tells nothing of others
            bounds = np.full_like(bounds, np.nan)
        return np.stack([self._shares(sums.sum(axis=1)), *bounds], axis=1)

    def _all_sums(self, read: np.ndarray, y: np.ndarray, groups: np.ndarray) -> np.ndarray:
        return np.stack([self._sums(read, y, factor, groups) for factor in self.factors])

    def _sums(
        self, read: np.ndarray, y: np.ndarray, factor: Factor, groups: np.ndarray
    ) -> np.ndarray:
        """Per combination: number of samples, squared errors (or wrong names), and sums of the true values."""
        missed, centred = self._wrong(read, y, factor), np.zeros(len(y))
        if not factor.values:
            true = y[:, factor.columns.start]
            missed, centred = (read[:, factor.columns.start] - true) ** 2, true - true.mean()
        parts = np.ones(len(y)), missed, centred, centred**2
        return np.stack([np.bincount(groups, part) for part in parts], axis=1)

    def _wrong(self, read: np.ndarray, y: np.ndarray, factor: Factor) -> np.ndarray:
        return np.not_equal(
            read[:, factor.columns].argmax(axis=1), y[:, factor.columns].argmax(axis=1)
        )

    def _shares(self, sums: np.ndarray) -> np.ndarray:
        """What is not missed: of the spread of a number (NaN where it has none), or of the samples of a name."""
        n, missed, first, second = sums.T
        numbers = np.array([not factor.values for factor in self.factors])
        spread = np.where(numbers, second - first**2 / n, n)
        return np.where(spread > FLAT * n, 1 - missed / np.where(spread > 0, spread, 1), np.nan)


def _pick(read: np.ndarray, factor: Factor) -> list[Any]:
    return [factor.values[place] for place in read[:, factor.columns].argmax(axis=1)]
