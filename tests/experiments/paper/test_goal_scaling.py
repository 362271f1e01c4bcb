import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import goal_scaling
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity, structure
from tests.experiments.neutral import claims_of

NAMES = [f"{name}, {code}" for name in ("width", "data") for code in goal_scaling.CODES.values()]


def rows_of(by_width=0.2, by_data=0.1, sentence=0.0, seen=0.9, base=0.9):
    """Rows of the full sweep with made-up scores.

    The score changes by `by_width` with each width and by `by_data` with each fraction; a sentence
    adds `sentence`.
    """
    rng = np.random.default_rng(0)
    widths, fractions = goal_scaling.WIDTHS["full"], goal_scaling.FRACTIONS["full"]
    rows = []
    for run in goal_scaling.runs("full"):
        score = base - by_width * (len(widths) - 1 - widths.index(run.model.widths[0]))
        score -= by_data * fractions.index(run.frac_test)
        score += sentence * isinstance(run.encoding, rc.Language)
        about = {"run": identity(run), "step": run.num_steps, **describe(run)}
        about["support/num_train"] = round(500 * (1 - run.frac_test))
        score += 0.005 * rng.normal()
        rows.append(about | {goal_scaling.SCORE: score, goal_scaling.SEEN_SCORE: seen})
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(goal_scaling, rows)}


def test_both_codes_get_the_same_runs():
    runs = goal_scaling.runs("full")
    assert len(set(runs)) == len(runs) == 2 * 3 * (3 + 4)
    assert len(set(map(structure, runs))) == 2 * 3, "a program for each code and width"
    assert {run.family for run in runs} == {rc.GoalGrid()}
    cells = [
        {(run.model, run.frac_test, run.seed) for run in runs if isinstance(run.encoding, code)}
        for code in (rc.Identity, rc.Language)
    ]
    assert cells[0] == cells[1]


def test_growth_and_equal_codes_are_reproduced():
    judged = verdicts(rows_of())
    assert judged == dict.fromkeys([*NAMES, "sentence"], "reproduced")


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"by_width": 0.01}, NAMES[:2]),
        ({"by_width": -0.2}, NAMES[:2]),
        ({"by_data": 0.01}, NAMES[2:]),
        ({"sentence": -0.3}, ["sentence"]),
        ({"base": 0.45}, ["sentence"]),  # both codes fail alike
        ({"seen": 0.4}, [*NAMES, "sentence"]),
    ],
)
def test_changed_scores_make_a_claim_fail(changes, failing):
    judged = verdicts(rows_of(**changes))
    assert [name for name, verdict in judged.items() if verdict == "not reproduced"] == failing


def test_a_dip_is_a_fall():
    rows = rows_of()
    dips = (rows["frac_test"] == 0.5) & (rows["encoding"] == "Language")
    rows.loc[dips, goal_scaling.SCORE] = 0.5
    judged = verdicts(rows)
    assert judged["data, sentence"] == "not reproduced"
    assert judged["data, factored code"] == "reproduced"
    rows.loc[dips & (rows["seed"] == 2), goal_scaling.SCORE] = 0.75
    assert verdicts(rows)["data, sentence"] == "inconclusive", "not every seed falls"


def test_one_code_alone_is_judged_without_the_comparison():
    rows = rows_of()
    judged = verdicts(rows[rows["encoding"] == "Identity"])
    assert judged["width, factored code"] == "reproduced"
    assert judged["sentence"] == judged["width, sentence"] == "not yet run"
    assert set(verdicts(None).values()) == {"not yet run"}


def check_tiny(rows):
    summary = goal_scaling.summary(rows)
    assert {"sentence, width 4", "factored code, 50.0% held out", "sentence, seen"} < set(summary)
    assert set(figures_of(goal_scaling, rows)) == {"width", "data"}
    assert not any(claim.holds for claim in claims_of(goal_scaling, rows)), "20 steps: nothing fits"
