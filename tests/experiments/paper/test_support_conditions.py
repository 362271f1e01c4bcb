import functools
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.layers import probe_column
from recombine.experiments.paper import support_conditions
from recombine.experiments.paper.decodability import (
    ALL_TASKS_PROBE,
    HEADLINE,
    LAYERS,
    PUBLIC_PROBE,
)
from recombine.experiments.plots import figures_of
from recombine.experiments.untrained import untrained_column
from recombine.parts.models.mlp import MLP
from recombine.parts.recipes.fast import Fast
from recombine.sweeps.run import describe, identity, paper_fast, structure
from recombine.training.task_sampler import make_split
from tests.experiments.neutral import NeutralClaim, claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "support_conditions.parquet"
AS_PUBLISHED = {
    "module missing": 0.3,
    "unmixed, as published": 0.5,
    "unmixed halves": 0.4,
    "unspanned khot": 0.2,
}
CORRELATIONS = (
    "six supports: pre2",
    "six supports: pre1",
    "six supports: pre3",
    "all supports: pre2",
)


@functools.cache
def split_facts(run):
    return make_split(run, run.family.tasks())[1]


def rows_of(scores, decoded=lambda score: 0.5 + 0.4 * score, before=lambda score: 0.9):
    """Rows of the full sweep with really drawn supports and made-up scores by support name.

    `decoded` computes the decodability of a trained student from its score, `before` that of its
    untrained network. Every seed has another score.
    """
    rng = np.random.default_rng(0)
    rows = []
    for run in support_conditions.runs("full"):
        facts = split_facts(replace(run, model=MLP((8,)), recipe=Fast(), diagnostics=()))
        columns = {"run": identity(run), "step": run.num_steps, "test/r2": 0.0}
        row = columns | describe(run) | facts
        name = support_conditions.support_name(row)
        if name in ("spanned", "unspanned"):
            name = f"{name} {run.family.weights}"
        score = scores.get(name, 0.95) + 1e-3 * rng.normal()
        if run.diagnostics:
            value = (decoded if run.recipe.learning_rate else before)(score)
            for probe, layer in itertools.product((PUBLIC_PROBE, ALL_TASKS_PROBE), LAYERS):
                row[probe_column(probe, layer)] = value + 1e-3 * rng.normal()
        rows.append(row | {"test/r2": score})
    return pd.DataFrame(rows)


def verdicts(rows, only=""):
    """The verdicts by claim; `only` selects the claims whose names contain this text."""
    if rows is None:
        return {claim.name: claim.verdict for claim in claims_of(support_conditions, None)}
    final = support_conditions.prepare(rows)
    declared = [claim for claim in support_conditions.CLAIMS if only in claim.name]
    judged = [NeutralClaim(**vars(claim.judge(final))) for claim in declared]
    return {claim.name: claim.verdict for claim in judged}


def test_supports_have_the_properties_of_their_names_and_the_size_of_their_baseline():
    runs = support_conditions.runs("full")
    assert len(runs) == 8 * (2 * (6 + 3) + 4)
    assert len(set(map(structure, runs))) == 4
    recipe = paper_fast().recipe
    trained = [run for run in runs if run.recipe.learning_rate]
    assert {(run.recipe, run.num_steps) for run in trained} == {(recipe, 8000)}
    assert len(trained) == 8 * (6 + 3 + 4)
    final = support_conditions.prepare(rows_of({}))
    facts = final.groupby("trained on", observed=True).first()
    sizes = facts["support/num_train"]
    for name in ("module missing", "unmixed, as published", "random", "balanced"):
        assert sizes[name] == 522
    assert sizes["unmixed halves"] == sizes["random, fewer"] == sizes["balanced, fewer"] == 184
    assert sizes["spanned"] == sizes["unspanned"] == 64
    assert facts["support/num_test"]["spanned"] == facts["support/num_test"]["unspanned"] == 52
    assert facts.index[~facts["support/connected"]].tolist() == [
        "unmixed, as published",
        "module missing",
        "unmixed halves",
    ]
    assert facts.index[~facts["support/compositional"]].tolist() == ["module missing"]
    assert not facts["support/spanned"]["unspanned"]
    balanced = ["balanced", "balanced, fewer", "spanned", "unspanned"]
    assert facts.loc[balanced, "support/balanced"].all()


def test_verdicts_both_ways():
    as_published = verdicts(rows_of(AS_PUBLISHED))
    assert set(as_published.values()) == {"reproduced"}
    assert len(as_published) == 12
    for support, score, claim in (
        ("module missing", 0.85, "module missing"),
        ("balanced", 0.8, "balanced"),
        ("unspanned discrete", 0.8, "unspanned, drawn"),
    ):
        changed = verdicts(rows_of(AS_PUBLISHED | {support: score}), only=claim)
        assert changed[claim] == "not reproduced"
    uneven = rows_of(AS_PUBLISHED | {"balanced": 0.93})
    uneven.loc[(uneven["support"] == "Balanced") & (uneven["seed"] == 0), "test/r2"] = 0.75
    verdict = verdicts(uneven, only="balanced")["balanced"]
    assert verdict == "inconclusive", "the mean is within .05, but not the interval"
    rows = rows_of({"random": 0.1, "balanced": 0.1, "module missing": -3.0})
    for claim in ("balanced", "module missing"):
        assert verdicts(rows, only=claim)[claim] == "not reproduced", "the baseline must learn"


def test_the_correlation_is_judged_with_the_untrained_control():
    confounded = rows_of(AS_PUBLISHED, decoded=lambda score: score, before=lambda score: score)
    judged = verdicts(confounded, only="supports")
    assert judged.pop("probe of all tasks, six supports") == "not reproduced"
    assert judged == dict.fromkeys(CORRELATIONS, "confounded")
    constant = rows_of(AS_PUBLISHED, decoded=lambda score: 0.9)
    assert set(verdicts(constant, only="supports").values()) == {"not reproduced"}
    no_failures = verdicts(rows_of({"module missing": 0.8}), only="supports: pre2")
    assert set(no_failures.values()) == {"not reproduced"}, "no student fails"
    rows = rows_of(AS_PUBLISHED)
    without_baselines = verdicts(rows[rows["recipe.learning_rate"] > 0])
    assert {without_baselines[name] for name in CORRELATIONS} == {"not yet run"}
    assert without_baselines["module missing"] == "reproduced"


def test_every_probed_student_has_its_own_baseline():
    rows = rows_of(AS_PUBLISHED, decoded=lambda score: score, before=lambda score: 0.5 * score)
    final = support_conditions.prepare(rows)
    assert len(final) == (rows["recipe.learning_rate"] > 0).sum(), "no student is listed twice"
    probed = final[final["support"] != "Listed"]
    baseline = untrained_column(HEADLINE)
    means = probed.groupby("trained on", observed=True)[["test/r2", baseline]].mean()
    assert means[baseline].to_numpy() == pytest.approx(
        0.5 * means["test/r2"].to_numpy(), abs=0.01
    ), "baselines have the support of their students"
    summary = support_conditions.summary(rows)
    assert summary["r squared, six supports"] > 0.99
    assert summary["r squared, six supports, untrained"] > 0.99


def test_an_incomplete_sweep_is_judged_in_part():
    rows = rows_of(AS_PUBLISHED)
    without_pairs = verdicts(rows[rows["support"] != "Listed"])
    assert without_pairs["unspanned, all ones"] == "not yet run"
    assert without_pairs["unmixed halves"] == "reproduced"
    assert set(verdicts(None).values()) == {"not yet run"}


def check_tiny(rows):
    summary = support_conditions.summary(rows)
    assert len(summary) == 13, "all students score below 0, which explains nothing"
    assert set(figures_of(support_conditions, rows)) == {
        "supports",
        "spanned",
        "decodability",
        "decodability_untrained",
        "decodability_probe_of_all_tasks",
    }
    final = support_conditions.prepare(rows)
    probed = final[final["support"] != "Listed"]
    assert probed[[HEADLINE, untrained_column(HEADLINE)]].notna().all(axis=None)


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    measured = verdicts(rows)
    assert measured["module missing"] == measured["unmixed halves"] == "reproduced"
    assert measured["balanced"] == measured["balanced, fewer"] == "reproduced"
    by_support = support_conditions.prepare(rows).groupby("trained on", observed=True)
    sizes = by_support["support/num_train"].agg(["min", "max"])
    for group in (
        ["random", "balanced", "module missing", "unmixed, as published"],
        ["random, fewer", "balanced, fewer", "unmixed halves"],
        ["spanned", "unspanned"],
    ):
        assert np.ptp(sizes.loc[group].to_numpy()) == 0, "compared supports have equal sizes"
    scores = support_conditions.summary(rows)
    for law in ("khot", "discrete"):
        difference = scores[f"spanned ({law})"] - scores[f"unspanned ({law})"]
        assert difference > 0.15, "drawn weights do not replace the span condition"
