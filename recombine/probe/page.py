"""The page of a probe: decodability by layer and factor, and the held-out combinations by error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.probe.decodability import ALL, Decodability
from recombine.reporting import figure
from recombine.reporting import page as report

MAX_BARS = 16  # factors or combinations in one figure
MEASURE_NAMES = {"r2": "R²", "accuracy": "Accuracy"}


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
    tables = [_table("Verdicts", _verdict_table(probe)), _table("Scores", probe.scores_)]
    if ranking is not None:
        tables.append(_table("Held-out combinations, highest error first", ranking))
    return report.render(
        title="Which factors are decodable from the activations",
        category="Recombine probe",
        description=f"{probe.sentence_}\n\n{_description(has_held_out=ranking is not None)}",
        summary=_summary(probe),
        notes=notes,
        figures={name: str(fig.to_json()) for name, fig in figures(probe, ranking).items()},
        results="\n".join(tables),
        origin=f"<pre>{report.escape(command)}</pre>\n" + report.definition_list("facts", facts),
    )


def _description(has_held_out: bool) -> str:
    held_out = "held-out combinations"
    if not has_held_out:
        held_out += " (every combination is held out in turn)"
    return (
        "Linear probes are fitted on some combinations of factors. They are scored on new samples "
        f"of the same combinations (seen) and on {held_out}.\n\n"
        "Composed: decoded on held-out combinations, above the baseline and the control. "
        "Memorized: decoded only on combinations that the probe was fitted on. Present, not "
        "linear: a small nonlinear probe decodes it on held-out combinations. Absent: none of "
        "these. Undecided: too few held-out combinations, or evidence that is too weak.\n\n"
        "Shuffled is the permuted-label control: the mean score of the same probes after every "
        "combination received another's value. Its score on seen combinations measures "
        "memorization; on held-out combinations it is that of a probe with nothing to decode. "
        "Majority is the accuracy of always predicting the most frequent value, selectivity the "
        "balanced accuracy (or R²) minus that of the control."
    )


def _verdict_table(probe: Decodability) -> pd.DataFrame:
    """One line per factor: the best verdict over layers, and what it rests on."""
    columns = ["low", "high", "balanced_accuracy", "majority", "p_value", "selectivity"]
    scores: Any = probe.scores_[probe.scores_["split"] == "held out"]
    rows = probe.verdicts_.merge(
        scores[["layer", "factor", "score", *columns]], on=["layer", "factor"], how="left"
    )
    known = rows.pop("in_baseline").map({True: "yes", False: ""})
    return rows.assign(**{"already in the baseline": known}).fillna({"reason": ""})


def _summary(probe: Decodability) -> dict[str, Any]:
    chosen: Any = probe.scores_[probe.scores_["layer"] == probe.layer_]
    label = "decoded from" if probe.layer_ == ALL else "best layer"
    summary: dict[str, Any] = {label: probe.layer_}
    means = chosen.groupby(["measure", "split"], sort=False)["score"].mean()
    for (measure, split), score in means.items():
        summary[f"{MEASURE_NAMES[measure]}, {split}"] = float(score)
    return summary


def figures(probe: Decodability, ranking: pd.DataFrame | None) -> dict[str, Any]:
    """Scores by layer, scores of the chosen layer by factor, and combinations by error."""
    by_name = {}
    for measure, scores in probe.scores_.groupby("measure", sort=False):
        by_name |= _score_figures(scores, str(measure), probe.layer_)
    if ranking is not None:
        by_name["ranking"] = _ranking_figure(ranking)
    return by_name


def _score_figures(scores: Any, measure: str, layer: str) -> dict[str, Any]:
    name = MEASURE_NAMES[measure]
    control = scores.assign(score=scores["shuffled"], split=scores["split"] + ", shuffled")
    rows: Any = pd.concat([scores, control]).rename(columns={"score": measure})
    for column in ("layer", "factor", "split"):  # in order of appearance, not alphabetical
        rows[column] = pd.Categorical(rows[column], rows[column].unique())
    by_layer = figure.lines(
        rows,
        "layer",
        measure,
        "split",
        title=f"{name} by layer: mean over factors, one dot per factor",
        x_title="layer",
        y_title=name,
    )
    first_factors = rows["factor"].cat.categories[:MAX_BARS]
    chosen = rows[(rows["layer"] == layer) & rows["factor"].isin(first_factors)]
    by_factor = figure.bars(
        chosen,
        "factor",
        measure,
        "split",
        title=f"{name} by factor, decoded from {layer}",
        x_title="factor",
        y_title=name,
    )
    _add_intervals(by_factor, chosen, measure)
    return {f"layers {measure}": by_layer, f"factors {measure}": by_factor}


def _ranking_figure(ranking: pd.DataFrame) -> Any:
    worst = ranking.head(MAX_BARS)
    worst = worst.assign(combination=pd.Categorical(worst["combination"], worst["combination"]))
    return figure.bars(
        worst,
        "combination",
        "error",
        title="Held-out combinations with the highest error: failures are predicted here",
        x_title="combination",
        y_title="error (1: predicting the mean)",
    )


def _add_intervals(bars: Any, rows: Any, measure: str) -> None:
    """Add intervals over combinations to the bars, except to those of the control."""
    for bar in bars.select_traces({"type": "bar"}):
        if str(bar.name).endswith("shuffled"):
            continue
        scores = rows[rows["split"] == bar.name].set_index("factor").loc[list(bar.x)]
        bar.error_y.array = (scores["high"] - scores[measure]).tolist()
        bar.error_y.arrayminus = (scores[measure] - scores["low"]).tolist()


def _table(title: str, rows: pd.DataFrame) -> str:
    file_name = title.split()[0]
    table = report.data_table(rows.round(3), title, f"{len(rows)} lines", file_name, rows)
    return f"<h3>{title}</h3>\n{table}"
