"""The experiment `predicted_failures`: its students, its verdicts both ways, its committed rows."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.instrument import predicted_failures as experiment
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import structure
from recombine.training.scheduler import fit
from tests.experiments.neutral import claims_of

ROWS = Path(__file__).parents[3] / "docs" / "results" / "predicted_failures.parquet"


def test_students_of_all_cells_have_three_structures():
    cells = experiment.cells("full")
    assert len(cells) == (2 * 4 + 1 * 2) * 3
    runs = [experiment.student(**cell) for cell in cells]
    assert len(set(runs)) == len(cells)
    assert len({structure(run) for run in runs}) == 3
    assert all(run.diagnostics == () for run in runs)


@pytest.fixture(scope="module")
def observed():
    run = experiment.student(**experiment.cells("tiny")[0])
    return experiment.Observed(fit(run), num_draws=2)


def test_a_student_is_observed_on_all_tasks(observed):
    num_tasks = len(observed.table)
    assert (observed.part > 0).all()
    assert observed.samples == 2 * 16
    shapes = {name: layer.shape for name, layer in observed.layers.items()}
    assert shapes == dict.fromkeys(("hidden0", "hidden1"), (num_tasks * observed.samples, 8))
    # The weights of a sample are those of its task.
    assert ((observed.weights > 0) == (observed.table[observed.number] > 0)).all()
    assert np.isfinite(observed.error).all()


def test_the_control_has_the_weights_of_another_task_of_the_same_part(observed):
    is_active = observed.weights_of_others(np.random.default_rng(0)) > 0
    numbers = {tuple(task): number for number, task in enumerate((observed.table > 0).tolist())}
    first_samples = is_active[:: observed.samples].tolist()
    others = np.array([numbers[tuple(task)] for task in first_samples])
    assert (others != np.arange(len(others))).all()
    assert (observed.part[others] == observed.part).all()
    assert sorted(others) == list(range(len(others)))


def test_errors_that_are_planted_in_the_activations_are_predicted(observed):
    """The layer is the weights plus noise that grows with the error."""
    rng = np.random.default_rng(0)
    planted = object.__new__(experiment.Observed)
    planted.__dict__.update(observed.__dict__)
    weights = observed.weights
    planted.error = rng.permutation(len(observed.error)) / len(observed.error)
    noise = 0.1 * rng.normal(size=weights.shape) * planted.error[observed.number, None]
    noisy = weights + noise
    planted.layers = {"hidden0": noisy}
    test = observed.part == 2
    probe = planted.probe(weights, test)
    scores = planted.compare(probe, weights, test, planted.error, "decoding")
    assert scores["decoding/spearman"] > 0.8
    half = weights.shape[1] // 2
    planted.layers = {"hidden0": noisy[:, :half], "hidden1": noisy[:, half:]}
    probe = planted.probe(weights, test, use_layers="all")
    assert probe.layer_ == "all layers"
    scores = planted.compare(probe, weights, test, planted.error, "whole")
    assert scores["whole/spearman"] > 0.8


def check_tiny(rows):
    (row,) = rows.to_dict("records")
    assert row["layer"] in ("hidden0", "hidden1")
    assert all(np.isfinite(value) for name, value in row.items() if name.endswith("spearman"))
    assert 0 <= row["failed"] <= 1


def rows(
    decoding=0.5,
    support=0.2,
    control=0.0,
    calibration_error=0.05,
    test=0.5,
    num_seeds=3,
    whole=0.7,
    whole_control=0.0,
):
    """Rows of students, made by hand, with a small spread over seeds."""
    return pd.DataFrame(
        {
            "run": f"{family}{fraction}{seed}",
            "step": 0,
            "family": family,
            "seed": seed,
            "frac_test": fraction,
            "width": 8,
            "seen": 0.9,
            "test": test if fraction == 0.9 else 0.9,
            "decoding/spearman": decoding + 0.01 * seed,
            "support/spearman": support,
            "control/spearman": control + 0.01 * (seed - 1),
            "train/calibration_error": calibration_error,
            "judged/calibration_error": calibration_error,
            "whole/spearman": whole,
            "whole control/spearman": whole_control,
        }
        for family in ("Hyperteacher", "PreferenceGrid")
        for fraction in (0.5, 0.9)
        for seed in range(num_seeds)
    )


def verdicts(frame):
    return {claim.name: claim.verdict for claim in claims_of(experiment, frame)}


def test_claims_hold_if_activations_predict_errors_and_the_control_does_not():
    assert set(verdicts(rows()).values()) == {"reproduced"}
    claims = {claim.name: claim for claim in claims_of(experiment, rows())}
    assert claims["generalises"].measured == pytest.approx(0.51)
    assert claims["Hyperteacher, beyond counting"].measured == pytest.approx(0.31)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"decoding": -0.01}, "Hyperteacher"),
        ({"decoding": -0.01}, "PreferenceGrid"),
        ({"decoding": -0.01}, "generalises"),
        ({"decoding": -0.01}, "does not generalise"),
        ({"support": 0.6}, "PreferenceGrid, beyond counting"),
        ({"support": 0.8}, "Hyperteacher, all layers, beyond counting"),
        ({"whole": 0.5}, "does not generalise, all layers"),
        ({"whole": 0.5}, "generalises, all layers"),
        ({"whole_control": 0.2}, "whole control"),
        ({"control": 0.2}, "control"),
        ({"control": -0.2}, "control"),
        ({"calibration_error": 0.3}, "calibrated on train tasks"),
        ({"calibration_error": 0.3}, "calibrated on a fifth of the unseen tasks"),
    ],
)
def test_each_claim_can_fail(changes, name):
    assert verdicts(rows(**changes))[name] == "not reproduced"


def test_claims_without_their_rows_are_not_yet_run():
    assert set(verdicts(None).values()) == {"not yet run"}
    assert set(verdicts(rows(num_seeds=1)).values()) == {"not yet run"}
    frame = rows()
    one_family = verdicts(frame[frame["family"] == "Hyperteacher"])
    assert one_family["PreferenceGrid"] == "not yet run"
    assert one_family["Hyperteacher"] == "reproduced"
    all_generalize = verdicts(rows(test=0.9))
    assert all_generalize["does not generalise"] == "not yet run"


def test_figures_and_summary():
    assert set(figures_of(experiment, rows())) == {
        "rank-Hyperteacher",
        "rank-PreferenceGrid",
        "calibration",
    }
    summary = experiment.summary(rows())
    assert summary["Hyperteacher, generalises: decoding"] == pytest.approx(0.51)
    assert not any(math.isnan(value) for value in summary.values())


def test_the_committed_rows_are_complete():
    table = rc.Table(ROWS)
    committed = table.read()
    assert len(committed) == len(experiment.cells(table.meta()["scale"]))
    judged = verdicts(committed)
    assert set(judged.values()) == {"reproduced", "not reproduced", "inconclusive"}
    assert {name for name, verdict in judged.items() if verdict == "not reproduced"} == {
        "PreferenceGrid",
        "calibrated on train tasks",
    }
    # The seeds differ by more than the distance from the threshold.
    assert {name for name, verdict in judged.items() if verdict == "inconclusive"} == {
        "generalises",
        "PreferenceGrid, beyond counting",
        "PreferenceGrid, all layers, beyond counting",
        "calibrated on a fifth of the unseen tasks",
    }
