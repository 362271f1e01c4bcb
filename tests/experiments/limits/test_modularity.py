from pathlib import Path

import recombine as rc
from recombine.experiments.limits import modularity
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import structure
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "modularity.parquet"


def test_all_students_have_the_same_data_and_decay():
    runs = modularity.runs("full")
    assert len(set(map(structure, runs))) == 6
    assert {(run.num_steps, run.num_tasks, run.num_points) for run in runs} == {(8000, 512, 4)}, (
        "the same data for all"
    )
    assert {run.recipe.weight_decay for run in runs} == {0.05}, "and the same decay"


def check_tiny(rows):
    summary = modularity.summary(rows)
    names = [
        *modularity.NAMES.values(),
        "MLP" + modularity.SCRAMBLED,
        "oracle" + modularity.SCRAMBLED,
    ]
    assert set(summary) == {f"{name}: tasks needed" for name in names}
    students, control = figures_of(modularity, rows).values()
    assert {trace.name for trace in students.data} == set(modularity.NAMES.values())
    assert {trace.name for trace in control.data} == {*names[-2:], "MLP", "oracle"}
    assert not any(claim.holds for claim in claims_of(modularity, rows)), "20 steps are not enough"


def test_conclusions_from_the_committed_rows():
    rows = rc.Table(RESULTS).read()
    assert rows["run"].nunique() == 90
    assert {claim.name: claim.verdict for claim in claims_of(modularity, rows)} == {
        "not needed": "reproduced",
        "saves data": "reproduced",
        "wrong structure": "reproduced",
    }
    needed = modularity.tasks_needed(modularity.prepare(rows))
    assert needed["oracle"] == needed["hypernetwork"] == 14, "the fewest tasks tried are enough"
    scrambled = needed["MLP" + modularity.SCRAMBLED]
    assert 40 < needed["MLP"] < scrambled < needed["hypernetwork (LayerNorm)"]
    seen = modularity.prepare(rows).groupby("student")["seen/r2"].mean()
    assert seen["hypernetwork (LayerNorm)"] < 0.95 < 0.999 < seen["hypernetwork"], (
        "LayerNorm removes the scale of a task"
    )
    assert {claim.verdict for claim in claims_of(modularity, None)} == {"not yet run"}
