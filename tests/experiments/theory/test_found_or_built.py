from pathlib import Path

import jax
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.plots import figures_of
from recombine.experiments.theory import found_or_built
from recombine.experiments.theory._theorem_31 import network
from recombine.experiments.theory.found_or_built import BUILT, FEW, RANDOM, WIDE
from recombine.parts.models.built import Built
from recombine.parts.models.mlp import MLP
from recombine.parts.prng import new_key
from recombine.parts.relu_products import widths
from recombine.sweeps.run import describe, identity, structure
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "found_or_built.parquet"


def test_published_claims_are_separate_from_our_questions():
    published = {claim.name for claim in claims_of(found_or_built, None) if not claim.ours}
    assert published == {"exists", "found", "found, wide", "simple"}, (
        "the paper says that a network exists, that training finds it, and that it is simple"
    )


@pytest.mark.parametrize("scale", ["small", "full"])
def test_random_starts_have_the_shape_of_the_construction(scale):
    runs = found_or_built.runs(scale)
    for run in {run.model: run for run in runs if isinstance(run.model, Built)}.values():
        world = jax.eval_shape(run.family.init, new_key(0))

        def build(world, run=run):
            return network(run.family, world, run.model.pieces)

        built = jax.eval_shape(build, world)
        shape = tuple(layer.weight.shape[0] for layer in built.layers[:-1])
        assert any(isinstance(other.model, MLP) and other.model.widths == shape for other in runs)


def test_the_full_sweep_is_few_programs():
    runs = found_or_built.runs("full")
    assert len(set(map(structure, runs))) == 12, (
        "noise and learning rate are not part of the structure"
    )
    assert len(runs) == len(set(runs)) == 4 * (6 + 2) * 2 * 3
    built = [run for run in runs if isinstance(run.model, Built)]
    assert {run.model.noise for run in built} == {0, 0.1, 0.3, 1}
    assert all(run.model.num_hot == run.family.num_hot for run in built)
    shapes = {widths(run.family.d_input, run.family.d_hidden, run.model.pieces) for run in built}
    assert shapes == {
        run.model.widths for run in runs if isinstance(run.model, MLP) and run.model.widths[1] == 8
    }
    training = {
        (run.recipe.weight_decay, run.num_steps, run.num_tasks, run.num_points) for run in runs
    }
    assert len(training) == 1


def rows_of(scores, neurons=lambda start, width: width, remaining=1.5, factors=None):
    """Made-up rows of the small sweep.

    `scores` are by start, or by start and held-out fraction. `remaining` is the share of the
    squared noise that training leaves.
    """
    rows = pd.DataFrame(
        {"run": identity(run), "step": 1, **describe(run), "seen/r2": 0.9}
        for run in found_or_built.runs("small")
    )
    rows["Compression/neurons"] = 1
    final = found_or_built.prepare(rows)
    starts, fractions, sizes = final["start"], final["frac_test"], final["model.width"]
    rows["test/r2"] = [
        scores.get((start, frac_test), scores.get(start, 0.9))
        for start, frac_test in zip(starts, fractions, strict=True)
    ]
    rows["Compression/neurons"] = list(map(neurons, starts, sizes))
    # Training moves every start by a distance of .2.
    rows["Distance/distance"] = (0.04 + remaining * rows["model.noise"] ** 2) ** 0.5
    rows[found_or_built.FACTORS] = starts.map(factors or {}).fillna(1.0)
    return rows


BEFORE = found_or_built.BEFORE
FAILING = {f"{RANDOM}, untrained": -0.5}


def claims_by_name(rows):
    return {claim.name: claim for claim in claims_of(found_or_built, rows)}


def test_if_training_prefers_the_simple_solution_all_claims_hold():
    scores = FAILING | {BEFORE: 0.995, BUILT: 0.997, RANDOM: 0.996, WIDE: 0.998}
    claims = claims_by_name(rows_of(scores, neurons=lambda start, width: 50, remaining=0.2))
    assert {claim.verdict for claim in claims.values()} == {"reproduced"}
    assert claims["kept"].measured == pytest.approx(0.002)
    assert claims["comes back"].measured == pytest.approx(0.2)
    assert claims["simple"].measured == pytest.approx(1)
    assert claims["one solution"].measured == pytest.approx(0)


def test_if_it_does_not_only_existence_holds():
    scores = FAILING | {BEFORE: 0.995, BUILT: 0.9, (BUILT, FEW): 0.4, RANDOM: 0.8, WIDE: 0.8}
    rows = rows_of(
        scores, lambda start, width: width if start == WIDE else 50, factors={RANDOM: 0.5}
    )
    claims = claims_by_name(rows)
    assert {name for name, claim in claims.items() if claim.verdict == "reproduced"} == {"exists"}
    assert claims["kept, few"].measured == pytest.approx(-0.595)
    assert claims["comes back"].measured == pytest.approx(1.5)
    assert claims["simple"].measured == pytest.approx(196 / 50)
    assert claims["one solution"].measured == pytest.approx(1)
    assert claims["sum of parts"].measured == pytest.approx(-0.5)


def test_if_the_control_succeeds_no_claim_holds():
    scores = {BEFORE: 0.995, BUILT: 0.997, RANDOM: 0.996, WIDE: 0.998}
    claims = claims_by_name(rows_of(scores, neurons=lambda start, width: 50, remaining=0.2))
    assert not any(claim.verdict == "reproduced" for claim in claims.values())


def test_needed_neurons_of_untrained_networks_are_not_counted():
    rows = rows_of(FAILING)
    rows.loc[rows["model"] == "MLP", "seen/r2"] = 0.2
    claims = claims_by_name(rows)
    assert claims["simple"].verdict == claims["one solution"].verdict == "not yet run"
    assert claims["kept"].verdict != "not yet run"


def test_an_unfinished_sweep_is_judged_where_rows_exist():
    rows = rows_of(FAILING | {BEFORE: 0.995})
    only_built = claims_by_name(rows[rows["model"] == "Built"].drop(columns="model.widths"))
    assert only_built["kept"].measured is not None
    assert only_built["found"].verdict == "not yet run"
    only_random = claims_by_name(
        rows[rows["model"] == "MLP"].drop(columns=["model.noise", "model.pieces"])
    )
    assert {claim.verdict for name, claim in only_random.items() if name != "one solution"} == {
        "not yet run"
    }
    assert {claim.verdict for claim in claims_of(found_or_built, None)} == {"not yet run"}
    assert list(claims_by_name(None)) == list(only_built)


def check_tiny(rows):
    values = found_or_built.summary(rows)
    assert values[f"{BEFORE}: distance"] < 1e-6
    assert values[f"{BUILT}: distance"] > 0
    assert list(figures_of(found_or_built, rows)) == ["many", "few", "neurons", "distance", "loss"]
    assert {claim.verdict for claim in claims_of(found_or_built, rows)} == {"not yet run"}, (
        "one seed has no interval"
    )


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert set(rows["run"]) == set(map(identity, found_or_built.runs(table.meta()["scale"])))
    assert not rows["diverged"].any()
    assert {claim.name: claim.verdict for claim in claims_of(found_or_built, rows)} == {
        "exists": "reproduced",
        "kept": "reproduced",
        "kept, few": "not reproduced",  # it fits the train tasks better and the others worse
        "comes back": "not reproduced",
        "found": "not reproduced",
        "found, wide": "reproduced",
        "simple": "not reproduced",
        "one solution": "not reproduced",
        "sum of parts": "inconclusive",
    }
