"""Claims: what was published, what was measured here, and whether it holds.

An experiment lists its claims as data:

    SOURCE = "arXiv 2507.07207, section 3"

    def prepare(rows):            # optional; `final_rows` if the experiment has none
        return final_rows(rows)

    CLAIMS = [
        reproduces(
            "width helps",
            "R2 on held-out combinations grows with width",
            published="monotone gain",
            statistic=difference("test/r2", "model.width", 1024, 128),
            passes=above(0.02),
        ),
        control(
            "no gain without structure",
            "Without common modules, width does not help",
            rows=where({"family": "Unrelated"}),
            statistic=difference("test/r2", "model.width", 1024, 128),
            passes=within(-0.02, 0.02),
        ),
    ]

`claims_of(module, rows)` measures them. All claims are judged by the same rules:

- Rows or columns that are missing make a claim "not yet run".
- A statistic over seeds has an interval: the 95% bootstrap interval from 8 seeds on, a range for 3
  to 7 seeds (`statistics.seed_interval`). With fewer than 3 seeds a claim is "not judged". The
  seeds are the different values in the column `seed` of the selected rows. The argument `seed` of a
  cell counts in the same way: it draws the world, the split or the network.
- What does not depend on seeds (`exact`: a count, a bound, a property of all constructions) has no
  interval and is judged on its value.
- The rule `passes` is evaluated on the value and on both ends of the interval (`outcome`). If the
  answers differ, the interval crosses the threshold: the claim is "inconclusive". A rule that looks
  at the rows, not at the value, has the same answer at all three.
- Otherwise a published claim is "reproduced", "confounded" (found as published, but a control that
  should fail explains it as well) or "not reproduced"; a hypothesis of ours "holds" or "does not
  hold".

An experiment in a user's file may define a function `claims(rows)` that gives a list of `Claim`
instead.
"""

from __future__ import annotations

import enum
import importlib
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from recombine.basics import statistics

Frame = Any  # a pandas frame
MOVED: dict[str, tuple[str, ...]] = {
    "trend": ("Trend", "trend", "trends", "never_falls"),
    "ledger": (
        "COLUMNS",
        "RESULTS",
        "device_seconds",
        "judge",
        "ledger",
        "recipe_text",
        "recipes_of",
        "results_folder",
        "shown",
        "Tell",
    ),
}
Interval = tuple[float, float]
Statistic = Callable[[Frame], float]
PAPER = "arXiv 2507.07207"  # the paper that the headline counts
OURS = "ours"  # in place of a published value: a control or a question of our own
PUBLISHED_VERDICTS = ("reproduced", "confounded", "not reproduced")
OUR_VERDICTS = ("holds", "does not hold")
OPEN_VERDICTS = ("inconclusive", "not judged", "not yet run")
VERDICTS = (*PUBLISHED_VERDICTS, *OUR_VERDICTS, *OPEN_VERDICTS)
HEADLINE = "claim of the paper"
AFTER_ROWS = "rule fixed after rows were seen"
REPETITION = "repetition"
OTHER_SOURCE = "other source"


@dataclass(frozen=True)
class Claim:
    """A claim and its measurement.

    `holds` is None if the claim was not measured or not judged. `repeats` names the claim that this
    one repeats, as `experiment: claim`. `after_rows` says what was fixed after rows were seen.
    """

    name: str
    statement: str
    source: str
    published: str
    measured: float | None
    holds: bool | None
    control: str = ""
    interval: Interval | None = None
    crosses: bool = False  # the interval crosses the threshold
    confounded: bool = False  # found as published, but a control that should fail explains it
    note: str = ""  # shown with the number; it does not decide the verdict
    threshold: str = ""  # the rule as text
    threshold_published: bool = False  # otherwise the threshold is ours
    interval_kind: str = ""
    seeds: int | None = None  # None if the claim is not about seeds
    repeats: str = ""
    after_rows: str = ""
    columns: tuple[str, ...] = ()  # what the statistic uses, if the claim names it

    @property
    def ours(self) -> bool:
        """Whether nothing was published about it."""
        return self.published in (OURS, "", "-", "none")

    @property
    def group(self) -> str:
        """Where the claim is counted: the headline counts each claim of the paper once."""
        if self.ours:
            return OURS
        if not self.source.startswith(PAPER):
            return OTHER_SOURCE
        if self.repeats:
            return REPETITION
        return AFTER_ROWS if self.after_rows else HEADLINE

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`; the module's documentation defines them."""
        if self.measured is None:
            return "not yet run"
        if self.holds is None or has_too_few_seeds(self.seeds) or _is_undefined(self.interval):
            return "not judged"
        if self.crosses:
            return "inconclusive"
        if self.ours:
            return "holds" if self.holds and not self.confounded else "does not hold"
        if not self.holds:
            return "not reproduced"
        return "confounded" if self.confounded else "reproduced"


def has_too_few_seeds(seeds: int | None) -> bool:
    """Whether a claim over this number of seeds is not judged."""
    return seeds is not None and seeds < statistics.MIN_SEEDS


def _is_undefined(interval: Interval | None) -> bool:
    return any(map(math.isnan, interval or ()))


class Measurement(NamedTuple):
    """The value of a statistic, its interval, and the rows behind it.

    `low` and `high` are the ends of the interval; both are the value itself if the claim has no
    interval.
    """

    value: float
    interval: Interval | None
    rows: Frame  # the rows that the claim selects
    all_rows: Frame  # all rows of the experiment, prepared

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.value if self.interval is None else self.interval[0]

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.value if self.interval is None else self.interval[1]

    @property
    def points(self) -> list[Measurement]:
        """The measurement at its value and at both ends of its interval, without an interval."""
        values = dict.fromkeys((self.value, self.low, self.high))
        return [self._replace(value=value, interval=None) for value in values]


class Outcome(enum.Enum):
    """The outcome of a rule on a measurement. Only `PASSES` counts as true."""

    PASSES = "passes"
    FAILS = "fails"
    CROSSES = "crosses"  # the rule passes on a part of the interval only

    def __bool__(self) -> bool:
        return self is Outcome.PASSES


@dataclass(frozen=True)
class NamedRule:
    """A rule with a text, for example `above 0.05`."""

    text: str
    decide: Callable[[Measurement], bool | Outcome]

    def __call__(self, measurement: Measurement) -> Outcome:
        """The outcome of the rule."""
        return outcome(self.decide, measurement)


# A rule gives an outcome, or whether one point of an interval passes (`outcome` combines them).
Rule = Callable[[Measurement], bool | Outcome]
Check = Callable[[Measurement], bool]  # a condition on the whole measurement
Select = Callable[[Frame], Frame | None]


class Measured(NamedTuple):
    """A value with its interval, what kind of interval it is, and the number of seeds."""

    value: float
    interval: Interval | None = None
    kind: str = ""
    seeds: int | None = None  # None if the value does not depend on seeds


Measure = Callable[[Frame], tuple[float, Interval | None] | Measured]


def _as_measured(result: tuple[float, Interval | None] | Measured) -> Measured:
    """The result of a measure; a user's measure may give a value and its interval only."""
    return result if isinstance(result, Measured) else Measured(*result)


def outcome(rule: Rule, measurement: Measurement) -> Outcome:
    """The outcome of a rule on a measurement.

    A rule that gives a bool is evaluated on the value and on both ends of the interval; if the
    answers differ, the interval crosses the threshold.
    """
    answer = rule(measurement)
    if isinstance(answer, Outcome):
        return answer
    answers = {bool(rule(point)) for point in measurement.points}
    if len(answers) > 1:
        return Outcome.CROSSES
    return Outcome.PASSES if answers.pop() else Outcome.FAILS


@dataclass(frozen=True)
class DeclaredClaim:
    """A claim before its measurement.

    `measure` gives the value and its interval; `passes` decides the verdict. `rows` selects the
    rows of the claim. `needs` names the columns that the statistic uses; the bootstrap draws from
    these columns only, which is faster. The claim is not measured if no rows are selected, if one
    of these columns is missing or empty, or if the statistic is NaN. `control_fails` checks the
    control that `control` describes: if the control does not fail, a claim that passes is
    confounded. `is_confounded` is true if a control explains the finding as well.
    """

    name: str
    statement: str
    published: str
    measure: Measure
    passes: Rule
    source: str = ""  # the experiment's SOURCE if empty
    rows: Select | None = None
    needs: tuple[str, ...] = ()
    control: str = ""
    control_fails: Check | None = None
    is_confounded: Check | None = None
    note: Callable[[Measurement], str] | None = None
    threshold: str = ""  # the rule as text; that of `passes` if empty
    threshold_published: bool = False  # by the source; otherwise it is ours
    repeats: str = ""  # the claim that this one repeats, as `experiment: claim`
    after_rows: str = ""  # what was fixed after rows were seen

    def judge(self, frame: Frame | None, source: str = "") -> Claim:
        """Measure the claim on prepared rows. `source` is the source of the experiment."""
        selected = self._selected(frame)
        if selected is None:
            return self._claim(source)
        slim = selected[list(dict.fromkeys(("seed", *self.needs)))] if self.needs else selected
        measured = _as_measured(self.measure(slim))
        if math.isnan(measured.value):
            return self._claim(source)
        measurement = Measurement(measured.value, measured.interval, selected, frame)
        note = "" if self.note is None else self.note(measurement)
        about = {
            "measured": measured.value,
            "interval": measured.interval,
            "interval_kind": measured.kind,
            "seeds": measured.seeds,
            "note": note,
        }
        if has_too_few_seeds(measured.seeds) or _is_undefined(measured.interval):
            return self._claim(source, **about)
        return self._claim(source, **about, **self._decided(measurement))

    def _decided(self, measurement: Measurement) -> dict[str, bool]:
        """The fields of a claim that decide its verdict."""
        answer = outcome(self.passes, measurement)
        control_fails = self.control_fails is None or bool(self.control_fails(measurement))
        is_confounded = self.is_confounded is not None and bool(self.is_confounded(measurement))
        return {
            "holds": bool(answer),
            "crosses": answer is Outcome.CROSSES,
            "confounded": bool(answer) and (is_confounded or not control_fails),
        }

    def _selected(self, frame: Frame | None) -> Frame | None:
        """The rows of the claim; None if there are none or if a column is missing or empty."""
        if frame is None:
            return None
        selected = frame if self.rows is None else self.rows(frame)
        if selected is None or len(selected) == 0:
            return None
        if any(column not in selected or selected[column].isna().all() for column in self.needs):
            return None
        return selected

    def _claim(self, source: str, **measured: Any) -> Claim:
        fields: dict[str, Any] = {"measured": None, "holds": None}
        return Claim(
            name=self.name,
            statement=self.statement,
            source=self.source or source,
            published=self.published,
            control=self.control,
            threshold=self.threshold or getattr(self.passes, "text", ""),
            threshold_published=self.threshold_published,
            repeats=self.repeats,
            after_rows=self.after_rows,
            columns=self.needs,
            **(fields | measured),
        )


def reproduces(
    name: str,
    statement: str,
    *,
    published: str,
    passes: Rule,
    statistic: Statistic | None = None,
    measure: Measure | None = None,
    **options: Any,
) -> DeclaredClaim:
    """A published claim: the interval of `statistic` over seeds must pass the rule.

    `measure` takes the place of `statistic` where value and interval are computed otherwise.
    `options` are fields of `DeclaredClaim`.
    """
    if measure is None:
        assert statistic is not None, "a claim needs a statistic or a measure"
        measure = over_seeds(statistic)
    return DeclaredClaim(name, statement, published, measure, passes, **options)


def hypothesis(name: str, statement: str, *, passes: Rule, **options: Any) -> DeclaredClaim:
    """A question of our own: as `reproduces`, but nothing was published about it."""
    return reproduces(name, statement, published=OURS, passes=passes, **options)


def control(name: str, statement: str, *, passes: Rule, **options: Any) -> DeclaredClaim:
    """A control of our own that has a verdict: as `hypothesis`, with the source `control`."""
    return hypothesis(name, statement, passes=passes, source="control", **options)


def over_seeds(statistic: Statistic) -> Measure:
    """Measure a statistic and its interval over seeds (`statistics.seed_interval`)."""

    def measure(rows: Frame) -> Measured:
        value = statistic(rows)
        if math.isnan(value):  # not measured: no interval is needed
            return Measured(value)
        low, high, kind = statistics.seed_interval(rows, statistic)
        num_seeds = rows["seed"].nunique()
        interval = None if num_seeds == 1 else (low, high)
        return Measured(value, interval, kind if interval else "", num_seeds)

    return measure


bootstrapped = over_seeds  # the earlier name


def exact(statistic: Statistic) -> Measure:
    """Measure a statistic that does not depend on seeds: it is judged on its value."""
    return lambda rows: Measured(statistic(rows))


def above(threshold: float) -> NamedRule:
    """The value is above the threshold."""
    return NamedRule(f"above {threshold:g}", lambda point: point.value > threshold)


def below(threshold: float) -> NamedRule:
    """The value is below the threshold."""
    return NamedRule(f"below {threshold:g}", lambda point: point.value < threshold)


def at_least(threshold: float) -> NamedRule:
    """The value is at or above the threshold."""
    return NamedRule(f"at least {threshold:g}", lambda point: point.value >= threshold)


def at_most(threshold: float) -> NamedRule:
    """The value is at or below the threshold."""
    return NamedRule(f"at most {threshold:g}", lambda point: point.value <= threshold)


def within(low: float, high: float) -> NamedRule:
    """The value lies between two values, ends included."""
    rules = [at_least(low)] if low > -math.inf else []
    rules += [at_most(high)] if high < math.inf else []
    return all_of(*rules)


def contains(number: float) -> NamedRule:
    """The number lies inside the interval. This rule is never inconclusive."""

    def is_inside(measurement: Measurement) -> Outcome:
        is_between = measurement.low <= number <= measurement.high
        return Outcome.PASSES if is_between else Outcome.FAILS

    return NamedRule(f"an interval that contains {number:g}", is_inside)


def on_value(text: str, check: Check) -> NamedRule:
    """A rule about the value alone or about the rows: its interval is not used."""
    return NamedRule(
        text, lambda measurement: Outcome.PASSES if check(measurement) else Outcome.FAILS
    )


def all_of(*rules: Rule) -> NamedRule:
    """Fails if one of the rules fails, passes if all pass, and crosses otherwise."""

    def decide(measurement: Measurement) -> Outcome:
        outcomes = [outcome(rule, measurement) for rule in rules]
        if Outcome.FAILS in outcomes:
            return Outcome.FAILS
        return Outcome.CROSSES if Outcome.CROSSES in outcomes else Outcome.PASSES

    texts = [text for rule in rules if (text := getattr(rule, "text", ""))]
    return NamedRule(" and ".join(texts), decide)


def where(conditions: Mapping[str, Any]) -> Callable[[Frame], Frame]:
    """Select the rows whose columns have these values. A list of values means any of them."""

    def select(frame: Frame) -> Frame:
        for column, value in conditions.items():
            is_collection = isinstance(value, Collection) and not isinstance(value, str)
            matches = frame[column].isin(list(value)) if is_collection else frame[column] == value
            frame = frame[matches]
        return frame

    return select


def mean_of(column: str) -> Statistic:
    """The mean of a column."""
    return lambda rows: float(rows[column].mean())


def max_of(column: str) -> Statistic:
    """The largest value of a column."""
    return lambda rows: float(rows[column].max())


def min_of(column: str) -> Statistic:
    """The smallest value of a column."""
    return lambda rows: float(rows[column].min())


def mean_difference(first: str, second: str) -> Statistic:
    """The mean of a column minus that of another, over the rows that have both."""
    return lambda rows: float((rows[first] - rows[second]).mean())


def difference(score: str, column: str, first: Any, second: Any) -> Statistic:
    """The mean score of rows where `column` is `first`, minus that where it is `second`."""

    def statistic(rows: Frame) -> float:
        first_mean = rows.loc[rows[column] == first, score].mean()
        second_mean = rows.loc[rows[column] == second, score].mean()
        return float(first_mean) - float(second_mean)

    return statistic


def claims_of(module: Any, rows: pd.DataFrame | None) -> list[Claim]:
    """The claims of an experiment, measured on its rows; not measured if there are no rows.

    A function `claims(rows)` of the experiment takes precedence over its list `CLAIMS`.
    """
    if hasattr(module, "claims"):
        return module.claims(rows)
    frame = None if rows is None else prepared(module, rows)
    return [declared.judge(frame, getattr(module, "SOURCE", "")) for declared in module.CLAIMS]


def makes_claims(module: Any) -> bool:
    """Whether an experiment has claims, as a list or as a function."""
    return hasattr(module, "claims") or hasattr(module, "CLAIMS")


def prepared(module: Any, rows: pd.DataFrame) -> Frame:
    """The rows on which an experiment's claims and figures are computed.

    Without a function `prepare` these are the final rows of trained runs, or all rows of cells.
    """
    if hasattr(module, "prepare"):
        return module.prepare(rows)
    return rows if hasattr(module, "cells") else final_rows(rows)


def last(rows: Frame) -> Frame:
    """The last evaluation of every run."""
    return rows[rows["step"] == rows.groupby("run")["step"].transform("max")].copy()


def final_rows(rows: Frame) -> Frame:
    """The last evaluation of every run, with columns `model.width`, `model.depth`, `num_train`.

    They are the width and the number of the hidden layers (of the blocks of a transformer) and the
    number of train tasks, where the model and the split have them. A model's own fields `width` and
    `depth` stay.
    """
    final = last(rows)
    if "model.widths" in final:
        sizes = [_layer_sizes(text) for text in final["model.widths"]]
        _add_column(final, "model.width", [layers[0] if layers else math.nan for layers in sizes])
        _add_column(final, "model.depth", [len(layers) or math.nan for layers in sizes])
    if "model.d_model" in final:
        _add_column(final, "model.width", final["model.d_model"])
    if "model.num_layers" in final:
        _add_column(final, "model.depth", final["model.num_layers"])
    if "support/num_train" in final:
        final["num_train"] = final["support/num_train"]
    return final


def _layer_sizes(text: Any) -> list[int]:
    """The widths of the hidden layers from the stored text, such as `64x64`; empty if unknown."""
    return [int(size) for size in str(text).split("x") if size.isdigit()]


def _add_column(frame: Frame, name: str, values: Any) -> None:
    """Add a column, or fill the gaps of one that is there; integers unless values are missing."""
    new = pd.Series(values, index=frame.index)
    column: Any = frame[name].fillna(new) if name in frame else new
    frame[name] = column if column.isna().any() else column.astype(int)


def complete_seeds(rows: Frame) -> Frame:
    """The rows of the seeds with the most runs: of an unfinished sweep, the complete seeds."""
    num_runs = rows.groupby("seed")["run"].nunique()
    return rows[rows["seed"].isin(num_runs.index[num_runs == num_runs.max()])]


def judged(
    rows: Any,
    statistic: Statistic,
    passes: Callable[[float, float], bool],
    **fields: Any,
) -> Claim:
    """A claim about a statistic of rows, judged on its interval over seeds.

    For functions `claims(rows)`. `passes` decides about the ends of an interval. `fields` are the
    other fields of `Claim`.
    """
    if rows is None:
        return Claim(measured=None, holds=None, **fields)
    value, interval, kind, seeds = _as_measured(over_seeds(statistic)(rows))
    if math.isnan(value):
        return Claim(measured=None, holds=None, **fields)
    ends = interval or (value, value)
    holds = bool(passes(*ends))
    crosses = not holds and any(passes(end, end) for end in (*ends, value))
    return Claim(
        measured=value,
        holds=holds,
        crosses=crosses,
        interval=interval,
        interval_kind=kind,
        seeds=seeds,
        **fields,
    )


def __getattr__(name: str) -> Any:
    for module, names in MOVED.items():  # for experiments in users' files, for one release
        if name in names:
            return getattr(importlib.import_module(f"recombine.experiments.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
