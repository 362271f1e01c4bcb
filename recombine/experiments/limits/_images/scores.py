"""Statistics of the rows of diffusion models: per student, of the cube, and over all students."""

from typing import Any

import numpy as np

from recombine.basics.statistics import auroc, rank_correlation, tasks_needed
from recombine.experiments.claim import Frame

MAX_FAILURE = 0.5  # a combination fails if a larger share of its images is wrong
MIN_ACCURACY = 0.2  # below it, a comparison with the product of accuracies says nothing
KEYS = ["scenes", "num_train", "width", "seed"]  # of a student


def rank_and_auroc(error: Any, failure: Any) -> tuple[float, float]:
    """The rank correlation of errors with failure rates, and the AUROC of errors for failures."""
    return rank_correlation(error, failure), auroc(error, np.asarray(failure) > MAX_FAILURE)


def final_images(rows: Frame, *scenes: str) -> Frame:
    """The rows of these scenes after the last step of training."""
    return rows[rows["scenes"].isin(scenes) & (rows["trained_for"] == rows["num_steps"])]


def students(rows: Frame, *scenes: str) -> Frame:
    """One row per student: its accuracy on held-out combinations, and the scores of predictions.

    `product error` is how far the accuracy on a combination is from the product of the accuracies
    on its factors.
    """
    final = final_images(rows, *scenes)
    held_out = final[final["unseen"]]
    errors = (held_out["right"] - held_out["product"]).abs()
    held_out = held_out.assign(**{"product error": errors})
    names = [str(column) for column in rows]
    scores = [name for name in names if "/" in name and not name.startswith("meta/")]
    groups = held_out.groupby(KEYS)
    lines = groups[scores].first()
    lines["accuracy"] = groups["right"].mean()
    lines["product error"] = groups["product error"].mean()
    return lines.reset_index()


def rank_over_all(rows: Frame, name: str, predictor: str = "expected") -> float:
    """How well a predictor ranks the failures of all students in one list (`rank` or `auroc`)."""
    held_out = rows[rows["unseen"]]
    rank, area = rank_and_auroc(held_out[predictor], 1 - held_out["right"])
    return rank if name == "rank" else area


def log_steps_to_half(rows: Frame, distance: int) -> float:
    """The binary logarithm of the steps until half of the images at a distance are right.

    If the last step does not reach half, it counts as one doubling after the last step.
    """
    accuracy = rows[rows["distance"] == distance].groupby("trained_for")["right"].mean()
    if accuracy.empty:
        return np.nan
    steps = tasks_needed(accuracy.index, accuracy, 0.5)
    return float(np.log2(min(steps, 2 * accuracy.index.max())))


def delay(rows: Frame) -> float:
    """By how many doublings of training distance 2 follows distance 1; NaN if 1 never emerges."""
    if len(rows) == 0:
        return np.nan
    first = log_steps_to_half(rows, 1)
    never = np.log2(2 * rows["trained_for"].max())
    return log_steps_to_half(rows, 2) - first if first < never else np.nan


def product_error(rows: Frame) -> float:
    """How far the accuracy of the cube at distance 2 is from the product, after training."""
    far = _distance_2(rows)
    return float((far["right"] - far["product"]).abs().mean())


def is_distance_2_learned(rows: Frame) -> bool:
    """Whether the accuracy at distance 2 is high enough to compare it with the product."""
    return bool(_distance_2(rows)["right"].mean() >= MIN_ACCURACY)


def _distance_2(rows: Frame) -> Frame:
    return rows[(rows["distance"] == 2) & (rows["trained_for"] == rows["num_steps"])]


def gain_over_split(rows: Frame, other: str, prefix: str = "") -> float:
    """The accuracy after the star minus that after another split of the cube.

    It is the mean over combinations that are held out in both splits and whose name begins with
    `prefix`.
    """
    is_final = rows["trained_for"] == rows["num_steps"]
    final = rows[is_final & rows["combination"].str.startswith(prefix)]
    accuracy = final.groupby(["combination", "scenes"])["right"].mean().unstack()
    if not {"star", other} <= set(accuracy):
        return np.nan
    return float((accuracy["star"] - accuracy[other]).mean())


def gain_by_size(lines: Frame, size: str) -> float:
    """The accuracy on held-out combinations of the largest students minus that of the smallest."""
    accuracy = lines.groupby(size)["accuracy"].mean()
    return float(accuracy.iloc[-1] - accuracy.iloc[0]) if len(accuracy) > 1 else np.nan
