"""Verdicts: is a factor composed, memorized, present but not linear, or absent in a layer?

The rules, fixed before any data are seen. `evidence` is the balanced accuracy of names and the R2
of numbers. The baseline is the larger of two: always predicting the same (1 / number of values for
names, 0 for numbers), and a probe that sees the other factors instead of the activations.

- **composed**: on held-out combinations the lower bound of the evidence's 95% interval is above the
  baseline plus `MARGIN` and above the control's threshold, and the corrected p-value is at most
  `ALPHA`.
- **present, not linear**: not composed, and a small nonlinear probe passes the same rule with
  evidence that is larger by `MARGIN`.
- **memorized**: neither, and on new samples of fitted combinations the lower bound (corrected by
  Bonferroni over layers and factors) is above the baseline plus `MARGIN`.
- **undecided**: fewer than `MIN_COMBINATIONS` held-out combinations, or fewer than two values among
  them; or evidence that is above the baseline plus `MARGIN` and significant without the correction,
  but does not pass; or other factors that determine the factor.
- **absent**: none of these.

The correction is that of Westfall and Young: in every draw of the control, scores are standardized
per layer and factor, and the largest of them is taken. The threshold is the 97.5% quantile of these
maxima. With 200 draws, Bonferroni's or Holm's correction could never be passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from recombine.probe.scores import FactorScores

COMPOSED = "composed"
MEMORIZED = "memorized"
NONLINEAR = "present, not linear"
ABSENT = "absent"
UNDECIDED = "undecided"

MARGIN = 0.05  # of balanced accuracy or R2 above the baseline
ALPHA = 0.025  # one-sided, corrected over layers and factors
UNCORRECTED_ALPHA = 0.05
MIN_COMBINATIONS = 8  # held out
MIN_DEVIATION = 1e-3  # of the control: a smaller one is no scale for its evidence
MAX_BASELINE = 1 - 2 * MARGIN  # above it, no evidence can exceed the baseline by enough


class Significance(NamedTuple):
    """The permutation tests of all layers and factors: layers x factors."""

    p_value: np.ndarray  # (1 + draws that score at least as high) / (1 + draws)
    p_corrected: np.ndarray  # the same for the largest standardized score of every draw
    threshold: np.ndarray  # the corrected 97.5% quantile of the control's evidence
    control: np.ndarray  # the mean evidence of the control


def significance(evidence: np.ndarray, nulls: np.ndarray) -> Significance:
    """Compare evidence (layers x factors) with that of all draws (draws x layers x factors)."""
    draws = np.nan_to_num(nulls, nan=-np.inf)
    known = np.isfinite(draws)
    mean = np.where(known, draws, 0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    squared = np.where(known, np.square(np.where(known, draws, 0) - mean), 0)
    deviation = np.sqrt(squared.sum(axis=0) / np.maximum(known.sum(axis=0) - 1, 1))
    deviation = np.maximum(deviation, MIN_DEVIATION)
    largest = ((draws - mean) / deviation).max(axis=(1, 2))
    standardized = (evidence - mean) / deviation
    num_draws = len(draws)
    p_value = (1 + (draws >= evidence).sum(axis=0)) / (1 + num_draws)
    hits = (largest[:, None, None] >= standardized).sum(axis=0)
    bound = float(np.quantile(largest, 1 - ALPHA, method="higher"))
    is_known = ~np.isnan(evidence)
    return Significance(
        np.where(is_known, p_value, np.nan),
        np.where(is_known, (1 + hits) / (1 + num_draws), np.nan),
        mean + bound * deviation,
        mean,
    )


class Evidence(NamedTuple):
    """What the verdict on one factor in one layer depends on."""

    held_out: FactorScores | None
    seen: FactorScores | None
    nonlinear: FactorScores | None
    baseline: tuple[float, float]  # from the other factors: held out, seen
    p_value: float
    p_corrected: float
    threshold: float
    nonlinear_p_corrected: float
    nonlinear_threshold: float
    num_tests: int  # layers x factors


def verdict(evidence: Evidence) -> tuple[str, str]:
    """The verdict on one factor in one layer, and the reason if it is undecided."""
    held_out = evidence.held_out
    if held_out is None or held_out.num_combinations < MIN_COMBINATIONS:
        num = 0 if held_out is None else held_out.num_combinations
        return UNDECIDED, f"{num} held-out combinations are fewer than {MIN_COMBINATIONS}"
    if held_out.is_named and held_out.num_values < 2:
        return UNDECIDED, "held-out combinations have only one value of it"
    if np.isnan(held_out.evidence):
        return UNDECIDED, "its value does not vary among held-out combinations"
    baseline = _baseline(held_out, evidence.baseline[0])
    if baseline > MAX_BASELINE:
        return UNDECIDED, "the other factors determine it"
    if _passes(held_out, baseline, evidence.p_corrected, evidence.threshold):
        return COMPOSED, ""
    if _is_nonlinear(evidence, held_out, baseline):
        return NONLINEAR, ""
    if held_out.evidence > baseline + MARGIN and evidence.p_value <= UNCORRECTED_ALPHA:
        return UNDECIDED, "held-out combinations are decoded, but not beyond doubt"
    if _is_memorized(evidence):
        return MEMORIZED, ""
    if held_out.evidence > baseline + MARGIN:
        return UNDECIDED, "too few held-out combinations to tell it from chance"
    return ABSENT, ""


def _baseline(scores: FactorScores, from_other_factors: float) -> float:
    constant = 1 / max(scores.num_values, 1) if scores.is_named else 0.0
    return float(np.fmax(constant, from_other_factors))


def _passes(scores: FactorScores, baseline: float, p_corrected: float, threshold: float) -> bool:
    low, _ = scores.evidence_interval()
    return p_corrected <= ALPHA and low > max(baseline + MARGIN, threshold)


def _is_nonlinear(evidence: Evidence, linear: FactorScores, baseline: float) -> bool:
    nonlinear = evidence.nonlinear
    if nonlinear is None or nonlinear.evidence <= linear.evidence + MARGIN:
        return False
    p_corrected = evidence.nonlinear_p_corrected
    return _passes(nonlinear, baseline, p_corrected, evidence.nonlinear_threshold)


def _is_memorized(evidence: Evidence) -> bool:
    seen = evidence.seen
    if seen is None or (seen.is_named and seen.num_values < 2):
        return False
    level = 1 - 2 * ALPHA / evidence.num_tests
    low, _ = seen.evidence_interval(level)
    return low > _baseline(seen, evidence.baseline[1]) + MARGIN


def sentence(factors: Sequence[dict[str, Any]]) -> str:
    """One sentence for all factors: their names, verdicts, layers and notes, in this order."""
    groups: dict[tuple[str, str], list[str]] = {}
    for factor in factors:
        known = " (already decodable from the input)" if factor["in_baseline"] else ""
        layer = factor["layer"] if factor["verdict"] in (COMPOSED, NONLINEAR) else ""
        groups.setdefault((factor["verdict"], layer), []).append(factor["factor"] + known)
    order = (COMPOSED, NONLINEAR, MEMORIZED, ABSENT, UNDECIDED)
    clauses = [
        _clause(kind, layer, names)
        for each in order
        for (kind, layer), names in groups.items()
        if kind == each
    ]
    return "; ".join(clauses) + "."


def _clause(kind: str, layer: str, names: list[str]) -> str:
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    is_single = len(names) == 1
    if kind == COMPOSED:
        return f"{listed} {'composes' if is_single else 'compose'} in layer {layer}"
    verb = "is" if is_single else "are"
    if kind == NONLINEAR:
        return f"{listed} {verb} present in layer {layer}, but not linearly"
    return f"{listed} {verb} {kind}"
