from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.layers import probe_column
from recombine.experiments.paper import decodability
from recombine.experiments.paper.decodability import (
    ALL_STUDENTS,
    ALL_TASKS_PROBE,
    DATA,
    FEW_SHOT,
    HEADLINE,
    LAYERS,
    MODEL_SIZE,
    PAPERS_RECIPE,
    PUBLIC_PROBE,
)
from recombine.experiments.plots import figures_of
from recombine.experiments.untrained import untrained_column
from recombine.sweeps.run import describe, identity
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "decodability.parquet"


def rows_of(decoded, before=lambda score, rng: 0.9 + 0.01 * rng.normal(), low=0.1):
    """Rows of the full sweep, with scores that fall with the held-out fraction.

    `decoded` computes the decodability of a trained student from its score, `before` that of the
    untrained network.
    """
    rows, scores, rng = [], {}, np.random.default_rng(0)
    for run in decodability.runs("full"):
        student = run.encoding, run.model, run.frac_test, run.seed
        score = scores.setdefault(
            student, 1 - (1 - low) * (run.frac_test - 0.1) + 0.01 * rng.normal()
        )
        value = (decoded if run.recipe.learning_rate else before)(score, rng)
        columns = {probe_column(PUBLIC_PROBE, layer): value for layer in LAYERS}
        if len(run.diagnostics) > 2:
            columns |= {probe_column(ALL_TASKS_PROBE, layer): value for layer in LAYERS}
            columns[decodability.SHUFFLED] = -0.01 + 0.001 * rng.normal()
        run_columns = {"run": identity(run), "step": run.num_steps, **describe(run)}
        rows.append(run_columns | {"test/r2": score} | columns)
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(decodability, rows)}


@pytest.fixture(scope="module")
def correlated():
    """Decodability follows the score, and that of the untrained network does not."""
    return rows_of(lambda score, rng: 0.5 + 0.4 * score)


def test_the_runs_are_the_papers_sets_and_ours():
    runs = decodability.runs("full")
    assert len(set(runs)) == len(runs) == 2 * 3 * 3 * 7 * 8 + 7 * 3 + 2 * 6 * 2 * (4 * 8 + 3)
    paper = [run for run in runs if isinstance(run.recipe, rc.Paper)]
    assert {(run.encoding, run.model, run.num_steps) for run in paper} == {
        (rc.Identity(), rc.MLP(), 100_000)
    }
    assert len(paper) == 21
    untrained = [run for run in runs if not run.recipe.learning_rate]
    assert {run.num_steps for run in untrained} == {1}
    known = {(run.encoding, run.model, run.frac_test, run.seed) for run in untrained}
    students = {(run.encoding, run.model, run.frac_test, run.seed) for run in runs}
    assert known == students, "each has an untrained baseline"


def test_every_student_is_compared_with_its_own_network_before_training(correlated):
    final = decodability.prepare(correlated)
    assert len(final) == (correlated["recipe.learning_rate"] > 0).sum(), (
        "no student is listed twice"
    )
    assert final[untrained_column(HEADLINE)].notna().all()
    assert (final["recipe.learning_rate"] > 0).all()


def test_a_correlation_that_the_untrained_network_lacks_is_reproduced(correlated):
    verdict_of = verdicts(correlated)
    names = [name for name in verdict_of if ": pre" in name and "model size" not in name]
    assert {verdict_of[name] for name in names} == {"reproduced"}
    assert verdict_of["shuffled tasks"] == verdict_of["probe of all tasks, data"] == "reproduced"
    assert verdict_of["equal train tasks, all"] == "reproduced"
    assert decodability.summary(correlated)["data, pre2"] == pytest.approx(1)


def test_a_correlation_that_the_untrained_network_has_is_confounded():
    rows = rows_of(lambda score, rng: score, before=lambda score, rng: 0.5 * score)
    verdict_of = verdicts(rows)
    assert verdict_of["data: pre2"] == verdict_of["data, paper's recipe: pre3"] == "confounded"
    assert verdict_of["probe of all tasks, data"] == "not reproduced"
    assert decodability.summary(rows)["data, pre2, untrained"] == pytest.approx(1)


def test_noise_is_not_reproduced_and_not_called_confounded():
    verdict_of = verdicts(rows_of(lambda score, rng: score + 0.3 * rng.normal()))
    assert verdict_of["data: pre2"] == verdict_of["all students: pre2"] == "not reproduced"
    constant = verdicts(rows_of(lambda score, rng: 1.0))
    assert constant["data: pre2"] == "not reproduced", "constant decodability explains nothing"
    rounded = rows_of(lambda score, rng: 1 - 1e-7 * (1 - score))
    assert decodability.explained(decodability.prepare(rounded), HEADLINE) == 0, "only rounding"
    negative = rows_of(lambda score, rng: 1 - score)
    assert decodability.explained(decodability.prepare(negative), HEADLINE) == 0, "negative"
    # Without students that fail, a correlation means nothing. The note names what is missing.
    rows = rows_of(lambda score, rng: score, low=0.8)
    assert verdicts(rows)["data: pre2"] == "not reproduced"
    notes = {claim.name: claim.note for claim in claims_of(decodability, rows)}
    assert notes["data: pre2"].endswith("; the set lacks students with test R2 below 0.5")
    students = DATA.select(decodability.prepare(rows))
    assert DATA.missing_range(students) == ["below 0.5"]
    assert DATA.missing_range(students[:0]) == ["above 0.9", "below 0.5"]


def test_comparison_at_equal_numbers_of_train_tasks_removes_the_confound():
    # Decodability depends on the held-out fraction alone, so it explains nothing within a fraction.
    rows = rows_of(lambda score, rng: score)
    trained = rows["recipe.learning_rate"] > 0
    noise = 1e-3 * np.random.default_rng(1).normal(size=sum(trained))
    rows.loc[trained, HEADLINE] = 1 - rows.loc[trained, "frac_test"] + noise
    students = ALL_STUDENTS.select(decodability.prepare(rows))
    assert decodability.explained(students, HEADLINE) > 0.9
    assert decodability.explained_within(students, HEADLINE) < 0.02
    assert verdicts(rows)["equal train tasks, all"] == "not reproduced"


def test_sets_hold_the_right_students(correlated):
    final = decodability.prepare(correlated)
    data = DATA.select(final)
    assert set(data["encoding"]) == {"Identity"}
    assert set(data["model.width"]) == {1024}
    assert set(data["recipe"]) == {"Fast"}
    assert len(data) == 7 * 8
    size = MODEL_SIZE.select(final)
    assert size["encoding"].nunique() == 6
    assert set(size["frac_test"]) == {0.25}
    assert len(size) == 6 * (4 * 8 + 3)
    assert len(ALL_STUDENTS.select(final)) == 3 * 3 * 7 * 8
    assert set(FEW_SHOT.select(final)["model.width"]) == {1024}


def test_without_their_untrained_networks_students_are_not_judged(correlated):
    rows = correlated[(correlated["recipe.learning_rate"] > 0) | (correlated["frac_test"] < 0.9)]
    verdict_of = verdicts(rows)
    names = [
        "data: pre2",
        "data, paper's recipe: pre2",
        "all students: pre2",
        "probe of all tasks, data",
    ]
    assert {verdict_of[name] for name in [*names, "equal train tasks, all"]} == {"not yet run"}


def test_missing_rows_are_not_judged(correlated):
    verdict_of = verdicts(correlated[correlated["encoding"] != "FewShot"])
    assert verdict_of["FewShot: pre2"] == "not yet run"
    assert set(verdicts(None).values()) == {"not yet run"}
    rows = correlated.copy()
    rows[decodability.SHUFFLED] = 0.8
    assert verdicts(rows)["shuffled tasks"] == "not reproduced"


def test_the_line_of_a_figure_has_the_r2_that_is_judged():
    rows = rows_of(lambda score, rng: 0.5 + 0.4 * score, low=-0.5)
    rows.loc[rows.index[:20], "test/r2"] = -3.0
    judged = decodability.explained(DATA.select(decodability.prepare(rows)), HEADLINE)
    fit = figures_of(decodability, rows)["data"].data[-1]
    assert fit.name == f"least squares, R² = {judged:.2f}"


def check_tiny(rows):
    assert set(figures_of(decodability, rows)) == {
        "data",
        "data_untrained",
        "all_students",
        "all_students_untrained",
        "data_probe_of_all_tasks",
    }
    assert decodability.prepare(rows)[untrained_column(HEADLINE)].notna().all()
    assert rows["ShuffledDecodability/best/test/r2"].max() < 0.3


def test_conclusions_from_the_committed_rows():
    rows = rc.Table(RESULTS).read()
    assert set(rows["run"]) <= set(map(identity, decodability.runs("full")))
    verdict_of = verdicts(rows)
    # The paper's own recipe gives the published correlation, but so do untrained networks.
    assert verdict_of["data, paper's recipe: pre2"] == "confounded"
    assert verdict_of["data, paper's recipe: pre3"] == "confounded"
    assert verdict_of["probe of all tasks, data, paper's recipe"] == "reproduced"
    assert verdict_of["shuffled tasks"] == "reproduced"
    students = PAPERS_RECIPE.select(decodability.prepare(rows))
    failing = students[students["test/r2"] < 0.5]
    lowest = failing[decodability.ALL_TASKS].min()
    assert lowest > 0.98, "failing students encode the modules, too"
