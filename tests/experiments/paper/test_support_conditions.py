from pathlib import Path

import numpy as np
import pandas as pd

import recombine as rc
from recombine.experiments.paper import support_conditions
from recombine.sweeps.run import describe, identity, structure
from recombine.training.task_sampler import make_split

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "support_conditions.parquet"


def facts_of(run):
    return make_split(run, run.family.tasks())[1]


def rows_of(scores):
    """Rows of the full sweep, whose supports are really drawn, with made-up scores by the names of the supports."""
    rows = pd.DataFrame(
        [
            {
                "run": identity(run),
                "step": run.num_steps,
                **describe(run),
                **facts_of(run),
                "test/r2": 0.0,
            }
            for run in support_conditions.runs("full")
        ]
    )
    last = support_conditions._last(rows)
    keys = last["trained on"].astype(str) + np.where(
        last["support"] == "Listed", " " + last["law"], ""
    )
    return rows.assign(**{"test/r2": keys.map(lambda key: scores.get(key, 0.9)).to_numpy()})


AS_PUBLISHED = {
    "module missing": 0.3,
    "unmixed, as published": 0.5,
    "unmixed halves": 0.4,
    "unspanned khot": 0.2,
}


def verdicts(rows):
    return {claim.name: claim.verdict for claim in support_conditions.claims(rows)}


def test_supports_are_what_they_are_called_and_as_large_as_their_contrast():
    runs = support_conditions.runs("full")
    assert len(runs) == 3 * (6 + 3 + 4)
    assert len(set(map(structure, runs))) == 3
    last = support_conditions._last(rows_of({}))
    facts = last.groupby("trained on", observed=True).first()
    sizes = facts["support/num_train"]
    assert (
        sizes["module missing"]
        == sizes["unmixed, as published"]
        == sizes["random"]
        == sizes["balanced"]
        == 522
    )
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
    assert facts.loc[
        ["balanced", "balanced, fewer", "spanned", "unspanned"], "support/balanced"
    ].all()


def test_verdicts_both_ways():
    found = verdicts(rows_of(AS_PUBLISHED))
    assert set(found.values()) == {"reproduced"}
    assert len(found) == 7
    assert (
        verdicts(rows_of(AS_PUBLISHED | {"module missing": 0.85}))["module missing"]
        == "not reproduced"
    )
    assert verdicts(rows_of(AS_PUBLISHED | {"balanced": 0.8}))["balanced"] == "not reproduced"
    assert (
        verdicts(rows_of(AS_PUBLISHED | {"unspanned discrete": 0.8}))["unspanned, drawn"]
        == "not reproduced"
    )
    uneven = rows_of(AS_PUBLISHED | {"balanced": 0.88})
    uneven.loc[(uneven["support"] == "Balanced") & (uneven["seed"] == 0), "test/r2"] = 0.82
    assert verdicts(uneven)["balanced"] == "not reproduced", (
        "the mean is within .05, but not the interval"
    )
    untaught = verdicts(rows_of({"random": 0.1, "balanced": 0.1, "module missing": -3.0}))
    assert untaught["balanced"] == "not reproduced", "who learns nothing loses nothing"
    assert untaught["module missing"] == "not reproduced", "and what is below nothing is no drop"


def test_a_half_done_sweep_is_half_judged():
    rows = rows_of(AS_PUBLISHED)
    found = verdicts(rows[rows["support"] != "Listed"])
    assert found["unspanned, all ones"] == "not yet run"
    assert found["unmixed halves"] == "reproduced"
    assert set(verdicts(None).values()) == {"not yet run"}


def test_tiny_runs_end_to_end():
    rows = rc.train(support_conditions.runs("tiny"))
    assert len(support_conditions.summary(rows)) == 13
    assert set(support_conditions.figures(rows)) == {"supports", "spanned"}


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert set(rows["run"]) <= set(map(identity, support_conditions.runs(table.meta()["scale"])))
    found = verdicts(rows)
    assert found["module missing"] == found["unmixed halves"] == "reproduced"
    assert found["balanced"] == found["balanced, fewer"] == "reproduced"
    sizes = (
        support_conditions._last(rows)
        .groupby("trained on", observed=True)["support/num_train"]
        .agg(["min", "max"])
    )
    most = ["random", "balanced", "module missing", "unmixed, as published"]
    for group in (
        most,
        ["random, fewer", "balanced, fewer", "unmixed halves"],
        ["spanned", "unspanned"],
    ):
        assert np.ptp(sizes.loc[group].to_numpy()) == 0, "what is compared has equal sizes"
    scores = support_conditions.summary(rows)
    for law in ("khot", "discrete"):
        assert scores[f"unspanned ({law})"] < scores[f"spanned ({law})"] - 0.15, (
            "drawn weights do not replace the span"
        )
