from pathlib import Path

import pytest

import recombine as rc
from recombine.experiments import quickstart
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import structure
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "quickstart.parquet"


@pytest.fixture(scope="module")
def tiny():
    return rc.train(quickstart.runs("tiny"))


def test_the_sweep_is_the_one_that_is_promised():
    runs = quickstart.runs("small")
    assert {run.family for run in runs} == {rc.Hyperteacher(num_modules=8, num_hot=3)}
    assert {run.frac_test for run in runs} == {0.25, 0.75}
    assert len({run.seed for run in runs}) == 2
    assert len(set(map(structure, runs))) == len(quickstart.WIDTHS["small"]), (
        "a program for each width"
    )


def test_tiny_runs_end_to_end(tiny):
    summary = quickstart.summary(tiny)
    assert summary["best test R2"] >= summary["test R2 of the narrowest student"]
    figures = figures_of(quickstart, tiny)
    assert list(figures) == ["width", "decodability", "layers"]
    assert all(len(figure.data) > 1 for figure in figures.values())
    assert not any(claim.holds for claim in claims_of(quickstart, tiny)), "60 steps are not enough"


def test_conclusions_from_the_committed_rows():
    rows = rc.Table(RESULTS).read()
    summary = quickstart.summary(rows)
    assert summary["best test R2"] >= 0.9
    assert summary["test R2 of the narrowest student"] < 0.5
    assert (
        summary["test R2 of the widest, 25% held out"]
        > summary["test R2 of the widest, 75% held out"] + 0.05
    )
    assert [claim.verdict for claim in claims_of(quickstart, rows)] == ["reproduced", "reproduced"]
    assert not rows["diverged"].any()
    assert {"meta/device", "meta/jax", "meta/date"} <= set(rows)


def test_without_rows_the_claims_wait():
    assert {claim.verdict for claim in claims_of(quickstart, None)} == {"not yet run"}
