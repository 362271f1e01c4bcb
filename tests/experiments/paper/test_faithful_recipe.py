from pathlib import Path

import pandas as pd

import recombine as rc
from recombine.experiments.paper import faithful_recipe
from recombine.planning.bench import fidelity
from recombine.sweeps.run import describe, identity

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "faithful_recipe.parquet"
REFERENCE, FAST = faithful_recipe.REFERENCE, faithful_recipe.FAST


def rows_of(
    fast_dead=0.0, fast_rank=30.0, fast_decodability=0.97, earlier_dead=0.6, seen=0.991, fall=0.0
):
    """Rows of the full sweep with made-up numbers; the reference has 1% dead units, rank 30 and decodability .97."""
    made = []
    for run in faithful_recipe.runs("full"):
        row = {
            "run": identity(run),
            "step": run.num_steps,
            "meta/device": "NVIDIA H200",
            "meta/seconds": 2.5,
        }
        row |= describe(run)
        kind = faithful_recipe._trained_by(pd.Series({"recipe.vector_rate": float("nan")} | row))
        values = {REFERENCE: (0.01, 30.0, 0.97, 0.99)}.get(
            kind, (fast_dead, fast_rank, fast_decodability, seen)
        )
        if kind in (faithful_recipe.EARLIER, faithful_recipe.DEFAULT):
            values = (earlier_dead, *values[1:])
        dead, rank, decodability, score = values
        name = "feedforward" if row["model"] == "Transformer" else "hidden"
        for i in range(
            2 if row["family"] == "PreferenceGrid" else 3 if row["family.num_modules"] == 8 else 4
        ):
            row |= {
                f"activity/{name}{i}/dead": dead if i == 2 else 0.0,
                f"activity/{name}{i}/rank": rank,
            }
            row[f"LinearDecodability-paper/pre{i}/test/r2"] = decodability if i else 0.0
        r2 = (
            0.998 - fall * faithful_recipe.STEPS.index(run.num_steps)
            if kind == faithful_recipe.LONGER
            else 0.998
        )
        metric = "accuracy" if row["family"] == "PreferenceGrid" else "r2"
        made.append(row | {f"seen/{metric}": score, f"test/{metric}": r2})
    return pd.DataFrame(made)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in faithful_recipe.claims(rows)}


def test_every_run_belongs_to_a_student_and_a_recipe():
    last = faithful_recipe.students(rows_of())
    counts = last.groupby(["student", "trained by"]).size().to_dict()
    large = fidelity.LARGE
    assert counts[large, REFERENCE] == 3
    assert counts[large, FAST] == 12
    assert counts[large, faithful_recipe.LONGER] == 4 * 6
    assert counts[large, faithful_recipe.EARLIER] == counts[large, faithful_recipe.DEFAULT] == 3
    assert {student for student, _ in counts} == set(faithful_recipe.STUDENTS)
    assert sum(counts.values()) == len(faithful_recipe.runs("full")) == 96
    judged = {run.seed for run in faithful_recipe.fast("full")} | {
        run.seed for run in faithful_recipe.longer()
    }
    assert max(judged) < 100, "tuning used seeds from 100"


def test_a_faithful_recipe_passes_and_the_control_fails_its_check():
    assert set(verdicts(rows_of()).values()) == {"reproduced"}
    assert set(verdicts(None).values()) == {"not yet run"}
    found = verdicts(rows_of(earlier_dead=0.02))
    assert found["control: earlier fast"] == found["control: earlier default"] == "not reproduced"


def test_each_check_can_fail():
    checks = {"dead units", "effective rank", "decodability", "longer training"}
    found = verdicts(rows_of(fast_dead=0.06, fast_rank=22.0, fast_decodability=0.91, fall=0.0006))
    assert {
        found[name] for name in checks | {"transformer: dead units", "FewShot: dead units"}
    } == {"not reproduced"}
    assert found["score"] == found["seconds"] == "reproduced"
    above = verdicts(rows_of(fast_decodability=1.03, seen=0.98))
    assert above["decodability"] == "not reproduced", "in either direction"
    others = {above[f"{student}: dead units"] for student in faithful_recipe.STUDENTS[1:]}
    assert others == {"not reproduced"}, "fewer dead units do not excuse a lower score"
    assert above["dead units"] == above["longer training"] == "reproduced"


def test_what_is_within_the_limits_passes():
    found = verdicts(rows_of(fast_dead=0.049, fast_rank=23.0, fast_decodability=0.925, fall=4e-4))
    assert set(found.values()) == {"reproduced"}


def test_the_worst_layer_counts():
    rows = rows_of()
    fast = (
        rows["recipe.vector_rate"].eq(0.1)
        & rows["num_steps"].eq(8000)
        & rows["encoding"].eq("Identity")
    )
    rows.loc[fast, "activity/hidden3/dead"] = 0.3
    assert verdicts(rows)["dead units"] == "not reproduced"


def test_seconds_count_on_an_h200_only():
    rows = rows_of()
    rows["meta/device"] = "cpu"
    assert verdicts(rows)["seconds"] == "not yet run"
    rows["meta/device"], rows["meta/seconds"] = "NVIDIA H200", 3.2
    assert verdicts(rows)["seconds"] == "not reproduced"


def test_tiny_runs_end_to_end():
    rows = rc.train(faithful_recipe.runs("tiny"))
    figures = faithful_recipe.figures(rows)
    assert set(figures) == {"dead", "rank", "decodability"}
    assert {trace.name for trace in figures["dead"].data if trace.showlegend is not False} >= {
        REFERENCE,
        FAST,
    }
    assert any("dead units, worst layer" in name for name in faithful_recipe.summary(rows))


def test_conclusions_from_the_committed_rows():
    rows = rc.Table(RESULTS).read()
    assert set(rows["run"]) <= set(map(identity, faithful_recipe.runs("full")))
    found = verdicts(rows)
    for name in (
        "score",
        "seconds",
        "dead units",
        "effective rank",
        "decodability",
        "longer training",
    ):
        assert found[name] == "reproduced", name
    for student in ("transformer", "preference grid", "quickstart's student"):
        assert found[f"{student}: dead units"] == "reproduced", student
    assert found["control: earlier fast"] == found["control: earlier default"] == "reproduced"
