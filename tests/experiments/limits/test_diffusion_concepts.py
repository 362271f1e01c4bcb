"""Claims on synthetic rows that support and contradict them; figures; and cells."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.experiments.limits import diffusion_concepts as experiment
from recombine.experiments.plots import figures_of
from recombine.reporting import gallery
from tests.experiments.limits.images.small import use_small
from tests.experiments.neutral import claims_of

RESULTS = Path(__file__).parents[3] / "docs" / "results" / "diffusion_concepts.parquet"
IMAGE = gallery.png(np.zeros((2, 4, 4, 3)))

prepare_tiny = use_small  # the U-Net takes half a minute to compile


def check_tiny(rows):
    assert len(rows) == 108, "a row for each combination"
    is_unseen = rows["made/unseen"].astype(bool)
    assert is_unseen.sum() == 8
    assert (rows.loc[~is_unseen, "made/distance"] == 0).all()
    assert rows[["made/right", "made/judge"]].stack().between(0, 1).all()
    unseen = rows[is_unseen]
    assert np.isfinite(unseen[["made/expected", "made/control", "made/rare"]]).all(axis=None)
    assert unseen["made/images"].str.startswith("iVBOR").all()
    assert rows["made/combination"].iloc[0] == "small red disc"


def cube(split, near, far, product_error=0.0):
    """Rows with shares of correct images at distances 1 and 2, after 100, 200 and 400 steps."""
    rows = []
    for seed in range(3):
        for distance, shares in ((0, (1, 1, 1)), (1, near), (2, far)):
            for step, share in zip((100, 200, 400), shares, strict=True):
                student = {"scenes": split, "num_train": 4, "width": 32, "seed": seed}
                training = {"num_steps": 400, "trained_for": step, "judge": 0.99}
                combination = {"distance": distance, "unseen": distance > 0}
                combination["combination"] = f"large {distance}"
                accuracy = {"right": share, "product": share + product_error}
                rows.append(student | training | combination | accuracy)
    return rows


GOOD_SCORES = {
    "expected/rank": 0.8,
    "expected/auroc": 0.9,
    "control/rank": 0.0,
    "control/auroc": 0.5,
    "rare/rank": 0.5,
    "rare/auroc": 0.6,
}
BAD_SCORES = GOOD_SCORES | {"expected/rank": 0.4, "expected/auroc": 0.55}


def students(scenes, predicted=True, product_error=0.0, gain=0.3):
    """Rows of 12 students; `gain` is what more combinations and width each add to the accuracy."""
    rng = np.random.default_rng(0)
    rows = []
    for seed, num_train, width in itertools.product(range(3), (18, 72), (16, 32)):
        share = 0.3 if predicted else 0.5
        share += gain * (num_train == 72) + gain * (width == 32) + 0.01 * seed
        student = {"scenes": scenes, "num_train": num_train, "width": width, "seed": seed}
        student |= {"num_steps": 400, "trained_for": 400, "judge": 0.99}
        student |= GOOD_SCORES if predicted else BAD_SCORES
        student["images"] = IMAGE if (seed, width) == (0, 16) else ""
        for number in range(30):
            right = float(np.clip(share + 0.1 * rng.normal(), 0, 1))
            row = {"distance": 1, "unseen": number > 5, "combination": f"small red {number}"}
            row |= {"right": right, "product": right + product_error, "control": rng.normal()}
            row["expected"] = 1 - right if predicted else rng.normal()
            rows.append(student | row)
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


def test_every_claim_holds_on_rows_that_support_it_and_fails_on_the_opposite(good):
    made, other = claims_of(experiment, good), claims_of(experiment, pd.DataFrame(BAD))
    assert len({claim.name for claim in made}) == len(made) == 21
    for claim, wrong in zip(made, other, strict=True):
        assert claim.holds is True, claim
        assert wrong.holds is False, wrong
        low, high = claim.interval
        assert low - 1e-9 <= claim.measured <= high + 1e-9


def test_a_control_that_ranks_makes_the_claim_fail(good):
    rows = good.assign(**{"control/rank": 0.8})
    held = {claim.name: claim.verdict == "reproduced" for claim in claims_of(experiment, rows)}
    assert held["things: rank"] is False
    assert held["things: auroc"] is True
    same = {
        claim.name: claim.verdict == "reproduced"
        for claim in claims_of(experiment, good.assign(control=good["expected"]))
    }
    assert same["things: rank, all models"] is same["crowd: auroc, all models"] is False
    assert same["things: rank"] is True


def test_without_rows_or_with_one_seed_claims_are_not_yet_run(good):
    assert all(
        claim.holds is None and claim.measured is None for claim in claims_of(experiment, None)
    )
    claims_of_one_seed = {
        claim.name: claim for claim in claims_of(experiment, good[good["seed"] == 0])
    }
    assert {claim.verdict for claim in claims_of_one_seed.values()} == {"not yet run"}
    assert claims_of_one_seed["things: rank"].measured == pytest.approx(0.8)


def test_the_product_claim_needs_correct_images(good):
    no_correct_image = good.assign(right=0.0, product=0.0)
    claims = {claim.name: claim for claim in claims_of(experiment, no_correct_image)}
    for name in ("product", "things: product", "crowd: product"):
        assert claims[name].holds is None, claims[name]
        assert claims[name].verdict != "reproduced"


def test_a_combination_that_never_emerges_counts_as_one_doubling_after_the_last_step():
    rows = pd.DataFrame(cube("star", (0.6, 0.9, 1), (0.1, 0.2, 0.3)))
    (order,) = [claim for claim in claims_of(experiment, rows) if claim.name == "order"]
    assert order.measured == pytest.approx(np.log2(800 / 100))
    assert order.holds is True


def test_the_failing_split_is_judged_on_large_objects_that_are_held_out_in_both(good):
    """Small objects vary in the other attributes in the failing split, too."""
    mine = good["scenes"].eq("failing") & good["unseen"]

    def judged(right, names):
        rows = good.assign(
            combination=good["combination"].mask(mine, names), right=good["right"].mask(mine, right)
        )
        return {claim.name: claim for claim in claims_of(experiment, rows)}

    assert judged(0.0, "small one")["failing split"].measured is None
    assert judged(0.0, "large one")["failing split"].measured is None, (
        "the star has no such combination"
    )
    assert judged(0.0, good["combination"])["failing split"].measured == pytest.approx(
        (1 + 0.9) / 2
    )
    assert judged(1.0, good["combination"])["failing split"].holds is False
    assert judged(0.0, "small one")["told apart"].holds is True


def test_if_nothing_emerges_there_is_no_order():
    rows = pd.DataFrame(cube("star", (0.1, 0.2, 0.3), (0.1, 0.2, 0.3)))
    (order,) = [claim for claim in claims_of(experiment, rows) if claim.name == "order"]
    assert order.measured is None


def test_figures_show_images_with_their_expected_failure(good):
    drawn = figures_of(experiment, good)
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
    assert set(figures_of(experiment, alone)) == {"things-images", "things-expected"}, (
        "one student has no trend"
    )
    values = experiment.summary(good)
    assert values["things, 18 trained, width 16: rank correlation"] == pytest.approx(0.8)
    assert values["judge of crowd"] == pytest.approx(0.99)


def test_cells_are_three_seeds_of_a_grid_and_small_uses_the_weights_of_the_package():
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
    assert (rows["made/judge"] > 0.99).all(), "errors of the judge would bias every number"
    verdict_of = {claim.name: claim.verdict for claim in claims_of(experiment, rows)}
    assert set(verdict_of.values()) == {"reproduced", "not reproduced", "inconclusive"}
    assert {name for name, verdict in verdict_of.items() if verdict != "reproduced"} == {
        "failing split",  # the networks learn size from its small variation
        "told apart",  # the difference is smaller than that between seeds
        *(
            f"things: {name}"
            for name in ("rank", "auroc", "rank beyond counting", "auroc beyond counting")
        ),
        *(f"{scenes}: rank, all models" for scenes in experiment.SCENES),
        "crowd: rank",
    }
