"""What a user brings, checked: activations by layer, factors as a table, combinations as numbers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require

BLOCK = 1 << 14  # samples looked at a time: a copy of all activations may not fit
LOUD = 300  # times as much as another that a layer may vary where they are joined: beyond 1,000 penalties silence one
LARGEST = 1e100  # of an activation: sums of squares beyond it would overflow


def layers(activations: Any) -> dict[str, np.ndarray]:
    """Activations by layer, each samples x features; one array is the layer `activations`."""
    given = activations if isinstance(activations, Mapping) else {"activations": activations}
    require(len(given) > 0, "there are no activations: give an array, or a dict of arrays by layer")
    found = {str(name): _layer(str(name), layer) for name, layer in given.items()}
    lengths = {name: len(layer) for name, layer in found.items()}
    first = next(iter(lengths))
    for name, length in lengths.items():
        same = length == lengths[first]
        require(
            same,
            f"layer {name!r} has {length} samples and {first!r} has {lengths[first]}: give all layers of all",
        )
    return found


def alike(layers: dict[str, np.ndarray], rows: np.ndarray) -> None:
    """Refuse layers to be joined of which one is so quiet that a penalty that fits the others would silence it."""
    spread = {
        name: float(np.var(layer[rows], axis=0).mean(dtype=np.float64)) ** 0.5
        for name, layer in layers.items()
    }
    some = {name: value for name, value in spread.items() if value > 0} or {
        "": 1.0
    }  # the others tell nothing at all
    loud, quiet = (pick(some, key=lambda name: some[name]) for pick in (max, min))
    ratio = some[loud] / some[quiet]
    told = f"layer {loud!r} varies {ratio:.2g} times as much as {quiet!r}, which would not be heard beside it"
    require(
        ratio < LOUD, f"{told}: divide each layer by its standard deviation first, or leave one out"
    )


def constant_features(layer: np.ndarray) -> int:
    """How many features have the same value in all samples; the layer (samples x …) is read in blocks."""
    first = layer[:1].reshape(1, -1)
    varies = np.zeros(first.shape[1], bool)
    for start in range(0, len(layer), BLOCK):
        block = layer[start : start + BLOCK]
        varies |= (block.reshape(len(block), -1) != first).any(axis=0)
        if varies.all():
            break
    return int((~varies).sum())


def joined(layers: dict[str, np.ndarray]) -> np.ndarray:
    """The activations of all layers side by side; a single layer is not copied."""
    first, *others = layers.values()
    return np.concatenate([first, *others], axis=1) if others else first


def _layer(name: str, given: Any) -> np.ndarray:
    try:
        layer = np.asarray(given)
    except ValueError as error:
        raise InputError(
            f"layer {name!r} must be samples x features, got rows of different lengths"
        ) from error
    numeric = np.issubdtype(layer.dtype, np.floating) or np.issubdtype(layer.dtype, np.integer)
    require(
        numeric or layer.dtype == bool, f"layer {name!r} must hold real numbers, got {layer.dtype}"
    )
    shown = "x".join(map(str, layer.shape))
    require(
        layer.ndim > 1 and layer.size > 0,
        f"layer {name!r} must be samples x features, got the shape ({shown})",
    )
    layer = layer.reshape(len(layer), -1)
    floating = np.issubdtype(layer.dtype, np.floating)
    most = (
        min(LARGEST, float(np.finfo(layer.dtype).max)) if floating else np.inf
    )  # no NaN and no infinity is below it
    bad = [~(np.abs(layer[i : i + BLOCK]) <= most).all(axis=1) for i in range(0, len(layer), BLOCK)]
    rows = np.flatnonzero(np.concatenate(bad))
    if len(rows):
        told = f"layer {name!r} has NaN, infinite or huge activations in {len(rows)} of {len(layer)} samples"
        raise InputError(f"{told}, the first in sample {rows[0]}: leave these samples out")
    return layer


def table(factors: Any, num_samples: int | None = None) -> pd.DataFrame:
    """Factors as a table, a column each: from a table, a dict of columns, a list of dicts, a column, or a matrix."""
    listed = isinstance(factors, list) and all(isinstance(row, Mapping) for row in factors)
    if isinstance(factors, (pd.DataFrame, Mapping)) or listed:
        try:
            frame = pd.DataFrame(factors).reset_index(drop=True)
        except ValueError as error:
            raise InputError(
                f"factors must have one value for each sample, in lists of one length: {error}"
            ) from error
    else:
        matrix = np.asarray(factors)
        matrix = matrix[:, None] if matrix.ndim == 1 else matrix
        require(matrix.ndim == 2, f"factors must be samples x factors, got {matrix.ndim} axes")
        frame = pd.DataFrame(
            matrix, columns=pd.Index([f"factor{i}" for i in range(matrix.shape[1])])
        )
    require(frame.shape[1] > 0, "there is no factor: give a column for each thing that is combined")
    frame.columns = frame.columns.map(str)
    require(bool(frame.columns.is_unique), "two factors have one name: rename one of the columns")
    require(len(frame) > 0, "there is no row of factors: give one for each sample")
    told = f"there are {len(frame)} rows of factors and {num_samples} samples of activations"
    require(
        num_samples in (None, len(frame)),
        f"{told}: give one row for each sample, in the same order",
    )
    for name, column in frame.items():
        kind = column.dtype
        plain = not pd.api.types.is_complex_dtype(kind)
        if pd.api.types.is_object_dtype(kind):
            plain = all(isinstance(value, Hashable) for value in column)
        require(plain, f"factor {name!r} must hold numbers or names, got {_short(column.iloc[0])}")
        if pd.api.types.is_bool_dtype(kind):
            frame[name] = column = column.astype(float)
        elif isinstance(kind, pd.CategoricalDtype):  # numbers that are names stay names
            frame[name] = column = column.astype(object)
        empty = column.isna() | (np.isinf(column) if pd.api.types.is_float_dtype(column) else False)
        told = f"factor {name!r} has no value in row {int(np.argmax(empty))}"
        require(not empty.any(), f"{told}: fill it in, or leave the sample out")
    return frame


def varying(factors: pd.DataFrame) -> None:
    """Refuse a factor that is the same everywhere."""
    for name, column in factors.items():
        told = f"factor {name!r} is {_short(column.iloc[0])!r} in all samples that a probe is fitted on"
        require(column.nunique() > 1, f"{told}: nothing can be learned of it, leave it out")


def combined(
    combinations: Any, factors: pd.DataFrame, present: bool
) -> tuple[np.ndarray, list[str]]:
    """The number of every sample's combination, and what the combinations are called; by default, as the factors.

    Where factors are only `present` or not, they are called by those that are.
    """
    if combinations is None:
        numbers, named = (
            factors.groupby(list(factors), sort=False).ngroup().to_numpy(),
            factors.drop_duplicates(),
        )
        return numbers, _names(named, present and binary(named))
    given = (
        combinations
        if isinstance(combinations, (pd.Series, pd.Index))
        else np.asarray(combinations)
    )
    require(
        given.ndim == 1,
        f"combinations must be one name or number for each sample, got {given.ndim} axes",
    )
    told = f"there are {len(given)} combinations and {len(factors)} samples"
    require(len(given) == len(factors), f"{told}: name the combination of each sample")
    numbers, names = pd.factorize(given)
    told = f"sample {int(np.argmin(numbers))} has no combination"
    require(bool((numbers >= 0).all()), f"{told}: name one for each sample")
    return numbers, [str(name) for name in names]


def flags(given: Any, what: str, num_samples: int, unknown: bool = False) -> np.ndarray:
    """True or false for each sample, as numbers; NaN where that may be unknown."""
    column: Any = pd.Series(np.asarray(given))
    require(
        len(column) == num_samples,
        f"{what} has {len(column)} values for {num_samples} samples: give one for each",
    )
    words = {
        "true": 1.0,
        "false": 0.0,
        "yes": 1.0,
        "no": 0.0,
        "1": 1.0,
        "0": 0.0,
        "1.0": 1.0,
        "0.0": 0.0,
    }
    found = column.map(lambda value: words.get(str(value).strip().lower(), np.nan)).astype(float)
    strange = column[found.isna() & column.notna()].astype(str).tolist()
    require(not strange, f"{what} must be true or false, got {strange[:1]}")
    empty = f"{what} has no value in row {int(np.argmax(found.isna()))}: say true or false"
    require(unknown or not found.isna().any(), empty)
    return found.to_numpy()


def binary(factors: Any) -> bool:
    """Whether all factors are 0 or 1."""
    return bool(factors.isin((0, 1)).all(axis=None))


def _names(rows: Any, present: bool) -> list[str]:
    """What rows of factors are called: by what is present, or by all values, in as many digits as tell them apart."""
    records = rows.to_dict("records")
    if present:
        return [
            " + ".join(name for name, value in row.items() if value) or "none" for row in records
        ]
    found: list[str] = []
    for tell in (_short, str):
        found = [
            ", ".join(f"{name}={tell(value)}" for name, value in row.items()) for row in records
        ]
        if len(set(found)) == len(found):
            break
    return found


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
