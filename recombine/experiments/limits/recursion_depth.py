"""Does a recursive network solve more with more steps at test time than in training?

Claim: a recursive network can think longer on harder problems, because its steps are shared (TRM,
arXiv 2510.04871, evaluates with the most steps of training). Two grounds: Sudoku puzzles, and
chains of modules that are longer than those in training (family Chain, where the number of steps
that an answer needs is known).

Students are evaluated after 1, 2, 4, … supervision steps, up to four times as many as in training.
A plain network with the same carried state is the rival. A learned executor of single steps is the
control that must not collapse on longer chains; a direct network has no steps to add.

Command:  recombine run recursion_depth --scale small
Runtime:  meant for minutes on 2 cores; full: meant for ten minutes on one H200.
Expected: further steps keep the answers, but do not lengthen the chains that can be answered.
"""

import math
import re
from dataclasses import replace
from typing import Any

from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    above,
    at_least,
    control,
    final_rows,
    hypothesis,
    mean_difference,
    mean_of,
    where,
)
from recombine.experiments.limits import _chains, _recursion
from recombine.experiments.plots import curve
from recombine.parts.diagnostics.supervision_steps import SupervisionSteps
from recombine.parts.models.recursive import Recursive
from recombine.sweeps.run import Run, sweep

TITLE = "More steps at test time than in training"
SOURCE = "TRM (arXiv 2510.04871), section 4"
PUZZLES = "puzzles"
CHAINS = "longer chains"
FACTOR = 4  # steps at test time, relative to training
FRAC_TEST = 0.02  # of chains of trained lengths: nearly all test chains are longer
MIN_GAIN = 0.02
MIN_USED = 0.05
MIN_SEEN = 0.9
CHAIN_STUDENTS = {
    "tiny": Recursive(8, 16, 1, "attention", 2, num_updates=1, num_cycles=2, num_steps=2),
    "small": Recursive(32, 64, 2, "attention", 2, num_updates=1, num_cycles=2, num_steps=4),
    "full": Recursive(128, 256, 2, "attention", 4, num_updates=3, num_cycles=3, num_steps=8),
}


def runs(scale: str) -> list[Run]:
    """Recursive and plain students of puzzles; these, a direct one and the executor of chains."""
    seeds = _recursion.SEEDS[scale]
    puzzles = replace(_recursion.base(scale), diagnostics=(steps_of(scale, PUZZLES),), num_evals=1)
    student = _recursion.STUDENTS[scale]
    chains = replace(
        _chains.base(scale),
        recipe=_recursion.RECIPES[scale],
        num_steps=_recursion.STEPS[scale],
        num_tasks=_recursion.BATCH[scale],
        num_points=1,
        frac_test=FRAC_TEST,
        diagnostics=(steps_of(scale, CHAINS),),
    )
    of_chains = CHAIN_STUDENTS[scale]
    models = [of_chains, replace(of_chains, kind="plain"), _recursion.direct(of_chains)]
    executor = replace(_chains.base(scale), frac_test=FRAC_TEST, model=_chains.executor(scale))
    return [
        *sweep(puzzles, model=[student, replace(student, kind="plain")], seed=seeds),
        *sweep(chains, model=models, seed=seeds),
        *sweep(executor, seed=seeds),
    ]


def steps_of(scale: str, ground: str) -> SupervisionSteps:
    """Powers of two up to `FACTOR` times the steps of training."""
    students = _recursion.STUDENTS if ground == PUZZLES else CHAIN_STUDENTS
    most = FACTOR * students[scale].num_steps
    return SupervisionSteps(tuple(2**i for i in range(20) if 2**i <= most))


def prepare(rows: Frame) -> Frame:
    """The final rows, with the accuracy after one step, as in training, and after more."""
    final = final_rows(rows).copy()
    final["ground"] = [PUZZLES if family == "Sudoku" else CHAINS for family in final["family"]]
    final["student"] = [_student(row) for _, row in final.iterrows()]
    for name, factor in (("one step", 0), ("as trained", 1), ("more steps", FACTOR)):
        final[name] = [_after(row, factor) for _, row in final.iterrows()]
    return final


def _student(row: Any) -> str:
    """The name of a row's student."""
    if row["model"] == "Executor":
        return "executor"
    if row["model.kind"] == "recursive":
        return "recursion"
    return "plain, carried state" if row["model.num_steps"] > 1 else "plain, one step"


def _after(row: Any, factor: int) -> float:
    """The test accuracy after `factor` times the steps of training; after one step if it is 0."""
    if row["model"] == "Executor":
        return math.nan
    steps = max(1, factor * int(row["model.num_steps"]))
    return float(row.get(f"SupervisionSteps/test/steps={steps}/accuracy", math.nan))


def by_steps(final: Frame) -> Frame:
    """One row per run and number of steps at test time."""
    pattern = re.compile(r"SupervisionSteps/test/steps=(\d+)/accuracy")
    columns = {}
    for name in final.columns:
        match = pattern.fullmatch(name)
        if match:
            columns[name] = int(match[1])
    others = ["run", "seed", "ground", "student", "model.num_steps"]
    own = final[final["model"] == "Recursive"]
    long = own.melt(others, list(columns), "steps", "accuracy")
    long = long.assign(steps=long["steps"].map(columns)).dropna(subset=["accuracy"])
    return long[(long["model.num_steps"] > 1)]


def by_length(final: Frame) -> Frame:
    """Accuracy on test chains by their length, with the steps of training."""
    return _chains.accuracy_by_length(final[final["ground"] == CHAINS])


CONTROL = "the executor must answer longer chains; a plain network with the same carried state"


def _more_steps(ground: str, student: str) -> DeclaredClaim:
    return hypothesis(
        f"more steps, {ground}, {student}",
        f"On {ground}, the student ({student}) is right more often with {FACTOR} times the steps "
        "of training (difference in accuracy)",
        rows=where({"ground": ground, "student": student}),
        needs=("more steps", "as trained"),
        statistic=mean_difference("more steps", "as trained"),
        passes=above(MIN_GAIN),
        control=CONTROL,
    )


CLAIMS = [
    *(
        _more_steps(ground, student)
        for ground in (PUZZLES, CHAINS)
        for student in ("recursion", "plain, carried state")
    ),
    control(
        "steps are used",
        "On puzzles, the recursive student is right more often with the steps of training than "
        "after one (difference in accuracy)",
        rows=where({"ground": PUZZLES, "student": "recursion"}),
        needs=("as trained", "one step"),
        statistic=mean_difference("as trained", "one step"),
        passes=above(MIN_USED),
    ),
    control(
        "chains are learned",
        "The recursive student answers train chains (accuracy)",
        rows=where({"ground": CHAINS, "student": "recursion"}),
        needs=("seen/accuracy",),
        statistic=mean_of("seen/accuracy"),
        passes=at_least(MIN_SEEN),
    ),
    control(
        "executor",
        "A learned executor of single steps answers longer chains (accuracy)",
        rows=where({"student": "executor"}),
        needs=("test/accuracy",),
        statistic=mean_of("test/accuracy"),
        passes=at_least(MIN_SEEN),
    ),
]
FIGURES = [
    curve(
        "accuracy",
        against="steps",
        color="student",
        rows=by_steps,
        each="ground",
        name="steps, {}",
        title="Test accuracy by steps at test time: {}",
        x_title="supervision steps at test time",
        y_title="accuracy",
        log_x=True,
    ),
    curve(
        "accuracy",
        against="length",
        color="student",
        rows=by_length,
        name="length",
        title="Test chains by their length",
        x_title="length of the chain",
        y_title="accuracy",
    ),
]
