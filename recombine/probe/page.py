"""The page of a probe: what can be read from which layer, and which held-out combinations are expected to fail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.probe.decodability import ALL, Decodability
from recombine.reporting import figure
from recombine.reporting import page as report

MOST_BARS = 16  # factors or combinations in one picture
NAMES = {"r2": "R²", "accuracy": "Accuracy"}


def write(
    out: Path,
    probe: Decodability,
    ranking: pd.DataFrame | None,
    facts: dict[str, Any],
    command: str,
    notes: Sequence[str] = (),
) -> Path:
    """Write the page of a fitted probe to a file and return its path."""
    return report.save(page(probe, ranking, facts, command, notes), out)


def page(
    probe: Decodability,
    ranking: pd.DataFrame | None,
    facts: dict[str, Any],
    command: str,
    notes: Sequence[str] = (),
) -> str:
    """The page as self-contained HTML; `notes` are sentences below the summary."""
    tables = [_table("Scores", probe.scores_)]
    tables += (
        []
        if ranking is None
        else [_table("Held-out combinations, those that are read worst first", ranking)]
    )
    return report.filled(
        title="What can be read from the activations",
        kind="Recombine probe",
        description=_lead(turned=ranking is None),
        summary=_summary(probe),
        notes=notes,
        figures={name: str(one.to_json()) for name, one in figures(probe, ranking).items()},
        results="\n".join(tables),
        making=f"<pre>{report.escaped(command)}</pre>\n" + report.pairs("facts", facts),
    )


def _lead(turned: bool) -> str:
    return (
        "Probes were fitted on some combinations of factors and scored on samples of the same combinations that they "
        f"had not seen, and on combinations that were held out{' in turn' if turned else ''}.\n\n"
        "Shuffled: the same probes, with every combination's factors given to another one. What they reach on seen "
        "combinations is memory; on held-out ones they have nothing to read."
    )


def _summary(probe: Decodability) -> dict[str, Any]:
    best: Any = probe.scores_[probe.scores_["layer"] == probe.layer_]
    told: dict[str, Any] = {
        "read from" if probe.layer_ == ALL else "layer that is read best": probe.layer_
    }
    for (measure, side), score in (
        best.groupby(["measure", "split"], sort=False)["score"].mean().items()
    ):
        told[f"{NAMES[measure]}, {side}"] = float(score)
    return told


def figures(probe: Decodability, ranking: pd.DataFrame | None) -> dict[str, Any]:
    """Scores by layer, those of the chosen layer by factor, and the combinations that are read worst."""
    found = {}
    for measure, scores in probe.scores_.groupby("measure", sort=False):
        name, column = NAMES[str(measure)], str(measure)
        control = scores.assign(score=scores["shuffled"], split=scores["split"] + ", shuffled")
        rows: Any = pd.concat([scores, control]).rename(columns={"score": column})
        for ordered in ("layer", "factor", "split"):  # in their own order, not the alphabet's
            rows[ordered] = pd.Categorical(rows[ordered], rows[ordered].unique())
        title = f"{name} by layer: mean over factors, each a dot"
        found[f"layers {column}"] = figure.lines(
            rows, "layer", column, "split", title=title, x_title="layer", y_title=name
        )
        best = rows[
            (rows["layer"] == probe.layer_)
            & rows["factor"].isin(rows["factor"].cat.categories[:MOST_BARS])
        ]
        title = f"{name} by factor, read from {probe.layer_}"
        bars = figure.bars(
            best, "factor", column, "split", title=title, x_title="factor", y_title=name
        )
        found[f"factors {column}"] = _with_intervals(bars, best, column)
    if ranking is not None:
        worst = ranking.head(MOST_BARS)
        worst = worst.assign(combination=pd.Categorical(worst["combination"], worst["combination"]))
        told = "error (1: as by guessing)"
        title = "Held-out combinations, those that are read worst first: where to expect failures"
        found["ranking"] = figure.bars(
            worst, "combination", "error", title=title, x_title="combination", y_title=told
        )
    return found


def _with_intervals(drawn: Any, rows: Any, measure: str) -> Any:
    """Whiskers over combinations: the figure itself knows one number per bar."""
    for bar in drawn.select_traces({"type": "bar"}):
        mine = rows[rows["split"] == bar.name].set_index("factor").loc[list(bar.x)]
        if not str(bar.name).endswith("shuffled"):
            bar.error_y.array = (mine["high"] - mine[measure]).tolist()
            bar.error_y.arrayminus = (mine[measure] - mine["low"]).tolist()
    return drawn


def _table(name: str, lines: pd.DataFrame) -> str:
    return f"<h3>{name}</h3>\n" + report.listing(
        lines.round(3), name, f"{len(lines)} lines", name.split()[0], lines
    )
