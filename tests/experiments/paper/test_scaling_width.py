from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.paper import scaling_width
from recombine.experiments.plots import figures_of
from recombine.sweeps.run import describe, identity, structure
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "scaling_width.parquet"
ENCODINGS = ["Identity", "Orthogonal", "Language", "InvertibleNN", "IntervalShuffle", "FewShot"]


def rows_of(score, scale="full"):
    """Rows of a sweep with made-up scores, `score(encoding, width, depth, seed)`."""
    rows = []
    for run in scaling_width.runs(scale):
        encoding, widths = type(run.encoding).__name__, run.model.widths
        value = score(encoding, widths[0], len(widths), run.seed)
        run_columns = {"run": identity(run), "step": run.num_steps, **describe(run)}
        rows.append(run_columns | {"test/r2": value})
    return pd.DataFrame(rows)


def growing(encoding, width, depth, seed):
    return 0.1 * np.log2(width / 128) + 0.01 * seed + 0.1 * (depth == 4)


def claims_by_name(rows):
    return {claim.name: claim for claim in claims_of(scaling_width, rows)}


def measured_claims(rows):
    claims = claims_of(scaling_width, rows)
    return {claim.name for claim in claims if claim.verdict != "not yet run"}


def test_the_sweep_is_the_published_one():
    runs = scaling_width.runs("full")
    assert len(set(runs)) == len(runs) == 420
    num_seeds = {run.model.widths[0]: set() for run in runs}
    for run in runs:
        num_seeds[run.model.widths[0]].add(run.seed)
    assert {width: len(seeds) for width, seeds in num_seeds.items()} == {
        **dict.fromkeys((128, 256, 512, 1024), 8),
        2048: 3,
    }
    assert len(set(map(structure, runs))) == 60
    splits = {(run.family.num_modules, run.family.num_hot, run.frac_test) for run in runs}
    assert splits == {(16, 3, 0.25)}
    assert {len(run.model.widths) for run in runs} == {2, 4}
    assert {run.model.widths[0] for run in runs} == {128, 256, 512, 1024, 2048}
    recipes = {
        (type(run.encoding).__name__, run.num_steps, run.recipe.learning_rate) for run in runs
    }
    assert recipes == {(name, 8000, 0.02) for name in ENCODINGS[:-1]} | {("FewShot", 16_000, 0.015)}


def test_growth_is_found_for_each_encoding_and_the_smallest_gain_is_reported():
    def halved_at_depth_2(encoding, width, depth, seed):
        return growing(encoding, width, depth, seed) * (1 if depth == 4 else 0.5)

    claims = claims_by_name(rows_of(halved_at_depth_2))
    assert {claim.verdict for claim in claims.values()} == {"reproduced"}
    assert claims.pop("never falls").measured < 0, "every step is a rise"
    assert claims.pop("2048").measured == pytest.approx(0.05), "at depth 4 it is .1"
    assert list(claims) == [f"{name}: width" for name in ENCODINGS]
    gains = [claim.measured for claim in claims.values()]
    np.testing.assert_allclose(gains, 0.15)  # up to width 1024; at depth 4 the gain is .3
    np.testing.assert_allclose(claims["Identity: width"].interval, (0.15, 0.15))


def test_width_2048_must_be_above_1024_for_every_encoding_depth_and_seed():
    def lower(encoding, width, depth, seed):
        is_lower = (encoding, width, depth) == ("Language", 2048, 4)
        return growing(encoding, width, depth, seed) - 0.1 * is_lower * (1 + seed)

    claims = claims_by_name(rows_of(lower))
    failed = [name for name, claim in claims.items() if not claim.holds]
    assert failed == ["2048"]
    assert claims["2048"].measured == pytest.approx(-0.1)
    assert claims["2048"].interval == pytest.approx((-0.2, 0))
    rows = rows_of(growing)
    incomplete = rows[(rows["encoding"] != "Language") | (rows["model.widths"] != "2048x2048")]
    assert claims_by_name(incomplete)["2048"].verdict == "not yet run"


def test_a_fall_of_one_encoding_at_one_depth_does_not_change_the_gains():
    def with_fall(encoding, width, depth, seed):
        fall = 0.25 if (encoding, width, depth) == ("Language", 512, 4) else 0.0
        return growing(encoding, width, depth, seed) - fall

    rows = rows_of(with_fall)
    claims = claims_by_name(rows)
    failed = [name for name, claim in claims.items() if claim.verdict == "not reproduced"]
    assert failed == ["never falls"]
    never_falls = claims["never falls"]
    np.testing.assert_allclose((never_falls.measured, *never_falls.interval), 0.15)
    assert scaling_width.summary(rows)["deepest fall"] == pytest.approx(0.15)  # below width 256


@pytest.mark.parametrize("score", [lambda e, w, d, s: 0.5, lambda e, w, d, s: 0.2 * s + w / 1e5])
def test_no_gain_and_one_within_the_spread_of_seeds_are_not_reproduced(score):
    claims = claims_by_name(rows_of(score))
    assert claims.pop("never falls").holds
    assert {claim.verdict for claim in claims.values()} == {"not reproduced"}


def test_half_a_sweep_is_not_yet_run():
    rows = rows_of(growing)
    half = rows[(rows["encoding"] == "Identity") | (rows["model.widths"] == "128x128")]
    verdicts = [claim.verdict for claim in claims_of(scaling_width, half)]
    assert verdicts == ["reproduced"] + ["not yet run"] * 7
    one_missing = rows.drop(rows.index[0])
    assert claims_of(scaling_width, one_missing)[0].verdict == "not yet run"
    assert {claim.verdict for claim in claims_of(scaling_width, None)} == {"not yet run"}
    assert len(scaling_width.summary(half)) == 12 + 1
    assert len(figures_of(scaling_width, half)) == 2


def check_tiny(rows):
    assert len(scaling_width.summary(rows)) == 5
    (figure,) = figures_of(scaling_width, rows).values()
    assert {trace.name for trace in figure.data} == {"Language", "FewShot"}
    seeds = [rows.assign(seed=seed, run=rows["run"] + f"-{seed}") for seed in range(3)]
    assert measured_claims(pd.concat(seeds[:2])) == set(), "two seeds are not judged"
    assert measured_claims(pd.concat(seeds)) == {"Language: width", "FewShot: width"}


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert set(rows["run"]) == set(map(identity, scaling_width.runs(table.meta()["scale"])))
    assert not rows["diverged"].any()
    claims = claims_by_name(rows)
    assert {claim.verdict for claim in claims.values()} == {"reproduced"}
    assert claims.pop("never falls").measured < 0, "every step is a rise"
    assert 0 < claims.pop("2048").measured < 0.01
    assert all(claim.measured > 0.04 for claim in claims.values())
    assert all(
        claim.interval[0] <= claim.measured <= claim.interval[1] for claim in claims.values()
    )
