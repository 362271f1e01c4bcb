from pathlib import Path

import recombine as rc
from recombine.experiments.limits import modularity
from recombine.sweeps.run import structure

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "modularity.parquet"


def test_the_sweep_is_the_one_that_is_promised():
    runs = modularity.runs("full")
    assert len(set(map(structure, runs))) == 6
    assert {(run.num_steps, run.num_tasks, run.num_points) for run in runs} == {(5000, 512, 4)}, (
        "the same data for all"
    )
    assert {run.recipe.weight_decay for run in runs} == {0.05}, "and the same decay"


def test_tiny_runs_end_to_end():
    rows = rc.train(modularity.runs("tiny"))
    found = modularity.summary(rows)
    names = [
        *modularity.NAMES.values(),
        "MLP" + modularity.SCRAMBLED,
        "oracle" + modularity.SCRAMBLED,
    ]
    assert set(found) == {f"{name}: tasks needed" for name in names}
    students, control = modularity.figures(rows).values()
    assert {trace.name for trace in students.data} == set(modularity.NAMES.values())
    assert {trace.name for trace in control.data} == {*names[-2:], "MLP", "oracle"}
    assert not any(claim.holds for claim in modularity.claims(rows)), "20 steps are not enough"


def test_conclusions_from_the_committed_rows():
    rows = rc.Table(RESULTS).read()
    assert rows["run"].nunique() == 90
    assert {claim.name: claim.verdict for claim in modularity.claims(rows)} == {
        "not needed": "reproduced",
        "saves data": "reproduced",
        "wrong structure": "reproduced",
    }
    found = modularity.needs(rows)
    assert found["oracle"] == found["hypernetwork"] == 14, "the fewest that were tried are enough"
    assert (
        40 < found["MLP"] < found["MLP" + modularity.SCRAMBLED] < found["hypernetwork (LayerNorm)"]
    )
    seen = modularity._last(rows).groupby("student")["seen/r2"].mean()
    assert seen["hypernetwork (LayerNorm)"] < 0.95 < 0.999 < seen["hypernetwork"], (
        "the norm loses the scale of a task"
    )
    assert {claim.verdict for claim in modularity.claims(None)} == {"not yet run"}
