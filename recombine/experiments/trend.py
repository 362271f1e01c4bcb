"""Trends: whether a score grows with a size by more than seeds differ, and whether it ever falls.

"Grows" asks whether the gain from the smallest to the largest size is above zero and above the
standard deviation over seeds. "Never falls" is a test: on every curve, and for every pair of sizes,
the mean over seeds of the loss from the smaller to the larger size is compared with `MARGIN` by a
one-sided paired t-test. The smallest p value of a curve is multiplied by its number of pairs, and
the p values of all curves are corrected for their number by Holm's method. If a corrected p value
is below `LEVEL`, a curve falls. If none is and no measured loss exceeds the margin, no curve falls.
A loss beyond the margin that is not significant leaves the claim inconclusive.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from recombine.basics import statistics
from recombine.basics.suggest import counted
from recombine.experiments.claim import (
    Claim,
    Frame,
    Measurement,
    NamedRule,
    Outcome,
    above,
    all_of,
    on_value,
    outcome,
)

TrendsOf = Callable[[Frame], Iterable["Trend"]]
MARGIN = 0.005  # a smaller loss of R2 does not count as a fall
LEVEL = 0.05  # of the test for a fall, for all curves of a claim together
NO_FALL = f"no loss above {MARGIN:g} by a one-sided paired test, Holm-corrected"


@dataclass(frozen=True)
class Fall:
    """The largest loss of a curve from a smaller size to a larger one; negative if it rises."""

    loss: float
    interval: statistics.SeedInterval
    p_value: float  # of any loss beyond the margin, corrected for the number of pairs of sizes


@dataclass(frozen=True)
class Trend:
    """How a score changes as a size grows, with every seed at every size."""

    gain: float  # from the smallest size to the largest
    interval: statistics.SeedInterval
    spread: float  # the largest standard deviation over seeds at any size
    drop: float  # the largest loss of the mean from a smaller size to a larger one; 0 if it rises
    fall: Fall
    seeds: int

    @property
    def growth(self) -> Outcome:
        """Whether the gain from the smallest to the largest size exceeds the spread of seeds."""
        exceeds = on_value("above the spread", lambda measurement: measurement.value > self.spread)
        measurement = Measurement(self.gain, self.interval[:2], None, None)
        return outcome(all_of(above(0), exceeds), measurement)

    @property
    def grows(self) -> bool:
        """Whether the whole interval of the gain is above zero, and the gain above the spread."""
        return bool(self.growth)


def trend(frame: Frame, size: str, score: str, sizes: Iterable[Any]) -> Trend | None:
    """The trend of a score along these sizes; None if the frame has other sizes or a seed lacks
    one.
    """
    scores = frame.pivot_table(score, "seed", size)
    if list(scores) != sorted(sizes) or scores.isna().any(axis=None):
        return None
    means = scores.mean()
    fall = _largest_fall(scores)
    first, last = means.index[0], means.index[-1]
    return Trend(
        gain=float(means[last] - means[first]),
        interval=_paired_interval(scores, last, first),
        spread=float(scores.std().fillna(0.0).max()),
        drop=max(0.0, fall.loss),
        fall=fall,
        seeds=len(scores),
    )


def _paired_interval(scores: Frame, first: Any, second: Any) -> statistics.SeedInterval:
    """The interval over seeds of the mean score at one size minus that at another."""

    def mean_difference(drawn: Frame) -> float:
        return float(drawn[first].mean() - drawn[second].mean())

    return statistics.seed_interval(scores.reset_index(), mean_difference)


def _largest_fall(scores: Frame) -> Fall:
    """The largest mean loss between two sizes, and the p value of the test for any fall."""
    pairs = list(itertools.combinations(scores.columns, 2))
    losses = [(scores[smaller] - scores[larger]).to_numpy() for smaller, larger in pairs]
    means = scores.mean()
    smaller, larger = max(pairs, key=lambda pair: means[pair[0]] - means[pair[1]])
    smallest_p = min(p_value_of_loss(values) for values in losses)
    return Fall(
        loss=float(means[smaller] - means[larger]),
        interval=_paired_interval(scores, smaller, larger),
        p_value=min(1.0, len(pairs) * smallest_p),
    )


def p_value_of_loss(losses: np.ndarray) -> float:
    """The p value of a one-sided t-test that the mean of paired losses is above `MARGIN`."""
    from scipy import stats

    if len(losses) < 2:
        return 1.0
    error = losses.std(ddof=1) / math.sqrt(len(losses))
    excess = float(losses.mean()) - MARGIN
    if error == 0:
        return 0.0 if excess > 0 else 1.0
    return float(stats.t.sf(excess / error, df=len(losses) - 1))


def trends(
    frame: Frame, line: str, size: str, score: str, wanted: Iterable[Mapping[Any, Any]]
) -> dict[Any, Trend]:
    """The trend of each line of a sweep: `line` is the column that names the lines.

    `wanted` lists the sweeps that count as complete, each as sizes by line. Empty unless one of
    them is there.
    """
    for sizes_by_line in wanted:
        by_line = {
            name: trend(frame[frame[line] == name], size, score, sizes)
            for name, sizes in sizes_by_line.items()
        }
        complete = {name: value for name, value in by_line.items() if value is not None}
        if len(complete) == len(by_line):
            return complete
    return {}


def _with_fewest_seeds(trends: Iterable[Trend]) -> int:
    return min(candidate.seeds for candidate in trends)


def _ends(interval: statistics.SeedInterval) -> tuple[float, float] | None:
    """The ends of an interval; None for a single seed."""
    return None if math.isnan(interval.low) else (interval.low, interval.high)


@dataclass(frozen=True)
class Grows:
    """The claim that a score grows on every line of a sweep; the smallest gain is reported."""

    name: str
    statement: str
    trends: TrendsOf
    published: str = "monotone gain"
    control: str = "seeds must differ by less than the gain"
    source: str = ""
    repeats: str = ""
    after_rows: str = ""

    def judge(self, frame: Frame | None, source: str = "") -> Claim:
        """Measure the claim on prepared rows. `source` is the source of the experiment."""
        claim = Claim(
            name=self.name,
            statement=self.statement,
            source=self.source or source,
            published=self.published,
            measured=None,
            holds=None,
            control=self.control,
            threshold="above 0 and above the spread of seeds",
            repeats=self.repeats,
            after_rows=self.after_rows,
        )
        trends = [] if frame is None else list(self.trends(frame))
        if not trends:
            return claim
        weakest = min(trends, key=lambda candidate: candidate.gain)
        outcomes = {candidate.growth for candidate in trends}
        return dataclasses.replace(
            claim,
            measured=weakest.gain,
            holds=outcomes == {Outcome.PASSES},
            crosses=Outcome.FAILS not in outcomes and Outcome.CROSSES in outcomes,
            interval=_ends(weakest.interval),
            interval_kind=weakest.interval.kind,
            seeds=_with_fewest_seeds(trends),
        )


@dataclass(frozen=True)
class NeverFalls:
    """The claim that no line falls anywhere: the strict half of "monotone"."""

    statement: str
    trends: TrendsOf
    name: str = "never falls"
    source: str = ""
    repeats: str = ""
    after_rows: str = "the test and its margin"

    def judge(self, frame: Frame | None, source: str = "") -> Claim:
        """Measure the claim on prepared rows. `source` is the source of the experiment."""
        trends = () if frame is None else self.trends(frame)
        claim = never_falls(trends, self.statement, self.source or source)
        return dataclasses.replace(
            claim, name=self.name, repeats=self.repeats, after_rows=self.after_rows
        )


def never_falls(trends: Iterable[Trend], statement: str, source: str) -> Claim:
    """The claim that no trend falls by more than `MARGIN` (the module defines the test).

    The largest loss of the mean is reported: that of the trend that falls most significantly, if
    there is one, otherwise that of any trend.
    """
    claim = Claim(
        name="never falls",
        statement=f"{statement} (largest loss from one size to a larger one; negative: a rise)",
        source=source,
        published="monotone gain",
        measured=None,
        holds=None,
        control=f"a loss of at most {MARGIN:g}, or one that is not significant, is no fall",
        threshold=NO_FALL,
    )
    all_trends = list(trends)
    if not all_trends:
        return claim
    p_values = statistics.holm([candidate.fall.p_value for candidate in all_trends])
    is_significant = min(p_values) < LEVEL
    candidates = [
        candidate
        for candidate, p_value in zip(all_trends, p_values, strict=True)
        if p_value < LEVEL or not is_significant
    ]
    worst = max((candidate.fall for candidate in candidates), key=lambda fall: fall.loss)
    return dataclasses.replace(
        claim,
        measured=worst.loss,
        holds=not is_significant and worst.loss <= MARGIN,
        crosses=not is_significant and worst.loss > MARGIN,
        interval=_ends(worst.interval),
        interval_kind=worst.interval.kind,
        seeds=_with_fewest_seeds(all_trends),
        note=f"{counted(len(all_trends), 'curve')}; smallest corrected p value {min(p_values):.2g}",
    )


def no_fall(size: str, score: str) -> NamedRule:
    """The rule that a score never falls along the sizes of the claim's rows, as in `never_falls`.

    Inconclusive if a seed lacks a size.
    """

    def decide(measurement: Measurement) -> Outcome:
        rows = measurement.rows
        along = trend(rows, size, score, rows[size].unique())
        if along is None:
            return Outcome.CROSSES
        claim = never_falls([along], "", "")
        if claim.crosses:
            return Outcome.CROSSES
        return Outcome.PASSES if claim.holds else Outcome.FAILS

    return NamedRule(NO_FALL, decide)
