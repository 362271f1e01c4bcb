from pathlib import Path

import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import module_frequency
from recombine.sweeps.run import describe, identity, structure
from recombine.training.task_sampler import make_split

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "module_frequency.parquet"


def rows_of(rare, popular):
    """Rows of the full sweep, whose supports are really drawn: balanced ones score .9, others as given."""
    made = []
    for run in module_frequency.runs("full"):
        score = 0.9
        if isinstance(run.support, rc.Unpopular):
            score = rare(run.support.num_tasks)
        if isinstance(run.support, rc.Popular):
            score = popular
        facts = make_split(run, run.family.tasks())[1]
        made.append(
            {
                "run": identity(run),
                "step": run.num_steps,
                **describe(run),
                **facts,
                "test/r2": score,
            }
        )
    return pd.DataFrame(made)


def claims_of(rows):
    return {claim.name: claim for claim in module_frequency.claims(rows)}


def test_each_support_has_a_balanced_one_of_its_size():
    runs = module_frequency.runs("full")
    assert len(set(map(structure, runs))) == 1
    assert len(runs) == 3 * (6 + 3 + 9)
    rows = rows_of(lambda n: 0.5, 0.9)
    last = module_frequency._last(rows)
    for field in ("support.num_tasks", "support.num_popular"):
        for _, cell in last.groupby(field):
            assert len(module_frequency._fair(last, cell["support/num_train"].mean())) == 3, (
                "one for each seed"
            )
    rarest = last[last["support.num_tasks"] == 1]
    assert rarest["support/least_count"].unique().tolist() == [1]
    assert rarest["support/num_train"].unique().tolist() == [469 + 2]
    assert module_frequency._fair(last, 471)["support/num_train"].unique().tolist() == [471]
    assert last[last["support"] == "Balanced"]["support/balanced"].all()


def test_verdicts_both_ways():
    found = claims_of(rows_of(lambda n: 0.9 - 0.5 / n, 0.88))
    assert found["rare modules"].measured == pytest.approx(0.5)
    assert found["more of their tasks"].measured == pytest.approx(0.5 - 0.5 / 32)
    assert found["4 popular modules"].measured == pytest.approx(0.02)
    assert {claim.verdict for claim in found.values()} == {"reproduced"}
    even = claims_of(rows_of(lambda n: 0.9, 0.6))
    assert {claim.verdict for claim in even.values()} == {"not reproduced"}
    assert {claim.verdict for claim in module_frequency.claims(None)} == {"not yet run"}
    rows = rows_of(lambda n: 0.9 - 0.5 / n, 0.88)
    found = claims_of(rows[rows["support.num_tasks"].fillna(1) == 1])
    assert (found["rare modules"].verdict, found["more of their tasks"].verdict) == (
        "reproduced",
        "not yet run",
    )
    found = claims_of(rows[rows["support"] != "Popular"])
    assert found["4 popular modules"].verdict == "not yet run"


def test_no_harm_is_none_for_the_whole_interval():
    rows = rows_of(lambda n: 0.9 - 0.5 / n, 0.88)
    rows.loc[(rows["support"] == "Popular") & (rows["seed"] == 0), "test/r2"] = 0.83
    found = claims_of(rows)["4 popular modules"]
    assert found.measured < module_frequency.DROP < found.interval[1]
    assert found.verdict == "not reproduced"


def test_who_learns_nothing_shows_nothing():
    rows = rows_of(lambda n: 0.1, 0.1)
    rows["test/r2"] = 0.1
    assert not any(claim.holds for claim in claims_of(rows).values())


def test_tiny_runs_end_to_end():
    rows = rc.train(module_frequency.runs("tiny"))
    lines = module_frequency.by_module(module_frequency._last(rows))
    assert len(lines) == rows["run"].nunique() * 6 - 2 == 34, (
        "all have unseen tasks, but for the two popular modules"
    )
    assert lines["share"].between(0, 1).all()
    assert set(module_frequency.figures(rows)) == {"rare", "popular", "modules"}


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert set(rows["run"]) <= set(map(identity, module_frequency.runs(table.meta()["scale"])))
    found = claims_of(rows)
    assert {claim.verdict for claim in found.values()} == {"reproduced"}
    assert found["rare modules"].measured > 0.1
