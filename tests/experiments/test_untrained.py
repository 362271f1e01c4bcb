import math

import pandas as pd

import recombine as rc
from recombine.experiments.untrained import untrained, untrained_column, with_untrained


def test_an_untrained_baseline_has_one_step_with_learning_rate_0():
    run = rc.Run(seed=3)
    baseline = untrained(run)
    assert (baseline.num_steps, baseline.num_evals, baseline.recipe.learning_rate) == (1, 1, 0.0)
    assert (baseline.model, baseline.encoding, baseline.seed) == (run.model, run.encoding, 3)


def test_every_student_gets_the_values_of_its_own_baseline():
    rows = [
        ("Identity", 0.1, 0, 0.01, 0.9),
        ("Identity", 0.1, 1, 0.01, 0.8),
        ("Identity", 0.1, 1, 0.0, 0.3),
        ("Identity", 0.1, 0, 0.0, 0.2),
        ("FewShot", 0.1, 0, 0.01, 0.7),
    ]
    columns = ["encoding", "frac_test", "seed", "recipe.learning_rate", "score"]
    final = pd.DataFrame(rows, columns=columns).assign(**{"model.widths": "8x8"})
    before = untrained_column("score")
    students = with_untrained(final, {before: "score", "missing": "no such column"})
    assert students["score"].tolist() == [0.9, 0.8, 0.7]
    assert students[before].tolist()[:2] == [0.2, 0.3]
    assert math.isnan(students[before].iloc[2]), "a student without a baseline"
    assert students["missing"].isna().all()
