"""Recursion: does a small network that is applied to its own state solve more puzzles?

Claim: one small network that recurses on its latent state and its answer solves far more Sudoku
puzzles than larger networks that answer directly (TRM, arXiv 2510.04871: 87.4% against 0.0% on
Sudoku-Extreme).

The source changes two things at once: the inner recursion, and the supervision of up to 16 steps
with a carried state. Here they are separate: each is used with and without the other, with equal
parameters. A direct network of different layers has the training compute of the recursion. All
arms have equal optimizer steps; the figure and two claims compare them at equal compute. Puzzles
are 6x6 with unique solutions, split so that no symmetric copy is on both sides; a further arm
holds out whole classes of solutions.

Scaled down: the published constants (d 512, 60,000 epochs) need hours. All arms have the same
recipe. Number of clues and learning rate of the scale `small` were chosen on the train puzzles of
a seed that is not in the sweep.

Command:  recombine run recursion --scale small
Runtime:  meant for minutes on 2 cores; full: meant for ten minutes on one H200.
Expected: supervision with a carried state explains most of the gain.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from recombine.experiments.claim import (
    Frame,
    Statistic,
    above,
    at_least,
    below,
    control,
    difference,
    hypothesis,
    mean_of,
    reproduces,
    where,
    within,
)
from recombine.experiments.limits import _recursion
from recombine.experiments.plots import bars, curve, custom
from recombine.parts.models.recursive import Recursive
from recombine.parts.supports.held_out_features import HeldOutFeatures
from recombine.sweeps.run import Run, sweep

TITLE = "Recursion or deep supervision: who solves the puzzles?"
SOURCE = "TRM (arXiv 2510.04871), tables 1 and 4"
RECURSIVE = "recursion, carried state"
ONE_STEP = "recursion, one step"
PLAIN = "plain, carried state"
DIRECT = "plain, one step"
UNTIED = "different layers, equal compute"
CLASSES = "recursion, new classes"
SCORE = "test/accuracy"
CELLS = "test/node_accuracy"
EQUAL = "test/accuracy at equal compute"
MIN_GAIN = 0.05
LARGE_GAIN = 0.1
MIN_SEEN = 0.5
MAX_DIRECT = 0.8
CLOSE = 0.1


def runs(scale: str) -> list[Run]:
    """Five students x seed; the recursive one also with whole classes of solutions held out."""
    base = _recursion.base(scale)
    model = _recursion.STUDENTS[scale]
    models = [
        model,
        replace(model, num_steps=1, halting=False),
        replace(model, kind="plain"),
        _recursion.direct(model),
        _recursion.untied(model),
    ]
    seeds = _recursion.SEEDS[scale]
    new_classes = replace(base, support=HeldOutFeatures("solutions"))
    return [*sweep(base, model=models, seed=seeds), *sweep(new_classes, seed=seeds)]


def arm(row: Any) -> str:
    """The name of a row's student."""
    if row["support"] == "HeldOutFeatures":
        return CLASSES
    model: Recursive = _recursion.model_of(row)
    if model.kind == "recursive":
        return RECURSIVE if model.num_steps > 1 else ONE_STEP
    if model.num_steps > 1:
        return PLAIN
    return DIRECT if model.num_layers == row["fewest layers"] else UNTIED


def prepare(rows: Frame) -> Frame:
    """All evaluations, with the names of the arms, their compute, and scores at equal compute."""
    rows = _recursion.with_compute(rows)
    rows["fewest layers"] = rows["model.num_layers"].min()
    rows["arm"] = [arm(row) for _, row in rows.iterrows()]
    # The split by classes is not part of the comparison.
    own = rows[rows["arm"] != CLASSES]
    rows[EQUAL] = math.nan
    if SCORE in own and len(own):
        rows[EQUAL] = rows["run"].map(_recursion.at_equal_compute(own, SCORE))
    return rows


FINAL = where({"is_final": True})


def final_of(*arms: str) -> Any:
    """Select the final rows of some arms."""
    return where({"is_final": True, "arm": list(arms)})


def gain(first: str, second: str, score: str = SCORE) -> Statistic:
    """The mean score of an arm minus that of another."""
    return difference(score, "arm", first, second)


def by_grade(rows: Frame) -> Frame:
    """The final accuracy by the grade of the puzzle, one row per run and grade."""
    names = {0: "one candidate", 1: "one place", 2: "refuted guesses", 3: "deep search"}
    columns = {f"test/search={grade}/accuracy": name for grade, name in names.items()}
    columns = {column: name for column, name in columns.items() if column in rows}
    final = FINAL(rows)
    others = ["run", "seed", "arm"]
    long = final.melt(others, list(columns), "grade", "accuracy")
    return long.assign(grade=long["grade"].map(columns)).dropna(subset=["accuracy"])


def solving(rows: Frame) -> Any:
    """A film strip: the answer to one test puzzle after each number of steps."""
    from recombine.reporting import film

    prefix = "SupervisionSteps/example/"
    own = final_of(RECURSIVE)(rows)
    words = _vector(own, f"{prefix}word=")
    right = _vector(own, f"{prefix}right=")
    if not len(words) or len(words) != len(right):
        return None
    given = words - 1  # word 1 is an empty cell
    side = math.isqrt(len(given))
    pictures = []
    for steps in _recorded_steps(own, prefix):
        digits = 1 + _vector(own, f"{prefix}steps={steps}/value=")
        digits = np.where(given > 0, given, digits)
        is_right = digits == right + 1
        num_wrong = int((~is_right).sum())
        caption = f"after {steps} step{'s' * (steps > 1)}: {num_wrong} wrong"
        pictures.append(
            film.Grid(
                digits.reshape(side, side),
                (given > 0).reshape(side, side),
                is_right.reshape(side, side),
                caption,
            )
        )
    box = int(own["family.box_height"].iloc[0]), int(own["family.box_width"].iloc[0])
    return film.grids(pictures, box, "One test puzzle after each number of supervision steps")


def _recorded_steps(rows: Frame, prefix: str) -> list[int]:
    found = {
        int(name.removeprefix(f"{prefix}steps=").partition("/")[0])
        for name in rows
        if name.startswith(f"{prefix}steps=")
    }
    return sorted(found)


def _vector(rows: Frame, prefix: str) -> np.ndarray:
    """The first row's values of the columns with a prefix and a number."""
    numbers = [name.removeprefix(prefix) for name in rows if name.startswith(prefix)]
    ordered = sorted(int(number) for number in numbers)
    if not len(rows):
        return np.zeros(0, int)
    return np.array([int(rows[f"{prefix}{i}"].iloc[0]) for i in ordered])


CONTROL = "a plain network with the same carried state and supervision; different layers"
CLAIMS = [
    reproduces(
        "recursion beats direct answers",
        "The recursive student with a carried state solves more test puzzles than a direct one of "
        "equal parameters (difference in accuracy)",
        published="87.4% against 0.0%",
        rows=final_of(RECURSIVE, DIRECT),
        needs=(SCORE, "arm"),
        statistic=gain(RECURSIVE, DIRECT),
        passes=above(LARGE_GAIN),
        control=CONTROL,
    ),
    hypothesis(
        "inner recursion",
        "The recursive student solves more test puzzles than a plain one with the same carried "
        "state and supervision (difference in accuracy)",
        rows=final_of(RECURSIVE, PLAIN),
        needs=(SCORE, "arm"),
        statistic=gain(RECURSIVE, PLAIN),
        passes=above(MIN_GAIN),
        control=CONTROL,
    ),
    hypothesis(
        "deep supervision",
        "A plain student with a carried state and supervision solves more test puzzles than a "
        "direct one (difference in accuracy)",
        rows=final_of(PLAIN, DIRECT),
        needs=(SCORE, "arm"),
        statistic=gain(PLAIN, DIRECT),
        passes=above(MIN_GAIN),
        control=CONTROL,
    ),
    hypothesis(
        "carried state of the recursion",
        "The recursive student solves more test puzzles with a carried state than with one "
        "supervision step (difference in accuracy)",
        rows=final_of(RECURSIVE, ONE_STEP),
        needs=(SCORE, "arm"),
        statistic=gain(RECURSIVE, ONE_STEP),
        passes=above(MIN_GAIN),
        control=CONTROL,
    ),
    hypothesis(
        "different layers",
        "The recursive student solves more test puzzles than a direct one of different layers with "
        "equal training compute (difference in accuracy)",
        rows=final_of(RECURSIVE, UNTIED),
        needs=(SCORE, "arm"),
        statistic=gain(RECURSIVE, UNTIED),
        passes=above(MIN_GAIN),
        control=CONTROL,
    ),
    *(
        hypothesis(
            f"equal compute, {name}",
            f"With the training compute of the cheapest arm, the recursive student solves more "
            f"test puzzles than {text} (difference in accuracy)",
            rows=final_of(RECURSIVE, other),
            needs=(EQUAL, "arm"),
            statistic=gain(RECURSIVE, other, EQUAL),
            passes=above(MIN_GAIN),
            control=CONTROL,
        )
        for name, text, other in (
            ("direct", "a direct one", DIRECT),
            ("plain", "a plain one with a carried state", PLAIN),
        )
    ),
    control(
        "hard enough",
        "The direct student solves less than four fifths of the test puzzles (accuracy)",
        rows=final_of(DIRECT),
        needs=(SCORE,),
        statistic=mean_of(SCORE),
        passes=below(MAX_DIRECT),
    ),
    control(
        "trained enough",
        "The recursive student solves at least half of the train puzzles (accuracy)",
        rows=final_of(RECURSIVE),
        needs=("seen/accuracy",),
        statistic=mean_of("seen/accuracy"),
        passes=at_least(MIN_SEEN),
    ),
    control(
        "new classes of solutions",
        "The recursive student solves as many puzzles if whole classes of solutions are new "
        "(difference in accuracy)",
        rows=final_of(RECURSIVE, CLASSES),
        needs=(SCORE, "arm"),
        statistic=gain(CLASSES, RECURSIVE),
        passes=within(-CLOSE, CLOSE),
    ),
]
FIGURES = [
    curve(
        SCORE,
        against="passes",
        color="arm",
        name="compute",
        title="Solved test puzzles by training compute",
        x_title="passes of a sample through a layer in training",
        y_title="test puzzles solved",
        log_x=True,
    ),
    curve(
        CELLS,
        against="step",
        color="arm",
        name="cells",
        title="Empty cells that are right, by optimizer step",
        x_title="optimizer step",
        y_title="empty cells of test puzzles that are right",
    ),
    bars(
        "accuracy",
        against="grade",
        color="arm",
        rows=by_grade,
        name="grade",
        title="Solved test puzzles by the rule that they need",
        x_title="what the puzzle needs",
        y_title="test puzzles solved",
    ),
    custom("solving", solving),
]
