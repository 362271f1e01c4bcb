from pathlib import Path

import numpy as np
import pandas as pd

import recombine as rc
from recombine.experiments.paper import scaling_depth
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity, structure
from tests.experiments.neutral import FAILED, claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "scaling_depth.parquet"
ENCODINGS = ["Identity", "Orthogonal", "Language", "InvertibleNN", "IntervalShuffle", "FewShot"]
GROWING = {1: 0.1, 2: 0.5, 3: 0.7, 4: 0.8, 6: 0.85, 8: 0.9}  # score by depth


def rows_of(scores, exceptions=()):
    """Rows of the full sweep with these scores by depth.

    `exceptions` has other scores by encoding and depth.
    """
    rows = []
    for run in scaling_depth.runs("full"):
        encoding, depth = type(run.encoding).__name__, len(run.model.widths)
        score = dict(exceptions).get((encoding, depth), scores[depth]) + 0.01 * run.seed
        run_columns = {"run": identity(run), "step": run.num_steps, **describe(run)}
        rows.append(run_columns | {"test/r2": score, "seen/r2": score})
    return pd.DataFrame(rows)


def verdicts(rows):
    claims = claims_of(scaling_depth, rows)
    return {claim.name.split(":")[0]: claim.verdict for claim in claims}


def failed_claims(rows):
    return [name for name, verdict in verdicts(rows).items() if verdict in FAILED]


def test_the_sweep_has_six_depths_and_six_encodings():
    runs = scaling_depth.runs("full")
    assert len(set(runs)) == len(runs) == 288
    assert len(set(map(structure, runs))) == 36
    assert {run.model.widths for run in runs} == {(256,) * depth for depth in GROWING}
    assert {type(run.encoding).__name__ for run in runs} == set(ENCODINGS)


def test_a_gain_with_depth_is_reproduced():
    claims = claims_of(scaling_depth, rows_of(GROWING))
    assert {claim.verdict for claim in claims} == {"reproduced"}
    np.testing.assert_allclose([claim.measured for claim in claims], [0.8] * 6 + [-0.05])


def test_only_a_fall_beyond_the_spread_of_seeds_counts():
    # A fall of .05, and one of .005, which is within the spread of .01.
    rows = rows_of(GROWING, {("FewShot", 8): 0.8, ("Language", 8): 0.845})
    assert failed_claims(rows) == ["never falls"]
    summary = scaling_depth.summary(rows)
    np.testing.assert_allclose(summary["deepest fall"], 0.05)
    np.testing.assert_allclose(summary["FewShot, depth 1"], 0.135)
    np.testing.assert_allclose(summary["FewShot, depth 8"], 0.835)


def test_half_a_sweep_is_not_yet_run():
    rows = rows_of(GROWING)
    half = rows[(rows["encoding"] == "FewShot") | (rows["seed"] == 0)].drop(rows.index[0])
    assert verdicts(half)["FewShot"] == "reproduced"
    assert verdicts(half)["Identity"] == "not yet run"
    assert len(figures_of(scaling_depth, half)) == 2
    assert set(verdicts(None).values()) == {"not yet run"}


def check_tiny(rows):
    assert len(scaling_depth.summary(rows)) == 3
    for figure in figures_of(scaling_depth, rows).values():
        assert {trace.name for trace in figure.data} == {"Orthogonal"}
    assert set(verdicts(rows).values()) == {"not yet run"}, "one seed has no interval"
    two_seeds = pd.concat([rows, rows.assign(seed=1, run=rows["run"] + "-1")])
    claims = claims_of(scaling_depth, two_seeds)
    assert [claim.name for claim in claims if claim.holds is not None] == ["Orthogonal: depth"]


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert rows["run"].nunique() == 108
    assert not rows["diverged"].any()
    # From 4 to 8 layers, all but the hardest encoding lose a little, but less than the margin.
    assert set(verdicts(rows).values()) == {"reproduced"}
    assert 0.002 < scaling_depth.summary(rows)["deepest fall"] < 0.01
