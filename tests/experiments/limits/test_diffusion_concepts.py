"""The claims on rows that are made up, each both ways; the figures; and the experiment's cells."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.limits import diffusion_concepts as experiment
from recombine.reporting import gallery

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "diffusion_concepts.parquet"
IMAGE = gallery.png(np.zeros((2, 4, 4, 3)))


def cube(split, near, far, off=0.0):
    """Shares that are right at distance 1 and 2, at steps 100, 200 and 400."""
    return [
        {
            "scenes": split,
            "num_train": 4,
            "width": 32,
            "seed": seed,
            "num_steps": 400,
            "trained_for": stop,
        }
        | {
            "distance": d,
            "unseen": d > 0,
            "right": share,
            "product": share + off,
            "combination": f"large {d}",
            "judge": 0.99,
        }
        for seed in range(3)
        for d, shares in ((0, (1, 1, 1)), (1, near), (2, far))
        for stop, share in zip((100, 200, 400), shares, strict=True)
    ]


def students(scenes, told=True, off=0.0, grown=0.3):
    rng, rows = np.random.default_rng(0), []
    for seed, num, width in [(s, n, w) for s in range(3) for n in (18, 72) for w in (16, 32)]:
        scores = {
            "expected/rank": 0.8,
            "expected/auroc": 0.9,
            "control/rank": 0.0,
            "control/auroc": 0.5,
        }
        scores |= {"rare/rank": 0.5, "rare/auroc": 0.6}
        if not told:
            scores |= {"expected/rank": 0.4, "expected/auroc": 0.55}
        share = (0.3 if told else 0.5) + grown * (num == 72) + grown * (width == 32) + 0.01 * seed
        image = IMAGE if (seed, width) == (0, 16) else ""
        for i in range(30):
            right = float(np.clip(share + 0.1 * rng.normal(), 0, 1))
            rows.append(
                {"scenes": scenes, "num_train": num, "width": width, "seed": seed, "num_steps": 400}
                | {"trained_for": 400, "distance": 1, "unseen": i > 5, "right": right, "product": right + off}
                | {"combination": f"small red {i}", "judge": 0.99, "images": image, "control": rng.normal()}
                | {"expected": 1 - right if told else rng.normal()}
                | scores
            )  # fmt: skip
    return rows


GOOD = [
    *cube("star", (0.6, 0.9, 1), (0.1, 0.4, 0.9)),
    *cube("failing", (0.1, 0.1, 0.2), (0.1, 0.1, 0.2)),
]
GOOD += [*cube("joined", (0.1, 0.2, 0.3), (0, 0, 0)), *students("things"), *students("crowd")]
BAD = [
    *cube("star", (0.1, 0.4, 0.9), (0.6, 0.9, 1), 0.3),
    *cube("failing", (0.1, 0.4, 0.9), (0.6, 0.9, 1)),
]
BAD += [*cube("joined", (1, 1, 1), (1, 1, 1)), *students("things", False, 0.3, -0.1)]
BAD += students("crowd", False, 0.3, -0.1)


@pytest.fixture(scope="module")
def good():
    return pd.DataFrame(GOOD)


def test_every_claim_holds_where_it_is_planted_and_fails_where_the_opposite_is(good):
    made, other = experiment.claims(good), experiment.claims(pd.DataFrame(BAD))
    assert len({claim.name for claim in made}) == len(made) == 21
    for claim, wrong in zip(made, other, strict=True):
        assert claim.holds is True, claim
        assert wrong.holds is False, wrong
        low, high = claim.interval
        assert low <= claim.measured <= high


def test_a_control_that_ranks_makes_the_claim_fail(good):
    rows = good.assign(**{"control/rank": 0.8})
    held = {claim.name: claim.holds for claim in experiment.claims(rows)}
    assert held["things: rank"] is False
    assert held["things: auroc"] is True
    same = {
        claim.name: claim.holds
        for claim in experiment.claims(good.assign(control=good["expected"]))
    }
    assert same["things: rank, all models"] is same["crowd: auroc, all models"] is False
    assert same["things: rank"] is True


def test_no_rows_and_one_seed_judge_nothing(good):
    assert all(claim.holds is None and claim.measured is None for claim in experiment.claims(None))
    one = {claim.name: claim for claim in experiment.claims(good[good["seed"] == 0])}
    assert all(claim.holds is None for claim in one.values())
    assert one["things: rank"].measured == pytest.approx(0.8)


def test_the_product_of_nothing_is_no_evidence(good):
    held = {
        claim.name: claim.holds for claim in experiment.claims(good.assign(right=0.0, product=0.0))
    }
    assert [held[name] for name in ("product", "things: product", "crowd: product")] == [None] * 3


def test_what_never_emerges_comes_a_doubling_after_the_last_step():
    rows = pd.DataFrame(cube("star", (0.6, 0.9, 1), (0.1, 0.2, 0.3)))
    (order,) = [claim for claim in experiment.claims(rows) if claim.name == "order"]
    assert order.measured == pytest.approx(np.log2(800 / 100))
    assert order.holds is True


def test_the_failing_split_is_told_by_large_ones_that_are_unseen_in_both(good):
    """What is small was seen apart from the rest, in the failing split too."""
    mine = good["scenes"].eq("failing") & good["unseen"]

    def judged(right, names):
        found = good.assign(
            combination=good["combination"].mask(mine, names), right=good["right"].mask(mine, right)
        )
        return {claim.name: claim for claim in experiment.claims(found)}

    assert judged(0.0, "small one")["failing split"].measured is None
    assert judged(0.0, "large one")["failing split"].measured is None, "the star did not make it"
    assert judged(0.0, good["combination"])["failing split"].measured == pytest.approx(
        (1 + 0.9) / 2
    )
    assert judged(1.0, good["combination"])["failing split"].holds is False
    assert judged(0.0, "small one")["told apart"].holds is True


def test_where_nothing_emerges_there_is_no_order():
    rows = pd.DataFrame(cube("star", (0.1, 0.2, 0.3), (0.1, 0.2, 0.3)))
    (order,) = [claim for claim in experiment.claims(rows) if claim.name == "order"]
    assert order.measured is None


def test_figures_show_images_beside_what_was_expected(good):
    drawn = experiment.figures(good)
    names = [
        f"{scenes}-{kind}"
        for scenes in ("things", "crowd")
        for kind in ("scaling", "images", "expected")
    ]
    assert set(drawn) == {"star-emerging", "failing-emerging", "joined-emerging", *names}
    sheet = drawn["things-images"].layout
    assert len(sheet.images) == 24
    assert sheet.images[0].source.startswith("data:image/png")
    first, last = sheet.annotations[0].text, sheet.annotations[-1].text
    assert "expected 1 of 24" in first
    assert "expected 24 of 24" in last
    alone = good[
        (good["scenes"] == "things")
        & (good["num_train"] == 18)
        & (good["width"] == 16)
        & (good["seed"] == 0)
    ]
    assert set(experiment.figures(alone)) == {"things-images", "things-expected"}, (
        "one student tells no trend"
    )
    told = experiment.summary(good)
    assert told["things, 18 trained, width 16: rank correlation"] == pytest.approx(0.8)
    assert told["judge of crowd"] == pytest.approx(0.99)


def test_cells_are_three_seeds_of_a_grid_and_small_takes_what_is_there():
    full = experiment.cells("full")
    assert len(full) == 3 * (3 + 9 + 2)
    assert {cell["seed"] for cell in full} == {0, 1, 2}
    small = experiment.cells("small")
    assert {(cell["num_steps"], cell["judged"]) for cell in small} == {(0, 0)}
    grid = [(cell["scenes"], cell["num_train"], cell["width"]) for cell in full]
    assert {cell["scenes"] for cell in full if cell["shown"]} == {"things", "crowd"}
    assert all((cell["scenes"], cell["num_train"], cell["width"]) in grid for cell in small)


def test_conclusions_from_the_committed_rows():
    table = rc.Table(RESULTS)
    rows = table.read()
    assert rows["run"].nunique() == len(experiment.cells(table.meta()["scale"]))
    assert (rows["made/judge"] > 0.99).all(), "a judge that errs would be part of every number"
    found = {claim.name: claim.verdict for claim in experiment.claims(rows)}
    assert set(found.values()) == {"reproduced", "not reproduced"}
    assert {name for name, verdict in found.items() if verdict == "not reproduced"} == {
        "failing split",  # a size is learnt from its spread
        "told apart",  # seeds differ more
        *(
            f"things: {name}"
            for name in ("rank", "auroc", "rank beyond counting", "auroc beyond counting")
        ),
        *(f"{scenes}: rank, all models" for scenes in experiment.SCENES),
        "crowd: rank",
    }
