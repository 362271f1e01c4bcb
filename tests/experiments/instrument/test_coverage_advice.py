import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.instrument import coverage_advice
from recombine.experiments.plots import figures_of
from recombine.parts import conditions
from recombine.sweeps.run import describe, identity, structure
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "coverage_advice.parquet"


def rows_of(scores, scale="small"):
    """Rows of a sweep with made-up scores: (lack, arm) -> R2, a little different for each seed."""
    made = []
    for cell in coverage_advice.plan(scale):
        score = scores.get((cell.lack, cell.arm), 0.8) + 0.001 * cell.run.seed
        made.append(
            {"run": identity(cell.run), "step": 1000, **describe(cell.run), "test/r2": score}
        )
    return pd.DataFrame(made)


def claims_by_name(rows):
    return {claim.name: claim for claim in claims_of(coverage_advice, rows)}


AHEAD = {(lack, "suggested"): 0.85 for lack in coverage_advice.LACKS if lack != "balanced"}


def modules_of(combinations, num_modules):
    return np.array([[module in c for module in range(num_modules)] for c in combinations], np.int8)


@pytest.mark.parametrize("scale", ["small", "full"])
def test_all_arms_share_their_test_tasks_and_add_as_many(scale):
    cells = coverage_advice.plan(scale)
    assert len(set(map(structure, coverage_advice.runs(scale)))) == 3
    assert len({identity(cell.run) for cell in cells}) == len(cells), (
        "no random choice comes twice, nor is it advice"
    )
    for lack in coverage_advice.LACKS:
        for seed in range(coverage_advice.SEEDS[scale]):
            arms = [cell for cell in cells if cell.lack == lack and cell.run.seed == seed]
            assert len({cell.run.support.held_out for cell in arms}) == 1
            plain, *others = (cell.run.support for cell in arms)
            added = [set(other.combinations) - set(plain.combinations) for other in others]
            assert all(set(plain.combinations) < set(other.combinations) for other in others)
            assert len(set(map(len, added))) == 1
            assert len(added[0]) >= 1
            assert not set.union(*added) & set(plain.held_out)


@pytest.mark.parametrize("scale", ["small", "full"])
def test_train_sets_lack_what_they_should_and_advice_makes_it_good(scale):
    for cell in coverage_advice.plan(scale):
        rows = modules_of(cell.run.support.combinations, cell.run.family.num_modules)
        test = modules_of(cell.run.support.held_out, cell.run.family.num_modules)
        properties = conditions.describe(rows, test)
        assert properties["compositional"]
        if cell.lack == "rare":
            assert cell.arm != "nothing" or properties["least_count"] == 1
            assert cell.arm != "suggested" or properties["least_count"] > 2
        elif cell.lack == "unmixed":
            assert properties["connected"] == (cell.arm == "suggested")
        elif cell.lack == "balanced":
            assert properties["connected"]
            assert cell.arm != "nothing" or properties["balanced"]
        else:
            assert properties["connected"]
            assert cell.arm == "random" or properties["spanned"] == (cell.arm == "suggested")


def test_advice_that_is_ahead_holds_and_the_control_must_be_even():
    claims = claims_by_name(rows_of(AHEAD))
    assert len(claims) == 6
    assert {claim.verdict for claim in claims.values()} == {"reproduced"}
    assert claims["rare"].measured == pytest.approx(0.05)
    np.testing.assert_allclose(claims["rare"].interval, 0.05)
    assert claims["control: balanced"].measured == pytest.approx(0)


@pytest.mark.parametrize(
    "scores",
    [
        {},  # no difference
        {("rare", "suggested"): 0.75},
        AHEAD
        | {("balanced", "suggested"): 0.85},  # ahead where nothing is lacking: it is not the lack
        {("rare", "suggested"): 0.4, ("rare", "random"): 0.1},  # neither has learned
    ],
)
def test_otherwise_it_does_not(scores):
    assert claims_by_name(rows_of(scores))["rare"].verdict == "not reproduced"


def test_a_half_done_sweep_is_not_judged():
    rows = rows_of(AHEAD)
    last = coverage_advice.prepare(rows)
    for gone in ("random", "suggested"):
        kept = rows[
            ~rows["run"].isin(last.loc[(last["lack"] == "rare") & (last["arm"] == gone), "run"])
        ]
        claims = claims_by_name(kept)
        assert claims["rare"].verdict == "not yet run"
        assert claims["unmixed"].verdict == "reproduced"
    without = rows[~rows["run"].isin(last.loc[last["lack"] == "balanced", "run"])]
    assert {claim.verdict for claim in claims_of(coverage_advice, without)} == {"not yet run"}, (
        "the control is missing"
    )
    assert {claim.verdict for claim in claims_of(coverage_advice, rows.head(1))} == {"not yet run"}
    assert {claim.verdict for claim in claims_of(coverage_advice, None)} == {"not yet run"}


def check_tiny(rows):
    assert len(coverage_advice.summary(rows)) == 18
    (figure,) = figures_of(coverage_advice, rows).values()
    assert {trace.name for trace in figure.data} == {"nothing", "random", "suggested"}
    assert not any(claim.holds for claim in claims_of(coverage_advice, rows)), (
        "20 steps are not enough"
    )


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert rows["run"].nunique() == 150
    assert not rows["diverged"].any()
    assert {name: claim.verdict for name, claim in claims_by_name(rows).items()} == {
        "rare": "reproduced",
        "unmixed": "reproduced",
        "confounded": "inconclusive",  # at full scale; at small scale it was, by .03
        "unspanned": "inconclusive",  # a pair that spans is not better than any other
        "unspanned, all ones": "inconclusive",
        "control: balanced": "reproduced",
    }


@pytest.mark.parametrize("kernels", ["Haswell", "Prescott"])
def test_the_runs_do_not_depend_on_the_cpu(kernels):
    """OpenBLAS rounds differently with other kernels; ties must not follow its rounding."""
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("NOT RUN: these kernels are for x86 only")
    program = (
        "from recombine.experiments.instrument.coverage_advice import runs\n"
        "from recombine.sweeps.run import identity\n"
        "print(' '.join(identity(run) for run in runs('full')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"OPENBLAS_CORETYPE": kernels},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [identity(run) for run in coverage_advice.runs("full")]
