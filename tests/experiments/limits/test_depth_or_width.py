import functools
import math

import jax
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.limits import _iso_shapes, depth_or_width
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity
from recombine.training.program import initialize
from tests.experiments.neutral import FAILED, claims_of

SCALE = "small"
HIGH = max(depth_or_width.LEARNING_RATES[SCALE])
OPTIMA = {0: 1.0, 1: 1.0, 2: 1.0, 4: 2.0}  # the best depth of MLPs by length of the chain


@functools.cache
def listed_runs():
    """The runs of the small scale, with transformers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(depth_or_width.BLOCKS, SCALE, (1, 2, 4))
        runs = depth_or_width.runs(SCALE)
    return [(run, identity(run), describe(run)) for run in runs]


def rows_of(optima=None, residual=2.0, transformer=None, one=1.0, wrong_rate=0.0):
    """Rows of a world with these best depths. The higher rate is better on train tasks.

    On test tasks the lower rate is better by `wrong_rate`. Around the best depth, scores fall by .1
    for every doubling or halving.
    """
    optima = OPTIMA if optima is None else optima
    transformer = {1: 1.0, 2: 1.0, 4: 2.0} if transformer is None else transformer
    rows = []
    for run, name, columns in listed_runs():
        row = {"run": name, "step": run.num_steps, **columns}
        length = run.family.max_length if row["family"] == "Chain" else 0
        depth = row.get("model.num_layers", len(getattr(run.model, "widths", ())))
        best = optima[length]
        if row["model"] != "MLP":
            best = transformer[length]
        elif row["model.residual"]:
            best = residual
        if length == 1:
            best = one
        score = 0.8 - 0.1 * abs(math.log2(depth / best)) + 0.001 * run.seed / 100
        is_high = run.recipe.learning_rate == HIGH
        row["seen/r2"] = score if is_high else score - 0.2
        row["test/r2"] = row[f"test/length={length}/r2"] = score + wrong_rate * (not is_high)
        rows.append(row)
    return pd.DataFrame(rows)


def verdicts(rows):
    return {claim.name: claim.verdict for claim in claims_of(depth_or_width, rows)}


def test_claims_hold_where_longer_chains_need_more_depth():
    verdict_of = verdicts(rows_of())
    assert len(verdict_of) == 8
    assert set(verdict_of.values()) == {"reproduced"}


@pytest.mark.parametrize(
    ("changes", "failing"),
    [
        (
            {"optima": OPTIMA | {4: 1.0}},
            {"MLP: interior", "MLP: deeper with length", "sums"},
        ),
        ({"optima": OPTIMA | {4: 4.0}}, {"MLP: interior"}),
        ({"optima": OPTIMA | {2: 2.0}}, {"MLP: deeper with length"}),
        ({"optima": OPTIMA | {0: 4.0}}, {"sums"}),
        ({"residual": 4.0}, {"residual", "MLP: interior"}),
        ({"transformer": {1: 1.0, 2: 2.0, 4: 4.0}}, {"transformer: interior"}),
        (
            {"one": 2.0},
            {
                f"{student}: {name}"
                for student in ("MLP", "transformer")
                for name in ("interior", "deeper with length", "chains of one")
            },
        ),
    ],
)
def test_each_claim_can_fail(changes, failing):
    verdict_of = verdicts(rows_of(**changes))
    assert {name for name, verdict in verdict_of.items() if verdict in FAILED} == failing


def test_controls_confound_an_interior_depth():
    assert verdicts(rows_of(one=2.0))["MLP: interior"] == "confounded"
    assert verdicts(rows_of(residual=4.0))["MLP: interior"] == "confounded"


def test_rates_are_chosen_on_train_tasks_of_tuning_seeds():
    """The lower rate is better on test tasks, but must not be chosen."""
    rows = rows_of(wrong_rate=0.5)
    final = depth_or_width.prepare(rows)
    assert set(final["recipe.learning_rate"]) == {HIGH}
    assert set(final["seed"]) == {0, 1, 2}
    # Train scores of the claims' own seeds do not count either.
    rows.loc[(rows["seed"] < 100) & (rows["recipe.learning_rate"] != HIGH), "seen/r2"] += 1
    assert set(depth_or_width.prepare(rows)["recipe.learning_rate"]) == {HIGH}


def test_a_shape_that_diverged_at_all_rates_is_left_out():
    rows = rows_of()
    is_lost = (rows["model"] == "MLP") & (rows["model.widths"].str.count("x") == 3)
    rows.loc[is_lost, "seen/r2"] = float("nan")
    final = depth_or_width.prepare(rows)
    assert 4 not in set(final.loc[final["student"] == "MLP", "model.depth"])


def test_shapes_have_the_same_number_of_parameters():
    counts = {}
    for run, _, _ in listed_runs():
        key = (type(run.model).__name__, getattr(run.model, "residual", None), run.family)
        number = _iso_shapes.num_parameters(run.model, run.family, run.encoding)
        counts.setdefault(key, set()).add(number)
    assert len(counts) == 8
    for numbers in counts.values():
        assert max(numbers) / min(numbers) < 1.04, "each is within 2% of the reference"


def test_parameters_are_counted_as_they_are_trained():
    runs = [run for run, _, _ in listed_runs()]
    for run in (runs[0], runs[-1]):
        leaves = jax.tree.leaves(jax.eval_shape(lambda run=run: initialize(run)[0]))
        number = _iso_shapes.num_parameters(run.model, run.family, run.encoding)
        assert number == sum(leaf.size for leaf in leaves)


def test_a_reference_that_no_width_matches_is_refused():
    run = listed_runs()[0][0]
    with pytest.raises(rc.InputError, match="choose another reference width"):
        _iso_shapes.mlps((2, 8), 8, run.family, run.encoding)


def check_tiny(rows):
    assert set(figures_of(depth_or_width, rows)) == {"mlp", "residual", "transformer"}
    assert {claim.verdict for claim in claims_of(depth_or_width, rows)} == {"not yet run"}
