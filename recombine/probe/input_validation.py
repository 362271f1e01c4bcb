"""Checks of the user's input: activations by layer, a table of factors, and combinations."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require
from recombine.basics.suggest import did_you_mean

BLOCK_SAMPLES = (
    1 << 14
)  # samples checked at a time: a copy of all activations may not fit in memory
MAX_CLASS_IDS = 50  # values of a factor of whole numbers that may be class ids
MAX_ACTIVATION = 1e100  # beyond it sums of squares overflow
TRUE_OR_FALSE = {
    "true": 1.0,
    "false": 0.0,
    "yes": 1.0,
    "no": 0.0,
    "1": 1.0,
    "0": 0.0,
    "1.0": 1.0,
    "0.0": 0.0,
}


def check_layers(activations: Any) -> dict[str, np.ndarray]:
    """Activations by layer, each samples x features; a single array is the layer `activations`."""
    by_layer = activations
    if not is_by_layer(activations):
        by_layer = {"activations": activations}
    require(
        len(by_layer) > 0,
        "there are no activations: provide an array, or a dict of arrays by layer",
    )
    layers = {str(name): _check_layer(str(name), layer) for name, layer in by_layer.items()}
    first = next(iter(layers))
    num_samples = len(layers[first])
    for name, layer in layers.items():
        require(
            len(layer) == num_samples,
            f"layer {name!r} has {len(layer)} samples and {first!r} has {num_samples}: "
            "provide the same samples for every layer",
        )
    return layers


def is_by_layer(activations: Any) -> bool:
    """Whether these are activations by layer: a dict, or a cache that has names and items."""
    if isinstance(activations, Mapping):
        return True
    is_table = hasattr(activations, "shape") or isinstance(activations, pd.DataFrame)
    return not is_table and hasattr(activations, "items") and hasattr(activations, "keys")


def constant_features(layer: np.ndarray) -> int:
    """The number of features with the same value in all samples, counted block by block."""
    first = layer[:1].reshape(1, -1)
    varies = np.zeros(first.shape[1], bool)
    for start in range(0, len(layer), BLOCK_SAMPLES):
        block = layer[start : start + BLOCK_SAMPLES]
        varies |= (block.reshape(len(block), -1) != first).any(axis=0)
        if varies.all():
            break
    return int((~varies).sum())


def join_layers(layers: dict[str, np.ndarray]) -> np.ndarray:
    """The features of all layers side by side; a single layer is not copied."""
    arrays = list(layers.values())
    return np.concatenate(arrays, axis=1) if len(arrays) > 1 else arrays[0]


def _check_layer(name: str, activations: Any) -> np.ndarray:
    """One layer as samples x features, after checking type, shape and size of the numbers."""
    try:
        layer = np.asarray(_without_torch(activations))
    except ValueError as error:
        raise InputError(
            f"layer {name!r} has rows of different lengths: provide samples x features"
        ) from error
    is_floating = np.issubdtype(layer.dtype, np.floating)
    is_integer = np.issubdtype(layer.dtype, np.integer)
    require(
        is_floating or is_integer or layer.dtype == bool,
        f"layer {name!r} must hold real numbers, got {layer.dtype}",
    )
    shape = "x".join(map(str, layer.shape))
    require(
        layer.ndim > 1 and layer.size > 0,
        f"layer {name!r} must be samples x features, got the shape ({shape})",
    )
    require(
        layer.ndim == 2,
        f"layer {name!r} must be samples x features, got the shape ({shape}): choose or average "
        "tokens or positions, for example x[:, -1] or x.mean(axis=1), or flatten them with "
        "x.reshape(len(x), -1)",
    )
    # NaN and infinity are not at most the limit either.
    limit = min(MAX_ACTIVATION, float(np.finfo(layer.dtype).max)) if is_floating else np.inf
    is_bad = np.zeros(len(layer), bool)
    for start in range(0, len(layer), BLOCK_SAMPLES):
        block = slice(start, start + BLOCK_SAMPLES)
        is_bad[block] = ~(np.abs(layer[block]) <= limit).all(axis=1)
    bad = np.flatnonzero(is_bad)
    if len(bad):
        raise InputError(
            f"layer {name!r} has NaN, infinite or huge activations in {len(bad)} of {len(layer)} "
            f"samples, the first in sample {bad[0]}: leave these samples out"
        )
    return layer


def _without_torch(activations: Any) -> Any:
    """A tensor of PyTorch on the CPU, without gradients, as float32 if NumPy lacks its type."""
    if not hasattr(activations, "detach"):
        return activations
    tensor = activations.detach().cpu()
    if "bfloat16" in str(tensor.dtype) or "float8" in str(tensor.dtype):
        tensor = tensor.float()
    return tensor.numpy()


def sample_weights(weights: Any, num_samples: int) -> np.ndarray:
    """The weight of every sample, 1 by default; the mean is 1."""
    checked = check_weights(weights, num_samples)
    return checked / checked.mean()


def check_weights(weights: Any, num_samples: int) -> np.ndarray:
    """The weight of every sample as the user provides it, 1 by default."""
    if weights is None:
        return np.ones(num_samples)
    try:
        checked = np.asarray(weights, float)
    except (TypeError, ValueError) as error:
        raise InputError(f"sample_weight must hold numbers ({error})") from error
    require(
        checked.shape == (num_samples,),
        f"sample_weight has the shape {checked.shape} for {num_samples} samples: provide one "
        "number for each sample",
    )
    is_valid = np.isfinite(checked).all() and (checked > 0).all()
    require(bool(is_valid), "sample_weight must be positive: leave out samples that do not count")
    return checked


def factors_of_names(factors: pd.DataFrame, names: Any) -> list[str]:
    """The factors that are names: text, booleans, categories, and those that the user lists."""
    known = list(map(str, factors))
    if names is True:
        return known
    is_number = {
        name: pd.api.types.is_numeric_dtype(factors[name])
        and not pd.api.types.is_bool_dtype(factors[name])
        for name in known
    }
    listed = [names] if isinstance(names, str) else list(names or ())
    for name in listed:
        require(name in known, f"there is no factor {name!r}: {did_you_mean(str(name), known)}")
    return [name for name in known if name in listed or not is_number[name]]


def class_ids(factors: pd.DataFrame, names: Any) -> list[str]:
    """Factors of whole numbers that look like class ids, if the user did not decide on `names`."""
    if names is not None:
        return []
    return [str(name) for name in factors if _looks_like_class_ids(factors[name])]


def _looks_like_class_ids(column: Any) -> bool:
    if not pd.api.types.is_integer_dtype(column.dtype):
        return False
    values = np.unique(column.to_numpy())
    first = int(values[0])
    is_consecutive = int(values[-1]) - first + 1 == len(values)
    return first in (0, 1) and is_consecutive and 3 <= len(values) <= MAX_CLASS_IDS


def require_values_in_several_combinations(
    factors: pd.DataFrame, names: list[str], numbers: np.ndarray
) -> None:
    """Refuse a factor of names if every value has a combination of its own."""
    for name in names:
        codes = pd.factorize(factors[name])[0]
        pairs = pd.DataFrame({"value": codes, "combination": numbers}).drop_duplicates()
        require_shared_value(name, int(pairs["value"].value_counts().max()))


def require_shared_value(name: str, num_combinations: int) -> None:
    """Refuse a factor of names if no value occurs in more than this number of combinations, 1."""
    require(
        num_combinations > 1,
        f"every value of factor {name!r} occurs in one combination only, so no probe can "
        "learn the value of a held-out combination: add a factor that varies independently of "
        "it, or name combinations that share its values",
    )


def factor_table(factors: Any, num_samples: int | None = None) -> pd.DataFrame:
    """Factors as a table with one column each.

    Accepts a table, a dict of columns, a list of dicts, a column, or a matrix of samples x factors.
    """
    frame = _as_frame(factors)
    require(frame.shape[1] > 0, "there is no factor: provide a column per factor")
    frame.columns = frame.columns.map(str)
    require(
        bool(frame.columns.is_unique), "two factors have the same name: rename one of the columns"
    )
    require(len(frame) > 0, "there is no row of factors: provide one per sample")
    require(
        num_samples in (None, len(frame)),
        f"there are {len(frame)} rows of factors and {num_samples} samples of activations: "
        "provide one row per sample, in the same order",
    )
    for name in frame:
        frame[name] = _check_factor(str(name), frame[name])
    return frame


def _as_frame(factors: Any) -> pd.DataFrame:
    is_list_of_dicts = isinstance(factors, list) and all(
        isinstance(row, Mapping) for row in factors
    )
    if isinstance(factors, (pd.DataFrame, Mapping)) or is_list_of_dicts:
        try:
            return pd.DataFrame(factors).reset_index(drop=True)
        except ValueError as error:
            raise InputError(
                f"factors must have one value for each sample, in lists of equal length: {error}"
            ) from error
    matrix = np.asarray(factors)
    matrix = matrix[:, None] if matrix.ndim == 1 else matrix
    require(matrix.ndim == 2, f"factors must be samples x factors, got {matrix.ndim} axes")
    names = [f"factor{i}" for i in range(matrix.shape[1])]
    return pd.DataFrame(matrix, columns=pd.Index(names))


def _check_factor(name: str, column: Any) -> Any:
    """One factor as numbers or names, without empty cells."""
    if pd.api.types.is_object_dtype(column.dtype):
        is_supported = all(isinstance(value, Hashable) for value in column)
    else:
        is_supported = not pd.api.types.is_complex_dtype(column.dtype)
    require(
        is_supported,
        f"factor {name!r} must hold numbers or names, got {_short(column.iloc[0])}",
    )
    if isinstance(column.dtype, pd.CategoricalDtype):  # numbers that are categories are names
        column = column.astype(object)
    is_empty = column.isna()
    if pd.api.types.is_float_dtype(column):
        is_empty |= np.isinf(column)
    require(
        not is_empty.any(),
        f"factor {name!r} has no value in row {int(np.argmax(is_empty))}: "
        "fill it in, or leave the sample out",
    )
    return column


def require_varying_factors(factors: pd.DataFrame) -> None:
    """Refuse a factor that has the same value in all samples."""
    for name, column in factors.items():
        require(
            column.nunique() > 1,
            f"factor {name!r} is {_short(column.iloc[0])!r} in all samples that probes are fitted "
            "on, so it cannot be learned: leave this factor out",
        )


def number_combinations(
    combinations: Any, factors: pd.DataFrame, binary_factors: bool
) -> tuple[np.ndarray, list[str]]:
    """The number of every sample's combination, and the names of the combinations by number.

    By default equal rows of factors are one combination. If factors are all 0 or 1, a combination
    is named by the factors that are 1.
    """
    if combinations is None:
        numbers = factors.groupby(list(factors), sort=False).ngroup().to_numpy()
        distinct = factors.drop_duplicates()
        return numbers, _combination_names(distinct, binary_factors and is_binary(distinct))
    names = combinations
    if not isinstance(combinations, (pd.Series, pd.Index)):
        names = np.asarray(combinations)
    require(
        names.ndim == 1,
        f"combinations must be one name or number for each sample, got {names.ndim} axes",
    )
    require(
        len(names) == len(factors),
        f"there are {len(names)} combinations and {len(factors)} samples: "
        "name the combination of each sample",
    )
    numbers, distinct_names = pd.factorize(names)
    require(
        bool((numbers >= 0).all()),
        f"sample {int(np.argmin(numbers))} has no combination: name one for each sample",
    )
    return numbers, [str(name) for name in distinct_names]


def check_groups(groups: Any, num_rows: int) -> np.ndarray:
    """The sample of every row of activations: whole numbers from 0 on, without a gap."""
    checked = np.asarray(groups)
    require(
        checked.shape == (num_rows,) and checked.dtype.kind in "iu",
        f"groups must have the number of the sample of each of the {num_rows} rows of activations, "
        f"got {checked.dtype} numbers of the shape {checked.shape}: use the groups of the recorder",
    )
    count = np.bincount(checked) if checked.min() >= 0 else np.zeros(1)
    require(
        bool((count > 0).all()),
        "groups must number the samples from 0 on, and every sample needs a row of activations: "
        "leave out samples without rows",
    )
    return checked


def as_flags(
    values: Any, description: str, num_samples: int, allow_unknown: bool = False
) -> np.ndarray:
    """True or false for each sample as 1.0 and 0.0; unknown values, if allowed, are NaN."""
    column: Any = pd.Series(np.asarray(values))
    require(
        len(column) == num_samples,
        f"{description} has {len(column)} values for {num_samples} samples: provide one per sample",
    )
    flags = column.map(lambda value: TRUE_OR_FALSE.get(str(value).strip().lower(), np.nan))
    flags = flags.astype(float)
    invalid = column[flags.isna() & column.notna()].astype(str).tolist()
    require(not invalid, f"{description} must be true or false, got {invalid[:1]}")
    require(
        allow_unknown or not flags.isna().any(),
        f"{description} has no value in row {int(np.argmax(flags.isna()))}: enter true or false",
    )
    return flags.to_numpy()


def is_binary(factors: Any) -> bool:
    """Whether all factors are 0 or 1."""
    return bool(factors.isin((0, 1)).all(axis=None))


def _combination_names(rows: Any, binary_factors: bool) -> list[str]:
    """Names of rows of factors: the factors that are 1, or all values.

    Numbers are shortened unless that would give two rows the same name.
    """
    records = rows.to_dict("records")
    if binary_factors:
        present = [[name for name, value in row.items() if value] for row in records]
        return [" + ".join(names) or "none" for names in present]
    names = [_row_name(row, _short) for row in records]
    if len(set(names)) < len(names):
        names = [_row_name(row, str) for row in records]
    return names


def _row_name(row: Mapping[str, Any], show: Any) -> str:
    return ", ".join(f"{name}={show(value)}" for name, value in row.items())


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
