"""What the experiments on recursion share: the puzzles, the students, and their compute."""

from dataclasses import replace
from typing import Any

import numpy as np

from recombine.experiments.claim import Frame
from recombine.parts.diagnostics.supervision_steps import SupervisionSteps
from recombine.parts.encodings.language import Language
from recombine.parts.families.sudoku import Sudoku
from recombine.parts.models.recursive import Recursive
from recombine.parts.recipes.paper import Paper
from recombine.parts.supports.random import Random
from recombine.sweeps.run import Run

# 4x4 puzzles are a smoke test. All 6x6 puzzles are of the stored sets, of which 1,000 are trained.
FAMILIES = {
    "tiny": Sudoku(4, 2, 2),
    "small": Sudoku(num_clues=14),
    "full": Sudoku(),
}
# The source has d 512, T = 3, n = 6, 16 supervision steps, batches of 768 and 2 x 10^5 steps.
STUDENTS = {
    "tiny": Recursive(8, 16, 1, num_updates=1, num_cycles=2, num_steps=2, targets="words"),
    "small": Recursive(32, 64, 2, num_updates=2, num_cycles=2, num_steps=4, targets="words"),
    "full": Recursive(128, 256, 2, num_updates=6, num_cycles=3, num_steps=16, targets="words"),
}
# All arms have the same recipe. That of full scale is not tuned.
RECIPES = {
    "tiny": Paper(1e-3, 0.1, frac_warmup=0.1, ema=0.9),
    "small": Paper(2e-3, 0.1, frac_warmup=0.05, ema=0.98),
    "full": Paper(1e-3, 0.1, frac_warmup=0.05, ema=0.999),
}
# Seed 0 was used to choose the number of clues and the learning rate, on train puzzles.
SEEDS = {"tiny": (1,), "small": (1, 2, 3), "full": (1, 2, 3)}
STEPS = {"tiny": 8, "small": 1600, "full": 32_000}
NUM_EVALS = {"tiny": 2, "small": 8, "full": 8}
BATCH = {"tiny": 4, "small": 32, "full": 128}
EVAL_TASKS = {"tiny": 16, "small": 256, "full": 600}
FRAC_TEST = 0.375


def base(scale: str) -> Run:
    """The run that all students share."""
    student = STUDENTS[scale]
    powers = [2**i for i in range(20) if 2**i <= 2 * student.num_steps]
    return Run(
        family=FAMILIES[scale],
        support=Random(),
        encoding=Language(),
        model=student,
        recipe=RECIPES[scale],
        diagnostics=(SupervisionSteps(tuple(powers), EVAL_TASKS[scale], record=True),),
        frac_test=FRAC_TEST,
        num_steps=STEPS[scale],
        num_evals=NUM_EVALS[scale],
        num_tasks=BATCH[scale],
        num_points=1,
        num_eval_tasks=EVAL_TASKS[scale],
        num_eval_points=1,
    )


def passes(model: Recursive) -> int:
    """Passes through a layer in one training step of a sample; a backward pass counts as two."""
    if model.kind == "plain":
        return 3 * model.num_layers
    of_cycle = model.num_updates + 1
    num_backward = model.num_cycles if model.gradient == "all" else 1
    return (model.num_cycles + 2 * num_backward) * of_cycle * model.num_layers


def untied(model: Recursive) -> Recursive:
    """A direct network of different layers with the compute of a training step of `model`, to the
    nearest layer.
    """
    return replace(direct(model), num_layers=round(passes(model) / 3))


def direct(model: Recursive) -> Recursive:
    """The network f, applied once: no recursion, no carry."""
    return replace(model, kind="plain", num_steps=1, halting=False)


def model_of(row: Any) -> Recursive:
    """The student of a row, as far as its compute depends on it."""
    return Recursive(
        num_layers=int(row["model.num_layers"]),
        num_updates=int(row["model.num_updates"]),
        num_cycles=int(row["model.num_cycles"]),
        num_steps=int(row["model.num_steps"]),
        kind=row["model.kind"],
        gradient=row["model.gradient"],
    )


def with_compute(rows: Frame) -> Frame:
    """All evaluations, with the compute until then in passes of a sample through a layer.

    `is_final` marks the last evaluation of a run.
    """
    rows = rows.copy()
    per_step = [passes(model_of(row)) for _, row in rows.iterrows()]
    rows["passes"] = rows["step"] * rows["num_tasks"] * per_step
    rows["is_final"] = rows["step"] == rows.groupby("run")["step"].transform("max")
    return rows


def at_equal_compute(rows: Frame, column: str) -> Frame:
    """The score of each run at the most compute that all runs reached.

    It is interpolated linearly between evaluations; before the first one it is that of the first.
    """
    budget = rows.groupby("run")["passes"].max().min()

    def at_budget(own: Frame) -> float:
        own = own.sort_values("passes")
        return float(np.interp(budget, own["passes"], own[column]))

    return rows.groupby("run")[["passes", column]].apply(at_budget)
