"""Predicted failures: cells, what a student is asked, verdicts both ways, and what the committed rows say."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.instrument import predicted_failures as experiment
from recombine.sweeps.run import structure
from recombine.training.scheduler import fit

ROWS = Path(__file__).parents[3] / "docs" / "results" / "predicted_failures.parquet"


def test_cells_are_students_of_few_structures():
    cells = experiment.cells("full")
    assert len(cells) == (2 * 4 + 1 * 2) * 3
    runs = [experiment.student(**cell) for cell in cells]
    assert len(set(runs)) == len(cells)
    assert len({structure(run) for run in runs}) == 3
    assert all(run.diagnostics == () for run in runs)


@pytest.fixture(scope="module")
def observed():
    run = experiment.student(**experiment.cells("tiny")[0])
    return experiment.Observed(fit(run), draws=2)


def test_a_student_is_looked_at_on_all_tasks(observed):
    tasks = len(observed.table)
    assert (observed.part > 0).all()
    assert observed.samples == 2 * 16
    shapes = {name: layer.shape for name, layer in observed.layers.items()}
    assert shapes == dict.fromkeys(("hidden0", "hidden1"), (tasks * observed.samples, 8))
    # The weights are those of the task that a sample is said to be of.
    assert ((observed.weights > 0) == (observed.table[observed.number] > 0)).all()
    assert np.isfinite(observed.error).all()


def test_the_control_has_the_weights_of_another_task_of_the_same_part(observed):
    mixed = observed.mixed(np.random.default_rng(0)) > 0
    tasks = {tuple(row): number for number, row in enumerate(observed.table.astype(bool).tolist())}
    others = np.array([tasks[tuple(row)] for row in mixed[:: observed.samples].tolist()])
    assert (others != np.arange(len(others))).all()
    assert (observed.part[others] == observed.part).all()
    assert sorted(others) == list(range(len(others)))


def test_errors_that_are_planted_in_the_activations_are_found(observed):
    """Where the layer tells the weights but for noise that grows with the error, the ranking is the error's."""
    rng = np.random.default_rng(0)
    true, planted = observed.error, object.__new__(experiment.Observed)
    planted.__dict__.update(observed.__dict__)
    planted.error = rng.permutation(len(true)) / len(true)
    noise = 0.1 * rng.normal(size=observed.weights.shape) * planted.error[observed.number, None]
    planted.layers = {"hidden0": observed.weights + noise}
    test = observed.part == 2
    probe = planted.probe(planted.weights, test, None)
    assert (
        planted.compare(probe, planted.weights, test, planted.error, "decoding")[
            "decoding/spearman"
        ]
        > 0.8
    )
    half = observed.weights.shape[1] // 2
    planted.layers = {
        "hidden0": (observed.weights + noise)[:, :half],
        "hidden1": (observed.weights + noise)[:, half:],
    }
    probe = planted.probe(planted.weights, test, None, "all")
    assert probe.layer_ == "all layers"
    assert (
        planted.compare(probe, planted.weights, test, planted.error, "whole")["whole/spearman"]
        > 0.8
    )


def test_measure_gives_numbers():
    cell = experiment.cells("tiny")[0]
    row = experiment.measure(**cell)
    assert row["layer"] in ("hidden0", "hidden1")
    assert all(np.isfinite(value) for name, value in row.items() if name.endswith("spearman"))
    assert 0 <= row["failed"] <= 1


def rows(decoding=0.5, support=0.2, control=0.0, off=0.05, test=0.5, seeds=3, whole=0.7, mixed=0.0):
    """Rows by hand, with a little spread over seeds."""
    made = [
        {
            **{
                "run": f"{family}{fraction}{seed}",
                "step": 0,
                "family": family,
                "seed": seed,
                "frac_test": fraction,
            },
            **{"width": 8, "seen": 0.9, "test": test if fraction == 0.9 else 0.9},
            **{"decoding/spearman": decoding + 0.01 * seed, "support/spearman": support},
            **{"control/spearman": control + 0.01 * (seed - 1), "train/calibration_error": off},
            **{
                "judged/calibration_error": off,
                "whole/spearman": whole,
                "whole control/spearman": mixed,
            },
        }
        for family in ("Hyperteacher", "PreferenceGrid")
        for fraction in (0.5, 0.9)
        for seed in range(seeds)
    ]
    return pd.DataFrame(made)


def holds(frame):
    return {claim.name: claim.verdict for claim in experiment.claims(frame)}


def test_claims_hold_where_activations_tell_and_the_control_does_not():
    assert set(holds(rows()).values()) == {"reproduced"}
    found = {claim.name: claim for claim in experiment.claims(rows())}
    assert found["generalises"].measured == pytest.approx(0.51)
    assert found["Hyperteacher, beyond counting"].measured == pytest.approx(0.31)


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
        ({"mixed": 0.2}, "whole control"),
        ({"control": 0.2}, "control"),
        ({"control": -0.2}, "control"),
        ({"off": 0.3}, "calibrated on train tasks"),
        ({"off": 0.3}, "calibrated on a fifth of the unseen tasks"),
    ],
)
def test_each_claim_can_fail(changes, name):
    assert holds(rows(**changes))[name] == "not reproduced"


def test_what_is_missing_is_not_yet_run():
    assert set(holds(None).values()) == {"not yet run"}
    assert set(holds(rows(seeds=1)).values()) == {"not yet run"}
    half = rows()
    half = half[half["family"] == "Hyperteacher"]
    assert holds(half)["PreferenceGrid"] == "not yet run"
    assert holds(half)["Hyperteacher"] == "reproduced"
    assert holds(rows(test=0.9))["does not generalise"] == "not yet run"  # there is no such student


def test_figures_and_summary():
    assert set(experiment.figures(rows())) == {
        "rank-Hyperteacher",
        "rank-PreferenceGrid",
        "calibration",
    }
    told = experiment.summary(rows())
    assert told["Hyperteacher, generalises: decoding"] == pytest.approx(0.51)
    assert not any(math.isnan(value) for value in told.values())


def test_the_committed_rows_are_whole():
    table = rc.Table(ROWS)
    found = table.read()
    assert len(found) == len(experiment.cells(table.meta()["scale"]))
    judged = holds(found)
    assert set(judged.values()) == {"reproduced", "not reproduced"}
    assert {name for name, verdict in judged.items() if verdict == "not reproduced"} == {
        *("PreferenceGrid", "generalises", "Hyperteacher, beyond counting"),
        *("PreferenceGrid, beyond counting", "PreferenceGrid, all layers, beyond counting"),
        *("calibrated on train tasks", "calibrated on a fifth of the unseen tasks"),
    }
