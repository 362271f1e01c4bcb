"""Factors as target columns, and the errors of decoded factors.

A factor of numbers is one column. A factor of names has one column per value. The error is the
same for both: the squared distance |decoded - true|^2 over the factor's columns, divided by their
variance, so that predicting the mean has an error of 1.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import special

from recombine.basics.errors import InputError, require

MAX_VALUES = 200  # of a categorical factor: each is a target column
MIN_PROBABILITY = 1e-15  # keeps log losses finite


class Factor(NamedTuple):
    """One factor: its columns among the targets, and its values; numeric factors list no values."""

    name: str
    columns: slice
    values: tuple[Any, ...] = ()

    @property
    def width(self) -> int:
        """The number of its target columns."""
        return self.columns.stop - self.columns.start


class Targets:
    """Converts a table of factors into target columns; `names` are the factors of names."""

    def __init__(self, factors: pd.DataFrame, names: Collection[str]):
        self.factors: list[Factor] = []
        for name in factors:
            values: tuple[Any, ...] = ()
            if name in names:
                values = sorted_values(factors[name].unique())
                check_number_of_values(str(name), factors[name], len(values))
            start = self.factors[-1].columns.stop if self.factors else 0
            columns = slice(start, start + max(1, len(values)))
            self.factors.append(Factor(str(name), columns, values))
        y = self.encode(factors)
        self.variance = np.array([y[:, f.columns].var(axis=0).sum() for f in self.factors])

    @classmethod
    def of(cls, factors: list[Factor], variance: np.ndarray) -> Targets:
        """Targets of known factors and variances."""
        targets = cls.__new__(cls)
        targets.factors = factors
        targets.variance = variance
        return targets

    @property
    def width(self) -> int:
        """The number of target columns."""
        return self.factors[-1].columns.stop

    def only(self, index: int) -> Targets:
        """One of the factors alone."""
        single = copy.copy(self)
        factor = self.factors[index]
        single.factors = [factor._replace(columns=slice(0, factor.width))]
        single.variance = self.variance[[index]]
        return single

    def encode(self, factors: pd.DataFrame) -> np.ndarray:
        """The targets of these samples: samples x columns."""
        for factor in self.factors:
            require(
                factor.name in factors,
                f"there is no factor {factor.name!r}: the factors are "
                f"{', '.join(map(str, factors))}",
            )
        return np.concatenate([_columns(factors, factor) for factor in self.factors], axis=1)

    def decode(self, predicted: np.ndarray) -> pd.DataFrame:
        """Predicted targets (samples x columns) as values of the factors."""
        columns: dict[str, Any] = {}
        for factor in self.factors:
            scores = predicted[:, factor.columns]
            if factor.values:
                columns[factor.name] = [factor.values[i] for i in scores.argmax(axis=1)]
            else:
                columns[factor.name] = scores[:, 0]
        return pd.DataFrame(columns)

    def errors(self, predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The error of every sample and factor; predicting the mean has an error of 1."""
        squared = (predicted - y) ** 2
        summed = np.stack([squared[:, f.columns].sum(axis=1) for f in self.factors], axis=1)
        return summed / self.variance

    def log_losses(self, probabilities: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The log loss of every sample and factor."""
        of_truth = probabilities * y
        summed = np.stack([of_truth[:, f.columns].sum(axis=1) for f in self.factors], axis=1)
        return -np.log(np.clip(summed, MIN_PROBABILITY, 1))

    def is_misread(self, predicted: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Whether any factor of a sample is decoded wrongly.

        A categorical factor is wrong if another value is predicted, a numeric one if it is off by
        more than its standard deviation.
        """
        wrong = np.greater(self.errors(predicted, y), 1)
        for i, factor in enumerate(self.factors):
            if factor.values:
                wrong[:, i] = _is_wrong_value(predicted, y, factor)
        return np.any(wrong, axis=1)

    def probabilities(self, outputs: np.ndarray, is_logistic: Sequence[bool]) -> np.ndarray:
        """Outputs with probabilities in place of the logits of logistic factors."""
        result = np.array(outputs, float)
        for factor, has_logits in zip(self.factors, is_logistic, strict=True):
            if has_logits:
                result[:, factor.columns] = special.softmax(result[:, factor.columns], axis=1)
        return result


def sorted_values(values: Iterable[Any]) -> tuple[Any, ...]:
    """Different values in the order of their target columns."""
    return tuple(sorted(values, key=lambda value: (str(type(value)), value)))


def check_number_of_values(name: str, column: Any, num_values: int) -> None:
    """Refuse a factor of names with too many values."""
    is_numeric = pd.api.types.is_numeric_dtype(column)
    remedy = "probe it as numbers" if is_numeric else "provide it as numbers"
    require(
        num_values <= MAX_VALUES,
        f"factor {name!r} has {num_values} different values, more than {MAX_VALUES}: {remedy}",
    )


def _columns(factors: pd.DataFrame, factor: Factor) -> np.ndarray:
    """The target columns of one factor."""
    column = factors[factor.name]
    if not factor.values:
        require(
            pd.api.types.is_numeric_dtype(column),
            f"factor {factor.name!r} was numeric when the probe was fitted, and now has the value "
            f"{column.iloc[0]!r}: provide numbers",
        )
        return column.to_numpy(float)[:, None]
    values = pd.Index(factor.values)
    if values.dtype == bool and bool(column.isin((0, 1)).all()):  # 0 and 1 are false and true
        column = column.astype(bool)
    index = values.get_indexer(pd.Index(column))
    if (index < 0).any():
        unknown = column.iloc[int(np.argmax(index < 0))]
        raise InputError(
            f"factor {factor.name!r} is {str(unknown)!r} only in held-out or new combinations, so "
            "no probe can learn to decode it: leave these samples out"
        )
    return np.eye(len(factor.values))[index]


def _is_wrong_value(predicted: np.ndarray, y: np.ndarray, factor: Factor) -> np.ndarray:
    predicted_value = predicted[:, factor.columns].argmax(axis=1)
    true_value = y[:, factor.columns].argmax(axis=1)
    return np.not_equal(predicted_value, true_value)
