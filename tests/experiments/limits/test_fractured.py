import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from recombine.experiments.limits import _adaptation, _subnetworks, fractured
from recombine.experiments.limits.fractured import BUILT, FAITHFUL, OLD, RANDOM
from recombine.experiments.plots import figures_of
from recombine.parts.prng import new_key
from recombine.parts.relu_products import perceptron_from_layers
from recombine.sweeps.run import structure
from recombine.training.program import initialize
from tests.experiments.neutral import FAILED, claims_of


@dataclasses.dataclass(frozen=True)
class Scaled:
    """The answer is (z_0 + 2 z_1) x, for x in [0, 1]."""

    num_modules: int = 2

    def tasks(self):
        return np.array([[1, 0], [0, 1], [1, 1]])

    def weigh(self, key, row):
        return row.astype(jnp.float32)

    def sample(self, world, key, task, n):
        x = jax.random.uniform(key, (n, 1))
        return x, x * (task[0] + 2 * task[1])


def slope_net(slope):
    """A network whose answer is `slope` x whatever the code."""
    first = (jnp.array([[0.0, 0.0, 1.0]]), jnp.zeros(1))
    return perceptron_from_layers(first, (jnp.array([[slope]]), jnp.zeros(1)))


def test_a_score_is_one_for_the_right_network_only():
    rows = np.array([[0, 1]])
    scores = [
        float(_adaptation.score(Scaled(), None, slope_net(slope), new_key(0), rows, 200))
        for slope in (2.0, 1.0)
    ]
    assert scores[0] == pytest.approx(1)
    assert scores[1] < 0, "for x in [0, 1], the error x has a larger square than the variance of 2x"


def test_a_learning_curve_begins_before_training_and_reaches_the_task():
    rows = np.array([[0, 1]])
    budget = _adaptation.Budget(200, 0.03, 4, 4)
    curve = _adaptation.learning_curve(
        Scaled(), None, slope_net(1.0), rows, rows, new_key(0), budget, 10
    )
    first = _adaptation.score(Scaled(), None, slope_net(1.0), jax.random.split(new_key(0))[0], rows)
    assert len(curve) == 11
    assert float(curve[0]) == pytest.approx(float(first))
    assert curve[-1] > 0.99


def test_samples_are_counted_until_the_target():
    assert _adaptation.samples_needed([0.1, 0.5, 0.9, 0.7], 0.8, 100) == 200
    assert _adaptation.samples_needed([0.9, 0.5], 0.8, 100) == 0
    assert _adaptation.samples_needed([0.1, 0.2, 0.3], 0.8, 100) == 200, "a lower bound"
    assert _adaptation.Budget(10, num_tasks=3, num_points=5).samples_per_step == 15


def test_rows_with_a_module_have_known_modules_beside_it_only():
    np.testing.assert_array_equal(_adaptation.rows_with(Scaled(), 1, []), [[0, 1]])
    np.testing.assert_array_equal(_adaptation.rows_with(Scaled(), 1, [0]), [[0, 1], [1, 1]])


def test_students_never_see_the_last_module():
    for scale in ("tiny", "small"):
        last = fractured.RUNS[scale].family.num_modules - 1
        support = fractured.base_run(scale, 1).support
        modules = {m for tasks in support.combinations + support.held_out for m in tasks}
        assert modules == set(range(last))
    assert fractured.base_run("tiny", 1).support != fractured.base_run("tiny", 2).support


def test_both_recipes_share_one_program():
    """The recipes differ in knobs only, so a learning rate that matches R2 can be searched for."""
    runs = [run for kind in (FAITHFUL, OLD) for run in fractured.recipe_runs("small", 0, kind)]
    assert len(runs) == 1 + len(fractured.RATES)
    assert len(set(map(structure, runs))) == 1
    assert {run.recipe.vector_rate for run in runs} == {0.1, 1.0}


def inside_of(nets, worlds):
    family = fractured.RUNS["tiny"].family
    return fractured._inside("tiny", [0, 1], _subnetworks.stack(family, nets, worlds))


def test_the_construction_and_random_features_solve_their_part():
    built = [fractured._built("tiny", seed) for seed in (0, 1)]
    inside = inside_of(*zip(*built, strict=True))
    assert inside["test/r2"].min() > 0.5
    random = [fractured._random_features("tiny", seed) for seed in (0, 1)]
    untrained = [initialize(fractured.base_run("tiny", seed))[:2] for seed in (0, 1)]
    scores = [inside_of(*zip(*nets, strict=True))["seen/r2"] for nets in (random, untrained)]
    assert (scores[0] > scores[1] + 0.1).all(), "the readout is fitted"
    hidden = [net.layers[0].weight for net, _ in (random[0], untrained[0])]
    np.testing.assert_array_equal(*hidden)


def rows_of(effect=1.0, gap=0.0001, first=0.1, random=3.0):
    """Made-up rows; `effect` scales the differences between old and faithful students."""
    rows = []
    for cell in fractured.cells("small"):
        kind = cell["student"]
        is_old = effect * (kind == OLD)
        for seed in range(8):
            samples = {OLD: 1000 * 2**effect, RANDOM: 1000 * 2**random}.get(kind, 1000)
            row = cell | {
                "run": kind,
                "step": len(rows),
                "seed": seed,
                "seen/r2": 0.95,
                "test/r2": 0.9,
                "dead": 0.1 + 0.3 * is_old,
                "decodability": 0.9 - 0.2 * is_old,
                "factorization": 0.9 - 0.2 * is_old,
                "others after ablation": 0.5 - 0.2 * is_old,
                "own": 0.1,
                "samples": samples * (1 + 0.01 * seed),
                "new/first": 1.0 if kind == BUILT else first,
            }
            if kind in (FAITHFUL, OLD):
                row["difference"] = gap
            rows.append(row)
    return pd.DataFrame(rows)


def failing(**changes):
    judged = claims_of(fractured, rows_of(**changes))
    return {claim.name for claim in judged if claim.verdict in FAILED}


def test_each_claim_can_fail():
    assert {claim.verdict for claim in claims_of(fractured, rows_of())} == {"reproduced"}
    about_old = {"dead units", "decodability", "factorization", "ablation", "new module"}
    assert failing(effect=0.0) == about_old
    assert failing(first=0.6) == {"new before training"}
    assert failing(random=-1.0) == {"random features"}


def test_only_pairs_with_equal_scores_are_compared():
    rows = rows_of(gap=0.0006)
    assert set(fractured.prepare(rows)["student"]) == {BUILT, RANDOM}
    judged = {claim.name: claim.verdict for claim in claims_of(fractured, rows)}
    assert judged["new module"] == "not yet run"


def check_tiny(rows):
    assert len(rows) == 3
    assert rows["samples"].between(0, 25 * 128).all()
    assert rows["decodability"].max() <= 1
    assert len(figures_of(fractured, rows)) == 3
