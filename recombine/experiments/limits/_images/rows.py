"""What the rows of diffusion models say in sum: of each student, of the cube, and of all students together."""

from typing import Any

import numpy as np

from recombine.basics.statistics import auroc, needed, rank_correlation

FAILED = 0.5  # a combination fails if fewer of its images are right
TOLD = 0.2  # of the images must be right for the product of accuracies to say anything
KEYS = ["scenes", "num_train", "width", "seed"]


def ranked(error: Any, failure: Any) -> tuple[float, float]:
    """The rank correlation of errors with shares of failures, and the AUROC of errors for combinations that fail."""
    return rank_correlation(error, failure), auroc(error, np.asarray(failure) > FAILED)


def last(rows: Any, *scenes: str) -> Any:
    """What models of these scenes make in the end."""
    return rows[rows["scenes"].isin(scenes) & (rows["trained_for"] == rows["num_steps"])]


def students(rows: Any, *scenes: str) -> Any:
    """One line for each student: how many unseen combinations it gets right, and how well failures were ranked."""
    made = last(rows, *scenes)
    unseen = made[made["unseen"]]
    found = unseen.groupby(KEYS)[
        [c for c in rows if "/" in str(c) and not str(c).startswith("meta/")]
    ].first()
    found["unseen"] = unseen.groupby(KEYS)["right"].mean()
    found["off"] = (
        (unseen["right"] - unseen["product"]).abs().groupby([unseen[key] for key in KEYS]).mean()
    )
    found["seen"] = made[~made["unseen"]].groupby(KEYS)["right"].mean()
    return found.reset_index()


def together(rows: Any, name: str, who: str = "expected") -> float:
    """How well unseen combinations of all students, in one list, are ranked by what was expected of them."""
    unseen = rows[rows["unseen"]]
    correlation, area = ranked(unseen[who], 1 - unseen["right"])
    return correlation if name == "rank" else area


def emerges(rows: Any, distance: int) -> float:
    """The logarithm of the steps of training after which half of the images at a distance are right; where the last
    step does not bring them, one doubling more."""
    near = rows[rows["distance"] == distance].groupby("trained_for")["right"].mean()
    return (
        float(np.log2(min(needed(near.index, near, 0.5), 2 * near.index.max())))
        if len(near)
        else np.nan
    )


def later(rows: Any) -> float:
    """How many doublings of training distance 2 comes after distance 1; if that does not come, nothing is told."""
    first, never = emerges(rows, 1), np.log2(2 * rows["trained_for"].max()) if len(rows) else np.nan
    return emerges(rows, 2) - first if first < never else np.nan


def off_product(rows: Any) -> float:
    """How far the cube's accuracy at distance 2 is from the product, in the end."""
    far = _far(rows)
    return float((far["right"] - far["product"]).abs().mean())


def tells(rows: Any) -> bool:
    """Whether enough is right at distance 2 to compare it with the product: of nothing it would be nothing."""
    return bool(_far(rows)["right"].mean() >= TOLD)


def _far(rows: Any) -> Any:
    return rows[(rows["distance"] == 2) & (rows["trained_for"] == rows["num_steps"])]


def ahead(rows: Any, other: str, only: str = "") -> float:
    """How many more are right after the star than after another split of the cube, of the combinations (of a size) that
    are unseen in both."""
    made = rows[
        (rows["trained_for"] == rows["num_steps"]) & rows["combination"].str.startswith(only)
    ]
    found = made.groupby(["combination", "scenes"])["right"].mean().unstack()
    return float((found["star"] - found[other]).mean()) if {"star", other} <= set(found) else np.nan


def grown(lines: Any, size: str) -> float:
    """How many more unseen combinations the largest students get right than the smallest."""
    found = lines.groupby(size)["unseen"].mean()
    return float(found.iloc[-1] - found.iloc[0]) if len(found) > 1 else np.nan
