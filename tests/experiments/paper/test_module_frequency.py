from pathlib import Path

import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import module_frequency
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity, structure
from recombine.training.task_sampler import make_split
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "module_frequency.parquet"


def rows_of(rare, popular):
    """Rows of the full sweep with really drawn supports: balanced supports score .9.

    Supports with rare modules score `rare(train tasks of each)`, those with popular ones `popular`.
    """
    rows = []
    for run in module_frequency.runs("full"):
        score = 0.9
        if isinstance(run.support, rc.Unpopular):
            score = rare(run.support.num_tasks)
        if isinstance(run.support, rc.Popular):
            score = popular
        _, facts = make_split(run, run.family.tasks())
        about = {"run": identity(run), "step": run.num_steps, "test/r2": score}
        rows.append(about | describe(run) | facts)
    return pd.DataFrame(rows)


def claims_by_name(rows):
    return {claim.name: claim for claim in claims_of(module_frequency, rows)}


def test_each_support_has_a_balanced_one_of_its_size():
    runs = module_frequency.runs("full")
    assert len(set(map(structure, runs))) == 1
    assert len(runs) == 8 * (6 + 3 + 9)
    final = module_frequency.prepare(rows_of(lambda n: 0.5, 0.9))
    for field in ("support.num_tasks", "support.num_popular"):
        for _, group in final.groupby(field):
            num_train = group["support/num_train"].mean()
            balanced = module_frequency.balanced_of_size(final, num_train)
            assert len(balanced) == 8, "one for each seed"
    rarest = final[final["support.num_tasks"] == 1]
    assert rarest["support/least_count"].unique().tolist() == [1]
    assert rarest["support/num_train"].unique().tolist() == [469 + 2]
    balanced = module_frequency.balanced_of_size(final, 471)
    assert balanced["support/num_train"].unique().tolist() == [471]
    assert final[final["support"] == "Balanced"]["support/balanced"].all()


def test_verdicts_both_ways():
    rows = rows_of(lambda n: 0.9 - 0.5 / n, 0.88)
    claims = claims_by_name(rows)
    assert claims["rare modules"].measured == pytest.approx(0.5)
    assert claims["more of their tasks"].measured == pytest.approx(0.5 - 0.5 / 32)
    assert claims["4 popular modules"].measured == pytest.approx(0.02)
    assert {claim.verdict for claim in claims.values()} == {"reproduced"}
    opposite = claims_by_name(rows_of(lambda n: 0.9, 0.6))
    assert {claim.verdict for claim in opposite.values()} == {"not reproduced"}
    assert {claim.verdict for claim in claims_of(module_frequency, None)} == {"not yet run"}
    claims = claims_by_name(rows[rows["support.num_tasks"].fillna(1) == 1])
    assert claims["rare modules"].verdict == "reproduced"
    assert claims["more of their tasks"].verdict == "not yet run"
    claims = claims_by_name(rows[rows["support"] != "Popular"])
    assert claims["4 popular modules"].verdict == "not yet run"
    assert claims["rare modules"].verdict == "reproduced"


def test_no_harm_must_hold_for_the_whole_interval():
    rows = rows_of(lambda n: 0.9 - 0.5 / n, 0.88)
    rows.loc[(rows["support"] == "Popular") & (rows["seed"] == 0), "test/r2"] = 0.7
    claim = claims_by_name(rows)["4 popular modules"]
    assert claim.measured < module_frequency.CLEAR_DROP < claim.interval[1]
    assert claim.verdict == "inconclusive"


def test_nothing_holds_if_the_balanced_baseline_does_not_learn():
    rows = rows_of(lambda n: 0.1, 0.1)
    rows["test/r2"] = 0.1
    assert not any(claim.holds for claim in claims_by_name(rows).values())


def check_tiny(rows):
    by_module = module_frequency.by_module(module_frequency.prepare(rows))
    # All modules are in held-out tasks, except the two popular ones.
    assert len(by_module) == rows["run"].nunique() * 6 - 2 == 34
    assert by_module["share"].between(0, 1).all()
    assert set(figures_of(module_frequency, rows)) == {"rare", "popular", "modules"}


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    claims = claims_by_name(rows)
    assert {claim.verdict for claim in claims.values()} == {"reproduced"}
    assert claims["rare modules"].measured > 0.1
