"""What `recombine probe` does: files in, scores and predicted failures out, as JSON, as lines, and as a page."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from recombine.basics.errors import require
from recombine.basics.suggest import counted, nearest
from recombine.probe import inputs
from recombine.probe.files import read_activations, read_factors

MOST_LINES = 10  # of the ranking, in the terminal


def probe(
    activations: Path,
    factors: Path,
    held_out: str | None = None,
    kind: Literal["ridge", "logistic"] = "ridge",
    report: Path | None = None,
    combinations: str | None = None,
    layers: Literal["best", "all"] = "best",
) -> tuple[dict[str, Any], list[str]]:
    """Probe the activations in one file for the factors in another: the answer for scripts, and lines for a person."""
    from recombine.probe import Decodability

    given, table = read_activations(activations), read_factors(factors)
    num_samples = len(next(iter(given.values())))
    held = names = None
    for column in (one for one in (held_out, combinations) if one is not None):
        known = list(map(str, table))
        require(
            column in known, f"there is no column {column!r} in {factors}: {nearest(column, known)}"
        )
    require(
        held_out is None or held_out != combinations,
        f"the column {held_out!r} cannot be both: name another one",
    )
    if combinations is not None:
        names = table.pop(combinations)
    if held_out is not None:
        held = inputs.flags(table.pop(held_out), f"the column {held_out!r}", num_samples) == 1
    found = Decodability(kind, layers=layers).fit(given, table, names, held)
    ranking = None
    if held is not None:
        of_held = None if names is None else names[held]
        new = {name: np.asarray(given[name])[held] for name in found.widths_}
        ranking = found.rank(table[held], new, of_held)
    facts = {"kind": kind, "layers": layers, "layer": found.layer_, "samples": num_samples}
    facts["combinations"] = len(found.combinations_)
    facts["constant_features"] = {
        name: inputs.constant_features(layer) for name, layer in given.items()
    }
    notes = _constant_lines(given, facts["constant_features"])
    result = facts | {
        "scores": _records(found.scores_),
        "ranking": [] if ranking is None else _records(ranking),
    }
    if report is not None:
        from recombine.probe import page

        asked = ["recombine", "probe", str(activations), "--factors", str(factors)]
        asked += ["--held-out", held_out] if held_out else []
        asked += ["--combinations", combinations] if combinations else []
        asked += ["--kind", kind] if kind != "ridge" else []
        asked += ["--layers", layers] if layers != "best" else []
        made = {
            "kind": kind,
            "samples": f"{num_samples}, of {len(found.combinations_)} combinations",
        }
        result["report"] = str(page.write(report, found, ranking, made, shlex.join(asked), notes))
    return result, _lines(found.scores_, ranking, result, notes)


def _constant_lines(layers: dict[str, np.ndarray], constant: dict[str, int]) -> list[str]:
    """A sentence for every layer with features that never vary."""
    widths = {name: int(np.prod(layer.shape[1:])) for name, layer in layers.items()}
    return [
        f"Layer {name}: {count} of {counted(widths[name], 'feature')} never {'varies' if count == 1 else 'vary'}."
        for name, count in constant.items()
        if count > 0
    ]


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return json.loads(str(frame.to_json(orient="records")))  # NaN becomes null


def _lines(scores: Any, ranking: Any, result: dict[str, Any], notes: list[str]) -> list[str]:
    layer, factor = (
        max(len(name) for name in (column, *scores[column])) for column in ("layer", "factor")
    )
    lines = [
        f"{'layer':<{layer}}  {'factor':<{factor}}  {'split':<8}  {'score':>15}  {'interval':>16}  shuffled"
    ]
    for row in scores.itertuples():
        score, interval = f"{row.measure} {row.score:.3f}", f"{row.low:.3f} to {row.high:.3f}"
        place = f"{row.layer:<{layer}}  {row.factor:<{factor}}  {row.split:<8}"
        lines.append(f"{place}  {score:>15}  {interval:>16}  {row.shuffled:8.3f}")
    lines += notes
    best = "Read best, combinations being left out in turn"
    lines.append(f"{best if result['layers'] == 'best' else 'Read from'}: {result['layer']}")
    if ranking is not None:
        told = f"with the probability of {ranking.iloc[0].probability_of}"
        lines.append(f"Held-out combinations that are read worst, {told}:")
        worst = ranking.head(MOST_LINES).itertuples()
        lines += [
            f"  {row.combination}: error {row.error:.3f}, probability {row.probability:.2f}"
            for row in worst
        ]
    return [*lines, *([f"Report: {result['report']}"] if "report" in result else [])]
