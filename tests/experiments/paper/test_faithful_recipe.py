from pathlib import Path

import pandas as pd

import recombine as rc
from recombine.experiments.paper import faithful_recipe
from recombine.experiments.paper.faithful_recipe import DEFAULT, EARLIER, FAST, LONGER, REFERENCE
from recombine.experiments.plots import figures_of
from recombine.planning.bench import fidelity
from recombine.sweeps.run import describe, identity
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "faithful_recipe.parquet"


def rows_of(
    fast_dead=0.0, fast_rank=30.0, fast_decodability=0.97, earlier_dead=0.6, seen=0.991, fall=0.0
):
    """Rows of the full sweep with made-up numbers.

    The reference has 1% dead units, effective rank 30, decodability .97 and a seen score of .99.
    `fall` is the loss of test score from one number of steps to the next.
    """
    rows = []
    for run in faithful_recipe.runs("full"):
        row = {"run": identity(run), "step": run.num_steps, **describe(run)}
        row |= {"meta/device": "NVIDIA H200", "meta/seconds": 2.5}
        recipe = faithful_recipe._trained_by(pd.Series({"recipe.vector_rate": float("nan")} | row))
        dead, rank, decodability, score = fast_dead, fast_rank, fast_decodability, seen
        if recipe == REFERENCE:
            dead, rank, decodability, score = 0.01, 30.0, 0.97, 0.99
        elif recipe in (EARLIER, DEFAULT):
            dead = earlier_dead
        row |= layer_columns(row, dead, rank, decodability)
        test_score = 0.998
        if recipe == LONGER:
            test_score -= fall * faithful_recipe.STEPS.index(run.num_steps)
        metric = "accuracy" if row["family"] == "PreferenceGrid" else "r2"
        rows.append(row | {f"seen/{metric}": score, f"test/{metric}": test_score})
    return pd.DataFrame(rows)


def layer_columns(row, dead, rank, decodability):
    """The columns of all layers of a student; only the third one has dead units."""
    name = "feedforward" if row["model"] == "Transformer" else "hidden"
    num_layers = 4
    if row["family"] == "PreferenceGrid":
        num_layers = 2
    elif row["family.num_modules"] == 8:
        num_layers = 3
    columns = {}
    for layer in range(num_layers):
        columns[f"activity/{name}{layer}/dead"] = dead if layer == 2 else 0.0
        columns[f"activity/{name}{layer}/rank"] = rank
        columns[f"LinearDecodability-paper/pre{layer}/test/r2"] = decodability if layer else 0.0
    return columns


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(faithful_recipe, rows)}


def with_third_seed(rows):
    """The same, with a third seed of the references that have two, so that they are judged."""
    second = rows[rows["seed"] == 101]
    third = second.assign(seed=102, run=second["run"] + "-102")
    return pd.concat([rows, third], ignore_index=True)


def test_two_seeds_of_a_reference_are_too_few():
    verdict_of = verdicts(rows_of())
    too_few = {name for name, verdict in verdict_of.items() if verdict != "reproduced"}
    assert too_few == {"transformer: dead units", "preference grid: dead units"}
    assert {verdict_of[name] for name in too_few} == {"not yet run"}


def test_every_run_belongs_to_a_student_and_a_recipe():
    final = faithful_recipe.prepare(rows_of())
    counts = final.groupby(["student", "trained by"]).size().to_dict()
    large = fidelity.LARGE
    assert counts[large, REFERENCE] == 3
    assert counts[large, FAST] == 12
    assert counts[large, LONGER] == 4 * 6
    assert counts[large, EARLIER] == counts[large, DEFAULT] == 3
    assert {student for student, _ in counts} == set(faithful_recipe.STUDENTS)
    assert sum(counts.values()) == len(faithful_recipe.runs("full")) == 96
    judged = [*faithful_recipe.fast(), *faithful_recipe.longer()]
    assert max(run.seed for run in judged) < 100, "tuning used seeds from 100"


def test_a_faithful_recipe_passes_and_the_control_fails_its_check():
    assert set(verdicts(with_third_seed(rows_of())).values()) == {"reproduced"}
    assert set(verdicts(None).values()) == {"not yet run"}
    verdict_of = verdicts(rows_of(earlier_dead=0.02))
    assert (
        verdict_of["control: earlier fast"]
        == verdict_of["control: earlier default"]
        == "not reproduced"
    )


def test_each_check_can_fail():
    rows = rows_of(fast_dead=0.06, fast_rank=22.0, fast_decodability=0.91, fall=0.0006)
    verdict_of = verdicts(with_third_seed(rows))
    checks = ["dead units", "effective rank", "decodability", "longer training"]
    for name in [*checks, "transformer: dead units", "FewShot: dead units"]:
        assert verdict_of[name] == "not reproduced", name
    assert verdict_of["score"] == verdict_of["seconds"] == "reproduced"


def test_higher_decodability_and_lower_seen_scores_fail_too():
    verdict_of = verdicts(with_third_seed(rows_of(fast_decodability=1.03, seen=0.98)))
    assert verdict_of["decodability"] == "not reproduced", "in either direction"
    others = {verdict_of[f"{student}: dead units"] for student in faithful_recipe.STUDENTS[1:]}
    assert others == {"not reproduced"}, "the seen score is below that of the reference"
    assert verdict_of["dead units"] == verdict_of["longer training"] == "reproduced"


def test_values_within_the_limits_pass():
    rows = rows_of(fast_dead=0.049, fast_rank=23.0, fast_decodability=0.925, fall=4e-4)
    verdict_of = verdicts(with_third_seed(rows))
    assert set(verdict_of.values()) == {"reproduced"}


def test_the_worst_layer_counts():
    rows = rows_of()
    is_fast = rows["recipe.vector_rate"].eq(0.1) & rows["num_steps"].eq(8000)
    rows.loc[is_fast & rows["encoding"].eq("Identity"), "activity/hidden3/dead"] = 0.3
    assert verdicts(rows)["dead units"] == "not reproduced"


def test_seconds_count_on_an_h200_only():
    rows = rows_of()
    rows["meta/device"] = "cpu"
    assert verdicts(rows)["seconds"] == "not yet run"
    rows["meta/device"], rows["meta/seconds"] = "NVIDIA H200", 3.2
    assert verdicts(rows)["seconds"] == "not reproduced"


def check_tiny(rows):
    figures = figures_of(faithful_recipe, rows)
    assert set(figures) == {"dead", "rank", "decodability"}
    in_legend = {trace.name for trace in figures["dead"].data if trace.showlegend is not False}
    assert in_legend >= {REFERENCE, FAST}
    assert any("dead units, worst layer" in name for name in faithful_recipe.summary(rows))


def test_conclusions_from_the_committed_rows():
    rows = rc.Table(RESULTS).read()
    assert set(rows["run"]) <= set(map(identity, faithful_recipe.runs("full")))
    verdict_of = verdicts(rows)
    for name in ("score", "seconds", "dead units", "decodability", "longer training"):
        assert verdict_of[name] == "reproduced", name
    # The seeds differ by more than the distance from the threshold.
    assert verdict_of["effective rank"] == "inconclusive"
    assert verdict_of["quickstart's student: dead units"] == "inconclusive"
    for student in ("transformer", "preference grid"):
        assert verdict_of[f"{student}: dead units"] == "not yet run", "two reference students"
    assert (
        verdict_of["control: earlier fast"]
        == verdict_of["control: earlier default"]
        == "reproduced"
    )
