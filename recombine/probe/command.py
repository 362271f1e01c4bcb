"""The command `recombine probe`: from files to scores, predicted failures and a page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require
from recombine.basics.suggest import counted, did_you_mean
from recombine.probe import input_validation
from recombine.probe.file_readers import read_activations, read_factors

MAX_RANKED_LINES = 10  # combinations of the ranking that are printed


def probe(
    activations: Path,
    factors: Path,
    held_out: str | None = None,
    kind: Literal["auto", "ridge", "logistic"] = "auto",
    report: Path | None = None,
    combinations: str | None = None,
    layers: Literal["best", "all"] = "best",
    names: str | None = None,
    columns: str | None = None,
    baseline: Path | None = None,
    save: Path | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Probe the activations in one file for the factors in another.

    Returns the result for `--json`, and the lines to print.
    """
    from recombine.probe import Decodability

    activations_by_layer = read_activations(activations)
    table = read_factors(factors)
    num_samples = len(next(iter(activations_by_layer.values())))
    _check_columns(table, factors, held_out, combinations)
    group_names = None if combinations is None else table.pop(combinations)
    held = None
    if held_out is not None:
        description = f"the column {held_out!r}"
        held = input_validation.as_flags(table.pop(held_out), description, num_samples) == 1
    table = _chosen_columns(table, columns)
    of_names = None if names is None else _listed(names)
    probes = Decodability(kind, layers=layers, names=of_names)
    of_input = None if baseline is None else read_activations(baseline)
    fitted = _fit(probes, activations_by_layer, table, group_names, held, of_input)
    ranking = None
    if held is not None:
        ranking = _rank_held_out(fitted, activations_by_layer, table, group_names, held)
    if save is not None:
        fitted.save(save)
    constant = {
        name: input_validation.constant_features(layer)
        for name, layer in activations_by_layer.items()
    }
    notes = [*_constant_feature_notes(activations_by_layer, constant), *fitted.notes_]
    result = _result(fitted, ranking, constant, num_samples)
    if report is not None:
        options = {
            "--held-out": held_out,
            "--combinations": combinations,
            "--kind": None if kind == "auto" else kind,
            "--layers": None if layers == "best" else layers,
            "--names": names,
            "--columns": columns,
            "--baseline": baseline,
        }
        command = _command(activations, factors, options)
        result["report"] = str(_write_page(report, fitted, ranking, num_samples, command, notes))
    return result, _lines(fitted.scores_, ranking, result, notes)


def _fit(probes: Any, layers: Any, table: Any, group_names: Any, held: Any, baseline: Any) -> Any:
    """The fitted probes. Too little memory is an `InputError`."""
    try:
        return probes.fit(layers, table, group_names, held, baseline=baseline)
    except MemoryError as error:
        raise InputError(
            "there is not enough memory for these probes: save fewer layers, samples or features, "
            "or pool tokens first"
        ) from error


def _result(
    fitted: Any, ranking: Any, constant: dict[str, Any], num_samples: int
) -> dict[str, Any]:
    """The result for `--json`."""
    return {
        "kind": fitted.kind,
        "layers": fitted.layers,
        "layer": fitted.layer_,
        "samples": num_samples,
        "combinations": len(fitted.combinations_),
        "constant_features": constant,
        "sentence": fitted.sentence_,
        "verdicts": _records(fitted.verdicts_),
        "notes": fitted.notes_,
        "scores": _records(fitted.scores_),
        "ranking": [] if ranking is None else _records(ranking),
    }


def _write_page(
    report: Path, fitted: Any, ranking: Any, num_samples: int, command: str, notes: list[str]
) -> Path:
    """Write the report, and return its path."""
    from recombine.probe import page

    samples = f"{num_samples} in {len(fitted.combinations_)} combinations"
    facts = {"kind": fitted.kind, "samples": samples}
    return page.write(report, fitted, ranking, facts, command, notes)


def _rank_held_out(
    fitted: Any, layers: dict[str, np.ndarray], table: Any, names: Any, held: np.ndarray
) -> pd.DataFrame:
    """The held-out combinations, ranked by predicted failure."""
    new_names = None if names is None else names[held]
    new_layers = {name: np.asarray(layers[name])[held] for name in fitted.widths_}
    return fitted.rank(table[held], new_layers, new_names)


def _check_columns(
    table: pd.DataFrame, file: Path, held_out: str | None, combinations: str | None
) -> None:
    known = list(map(str, table))
    for column in (held_out, combinations):
        if column is not None:
            require(
                column in known,
                f"there is no column {column!r} in {file}: {did_you_mean(column, known)}",
            )
    require(
        held_out is None or held_out != combinations,
        f"--held-out and --combinations both name the column {held_out!r}: name different columns",
    )


def _listed(text: str) -> list[str]:
    """The names in a list that is separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _chosen_columns(table: Any, columns: str | None) -> pd.DataFrame:
    """The factors that `--columns` lists; by default all columns."""
    if columns is None:
        return table
    chosen = _listed(columns)
    known = list(map(str, table))
    require(bool(chosen), "--columns lists no column: name the factors, separated by commas")
    for column in chosen:
        require(
            column in known,
            f"there is no column {column!r} for --columns: {did_you_mean(column, known)}",
        )
    return table[chosen]


def _command(activations: Path, factors: Path, options: dict[str, Any]) -> str:
    """The command line that gives the same report."""
    words = ["recombine", "probe", str(activations), "--factors", str(factors)]
    for option, value in options.items():
        if value is not None:
            words += [option, str(value)]
    return shlex.join(words)


def _constant_feature_notes(layers: dict[str, np.ndarray], constant: dict[str, int]) -> list[str]:
    """A sentence for every layer with features that never vary."""
    notes = []
    for name, count in constant.items():
        if count > 0:
            width = int(np.prod(layers[name].shape[1:]))
            verb = "varies" if count == 1 else "vary"
            notes.append(f"Layer {name}: {count} of {counted(width, 'feature')} never {verb}.")
    return notes


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return json.loads(str(frame.to_json(orient="records")))  # NaN becomes null


def _lines(scores: Any, ranking: Any, result: dict[str, Any], notes: list[str]) -> list[str]:
    """The lines to print: verdicts, scores, notes, the chosen layer, the worst combinations."""
    lines = [*_verdict_lines(result), *_score_lines(scores), *notes]
    if result["layers"] == "best":
        lines.append(f"Best layer by cross-validation over combinations: {result['layer']}")
    else:
        lines.append(f"Decoded from: {result['layer']}")
    if ranking is not None:
        event = ranking.iloc[0].probability_of
        lines.append(
            f"Held-out combinations with the highest error, and the probability of {event}:"
        )
        for row in ranking.head(MAX_RANKED_LINES).itertuples():
            numbers = f"error {row.error:.3f}, probability {row.probability:.2f}"
            lines.append(f"  {row.combination}: {numbers}")
    if "report" in result:
        lines.append(f"Report: {result['report']}")
    return lines


def _verdict_lines(result: dict[str, Any]) -> Iterator[str]:
    """The sentence, and why factors are undecided."""
    yield result["sentence"]
    for row in result["verdicts"]:
        if row["reason"]:
            yield f"  {row['factor']}: {row['reason']}"


def _score_lines(scores: Any) -> Iterator[str]:
    layer_width = max(len(name) for name in ("layer", *scores["layer"]))
    factor_width = max(len(name) for name in ("factor", *scores["factor"]))

    def aligned(layer: str, factor: str, split: str, *numbers: str) -> str:
        names = f"{layer:<{layer_width}}  {factor:<{factor_width}}  {split:<8}"
        widths = (15, 16, 8, 8, 8, 7)
        cells = [f"{text:>{width}}" for text, width in zip(numbers, widths, strict=True)]
        return "  ".join([names, *cells])

    columns = ("score", "interval", "balanced", "majority", "shuffled", "p")
    yield f"{aligned('layer', 'factor', 'split', *columns)}  verdict"
    for row in scores.itertuples():
        numbers = (
            f"{row.measure} {row.score:.3f}",
            f"{row.low:.3f} to {row.high:.3f}",
            _number(row.balanced_accuracy),
            _number(row.majority),
            _number(row.shuffled),
            _number(row.p_value),
        )
        line = aligned(row.layer, row.factor, row.split, *numbers)
        yield f"{line}  {row.verdict if row.split == 'held out' else ''}".rstrip()


def _number(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.3f}"
