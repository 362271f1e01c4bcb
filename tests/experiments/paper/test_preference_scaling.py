import functools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import preference_scaling
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity, structure
from recombine.training.task_sampler import make_split
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "preference_scaling.parquet"


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(preference_scaling, rows)}


def test_the_sweep_is_the_one_of_the_docstring():
    runs = preference_scaling.runs("full")
    law = preference_scaling.law("full")
    students = [run for run in runs if run not in law]
    trained = [run for run in students if run.recipe.learning_rate]
    assert len(set(runs)) == len(runs)
    # Encodings x widths, held-out fractions beside 25%, and five other supports, with 3 seeds.
    assert len(trained) == 3 * (6 * 4 + 5 + 5)
    assert len(students) - len(trained) == 3 * (6 + 5 + 5), "the widest have baselines"
    assert len(law) == 3 * 5 * 5
    # One program per encoding and width; fractions and supports share that of the widest.
    assert len(set(map(structure, trained))) == 6 * 4
    assert {run.family for run in trained} == {rc.PreferenceGrid(num_features=16)}
    assert {run.recipe for run in trained} == {rc.Fast(0.02, 0.05, vector_rate=0.2)}
    assert {type(run.support).__name__ for run in runs} >= {"Random", *preference_scaling.VIOLATING}


def check_tiny(rows):
    summary = preference_scaling.summary(rows)
    assert {"width 4", "width 16", "25% held out", "50% held out", "Random"} < set(summary)
    assert "FewShot, width 16" in summary
    figures = figures_of(preference_scaling, rows)
    assert list(figures) == ["episode", "width", "data", "supports", "encodings", "law"]
    final = preference_scaling.prepare(rows)
    widest = final[final["is_widest"] & ~final["is_law"]]
    column = "LinearDecodability-paper/pre1/test/r2"
    assert widest[column].notna().all()
    is_identity = widest["encoding"] == "Identity"
    assert widest.loc[is_identity, f"untrained/{column}"].notna().all()
    claims = {claim.name: claim for claim in claims_of(preference_scaling, rows)}
    assert claims["law"].verdict == "not yet run", "one number of modules cannot judge a law"
    assert not claims["width"].holds, "40 steps are not enough"
    # Only one support was trained.
    assert claims["support"].verdict == claims["frequency"].verdict == "not yet run"


@pytest.mark.parametrize(
    ("column", "value", "score", "claim"),
    [
        ("model.widths", "16x16", 0.6, "width"),  # the control does not fail
        ("frac_test", 0.98, 0.7, "data"),
        ("support", "Disconnected", 0.72, "support"),
        ("support", "Popular", 0.6, "frequency"),
    ],
)
def test_changed_scores_make_a_claim_fail(column, value, score, claim):
    rows = rc.Table(RESULTS).read()
    scores = rows[preference_scaling.SCORE].mask(rows[column] == value, score)
    changed = rows.assign(**{preference_scaling.SCORE: scores})
    assert verdicts(changed)[claim] == "not reproduced"


@functools.cache
def split_sizes(run):
    facts = make_split(run, run.family.tasks())[1]
    return {name: facts[name] for name in ("support/num_train", "support/num_test")}


def rows_of(
    decoded=lambda score: score, before=lambda score: 0.3, power=0.5, factor=3.0, fewshot=1.0
):
    """Rows of the full sweep: accuracy grows with the width and with the number of train tasks.

    `decoded` and `before` compute the decodability after and before training from the accuracy. The
    law reaches its target at `factor` times a power of the number of all tasks. `fewshot` is a
    factor of the gain with width of the few-shot code.
    """
    rng = np.random.default_rng(0)
    rows = []
    for run in preference_scaling.runs("full"):
        bare = rc.Run(run.family, run.support, frac_test=run.frac_test, seed=run.seed)
        row = {"run": identity(run), "step": run.num_steps, **describe(run), **split_sizes(bare)}
        num_train = row["support/num_train"]
        total = num_train + row["support/num_test"]
        if run.family.num_features == 32:
            score = 0.65 + 0.2 * np.log(num_train / (factor * total**power))
        else:
            growth = fewshot if isinstance(run.encoding, rc.FewShot) else 1.0
            score = 0.75 - 0.1 * growth * np.log2(1024 / run.model.widths[0]) / 2
            score -= 0.5 * (run.frac_test - 0.25) ** 2 + 0.3 * (run.frac_test > 0.9)
            score -= 0.3 * isinstance(run.support, rc.MissingModule | rc.Disconnected)
        row[preference_scaling.SCORE] = score + 1e-3 * rng.normal()
        if run.diagnostics:
            value = (decoded if run.recipe.learning_rate else before)(score)
            row["LinearDecodability-paper/pre1/test/r2"] = value + 1e-3 * rng.normal()
        rows.append(row)
    return pd.DataFrame(rows)


def test_the_correlation_and_its_control():
    names = ("data: pre1", "six supports: pre1")
    judged = verdicts(rows_of())
    assert {judged[name] for name in names} == {"reproduced"}
    assert judged["task decoder, FewShot"] == judged["width, FewShot"] == "reproduced"
    same_before = verdicts(rows_of(before=lambda score: 0.5 * score))
    assert {same_before[name] for name in names} == {"confounded"}
    constant = verdicts(rows_of(decoded=lambda score: 0.3, fewshot=0.01))
    assert {constant[name] for name in names} == {"not reproduced"}
    assert constant["task decoder, Identity"] == constant["width, FewShot"] == "not reproduced"


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({"encoding": "Language", "model.widths": "256x256"}, "never falls with width"),
        ({"frac_test": 0.75, "encoding": "Identity"}, "never falls with train tasks"),
    ],
)
def test_a_fall_on_one_curve_is_detected(changes, claim):
    rows = rows_of()
    # From one size to the next, the score grows by at most .16.
    is_changed = rows["family.num_features"] == 16
    for column, value in changes.items():
        is_changed &= rows[column] == value
    scores = rows[preference_scaling.SCORE]
    falls = rows.assign(**{preference_scaling.SCORE: scores - 0.2 * is_changed})
    noisy = rows.assign(**{preference_scaling.SCORE: scores - 0.003 * is_changed})
    assert verdicts(rows)[claim] == verdicts(noisy)[claim] == "reproduced"
    assert verdicts(falls)[claim] == "not reproduced"


def test_an_incomplete_sweep_is_not_judged_on_falls():
    rows = rows_of()
    judged = verdicts(rows[rows["encoding"] != "FewShot"])
    assert judged["never falls with width"] == "not yet run"
    assert judged["never falls with train tasks"] == "reproduced"
    judged = verdicts(rows[rows["frac_test"] != 0.75])
    assert judged["never falls with train tasks"] == "not yet run"


def test_the_power_of_the_law_is_recovered():
    claims = {claim.name: claim for claim in claims_of(preference_scaling, rows_of())}
    assert claims["law"].measured == pytest.approx(0.5, abs=0.05)
    assert claims["law"].verdict == "reproduced"
    final = preference_scaling.prepare(rows_of(power=1.1, factor=0.05))
    (law,) = [claim for claim in preference_scaling.CLAIMS if claim.name == "law"]
    assert law.judge(final).measured == pytest.approx(1.1, abs=0.05)
    assert law.judge(final).verdict == "not reproduced"


def test_the_film_strip_shows_a_whole_episode():
    strip = preference_scaling.episode(rc.PreferenceGrid(num_features=16))
    captions = [note.text for note in strip.layout.annotations]
    assert len(captions) <= 8
    assert captions[-1].endswith("nothing: the end") or len(captions) == 8
    assert sum("earns" in caption for caption in captions) >= 2
    agent = strip.data[-1]
    assert len(agent.x) == len(captions)


def test_conclusions_from_the_committed_rows():
    rows = rc.Table(RESULTS).read()
    assert rows["run"].nunique() == 42
    assert not rows["diverged"].any()
    assert {"meta/device", "meta/jax", "meta/date"} <= set(rows)
    judged = verdicts(rows)
    names = ("width", "data", "support", "frequency")
    assert {judged[name] for name in names} == {"reproduced"}
    assert judged["never falls with width"] == "not yet run", "the table has one encoding"
    summary = preference_scaling.summary(rows)
    assert summary["width 16"] < 0.3 < 0.7 < summary["width 1024"]
    assert summary["98% held out"] < 0.6 < 0.7 < summary["75% held out"]
    assert summary["MissingModule"] < summary["Disconnected"] < 0.6 < 0.7 < summary["Popular"]
    assert summary["Unpopular"] < 0.6, "three modules in one train task each are hardly learned"
    assert set(verdicts(None).values()) == {"not yet run"}
