"""Fitted probes as files: arrays in NAME.safetensors, everything else in NAME.json.

Nothing is ever unpickled. The JSON file has the version of the format, the constructor's options,
the factors with their values, the layers with their widths, the tables of scores and verdicts, and
what `rank` needs: the factors, errors and outcomes of the fitted combinations.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require
from recombine.probe.ridge import LinearMap
from recombine.probe.targets import Factor, Targets

FORMAT = 1  # increased when readers of the earlier format would misread the files
PLAIN = (
    "layer_",
    "widths_",
    "n_features_in_",
    "is_logistic_",
    "combinations_",
    "binary_factors_",
    "probability_of_",
    "sentence_",
    "notes_",
    "constant_features_",
)
TABLES = ("scores_", "verdicts_")
ARRAYS = ("errors_", "outcomes_")


class SavedProbe(NamedTuple):
    """The maps of a probe that was loaded."""

    decode: LinearMap
    ridge_decode: LinearMap


def save(probe: Any, path: Path) -> Path:
    """Write both files of a fitted probe; return the path of the arrays."""
    from safetensors.numpy import save_file

    path = Path(path)
    require(
        path.suffix == ".safetensors",
        f"{path} must end in .safetensors: rename it, then save again",
    )
    require(
        probe.edition == 2,
        "a probe of the first edition cannot be saved: fit one without edition=1",
    )
    arrays = {
        "decode.weights": probe.probe_.decode.weights,
        "decode.constant": probe.probe_.decode.constant,
        "ridge.weights": probe.probe_.ridge_decode.weights,
        "ridge.constant": probe.probe_.ridge_decode.constant,
        "variance": probe.targets_.variance,
    } | {name: getattr(probe, name) for name in ARRAYS}
    text = json.dumps(_description(probe), indent=1)
    try:
        path.with_suffix(".json").write_text(text)
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)
    except OSError as error:
        raise InputError(
            f"cannot write {path} ({error.strerror or error}): choose another"
        ) from error
    return path


def load(probe: Any, path: Path) -> Any:
    """Set the attributes of an unfitted probe from the files that `save` wrote."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = Path(path)
    for file in (path, path.with_suffix(".json")):
        require(file.is_file(), f"there is no file {file}: a saved probe has both files")
    try:
        description = json.loads(path.with_suffix(".json").read_text())
        arrays = load_file(path)
    except (ValueError, SafetensorError, OSError, RecursionError) as error:
        raise InputError(f"{path} is not a saved probe ({error}): save the probe again") from error
    require(
        isinstance(description, dict) and description.get("format") == FORMAT,
        f"{path.with_suffix('.json')} is not a saved probe of format {FORMAT}: save it again",
    )
    try:
        _set_attributes(probe, description, arrays)
        is_consistent = _is_consistent(probe)
    except KeyError as error:
        raise InputError(f"{path} lacks {error}: save the probe again") from error
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} is not a saved probe ({reason}): save the probe again") from error
    require(
        is_consistent,
        f"the arrays in {path} do not have the shapes that its .json file describes: save the "
        "probe again, and keep both files together",
    )
    return probe


def _set_attributes(probe: Any, description: dict[str, Any], arrays: dict[str, Any]) -> None:
    probe.set_params(**_options(description["options"]))
    for name in PLAIN:
        setattr(probe, name, description[name])
    for name in TABLES:
        setattr(probe, name, _table(description[name]))
    for name in ARRAYS:
        setattr(probe, name, arrays[name])
    probe.train_factors_ = _table(description["train_factors_"])
    probe.targets_ = _targets(description["factors"], arrays["variance"])
    probe.probe_ = SavedProbe(
        LinearMap(arrays["decode.weights"], arrays["decode.constant"]),
        LinearMap(arrays["ridge.weights"], arrays["ridge.constant"]),
    )


def _is_consistent(probe: Any) -> bool:
    """Whether the arrays of a loaded probe have the shapes that its description implies."""
    targets = probe.targets_
    num_features = sum(probe.widths_.values())
    num_combinations = len(probe.train_factors_)
    return (
        num_features == probe.n_features_in_
        and len(probe.is_logistic_) == len(targets.factors)
        and targets.variance.shape == (len(targets.factors),)
        and probe.errors_.shape == probe.outcomes_.shape == (num_combinations,)
        and all(
            fitted.weights.shape == (num_features, targets.width)
            and fitted.constant.shape == (targets.width,)
            for fitted in probe.probe_
        )
    )


def _description(probe: Any) -> dict[str, Any]:
    factors = [
        {
            "name": factor.name,
            "columns": [factor.columns.start, factor.columns.stop],
            "values": [_plain(value) for value in factor.values],
        }
        for factor in probe.targets_.factors
    ]
    tables = {name: _text(getattr(probe, name)) for name in (*TABLES, "train_factors_")}
    plain = {name: getattr(probe, name) for name in PLAIN}
    options = {name: _plain(value) for name, value in probe.get_params().items()}
    return {"format": FORMAT, "options": options, "factors": factors} | plain | tables


def _plain(value: Any) -> Any:
    """A value that JSON keeps as it is."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    require(
        value is None or isinstance(value, (str, int, float, bool)),
        f"{value!r} cannot be saved: use text, numbers or booleans as values of factors",
    )
    return value


def _options(options: dict[str, Any]) -> dict[str, Any]:
    return options | {"penalties": tuple(options["penalties"])}


def _text(table: pd.DataFrame) -> str:
    return str(
        table.reset_index(drop=True).to_json(orient="table", index=False, double_precision=15)
    )


def _table(text: str) -> pd.DataFrame:
    return pd.read_json(io.StringIO(text), orient="table", precise_float=True)


def _targets(factors: list[dict[str, Any]], variance: np.ndarray) -> Targets:
    known = [
        Factor(factor["name"], slice(*factor["columns"]), tuple(factor["values"]))
        for factor in factors
    ]
    return Targets.of(known, variance)
