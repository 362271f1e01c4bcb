"""The results of all layers: the table of scores, verdicts, one sentence, notes, and a figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from recombine.basics.errors import require
from recombine.basics.suggest import did_you_mean
from recombine.probe.layer_probe import (
    SIDES,
    Data,
    LayerFits,
    LayerResult,
    Scored,
    Scorer,
    evaluations,
)
from recombine.probe.permutations import value_codes
from recombine.probe.scores import FactorScores
from recombine.probe.targets import Targets
from recombine.probe.verdicts import (
    COMPOSED,
    NONLINEAR,
    Evidence,
    Significance,
    sentence,
    significance,
    verdict,
)

MEASURE_NAMES = {"r2": "R²", "accuracy": "Accuracy"}


class Summary(NamedTuple):
    """What `Decodability.fit` publishes."""

    scores: pd.DataFrame
    verdicts: pd.DataFrame
    sentence: str
    notes: list[str]


def summarize(
    results: Mapping[str, LayerResult],
    nonlinear: Mapping[str, Scored],
    baselines: set[str],
    data: Data,
) -> Summary:
    """Scores and verdicts of all layers; `baselines` are the layers that are one."""
    tests = _Tests(results, nonlinear, data) if nonlinear else None
    rows = []
    verdict_rows = []
    for i, (name, result) in enumerate(results.items()):
        for j, factor in enumerate(data.targets.factors):
            kind, reason = ("", "") if tests is None else verdict(tests.evidence(i, j))
            low = np.nan
            for side in SIDES:
                scores = result.scored.scores[side][j]
                if scores is not None:
                    row = _row(result, scores, side, j, tests and tests.held_out, i, data)
                    low = row["low"] if side == "held out" else low
                    rows.append({"layer": name, **row, "verdict": kind})
            verdict_rows.append(
                {
                    "factor": factor.name,
                    "layer": name,
                    "verdict": kind,
                    "reason": reason,
                    "is_baseline": name in baselines,
                    "error": float(result.factor_errors[j]),
                }
            )
    scores = pd.DataFrame(rows)
    every = pd.DataFrame(verdict_rows)
    chosen = _by_factor(every)
    notes = edge_notes(results, data.targets)
    if tests is None:
        return Summary(scores, every.iloc[:0], "", notes)
    if data.control is not None and data.control.unbalanced:
        names = ", ".join(data.control.unbalanced)
        notes.append(
            f"The control of {names} changes the share of a value by more than 1% of the samples, "
            "because a few combinations have most of them."
        )
    return Summary(scores, chosen, sentence(chosen.to_dict("records")), notes)


def _row(
    result: LayerResult,
    scores: FactorScores,
    side: str,
    j: int,
    tests: Significance | None,
    i: int,
    data: Data,
) -> dict[str, Any]:
    """One row of `scores_`, without the layer and the verdict."""
    factor = data.targets.factors[j]
    low, high = scores.score_interval()
    balanced = (scores.evidence, *scores.evidence_interval()) if scores.is_named else (np.nan,) * 3
    null = result.scored.nulls[side]
    has_control = tests is not None
    row = {
        "factor": factor.name,
        "split": side,
        "measure": scores.measure,
        "score": scores.score,
        "low": low,
        "high": high,
        "shuffled": _mean(null.score()[:, j]) if has_control else np.nan,
        "balanced_accuracy": balanced[0],
        "balanced_low": balanced[1],
        "balanced_high": balanced[2],
        "majority": _majority(scores, data, j),
        "p_value": np.nan,
        "p_corrected": np.nan,
        "selectivity": np.nan,
        "penalty": float(result.penalties[j]),
    }
    if tests is not None:
        row["selectivity"] = scores.evidence - _mean(null.evidence()[:, j])
        if side == "held out":
            row["p_value"] = tests.p_value[i, j]
            row["p_corrected"] = tests.p_corrected[i, j]
    return row


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan


def _majority(scores: FactorScores, data: Data, j: int) -> float:
    """The accuracy of always predicting the most frequent value of fitted samples, or 0 for R2."""
    if not scores.is_named:
        return 0.0
    columns = data.targets.factors[j].columns
    is_fitted = data.roles.fit_folds >= 0
    most_frequent = int((data.weights[is_fitted] @ data.y[is_fitted, columns]).argmax())
    count = scores.sums.total.sum(axis=0)
    return float(count[most_frequent] / count.sum())


class _Tests:
    """The permutation tests of linear and nonlinear probes, and what verdicts need besides."""

    def __init__(
        self, results: Mapping[str, LayerResult], nonlinear: Mapping[str, Scored], data: Data
    ):
        self.linear = [result.scored for result in results.values()]
        self.nonlinear = [nonlinear[name] for name in results]
        self.held_out = _test(self.linear)
        self.of_nonlinear = _test(self.nonlinear)
        self.other_factors = from_other_factors(data)

    def evidence(self, i: int, j: int) -> Evidence:
        """The evidence for layer i and factor j."""
        return Evidence(
            held_out=self.linear[i].scores["held out"][j],
            seen=self.linear[i].scores["seen"][j],
            nonlinear=self.nonlinear[i].scores["held out"][j],
            baseline=self.other_factors[j],
            p_value=self.held_out.p_value[i, j],
            p_corrected=self.held_out.p_corrected[i, j],
            threshold=self.held_out.threshold[i, j],
            nonlinear_p_corrected=self.of_nonlinear.p_corrected[i, j],
            nonlinear_threshold=self.of_nonlinear.threshold[i, j],
            num_tests=self.held_out.p_value.size,
        )


def _test(scored: list[Scored]) -> Significance:
    evidence = np.stack([each.ridge_evidence["held out"] for each in scored])
    nulls = np.stack([each.nulls["held out"].evidence() for each in scored], axis=1)
    return significance(evidence, nulls)


def from_other_factors(data: Data) -> list[tuple[float, float]]:
    """The evidence of every factor, decoded from the other factors alone: held out, seen.

    NaN if there is no other factor. Samples with equal factors and roles count as one, with their
    weight.
    """
    if len(data.targets.factors) == 1:
        return [(np.nan, np.nan)]
    rows, weights = _distinct_rows(data)
    roles = data.roles._make(np.asarray(part)[rows] for part in data.roles)
    merged = data._replace(
        y=data.y[rows], numbers=data.numbers[rows], roles=roles, weights=weights, control=None
    )
    return [_from_others(merged, j) for j in range(len(data.targets.factors))]


def _distinct_rows(data: Data) -> tuple[np.ndarray, np.ndarray]:
    keys = pd.DataFrame(data.y)
    keys["number"] = data.numbers
    keys["is_reserved"] = data.roles.reserved
    group = keys.groupby(list(keys), sort=False).ngroup().to_numpy()
    first = np.unique(group, return_index=True)[1]
    return first, np.bincount(group, data.weights)


def _from_others(data: Data, j: int) -> tuple[float, float]:
    x = []
    for i, other in enumerate(data.targets.factors):
        if i != j:
            columns = data.y[:, other.columns]
            x.append(columns)
            if not other.values:
                x.append(np.eye(1 + value_codes(columns[:, 0]).max())[value_codes(columns[:, 0])])
    targets = data.targets.only(j)
    columns = data.targets.factors[j].columns
    own = data._replace(targets=targets, y=data.y[:, columns], is_logistic=[False])
    scored = _score_only(np.concatenate(x, axis=1), own)
    held_out = scored.scores["held out"][0]
    seen = scored.scores["seen"][0]
    return (
        np.nan if held_out is None else held_out.evidence,
        np.nan if seen is None else seen.evidence,
    )


def _score_only(x: np.ndarray, data: Data) -> Scored:
    """Scores of ridge regressions, without a control."""
    fits = LayerFits(x, data)
    scorer = Scorer(data)
    for evaluation in evaluations(data.roles):
        scorer.add(evaluation, fits, use_logistic=False)
    return scorer.result()


def _by_factor(every: pd.DataFrame) -> pd.DataFrame:
    """The best verdict on every factor over the model's layers, and its layer.

    Among layers with that verdict, the one with the lowest cross-validated error is chosen.
    """
    order = {COMPOSED: 0, NONLINEAR: 1, "undecided": 2, "memorized": 3, "absent": 4}
    rows = []
    for factor, group in every.groupby("factor", sort=False):
        own: Any = group[~group["is_baseline"]]
        ranked = own.assign(rank=own["verdict"].map(order)).sort_values(
            ["rank", "error"], kind="stable"
        )
        best = ranked.iloc[0]
        baselines: Any = group[group["is_baseline"]]
        of_baseline = baselines["verdict"].map(order)
        is_as_good = bool((of_baseline <= best["rank"]).any())
        rows.append(
            {
                "factor": factor,
                "verdict": best["verdict"],
                "layer": best["layer"],
                "reason": best["reason"],
                "in_baseline": is_as_good and best["verdict"] in (COMPOSED, NONLINEAR),
            }
        )
    return pd.DataFrame(rows)


def edge_notes(results: Mapping[str, Any], targets: Targets) -> list[str]:
    """A note for every layer with penalties at the edge of the grid."""
    notes = []
    for name, result in results.items():
        at_edge = [
            factor.name
            for factor, is_at_edge in zip(targets.factors, result.is_at_edge, strict=True)
            if is_at_edge
        ]
        if at_edge:
            notes.append(
                f"Layer {name}: the best penalty of {', '.join(at_edge)} is at the edge of the "
                "grid: set penalties to a wider one."
            )
    return notes


def wide(scores: pd.DataFrame, column: str, split: str) -> pd.DataFrame:
    """One column of `scores_` as layers x factors."""
    require(column in scores, f"there is no column {column!r}: {did_you_mean(column, scores)}")
    require(split in SIDES, f"split must be 'held out' or 'seen', got {split!r}")
    rows: Any = scores[scores["split"] == split]
    table = rows.pivot(index="layer", columns="factor", values=column)
    return table.loc[rows["layer"].unique(), rows["factor"].unique()]


def plot(scores: pd.DataFrame, column: str | None = None) -> Any:
    """Scores on held-out combinations by layer, one line per factor."""
    from recombine.reporting import figure

    y = column or "score"
    require(y in scores, f"there is no column {y!r}: {did_you_mean(y, scores)}")
    rows: Any = scores[scores["split"] == "held out"].copy()
    rows["factor"] = rows["factor"] + " (" + rows["measure"].map(MEASURE_NAMES) + ")"
    for name in ("layer", "factor"):
        rows[name] = pd.Categorical(rows[name], rows[name].unique())
    return figure.lines(
        rows,
        "layer",
        y,
        "factor",
        title=f"{y.replace('_', ' ').capitalize()} on held-out combinations, by layer",
        x_title="layer",
        y_title=y.replace("_", " "),
    )
