from pathlib import Path

import numpy as np
import pandas as pd

import recombine as rc
from recombine.experiments.paper import scaling_depth
from recombine.sweeps.run import describe, identity, structure

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "scaling_depth.parquet"
ENCODINGS = ["Identity", "Orthogonal", "Language", "InvertibleNN", "IntervalShuffle", "FewShot"]


def rows_of(scores, late=()):
    """Rows of the full sweep with these scores by depth, and others at the depths of the encodings in `late`."""
    made = []
    for run in scaling_depth.runs("full"):
        name, depth = type(run.encoding).__name__, len(run.model.widths)
        value = dict(late).get((name, depth), scores[depth]) + 0.01 * run.seed
        scored = {"test/r2": value, "seen/r2": value}
        made.append({"run": identity(run), "step": run.num_steps, **describe(run), **scored})
    return pd.DataFrame(made)


GROWING = {1: 0.1, 2: 0.5, 3: 0.7, 4: 0.8, 6: 0.85, 8: 0.9}


def verdicts(rows):
    return {claim.name.split(":")[0]: claim.verdict for claim in scaling_depth.claims(rows)}


def test_the_sweep_is_the_one_that_is_promised():
    runs = scaling_depth.runs("full")
    assert len(set(runs)) == len(runs) == 108
    assert len(set(map(structure, runs))) == 36
    assert {run.model.widths for run in runs} == {(256,) * depth for depth in GROWING}
    assert {type(run.encoding).__name__ for run in runs} == set(ENCODINGS)


def test_depth_helps_where_it_does():
    claims = scaling_depth.claims(rows_of(GROWING))
    assert {claim.verdict for claim in claims} == {"reproduced"}
    np.testing.assert_allclose([claim.measured for claim in claims], [0.8] * 6 + [0])


def test_deeper_is_worse_where_it_is():
    late = {
        ("FewShot", 8): 0.8,
        ("Language", 8): 0.845,
    }  # falls of .05, and of .005 within the spread of .01
    rows = rows_of(GROWING, late)
    found = verdicts(rows)
    assert [name for name, verdict in found.items() if verdict == "not reproduced"] == [
        "never falls"
    ]
    told = scaling_depth.summary(rows)
    np.testing.assert_allclose(told["deepest fall"], 0.05)
    np.testing.assert_allclose((told["FewShot, depth 1"], told["FewShot, depth 8"]), (0.11, 0.81))


def test_half_a_sweep_is_not_yet_run():
    rows = rows_of(GROWING)
    half = rows[(rows["encoding"] == "FewShot") | (rows["seed"] == 0)].drop(rows.index[0])
    assert verdicts(half)["FewShot"] == "reproduced"
    assert verdicts(half)["Identity"] == "not yet run"
    assert len(scaling_depth.figures(half)) == 2
    assert set(verdicts(None).values()) == {"not yet run"}


def test_tiny_runs_end_to_end():
    rows = rc.train(
        [run for run in scaling_depth.runs("tiny") if isinstance(run.encoding, rc.Orthogonal)]
    )
    assert len(scaling_depth.summary(rows)) == 3
    assert all(
        {trace.name for trace in made.data} == {"Orthogonal"}
        for made in scaling_depth.figures(rows).values()
    )
    assert [claim.name for claim in scaling_depth.claims(rows) if claim.holds is not None] == [
        "Orthogonal: depth"
    ]
    assert set(verdicts(rows).values()) == {"not yet run"}, "one seed has no interval"


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert set(rows["run"]) == set(map(identity, scaling_depth.runs(table.meta()["scale"])))
    assert not rows["diverged"].any()
    # From 4 to 8 layers of one recipe, all but the hardest lose a little, and more than seeds differ.
    assert {name for name, verdict in verdicts(rows).items() if verdict != "reproduced"} == {
        "never falls"
    }
    assert 0.002 < scaling_depth.summary(rows)["deepest fall"] < 0.01
