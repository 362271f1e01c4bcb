from pathlib import Path

import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import information_loss
from recombine.sweeps.run import describe, identity, structure

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "information_loss.parquet"
LAYERS = ("code", "pre0", "hidden0", "pre1", "hidden1", "output")


def rows_of(works, fails, twins=None, spread=0.0):
    """Rows of the full sweep: up to 50% held out generalise; what each layer tells is given for both kinds, and for
    their untrained twins, which tell everything unless said otherwise. Of trained students every second seed tells
    `spread` more, the others less."""
    made = []
    for run in information_loss.runs("full"):
        good = run.frac_test <= 0.5
        told = (works, fails) if run.recipe.learning_rate else twins or ((1,) * 6, (1,) * 6)
        told = told[0 if good else 1]
        own = (-1) ** run.seed * spread * (1 if good else -1) if run.recipe.learning_rate else 0.0
        scores = {
            f"{probe}/{layer}/test/r2": value + own
            for probe in information_loss.DECODERS.values()
            for layer, value in zip(LAYERS, told, strict=True)
        }
        about = {"run": identity(run), "step": run.num_steps, **describe(run)}
        made.append(about | {"test/r2": 0.95 if good else 0.2} | scores)
    return pd.DataFrame(made)


def claims_of(rows):
    return {claim.name: claim for claim in information_loss.claims(rows)}


KEPT, LOST = (1, 1, 1, 0.95, 0.93, 0), (1, 1, 0.9, 0.6, 0.4, 0)


def test_one_program_of_students_of_one_size():
    runs = information_loss.runs("full")
    assert len(set(map(structure, runs))) == 2, "trained and untrained"
    assert {run.encoding for run in runs} == {rc.Identity()}


def test_what_is_lost_is_measured_behind_the_first_layer():
    found = claims_of(rows_of(KEPT, LOST))
    lost, kept = (
        found["lost by those that fail, decoder of all tasks"],
        found["kept by those that generalise"],
    )
    assert (lost.measured, lost.verdict) == (pytest.approx((0.35 + 0.53) / 2), "reproduced")
    assert (kept.measured, kept.verdict) == (pytest.approx(0.93), "reproduced")


def test_what_twins_lack_is_subtracted_whichever_way():
    found = claims_of(rows_of(KEPT, LOST, (LOST, KEPT)))
    assert found["lost by those that fail, decoder of all tasks"].measured == pytest.approx(
        0.35 + 0.53
    )


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.2])
def test_the_whole_interval_must_be_beyond_the_mark(spread):
    """A gap of .1 in the mean (the mark is .05), and .93 kept (.9)."""
    near = (1, 1, 0.9, 0.85, 0.83, 0)
    found = claims_of(rows_of(KEPT, near, spread=spread))
    lost, kept = (
        found["lost by those that fail, decoder of all tasks"],
        found["kept by those that generalise"],
    )
    assert lost.measured == pytest.approx(0.1)
    assert kept.measured == pytest.approx(0.93)
    wanted = "reproduced" if spread == 0 else "not reproduced"
    assert (lost.verdict, kept.verdict) == (wanted, wanted), (lost.interval, kept.interval)
    if spread == 0.05:
        assert 0 < lost.interval[0] < 0.05, "above 0, and below the mark"
        assert kept.interval[0] < 0.9 < kept.interval[1]


def test_without_a_gap_nothing_is_shown():
    found = claims_of(rows_of(LOST, LOST))
    assert {claim.verdict for claim in found.values()} == {"not reproduced"}
    # Untrained twins with the same gap: it is the decoder that lacks tasks.
    found = claims_of(rows_of(KEPT, LOST, (KEPT, LOST)))
    assert found["lost by those that fail, decoder of all tasks"].measured == pytest.approx(0)
    assert found["lost by those that fail, decoder of all tasks"].verdict == "not reproduced"
    alone = rows_of(KEPT, LOST)
    found = claims_of(alone[alone["frac_test"] > 0.5])
    assert {claim.verdict for claim in found.values()} == {"not yet run"}, (
        "no student generalises to compare with"
    )
    assert {claim.verdict for claim in information_loss.claims(None)} == {"not yet run"}


def test_tiny_runs_end_to_end():
    rows = rc.train(information_loss.runs("tiny"))
    assert information_loss.summary(rows)["train tasks: code, fails"] > 0.99
    assert set(information_loss.figures(rows)) == {"train_tasks", "all_tasks"}


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert set(rows["run"]) == set(map(identity, information_loss.runs(table.meta()["scale"])))
    found = information_loss.summary(rows)
    assert found["all tasks: code, fails"] > 0.99, "they are told all modules"
    assert abs(found["all tasks: gap of untrained twins"]) < 0.05, (
        "one decoder for all: no gap before training"
    )
    assert found["all tasks: gap"] < 0, "with such a decoder, those that fail tell more"
    assert min(found["students: fails"], found["students: generalises"]) >= 7
    assert (
        {claim.name: claim.verdict for claim in information_loss.claims(rows)}
        == {
            "lost by those that fail, decoder of train tasks": "reproduced",  # at small scale, twins have the same gap
            "lost by those that fail, decoder of all tasks": "not reproduced",  # it is the decoder that lacked tasks
            "kept by those that generalise": "not reproduced",  # the last hidden layer is on its way to the output
        }
    )


def test_a_layer_that_was_not_read_is_left_out():
    last = information_loss._last(rows_of(KEPT, LOST))
    last.loc[last["student"] == "fails", "LinearDecodability/hidden1/test/r2"] = float("nan")
    found = information_loss._lost(last, "train tasks")
    assert list(found["generalises"].index) == list(LAYERS), "from the code to the output"
    assert found["generalises"].tolist() == pytest.approx(KEPT)
    assert list(found["fails"].index) == [layer for layer in LAYERS if layer != "hidden1"]
    last["student"] = "between"
    assert information_loss._lost(last, "train tasks") == {}
