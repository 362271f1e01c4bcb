import dataclasses
import functools
import math
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from recombine.basics.errors import InputError
from recombine.basics.statistics import crossings, needed, ratio
from recombine.basics.version import PACKAGE
from recombine.experiments import ledger as ledger_module
from recombine.experiments.claim import (
    AFTER_ROWS,
    HEADLINE,
    OTHER_SOURCE,
    OURS,
    PAPER,
    REPETITION,
    VERDICTS,
    Claim,
    Measurement,
    Outcome,
    above,
    all_of,
    at_least,
    at_most,
    below,
    claims_of,
    contains,
    difference,
    exact,
    final_rows,
    judged,
    last,
    max_of,
    mean_difference,
    mean_of,
    min_of,
    on_value,
    outcome,
    reproduces,
    where,
    within,
)
from recombine.experiments.ledger import RESULTS, device_seconds, judge, ledger
from recombine.experiments.trend import (
    MARGIN,
    Grows,
    NeverFalls,
    never_falls,
    p_value_of_loss,
    trend,
    trends,
)
from recombine.storage.table import Table
from recombine.sweeps.run import Run, identity

PUBLISHED = {
    "name": "width",
    "statement": "wider is better",
    "source": "Fig. 2",
    "published": "R2 > 0.9",
}


def claims(rows):
    if rows is None:
        return [Claim(**PUBLISHED, measured=None, holds=None)]
    best = rows["test/r2"].max()
    return [
        Claim(
            **PUBLISHED,
            measured=best,
            holds=best > 0.9,
            interval=(0.91, 0.97),
            control="narrow fails",
        )
    ]


@pytest.mark.parametrize(
    ("fields", "published", "ours"),
    [
        ({"measured": None, "holds": None}, "not yet run", "not yet run"),
        ({"holds": None}, "not judged", "not judged"),
        ({"holds": True, "seeds": 2}, "not judged", "not judged"),
        ({"holds": True, "interval": (math.nan, math.nan)}, "not judged", "not judged"),
        ({"holds": False, "crosses": True}, "inconclusive", "inconclusive"),
        ({"holds": True, "crosses": True, "seeds": 2}, "not judged", "not judged"),
        ({"holds": False}, "not reproduced", "does not hold"),
        ({"holds": np.True_}, "reproduced", "holds"),
        ({"holds": True, "seeds": 3}, "reproduced", "holds"),
        ({"holds": True, "confounded": True}, "confounded", "does not hold"),
        ({"holds": False, "confounded": True}, "not reproduced", "does not hold"),
    ],
)
def test_verdicts(fields, published, ours):
    fields = {"measured": 1.0} | fields
    assert Claim(**PUBLISHED, **fields).verdict == published
    assert Claim(**PUBLISHED | {"published": OURS}, **fields).verdict == ours
    assert {published, ours} <= set(VERDICTS)


@pytest.mark.parametrize(
    ("fields", "group"),
    [
        ({}, HEADLINE),
        ({"repeats": "scaling_width: width"}, REPETITION),
        ({"after_rows": "layer"}, AFTER_ROWS),
        ({"repeats": "scaling_width: width", "after_rows": "layer"}, REPETITION),
        ({"source": f"Okawa et al.; {PAPER}"}, OTHER_SOURCE),
        ({"published": OURS, "after_rows": "layer"}, OURS),
    ],
)
def test_each_claim_is_counted_once(fields, group):
    claim = {"source": f"{PAPER}, section 3", "measured": 1.0, "holds": True}
    assert Claim(**PUBLISHED | claim | fields).group == group


@pytest.mark.parametrize("spelt", [OURS, "", "-", "none"])
def test_a_ledger_has_one_word_for_unpublished_claims(tmp_path, spelt):
    claim = Claim(**PUBLISHED | {"published": spelt}, measured=1.0, holds=True)
    claims = [claim, Claim(**PUBLISHED, measured=1.0, holds=True)]
    lines = ledger({"mine": SimpleNamespace(claims=lambda rows: claims)}, tmp_path)
    assert lines["ours"].tolist() == [True, False]
    assert lines["published"].tolist() == ["ours", "R2 > 0.9"]
    assert lines["verdict"].tolist() == ["holds", "reproduced"]


def test_a_ledger_measures_what_has_run_and_lists_what_has_not(tmp_path):
    table = Table(tmp_path / "done.parquet")
    table.append(
        pd.DataFrame({"run": ["a", "a", "b"], "step": [0, 1, 1], "test/r2": [0.1, 0.5, 0.95]})
    )
    table.note(
        date="2025-11-15",
        scale="small",
        device="Abacus",
        command="recombine run done --out elsewhere",
    )
    Table(tmp_path / "empty.parquet").note(scale="small")
    modules = {name: SimpleNamespace(claims=claims) for name in ("done", "todo", "empty")}
    lines = ledger(modules | {"silent": SimpleNamespace()}, tmp_path)
    assert lines["experiment"].tolist() == ["done", "todo", "empty"]
    assert lines["verdict"].tolist() == ["reproduced", "not yet run", "not yet run"]
    assert lines["runs"].tolist() == [2, 0, 0]
    assert lines["measured"].isna().tolist() == [False, True, True]
    assert lines["measured"][0] == 0.95
    assert lines["interval"][0] == (0.91, 0.97)
    assert lines["control"][0] == "narrow fails"
    assert lines["date"].tolist() == ["2025-11-15", "", ""]
    assert lines["device"].tolist() == ["Abacus", "", ""]
    assert lines["scale"].tolist() == ["small", "full", "small"]
    assert lines["command"].tolist() == [
        f"recombine run {name} --scale {scale} --out {tmp_path / name}.parquet"
        for name, scale in (("done", "small"), ("todo", "full"), ("empty", "small"))
    ]


def test_committed_tables_are_named_from_the_checkout():
    (line,) = judge("todo", SimpleNamespace(claims=claims), Table(RESULTS / "todo.parquet"))
    assert line["command"] == "recombine run todo --scale full --out docs/results/todo.parquet"


def test_a_ledger_is_of_the_runs_that_a_table_shows(tmp_path):
    table = Table(tmp_path / "done.parquet")
    table.append(pd.DataFrame({"run": ["a", "b"], "step": [1, 1], "test/r2": [0.5, 0.95]}))
    table.note(shown=["a"])
    (line,) = judge("done", SimpleNamespace(claims=claims), table)
    assert (line["runs"], line["measured"], line["verdict"]) == (1, 0.5, "not reproduced")


def test_a_ledger_counts_runs_that_their_experiment_no_longer_lists(tmp_path):
    table, run = Table(tmp_path / "done.parquet"), Run(num_steps=8)
    table.append(
        pd.DataFrame({"run": [identity(run), "old"], "step": [1, 1], "test/r2": [0.5, 0.95]})
    )
    table.note(scale="small")
    scales = []
    module = SimpleNamespace(claims=claims, runs=lambda scale: scales.append(scale) or [run, Run()])
    (line,) = judge("done", module, table)
    assert (line["runs"], line["outdated"], line["computed"], scales) == (2, 1, False, ["small"])
    (line,) = judge("todo", module, Table(tmp_path / "todo.parquet"))
    assert (line["runs"], line["outdated"]) == (0, 0)
    module = SimpleNamespace(claims=claims, cells=lambda scale: 1 / 0)
    with pytest.raises(
        InputError, match="done cannot list its runs at scale small: ZeroDivisionError"
    ):
        judge("done", module, table)


def test_device_seconds_count_every_run_and_every_program_once():
    rows = pd.DataFrame(
        [
            {"run": run, "step": step, "meta/seconds": seconds, "meta/compile_seconds": 10.0}
            for run, seconds in (("a", 1.0), ("b", 1.0), ("c", 3.0))  # a and b trained side by side
            for step in (1, 2)
        ]
    )
    assert device_seconds(rows) == 1 + 1 + 3 + 10 + 10
    assert device_seconds(pd.DataFrame()) == 0


def test_an_empty_ledger_has_all_its_columns(tmp_path):
    full = ledger({"todo": SimpleNamespace(claims=claims)}, tmp_path)
    assert list(ledger({}, tmp_path)) == list(full)
    assert {"published", "measured", "verdict", "command"} <= set(full)


def test_broken_results_are_named(tmp_path):
    (tmp_path / "done.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match=r"done\.parquet"):
        ledger({"done": SimpleNamespace(claims=claims)}, tmp_path)


def test_results_of_an_older_version_are_named(tmp_path):
    Table(tmp_path / "done.parquet").append(pd.DataFrame({"run": ["a"], "test/accuracy": [0.5]}))
    with pytest.raises(
        InputError, match=r"done\.parquet has no column 'test/r2'.*recombine run done"
    ):
        ledger({"done": SimpleNamespace(claims=claims)}, tmp_path)


def test_claims_that_raise_an_error_give_one_line(tmp_path):
    Table(tmp_path / "done.parquet").append(pd.DataFrame({"run": ["a"], "test/r2": [0.5]}))
    with pytest.raises(
        InputError, match=r"cannot compute the claims from .*done\.parquet: ZeroDivisionError"
    ):
        ledger({"done": SimpleNamespace(claims=lambda rows: 1 / 0)}, tmp_path)


@pytest.mark.parametrize("wrong", [{"a": 1}, ["width helps"]])
def test_claims_of_another_type_give_one_line(tmp_path, wrong):
    Table(tmp_path / "done.parquet").append(pd.DataFrame({"run": ["a"], "test/r2": [0.5]}))
    with pytest.raises(InputError, match=r"must return a list of Claim .*, got str"):
        ledger({"done": SimpleNamespace(claims=lambda rows: wrong)}, tmp_path)


def test_the_last_evaluation_of_every_run():
    rows = pd.DataFrame(
        {"run": ["a", "a", "b", "b"], "step": [5, 10, 20, 40], "value": [1, 2, 3, 4]}
    )
    assert last(rows)["value"].tolist() == [2, 4]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((0.5, 0.8, 1.0), 40.0),  # .9 is halfway from .8 (at 20) to 1 (at 80): the geometric mean
        ((0.95, 0.96, 1.0), 10.0),  # already the fewest are enough
        ((0.5, 0.6, 0.7), np.inf),
        ((0.95, 0.8, 1.0), 40.0),  # a dip: only what comes after it counts
    ],
)
def test_tasks_needed(shares, expected):
    np.testing.assert_allclose(needed([10, 20, 80], shares, 0.9), expected)
    np.testing.assert_allclose(needed([80, 10, 20], [shares[2], *shares[:2]], 0.9), expected)


def test_tasks_needed_at_the_edges():
    assert needed([10], [1.0], 0.9) == 10
    assert needed([], [], 0.9) == np.inf
    assert needed([10, 20], [np.nan, np.nan], 0.9) == np.inf
    assert needed([10, 20], [0.1, np.nan], 0.9) == np.inf
    assert needed([10, 20], [np.nan, 1.0], 0.9) == 20


def test_ratios_of_tasks():
    assert ratio(30, 10) == 3
    assert ratio(np.inf, 10) == np.inf
    assert ratio(10, np.inf) is None
    assert ratio(np.inf, np.inf) is None


def scored(**scores):
    """Scores by size (its name without the letter), one for each seed."""
    cells = [
        (int(name[1:]), seed, score)
        for name, scores_by_seed in scores.items()
        for seed, score in enumerate(scores_by_seed)
    ]
    return pd.DataFrame(cells, columns=["width", "seed", "r2"])


def test_a_trend_that_grows():
    measured_trend = trend(
        scored(w4=(0.1, 0.2, 0.3), w8=(0.5, 0.6, 0.7), w16=(0.7, 0.8, 0.9)),
        "width",
        "r2",
        (4, 8, 16),
    )
    np.testing.assert_allclose(
        (
            measured_trend.gain,
            *measured_trend.interval[:2],
            measured_trend.spread,
            measured_trend.drop,
        ),
        (0.6, 0.6, 0.6, 0.1, 0),
    )
    assert measured_trend.grows
    assert measured_trend.fall.loss == pytest.approx(-0.2), "the smallest rise"
    assert (measured_trend.fall.p_value, measured_trend.seeds) == (1, 3)


def noisy(fall=0.0, noise=0.001, num_seeds=8, seed=0):
    """Scores at four widths that rise by .01 each, but the last one falls by `fall`."""
    random = np.random.default_rng(seed)
    levels = np.array([0.90, 0.91, 0.92, 0.92 - fall if fall else 0.93])
    scores = levels + noise * random.standard_normal((num_seeds, 4))
    return trend(
        scored(**{f"w{width}": scores[:, i] for i, width in enumerate((4, 8, 16, 32))}),
        "width",
        "r2",
        (4, 8, 16, 32),
    )


def test_a_fall_in_one_curve_of_many_is_found():
    curves = [noisy(seed=seed) for seed in range(11)]
    assert never_falls(curves, "No fall", "us").verdict == "reproduced"
    claim = never_falls([*curves, noisy(fall=0.02, seed=11)], "No fall", "us")
    assert claim.verdict == "not reproduced"
    assert claim.measured == pytest.approx(0.02, abs=0.002)
    assert claim.interval[0] < claim.measured < claim.interval[1]
    assert (claim.seeds, claim.interval_kind) == (8, "95% bootstrap interval")
    assert "12 curves" in claim.note


def test_noise_is_no_fall():
    verdicts = []
    for trial in range(20):
        # Widths of equal scores: the mean of some width is below that of a smaller one by chance.
        flat = [noisy(fall=1e-9, noise=0.02, seed=100 * trial + i) for i in range(12)]
        verdicts.append(never_falls(flat, "No fall", "us").verdict)
    assert verdicts.count("not reproduced") <= 1
    small = [noisy(fall=1e-9, noise=0.001, seed=i) for i in range(12)]
    assert never_falls(small, "No fall", "us").verdict == "reproduced"


def test_a_loss_beyond_the_margin_that_is_not_significant_is_inconclusive():
    claim = never_falls([noisy(fall=0.02, noise=0.05, seed=3)], "No fall", "us")
    assert claim.measured > MARGIN
    assert claim.verdict == "inconclusive"
    assert claim.note.startswith("1 curve; ")
    margin = noisy(fall=0.004, noise=1e-6)
    assert never_falls([margin], "No fall", "us").verdict == "reproduced", "a fall below the margin"


def test_the_number_of_curves_and_of_pairs_is_corrected_for():
    falling = noisy(fall=0.02, noise=0.0085, seed=1)
    losses = 0.02 + 0.0 * np.arange(3)
    assert p_value_of_loss(losses) == 0, "every seed loses the same, more than the margin"
    assert p_value_of_loss(losses - 0.016) == 1
    assert 0.05 / 12 < falling.fall.p_value < 0.05
    assert never_falls([falling], "No fall", "us").verdict == "not reproduced"
    others = [noisy(seed=seed) for seed in range(11)]
    assert never_falls([falling, *others], "No fall", "us").verdict == "inconclusive"


def test_the_test_for_a_fall_is_a_paired_t_test():
    losses = np.array([0.01, 0.03, 0.02, 0.05])
    expected = stats.ttest_1samp(losses, MARGIN, alternative="greater").pvalue
    assert p_value_of_loss(losses) == pytest.approx(expected)
    two = scored(w4=(0.8, 0.9, 0.7, 0.6), w8=np.array((0.8, 0.9, 0.7, 0.6)) - losses)
    assert trend(two, "width", "r2", (4, 8)).fall.p_value == pytest.approx(expected)
    three = pd.concat([two, scored(w16=(1.0,) * 4)])
    fall = trend(three, "width", "r2", (4, 8, 16)).fall
    assert fall.p_value == pytest.approx(3 * expected), "three pairs of sizes"
    assert fall.loss == pytest.approx(losses.mean())


def test_a_gain_within_the_spread_of_seeds_does_not_grow():
    small_gain = trend(scored(w4=(0.1, 0.5, 0.9), w8=(0.2, 0.6, 1.0)), "width", "r2", (4, 8))
    np.testing.assert_allclose((small_gain.gain, small_gain.spread), (0.1, 0.4))
    assert small_gain.interval.low > 0
    assert not small_gain.grows


def test_trends_need_every_cell():
    frame = scored(w4=(0.1, 0.2), w8=(0.5, 0.6))
    assert trend(frame, "width", "r2", (4, 8, 16)) is None
    assert trend(frame, "width", "r2", (4,)) is None
    assert trend(frame.drop(index=3), "width", "r2", (4, 8)) is None
    both = pd.concat([frame.assign(depth=2), frame.assign(depth=4)])
    wanted = [{2: (4, 8), 6: (4, 8)}, {4: (4, 8), 2: (4, 8)}]
    assert list(trends(both, "depth", "width", "r2", wanted)) == [4, 2]
    assert trends(both, "depth", "width", "r2", wanted[:1]) == {}
    assert trends(both.iloc[:0], "depth", "width", "r2", wanted) == {}


def test_crossings_tell_what_was_measured():
    curves = {"a": (0.5, 0.8, 1.0), "b": (0.5, 0.6, 0.7), "c": (0.95, 0.96, 1.0)}
    frame = pd.DataFrame(
        [
            {"kind": kind, "seed": 0, "support/num_train": tasks, "r2": score}
            for kind, scores in curves.items()
            for tasks, score in zip((10, 20, 80), scores, strict=True)
        ]
    )
    tasks_needed = crossings(frame, ["kind", "seed"], "r2", 0.9)
    assert tasks_needed["state"].tolist() == ["crossed", "never", "at once"]
    np.testing.assert_allclose(tasks_needed["needed"], (40, np.inf, 10))
    assert list(crossings(frame.iloc[:0], ["kind", "seed"], "r2", 0.9)) == [
        "kind",
        "seed",
        "needed",
        "state",
    ]


def students(scores, **columns):
    """Final rows of three seeds: `scores` is the test R2 of width 8, 1 more for width 16."""
    rows = [
        {"run": f"{seed}-{width}", "step": 1, "seed": seed, "model.widths": f"{width}x{width}"}
        | {"test/r2": score + (width == 16), "support/num_train": 7}
        | columns
        for seed, score in enumerate(scores)
        for width in (8, 16)
    ]
    return pd.DataFrame(rows)


WIDTH_HELPS = reproduces(
    "width",
    "Wider is better",
    published="monotone gain",
    statistic=difference("test/r2", "model.width", 16, 8),
    passes=above(0.9),
    needs=("test/r2", "model.width"),
)


def test_a_declared_claim_is_measured_over_seeds():
    module = SimpleNamespace(SOURCE="Fig. 1", CLAIMS=[WIDTH_HELPS])
    (claim,) = claims_of(module, students([0.1, 0.2, 0.4]))
    assert claim.measured == pytest.approx(1)
    assert claim.interval == pytest.approx((1, 1))
    assert (claim.verdict, claim.source) == ("reproduced", "Fig. 1")
    (unmeasured,) = claims_of(module, None)
    assert (unmeasured.verdict, unmeasured.measured, unmeasured.holds) == (
        "not yet run",
        None,
        None,
    )


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({"rows": where({"seed": 9})}, students([0.1, 0.2])),  # no rows
        ({"needs": ("loss",)}, students([0.1, 0.2])),  # no such column
        ({"needs": ("loss",)}, students([0.1, 0.2], loss=math.nan)),  # an empty column
        ({"measure": exact(lambda rows: math.nan)}, students([0.1, 0.2])),  # no value
    ],
)
def test_a_claim_without_rows_columns_or_value_is_not_measured(changes, rows):
    claim = dataclasses.replace(WIDTH_HELPS, **changes).judge(final_rows(rows))
    assert (claim.measured, claim.interval, claim.verdict) == (None, None, "not yet run")


def test_the_mean_difference_of_two_columns_leaves_out_rows_that_lack_one():
    rows = pd.DataFrame({"probe": [0.5, 0.7, 0.9], "baseline": [0.1, 0.5, math.nan]})
    assert mean_difference("probe", "baseline")(rows) == pytest.approx(0.3)


def test_fewer_than_three_seeds_are_not_judged():
    claim = WIDTH_HELPS.judge(final_rows(students([0.1])))
    assert (claim.verdict, claim.seeds, claim.interval) == ("not judged", 1, None)
    claim = WIDTH_HELPS.judge(final_rows(students([0.1, 0.2])))
    assert (claim.verdict, claim.seeds, claim.holds) == ("not judged", 2, None)
    assert claim.measured == pytest.approx(1)


def test_a_claim_does_not_hold_unless_its_control_fails():
    rows = final_rows(students([0.1, 0.2, 0.4]))
    guarded = dataclasses.replace(
        WIDTH_HELPS, control_fails=lambda measurement: len(measurement.rows) > 99
    )
    assert guarded.judge(rows).verdict == "confounded"
    ours = dataclasses.replace(guarded, published=OURS)
    assert ours.judge(rows).verdict == "does not hold"
    confounded = dataclasses.replace(
        WIDTH_HELPS, is_confounded=lambda measurement: measurement.value > 0
    )
    assert confounded.judge(rows).verdict == "confounded"
    noted = dataclasses.replace(
        WIDTH_HELPS, note=lambda measurement: f"{len(measurement.all_rows)} runs"
    )
    assert noted.judge(rows).note == "6 runs"


NO_ROWS = on_value("no rows", lambda measurement: measurement.rows is None)
RULES = [  # a rule, and intervals that pass, fail and cross
    (above(1), (1.1, 2), (0, 1), (1, 2)),
    (below(1), (0, 0.9), (1, 2), (0, 1)),
    (at_least(1), (1, 2), (0, 0.9), (0.9, 2)),
    (at_most(1), (0, 1), (1.1, 2), (0, 1.1)),
    (within(-1, 1), (-1, 1), (1.1, 2), (-1.1, 1)),
    (within(-1, math.inf), (-1, 9), (-3, -2), (-3, 2)),
    (all_of(above(0), below(1)), (0.1, 0.9), (2, 3), (0.1, 1.1)),
    (lambda measurement: measurement.value > 1, (1.1, 2), (0, 1), (1, 2)),
    (lambda measurement: measurement.low > 1 and measurement.high < 3, (1.1, 2), (0, 1), (2, 4)),
    (
        all_of(above(1), on_value("no rows", lambda measurement: measurement.rows is None)),
        (2, 3),
        (0, 1),
        (0, 2),
    ),
]


@pytest.mark.parametrize(("rule", "passing", "failing", "crossing"), RULES)
def test_rules_are_about_the_value_and_both_ends(rule, passing, failing, crossing):
    def outcome_of(low, high, value=None):
        value = (low + high) / 2 if value is None else value
        return outcome(rule, Measurement(value, (low, high), None, None))

    assert outcome_of(*passing) is Outcome.PASSES
    assert outcome_of(*failing) is Outcome.FAILS
    assert outcome_of(*crossing) is Outcome.CROSSES
    # The value may lie outside of a range over seeds, if it is not a mean over seeds.
    assert outcome_of(*passing, value=sum(failing) / 2) is Outcome.CROSSES
    # Without an interval, the value decides.
    assert outcome(rule, Measurement(sum(passing) / 2, None, None, None)) is Outcome.PASSES
    assert outcome(rule, Measurement(sum(failing) / 2, None, None, None)) is Outcome.FAILS


def test_an_interval_wider_than_the_limits_crosses():
    wide = Measurement(0.5, (-9, 9), None, None)
    assert outcome(within(-0.1, 0.1), wide) is Outcome.CROSSES
    assert outcome(contains(0), wide) is Outcome.PASSES
    assert outcome(contains(0), wide._replace(interval=(0.1, 9))) is Outcome.FAILS
    failed = on_value("never", lambda measurement: False)
    assert outcome(all_of(above(0), failed), wide) is Outcome.FAILS


def test_rules_have_texts():
    assert within(-0.1, 0.1).text == "at least -0.1 and at most 0.1"
    assert within(1, math.inf).text == "at least 1"
    assert all_of(above(0.5), on_value("the oracle fails", bool)).text == (
        "above 0.5 and the oracle fails"
    )
    judged_claim = WIDTH_HELPS.judge(None)
    assert (judged_claim.threshold, judged_claim.threshold_published) == ("above 0.9", False)


def test_three_to_seven_seeds_are_judged_on_their_range():
    def verdict(scores, threshold):
        claim = reproduces(
            "mean", "High", published="high", statistic=mean_of("test/r2"), passes=above(threshold)
        )
        judged_claim = claim.judge(pd.DataFrame({"seed": range(len(scores)), "test/r2": scores}))
        return judged_claim.verdict, judged_claim.interval_kind

    few, many = [0.5, 0.9, 0.9], [0.5, *[0.9] * 15]
    assert verdict(few, 0.45) == ("reproduced", "range over seeds")
    assert verdict(few, 0.7) == ("inconclusive", "range over seeds")
    assert verdict(few, 0.95) == ("not reproduced", "range over seeds")
    assert verdict(many, 0.7) == ("reproduced", "95% bootstrap interval")


def test_what_does_not_depend_on_seeds_is_judged_on_its_value():
    claim = reproduces(
        "count", "One", published="1", measure=exact(max_of("count")), passes=at_most(1)
    ).judge(pd.DataFrame({"seed": [0], "count": [1]}))
    assert (claim.verdict, claim.interval, claim.seeds) == ("reproduced", None, None)


def test_functions_of_users_judge_by_the_same_rules():
    rows = pd.DataFrame({"seed": range(3), "r2": [0.5, 0.9, 0.9]})

    def verdict(threshold):
        return judged(rows, mean_of("r2"), lambda low, high: low > threshold, **PUBLISHED).verdict

    assert [verdict(0.4), verdict(0.7), verdict(0.95)] == [
        "reproduced",
        "inconclusive",
        "not reproduced",
    ]
    assert judged(None, mean_of("r2"), lambda low, high: True, **PUBLISHED).verdict == "not yet run"


def test_statistics_of_a_column():
    rows = pd.DataFrame({"score": [0.25, math.nan, 1.0]})
    assert mean_of("score")(rows) == 0.625
    assert max_of("score")(rows) == 1.0
    assert min_of("score")(rows) == 0.25
    assert math.isnan(max_of("score")(rows[:0])), "not measured without rows"


def test_final_rows_add_width_depth_and_train_tasks():
    rows = students([0.1, 0.2])
    earlier = rows.assign(step=0)
    final = final_rows(pd.concat([earlier, rows]))
    assert final["step"].tolist() == [1] * 4
    assert final["model.width"].tolist() == [8, 16, 8, 16]
    assert final["model.depth"].tolist() == [2] * 4
    assert final["num_train"].tolist() == [7] * 4
    transformers = students([0.1]).drop(columns="model.widths")
    transformers = transformers.assign(**{"model.d_model": 64, "model.num_layers": 3})
    final = final_rows(transformers)
    assert (final["model.width"].tolist(), final["model.depth"].tolist()) == ([64, 64], [3, 3])
    mixed = final_rows(pd.concat([rows, transformers], ignore_index=True))
    assert mixed["model.width"].tolist() == [8, 16, 8, 16, 64, 64]
    assert mixed["model.depth"].tolist() == [2, 2, 2, 2, 3, 3]


def test_growth_is_declared_like_any_claim():
    def lines(frame):
        return trends(frame, "model.depth", "model.width", "test/r2", [{2: (8, 16)}]).values()

    rows = final_rows(students([0.1, 0.2, 0.4]))
    claim = Grows("width", "It grows", lines).judge(rows, "Fig. 1")
    assert (claim.measured, claim.verdict, claim.source) == (
        pytest.approx(1),
        "reproduced",
        "Fig. 1",
    )
    assert NeverFalls("It never falls", lines).judge(rows).verdict == "reproduced"
    mixed = rows.assign(**{"test/r2": rows["test/r2"] * np.array([1, 1, 1, 1, 1, -9])})
    assert Grows("width", "It grows", lines).judge(mixed).verdict == "not reproduced"
    falling = rows.assign(**{"test/r2": -rows["test/r2"]})
    assert Grows("width", "It grows", lines).judge(falling).verdict == "not reproduced"
    assert NeverFalls("It never falls", lines).judge(falling).verdict == "not reproduced"
    assert Grows("width", "It grows", lines).judge(None).verdict == "not yet run"


def test_verdicts_are_cached_until_the_table_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "cache"))
    calls = []

    def judge_once(name, module, table):
        calls.append(name)
        return judge(name, module, table)

    monkeypatch.setattr(ledger_module, "judge", judge_once)
    shutil.copy(RESULTS / "six_modules.parquet", tmp_path)
    first = ledger(["six_modules"], tmp_path)
    pd.testing.assert_frame_equal(ledger(["six_modules"], tmp_path), first)
    assert calls == ["six_modules"], "the second answer is the cache's"
    table = Table(tmp_path / "six_modules.parquet")
    rows = table.read()
    edited = rows.assign(**{"test/r2": rows["test/r2"] + (rows["family.weights"] == "khot")})
    meta = table.meta()
    table.path.unlink()
    table.append(edited)
    table.note(**meta)
    second = ledger(["six_modules"], tmp_path)
    assert calls == ["six_modules"] * 2
    assert second["measured"].tolist() == pytest.approx(first["measured"].tolist(), abs=1e-6)
    table.path.unlink()
    table.append(rows.assign(**{"test/r2": 0.5}))
    assert ledger(["six_modules"], tmp_path)["measured"].tolist() == [0, 0, 0]
    monkeypatch.setattr(ledger_module, "source_digest", lambda name: "other code")
    ledger(["six_modules"], tmp_path)
    assert len(calls) == 4, "other code is judged anew"
    (entry,) = (tmp_path / "cache" / "verdicts").iterdir()
    entry.write_text("{")
    assert ledger(["six_modules"], tmp_path)["measured"].tolist() == [0, 0, 0]
    monkeypatch.setenv("RECOMBINE_CACHE", "off")
    ledger(["six_modules"], tmp_path)
    assert len(calls) == 6, "a broken entry is judged anew, and no cache is used if it is off"


def test_only_experiments_that_a_change_concerns_are_judged_again(tmp_path, monkeypatch):
    package = tmp_path / "recombine"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    results = tmp_path / "results"
    results.mkdir()
    names = ["compounding", "definitions", "scaling_law", "six_modules"]
    for name in names:
        (results / f"{name}.parquet").write_bytes(b"rows")
    judged = []

    def judge_nothing(name, module, table):
        judged.append(name)
        return []

    digest = functools.partial(ledger_module.source_digest, package=package)
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ledger_module, "judge", judge_nothing)
    monkeypatch.setattr(ledger_module, "source_digest", digest)
    monkeypatch.setattr(ledger_module, "RESULTS", results)

    def judged_after(edited):
        with edited.open("ab") as file:
            file.write(b"\n# edited\n")
        judged.clear()
        ledger(names, results)
        return list(judged)

    ledger(names, results)
    assert judged == names
    experiments = package / "experiments"
    assert judged_after(results / "six_modules.parquet") == ["six_modules"]
    assert judged_after(experiments / "limits" / "six_modules.py") == ["six_modules"]
    helper = experiments / "limits" / "_chains.py"
    assert judged_after(helper) == ["compounding"]
    assert judged_after(experiments / "limits" / "modularity.py") == []
    # `definitions` reads the table of `scaling_law` and imports its module.
    assert judged_after(results / "scaling_law.parquet") == ["definitions", "scaling_law"]
    assert judged_after(experiments / "paper" / "scaling_law.py") == ["definitions", "scaling_law"]
    assert judged_after(experiments / "claim.py") == names
    assert judged_after(package / "cli" / "main.py") == []


def test_final_rows_keep_the_fields_of_a_users_model():
    own = students([0.1]).drop(columns="model.widths").assign(**{"model.width": 5})
    mixed = final_rows(pd.concat([students([0.1]).assign(**{"model.width": None}), own]))
    assert mixed["model.width"].tolist() == [8, 16, 5, 5]
    plain = final_rows(students([0.1]).assign(**{"model.widths": 7}))  # a field that is a number
    assert plain["model.width"].tolist() == [7, 7]
    assert "model.width" not in last(students([0.1]))


def test_claims_of_cells_use_all_rows_of_a_cell():
    rows = pd.DataFrame({"run": "a", "step": [0, 1], "seed": 0, "value": [1.0, 3.0]})
    declared = reproduces(
        "mean", "The mean is 2", published="2", measure=exact(mean_of("value")), passes=above(1)
    )
    module = SimpleNamespace(cells=None, CLAIMS=[declared])
    (claim,) = claims_of(module, rows)
    assert (claim.measured, claim.source) == (2, "")


def test_a_line_with_one_seed_is_not_judged():
    rows = students([0.1, 0.2, 0.4])
    deep = rows[rows["seed"] == 0].assign(**{"model.widths": rows["model.widths"] + "x1"})
    frame = final_rows(pd.concat([rows, deep.assign(run="deep" + deep["run"])]))

    def lines(frame):
        sizes = [{2: (8, 16), 3: (8, 16)}]
        return trends(frame, "model.depth", "model.width", "test/r2", sizes).values()

    assert len(lines(frame)) == 2
    for claim in (Grows("width", "It grows", lines), NeverFalls("It never falls", lines)):
        assert (claim.judge(frame).verdict, claim.judge(frame).seeds) == ("not judged", 1)


def test_a_table_that_changes_while_it_is_judged_is_judged_again(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOMBINE_CACHE", str(tmp_path / "cache"))
    shutil.copy(RESULTS / "six_modules.parquet", tmp_path)
    table = Table(tmp_path / "six_modules.parquet")

    def judge_slowly(name, module, table):
        lines = judge(name, module, table)
        table.note(title="changed meanwhile")
        return lines

    monkeypatch.setattr(ledger_module, "judge", judge_slowly)
    ledger(["six_modules"], tmp_path)
    assert ledger_module.VerdictCache("six_modules", table).load() is None


def test_every_name_of_the_earlier_module_is_still_there():
    import recombine.experiments.claim as module

    for names in module.MOVED.values():
        assert all(hasattr(module, name) for name in names)
    assert not hasattr(module, "no_such_name")
