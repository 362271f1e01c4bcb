import jax
import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.limits import _recursion, recursion
from recombine.experiments.plots import figures_of
from recombine.parts.models.recursive import Recursive
from recombine.sweeps.run import describe, identity
from recombine.training.program import initialize
from tests.experiments.neutral import claims_of

SCORES = {
    recursion.RECURSIVE: 0.7,
    recursion.ONE_STEP: 0.4,
    recursion.PLAIN: 0.5,
    recursion.DIRECT: 0.2,
    recursion.UNTIED: 0.3,
    recursion.CLASSES: 0.68,
}
ARMS = tuple(SCORES)


def rows_of(early=0.6, seen=0.9, **changes):
    """Rows of the small sweep with these accuracies; `early` of the final one at each evaluation
    before the last.
    """
    scores = SCORES | {getattr(recursion, name): value for name, value in changes.items()}
    rows = []
    num_seeds = len(_recursion.SEEDS["small"])
    for i, run in enumerate(recursion.runs("small")):
        final = scores[ARMS[i // num_seeds]] + 0.001 * run.seed
        for step in range(200, run.num_steps + 1, run.num_steps // run.num_evals):
            score = final if step == run.num_steps else early * final
            row = {"run": identity(run), "step": step, **describe(run)}
            rows.append(row | {"test/accuracy": score, "seen/accuracy": seen})
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(recursion, rows)}


def test_all_claims_can_hold():
    found = verdicts(rows_of(early=0.9))
    assert len(found) == 10
    assert set(found.values()) == {"reproduced"}


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        ({"DIRECT": 0.65}, {"recursion beats direct answers", "deep supervision"}),
        ({"PLAIN": 0.68}, {"inner recursion"}),
        ({"ONE_STEP": 0.69}, {"carried state of the recursion"}),
        ({"UNTIED": 0.7}, {"different layers"}),
        ({"CLASSES": 0.5}, {"new classes of solutions"}),
        ({"seen": 0.3}, {"trained enough"}),
        ({"DIRECT": 0.9}, {"hard enough"}),
        ({"early": 0.1}, {"equal compute, direct", "equal compute, plain"}),
    ],
)
def test_each_claim_can_fail(changes, failing):
    found = verdicts(rows_of(**{"early": 0.9} | changes))
    failed = {name for name, verdict in found.items() if verdict == "not reproduced"}
    assert failing <= failed
    if failing == {"inner recursion"}:
        assert failed <= failing | {"equal compute, plain"}


def test_the_arms_have_equal_parameters_or_equal_compute():
    models = [run.model for run in recursion.runs("full")[::3]][:5]
    recursive, one_step, plain, direct, untied = models
    assert _recursion.passes(recursive) == 2 * (3 + 2) * 7
    assert _recursion.passes(untied) == pytest.approx(_recursion.passes(recursive), rel=0.02)
    assert _recursion.passes(direct) == _recursion.passes(plain) == 6
    assert (one_step.num_steps, direct.num_steps, untied.num_steps) == (1, 1, 1)
    shapes = []
    for model in (recursive, one_step, plain, direct):
        run = rc.Run(family=rc.Sudoku(), encoding=rc.Language(), model=model, diagnostics=())
        leaves = jax.tree.leaves(jax.eval_shape(lambda run=run: initialize(run)[0]))
        shapes.append(sorted(leaf.shape for leaf in leaves))
    assert all(own == shapes[0] for own in shapes)


@pytest.mark.parametrize("gradient", ["last", "all"])
def test_passes_are_counted_by_hand(gradient):
    # Two cycles of three updates and one answer: 8 passes; backward through one or both cycles.
    model = Recursive(num_updates=3, num_cycles=2, num_layers=1, gradient=gradient)
    assert _recursion.passes(model) == 8 + 2 * (4 if gradient == "last" else 8)


def test_scores_at_equal_compute_are_interpolated():
    rows = pd.DataFrame(
        {
            "run": ["a", "a", "b", "b"],
            "passes": [10.0, 20.0, 40.0, 80.0],
            "score": [0.1, 0.2, 0.5, 0.6],
        }
    )
    found = _recursion.at_equal_compute(rows, "score")
    assert found.to_dict() == {"a": 0.2, "b": 0.5}, "before the first evaluation it is the first"
    rows["passes"] = [10.0, 60.0, 40.0, 80.0]
    assert _recursion.at_equal_compute(rows, "score").to_dict() == pytest.approx(
        {"a": 0.2, "b": 0.55}
    )


def check_tiny(rows):
    drawn = figures_of(recursion, rows)
    assert {"compute", "cells", "grade", "solving"} <= set(drawn)
    texts = [trace for trace in drawn["solving"].data if trace.type == "scatter"]
    num_steps = 3  # 1, 2 and 4
    assert sum(len(trace.text) for trace in texts) == num_steps * 16
    assert {trace.name for trace in texts} == {"given", "right", "wrong"}
    assert set(recursion.prepare(rows)["arm"]) == set(ARMS)
    assert {claim.verdict for claim in claims_of(recursion, rows)} == {"not yet run"}
    last = recursion.prepare(rows).query("is_final").set_index("arm")
    own = "SupervisionSteps/test/steps=2/accuracy"
    assert np.isfinite(last.loc[recursion.RECURSIVE, own])
