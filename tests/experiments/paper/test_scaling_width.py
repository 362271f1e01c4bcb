from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import scaling_width
from recombine.sweeps.run import describe, identity, structure

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "scaling_width.parquet"
ENCODINGS = ["Identity", "Orthogonal", "Language", "InvertibleNN", "IntervalShuffle", "FewShot"]


def rows_of(score, scale="full"):
    """Rows of a sweep with made-up scores, `score(encoding, width, depth, seed)`."""
    made = []
    for run in scaling_width.runs(scale):
        value = score(
            type(run.encoding).__name__, run.model.widths[0], len(run.model.widths), run.seed
        )
        made.append(
            {"run": identity(run), "step": run.num_steps, **describe(run), "test/r2": value}
        )
    return pd.DataFrame(made)


def growing(encoding, width, depth, seed):
    return 0.1 * np.log2(width / 128) + 0.01 * seed + 0.1 * (depth == 4)


def claims_of(rows):
    return {claim.name: claim for claim in scaling_width.claims(rows)}


def test_the_sweep_is_the_published_one():
    runs = scaling_width.runs("full")
    assert len(set(runs)) == len(runs) == 180
    assert len(set(map(structure, runs))) == 60
    assert {(run.family.num_modules, run.family.num_hot, run.frac_test) for run in runs} == {
        (16, 3, 0.25)
    }
    assert {len(run.model.widths) for run in runs} == {2, 4}
    assert {run.model.widths[0] for run in runs} == {128, 256, 512, 1024, 2048}
    pairs = {(type(run.encoding).__name__, run.num_steps, run.recipe.learning_rate) for run in runs}
    assert pairs == {(name, 5000, 0.05) for name in ENCODINGS[:-1]} | {("FewShot", 16_000, 0.015)}


def test_growth_is_found_for_each_encoding_and_told_by_its_smallest_gain():
    claims = claims_of(rows_of(lambda e, w, d, s: growing(e, w, d, s) * (1 if d == 4 else 0.5)))
    assert {claim.verdict for claim in claims.values()} == {"reproduced"}
    assert claims.pop("never falls").measured == 0
    assert list(claims) == [f"{name}: width" for name in ENCODINGS]
    np.testing.assert_allclose(
        [claim.measured for claim in claims.values()], 0.2
    )  # the other depth gains .4
    np.testing.assert_allclose(claims["Identity: width"].interval, (0.2, 0.2))


def test_a_fall_of_one_encoding_at_one_depth_is_told_apart_from_the_gain():
    def fallen(encoding, width, depth, seed):
        fall = 0.25 if (encoding, width, depth) == ("Language", 1024, 4) else 0.0
        return growing(encoding, width, depth, seed) - fall

    rows = rows_of(fallen)
    claims = claims_of(rows)
    assert [name for name, claim in claims.items() if claim.verdict == "not reproduced"] == [
        "never falls"
    ]
    np.testing.assert_allclose(
        (claims["never falls"].measured, *claims["never falls"].interval), 0.15
    )
    assert scaling_width.summary(rows)["deepest fall"] == pytest.approx(0.15)  # below width 512


@pytest.mark.parametrize("score", [lambda e, w, d, s: 0.5, lambda e, w, d, s: 0.2 * s + w / 1e5])
def test_no_gain_and_one_within_the_spread_of_seeds_are_not_reproduced(score):
    claims = claims_of(rows_of(score))
    assert claims.pop("never falls").holds
    assert {claim.verdict for claim in claims.values()} == {"not reproduced"}


def test_half_a_sweep_is_not_yet_run():
    rows = rows_of(growing)
    half = rows[(rows["encoding"] == "Identity") | (rows["model.widths"] == "128x128")]
    verdicts = [claim.verdict for claim in scaling_width.claims(half)]
    assert verdicts == ["reproduced"] + ["not yet run"] * 6
    lacking = rows.drop(rows.index[0])
    assert scaling_width.claims(lacking)[0].verdict == "not yet run"
    assert {claim.verdict for claim in scaling_width.claims(None)} == {"not yet run"}
    assert len(scaling_width.summary(half)) == 12 + 1
    assert len(scaling_width.figures(half)) == 2


def test_tiny_runs_end_to_end():
    kept = [
        run
        for run in scaling_width.runs("tiny")
        if isinstance(run.encoding, rc.Language | rc.FewShot)
    ]
    rows = rc.train(kept)
    assert len(scaling_width.summary(rows)) == 5
    (figure,) = scaling_width.figures(rows).values()
    assert {trace.name for trace in figure.data} == {"Language", "FewShot"}
    run = {claim.name for claim in scaling_width.claims(rows) if claim.holds is not None}
    assert run == {"Language: width", "FewShot: width"}


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert set(rows["run"]) == set(map(identity, scaling_width.runs(table.meta()["scale"])))
    assert not rows["diverged"].any()
    claims = claims_of(rows)
    assert {name for name, claim in claims.items() if not claim.holds} == {"never falls"}, (
        "Orthogonal does, by .0002"
    )
    assert 0 < claims.pop("never falls").measured < 0.0005
    assert all(claim.measured > 0.04 for claim in claims.values())
    assert all(
        claim.interval[0] <= claim.measured <= claim.interval[1] for claim in claims.values()
    )
