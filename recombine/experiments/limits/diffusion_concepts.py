"""Does a diffusion model compose concepts that it never saw together, and can we predict failures?

Claim: the accuracy on a new combination is about the product of its attributes' accuracies, so
combinations emerge in the order of their distance from training (Okawa et al. 2310.09336); and if
concepts cannot be decoded from activations, the image lacks them (arXiv 2507.07207, section 5:
published for large text-to-image models).

A small U-Net is conditioned on the code of a scene and trained on synthetic scenes (`_images`). The
cube has discs or ellipses, red or blue, small or large; each attribute is a number that varies a
little between drawings. There are three splits of the cube. `star` trains on 000 and its three
neighbors. `failing`, the control, trains on 000, 100, 010 and 111, where size never varies alone.
`joined` trains on the star again, but its networks embed all three numbers in one vector; the
networks of the other two splits sum one vector per number, as the published ones do. `things` has
6 x 6 x 3 combinations, and `crowd` has up to 3 of 12 kinds of objects at once. Models train on some
combinations and generate all of them. A judge, a classifier trained on drawings of all
combinations, says what an image shows. Probes are fitted to the activations during generation, on
train combinations; their error on a held-out combination is its expected failure. Layers are chosen
on train combinations. In the control, probes are fitted to the factors of other combinations.

Command:  recombine run diffusion_concepts --scale small
Runtime:  small: 23 s on 2 cores, with weights from the package; full: 245 s on one H200 for things
          and crowd (33 models and six others); the nine of the cube took 28 minutes on 2 busy
          cores.
Expected: held-out combinations at distance 1 are learned before those at distance 2; accuracy
          within .1 of the product; expected failure and failure have a rank correlation of .7 and
          an AUROC of .8; more combinations and wider networks help.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.experiments.claim import (
    OURS,
    DeclaredClaim,
    Frame,
    Select,
    above,
    at_least,
    at_most,
    mean_of,
    reproduces,
)
from recombine.experiments.limits._images import scores
from recombine.experiments.plots import CustomPlot, Plot, curve, custom, scatter
from recombine.reporting import gallery

CUBE = ("star", "failing", "joined")
SCENES = ("things", "crowd")
TITLE = "Concepts in a diffusion model: which combinations will it get wrong?"
PAPER = "arXiv 2507.07207, section 5"
SOURCE = OKAWA = "Okawa et al. 2310.09336"
MAX_PRODUCT_ERROR = 0.1
MIN_SPLIT_GAIN = 0.2
NAMES = {"rank": "rank correlation", "auroc": "AUROC"}
THRESHOLDS = {"rank": 0.7, "auroc": 0.8}
CHANCE = {"rank": 0.0, "auroc": 0.5}
ABOVE_ZERO = "an interval above 0"
CHANGES = {  # by size: what increases, and between which students
    "num_train": ("more train combinations", "most minus fewest train combinations"),
    "width": ("wider networks", "widest minus narrowest"),
}
PREFIX = "made/"  # of the columns that describe generated images
# Of a cell: steps and batch of training, images per combination, denoising steps, and steps of the
# judge's training. With 0 steps, the weights of the package are used.
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"num_steps": 4, "batch": 4, "per": 2, "to_image": 2, "judged": 5},
    "small": {"num_steps": 0, "batch": 0, "per": 4, "to_image": 10, "judged": 0},
    "full": {"num_steps": 3000, "batch": 64, "per": 16, "to_image": 25, "judged": 4000},
}
CUBE_SIZES = {"num_steps": 2000, "batch": 32, "per": 24, "to_image": 20, "judged": 800}
NUM_THINGS = (18, 36, 72)  # train combinations, of 108
GRID = [(split, 4, 16) for split in CUBE]  # scenes, train combinations, width
GRID += [("things", num_train, 32) for num_train in NUM_THINGS]
GRID += [("things", num_train, 64) for num_train in NUM_THINGS]
GRID += [("crowd", num_train, 64) for num_train in (40, 160)]
GRID += [("things", num_train, 16) for num_train in NUM_THINGS]
MODELS = {"tiny": [("things", 100, 8)], "small": [("things", 36, 32)], "full": GRID}
WITH_IMAGES = {("things", 32, 0), ("crowd", 64, 0)}  # scenes, width and seed, at full scale
SEEDS = {"tiny": 1, "small": 1, "full": 3}


def cells(scale: str) -> list[dict[str, Any]]:
    """Split or number of train combinations x width x seed."""
    listed = []
    for scenes, num_train, width in MODELS[scale]:
        for seed in range(SEEDS[scale]):
            cell = {"scenes": scenes, "num_train": num_train, "width": width, "seed": seed}
            cell["shown"] = scale != "full" or (scenes, width, seed) in WITH_IMAGES
            listed.append(cell | (CUBE_SIZES if scenes in CUBE else SIZES[scale]))
    return listed


def measure(
    folder: Path, show_progress: Callable[[str], None], **cell: Any
) -> list[dict[str, Any]]:
    """One row per combination that a model generates; for the cube also per evaluation step.

    At full scale, models of one width and kind of scene train together. The folder keeps them.
    """
    from recombine.experiments.limits._images.study import study

    full = cells("full")
    rows = study(cell, full if cell in full else [cell], folder, show_progress)
    return [{_column(name): value for name, value in row.items()} for row in rows]


def _column(name: str) -> str:
    return name if "/" in name else PREFIX + name


def prepare(rows: Frame) -> Frame:
    """The rows, with the columns of generated images under their names without the prefix."""
    return rows.rename(columns=lambda name: str(name).removeprefix(PREFIX))


def summary(rows: Frame) -> dict[str, float]:
    """Accuracy on held-out combinations and rank correlation by student; accuracy of the judges."""
    rows = prepare(rows)
    students = scores.students(rows, *SCENES, *CUBE).reindex(
        columns=["scenes", "num_train", "width", "accuracy", "expected/rank"]
    )
    values = {}
    for (scenes, num_train, width), group in students.groupby(["scenes", "num_train", "width"]):
        name = f"{scenes}, {num_train} trained, width {width}"
        values[f"{name}: right, unseen"] = float(group["accuracy"].mean())
        if group["expected/rank"].notna().any():
            values[f"{name}: rank correlation"] = float(group["expected/rank"].mean())
    for scenes, accuracy in rows.groupby("scenes")["judge"].mean().items():
        values[f"judge of {scenes}"] = float(accuracy)
    return values


def held_out_of(*scenes: str) -> Select:
    """The held-out combinations of these scenes, at every evaluation step."""
    return lambda rows: rows[rows["scenes"].isin(scenes) & rows["unseen"]]


def students_of(scenes: str) -> Select:
    """One row per student of these scenes."""
    return lambda rows: scores.students(rows, scenes)


def learned_star(rows: Frame) -> Frame | None:
    """The held-out combinations of the star, if distance 2 is learned."""
    star = rows[(rows["scenes"] == "star") & rows["unseen"]]
    return star if scores.is_distance_2_learned(star) else None


def accuracy_product_error(students: Frame) -> float:
    """The mean product error of the students that get enough held-out combinations right."""
    learned = students["accuracy"] >= scores.MIN_ACCURACY
    return float(students["product error"][learned].mean())


CUBE_CLAIMS = [
    reproduces(
        "order",
        "Held-out combinations at distance 1 are learned before those at distance 2 (difference in "
        "doublings of the training steps until half of the images are right; if that never "
        "happens, one doubling after the last step)",
        published="distance 1 first",
        rows=held_out_of("star"),
        needs=("distance", "trained_for", "right"),
        statistic=scores.delay,
        passes=above(0),
        control=ABOVE_ZERO,
    ),
    reproduces(
        "product",
        "The accuracy at distance 2 is the product of its attributes' accuracies (difference)",
        published="about the product",
        rows=learned_star,
        needs=("distance", "trained_for", "num_steps", "right", "product"),
        statistic=scores.product_error,
        passes=at_most(MAX_PRODUCT_ERROR),
    ),
    reproduces(
        "failing split",
        "If size never varies alone in training, held-out large objects fail (accuracy of the "
        "split `star` minus that of `failing`)",
        published="fails",
        rows=held_out_of(*CUBE),
        needs=("scenes", "combination", "trained_for", "num_steps", "right"),
        statistic=functools.partial(scores.gain_over_split, other="failing", prefix="large"),
        passes=above(MIN_SPLIT_GAIN),
        control="the split `star` has as many train combinations",
    ),
    reproduces(
        "told apart",
        "Networks with one vector per factor generate more held-out combinations correctly than "
        "networks with one vector for all factors (difference in accuracy)",
        source="ours",
        published=OURS,
        rows=held_out_of(*CUBE),
        needs=("scenes", "combination", "trained_for", "num_steps", "right"),
        statistic=functools.partial(scores.gain_over_split, other="joined"),
        passes=above(0),
        control=ABOVE_ZERO,
    ),
]


def _prediction_claims(scenes: str, name: str) -> list[DeclaredClaim]:
    """How well probes predict failures: within a model, against counting pairs, over all models."""
    threshold = THRESHOLDS[name]
    expected = f"expected/{name}"
    permuted = f"control/{name}"
    rare = f"rare/{name}"
    published = "decodability predicts success"
    return [
        reproduces(
            f"{scenes}: {name}",
            f"{scenes}: held-out combinations whose factors are hard to decode fail "
            f"({NAMES[name]}, mean over models)",
            source=PAPER,
            published=published,
            repeats="image_concepts: ranked",
            rows=students_of(scenes),
            needs=(expected, permuted),
            statistic=mean_of(expected),
            passes=at_least(threshold),
            control="probes of other combinations' factors",
            control_fails=lambda measurement: (
                measurement.rows[permuted].mean() < (threshold + CHANCE[name]) / 2
            ),
        ),
        reproduces(
            f"{scenes}: {name} beyond counting",
            f"{scenes}: activations rank held-out combinations by failures better than the rarity "
            f"of their pairs does (difference in {NAMES[name]})",
            source="ours",
            published=OURS,
            rows=students_of(scenes),
            needs=(expected, rare),
            statistic=lambda students: float((students[expected] - students[rare]).mean()),
            passes=above(0),
            control=ABOVE_ZERO,
        ),
        reproduces(
            f"{scenes}: {name}, all models",
            f"{scenes}, all models ranked together: held-out combinations whose factors are hard "
            f"to decode fail ({NAMES[name]})",
            source=PAPER,
            published=published,
            repeats="image_concepts: ranked",
            after_rows="the claim",
            rows=lambda rows: scores.final_images(rows, scenes),
            needs=("unseen", "right", "expected"),
            statistic=lambda rows: scores.rank_over_all(rows, name),
            passes=at_least(threshold),
            control="probes of other combinations' factors rank less well",
            control_fails=lambda measurement: (
                scores.rank_over_all(measurement.rows, name, "control") < measurement.low
            ),
        ),
    ]


def _product_claim(scenes: str) -> DeclaredClaim:
    return reproduces(
        f"{scenes}: product",
        f"{scenes}: the accuracy on held-out combinations is the product of the accuracies on "
        "their factors (mean difference)",
        published="about the product",
        rows=students_of(scenes),
        statistic=accuracy_product_error,
        passes=at_most(MAX_PRODUCT_ERROR),
    )


def _scaling_claim(scenes: str, size: str) -> DeclaredClaim:
    label, difference = CHANGES[size]
    return reproduces(
        f"{scenes}: {size}",
        f"{scenes}: {label} increase the accuracy on held-out combinations ({difference})",
        source=PAPER,
        published="scaling helps",
        repeats="data_slice: tasks" if size == "num_train" else "scaling_width: Identity: width",
        rows=students_of(scenes),
        statistic=functools.partial(scores.gain_by_size, size=size),
        passes=above(0),
        control=ABOVE_ZERO,
    )


CLAIMS = [
    *CUBE_CLAIMS,
    *_prediction_claims("things", "rank"),
    *_prediction_claims("things", "auroc"),
    _product_claim("things"),
    _scaling_claim("things", "num_train"),
    _scaling_claim("things", "width"),
    *_prediction_claims("crowd", "rank"),
    *_prediction_claims("crowd", "auroc"),
    _product_claim("crowd"),
    _scaling_claim("crowd", "num_train"),
]


def by_distance(split: str) -> Select:
    """The held-out combinations of a split of the cube, with their distance in words."""

    def select(rows: Frame) -> Frame:
        held_out = rows[(rows["scenes"] == split) & rows["unseen"]]
        return held_out.assign(which="distance " + held_out["distance"].astype(str))

    return select


def several_students_of(scenes: str) -> Select:
    """One row per student of these scenes, if there are several."""

    def select(rows: Frame) -> Frame | None:
        students = scores.students(rows, scenes)
        return students if len(students) > 1 else None

    return select


def with_images(rows: Frame, scenes: str) -> Frame | None:
    """The held-out combinations with images (one seed and width), with their failure rate."""
    held_out = rows[(rows["scenes"] == scenes) & rows["unseen"]]
    if held_out.empty:
        return None
    chosen = held_out[held_out["images"].astype(bool)]
    trained = chosen["num_train"].astype(str) + " trained"
    return chosen.assign(failure=1 - chosen["right"], trained=trained)


def image_sheet(rows: Frame, scenes: str) -> Any:
    """Images of held-out combinations with their expected failure, the worst expected first."""
    chosen = with_images(rows, scenes)
    if chosen is None:
        return None
    spread = chosen.groupby("num_train")["right"].std()
    ranked = chosen[chosen["num_train"] == spread.idxmax()]
    ranked = ranked.sort_values("expected", ascending=False)
    captions = [
        _caption(row, position, len(ranked))
        for position, row in enumerate(ranked.to_dict("records"), start=1)
    ]
    pictures = pd.DataFrame(
        {"image": ranked["images"], "caption": captions, "good": ranked["right"] >= 0.5}
    )
    model = "{num_train} trained, width {width}".format(**ranked.iloc[0])
    return gallery.sheet(
        pictures, f"Held-out combinations of {scenes} by expected failure: {model}", tall=0.4
    )


def _caption(row: dict[str, Any], position: int, total: int) -> str:
    lines = textwrap.wrap(row["combination"].replace(" and ", ", "), 20)
    return "<br>".join([*lines, f"expected {position} of {total}", f"{row['right']:.0%} right"])


def _scene_figures(scenes: str) -> list[Plot | CustomPlot]:
    return [
        curve(
            "accuracy",
            against="num_train",
            color="width",
            rows=several_students_of(scenes),
            name=f"{scenes}-scaling",
            title=f"Held-out combinations of {scenes}: more train combinations, wider networks",
            x_title="train combinations",
            y_title="share of correct images",
        ),
        custom(f"{scenes}-images", functools.partial(image_sheet, scenes=scenes)),
        scatter(
            "failure",
            against="expected",
            color="trained",
            rows=functools.partial(with_images, scenes=scenes),
            name=f"{scenes}-expected",
            title=f"Held-out combinations of {scenes}: failure and expected failure",
            x_title="expected failure (1: factors are decoded at chance)",
            y_title="share of wrong images",
            text="combination",
        ),
    ]


FIGURES: list[Plot | CustomPlot] = [
    curve(
        "right",
        against="trained_for",
        color="which",
        rows=by_distance(split),
        name=f"{split}-emerging",
        title=f"Accuracy on held-out combinations of the cube during training, {split}",
        x_title="training steps",
        y_title="share of correct images",
        log_x=True,
    )
    for split in CUBE
]
FIGURES += _scene_figures("things") + _scene_figures("crowd")
