"""How much does explicit modular structure help, and is it necessary?

Claim: a plain MLP generalizes compositionally without a modular design if it is trained on enough
tasks; structure reduces the number of tasks (arXiv 2507.07207, introduction and section 3;
hypernetworks as in Schug et al. 2024).

Four students learn the same tasks: an MLP; a hypernetwork as published, with a LayerNorm on the
code; the same without LayerNorm; and an oracle that has the structure of the hyperteacher, with
learned parameters. In the control the code is scrambled (IntervalShuffle), so that it is no longer
a sum over modules. The oracle's structure is then wrong and it must fail, while an MLP with enough
tasks still generalizes.

Command:  recombine run modularity --scale small
Runtime:  80 to 150 s on 2 cores; full: 2 minutes on one H200.
Expected: students with structure need fewer tasks; the MLP comes close to them with half of the
          tasks.
"""

import math
from dataclasses import replace

from recombine.basics import statistics
from recombine.experiments.claim import (
    Frame,
    above,
    all_of,
    final_rows,
    hypothesis,
    on_value,
    reproduces,
    where,
)
from recombine.experiments.plots import curve
from recombine.parts.encodings.identity import Identity
from recombine.parts.encodings.interval_shuffle import IntervalShuffle
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.hypernetwork import Hypernetwork
from recombine.parts.models.mlp import MLP
from recombine.parts.models.modular_oracle import ModularOracle
from recombine.parts.recipes.fast import Fast
from recombine.sweeps.run import Run, sweep

TITLE = "How many train tasks does explicit structure save?"
SOURCE = "arXiv 2507.07207, section 3; Schug et al. 2024"
TARGET = 0.9  # test R2
FRACTIONS = {
    "tiny": (0.4, 0.7),
    "small": (0.25, 0.5, 0.75, 0.9),
    "full": (0.5, 0.75, 0.9, 0.95, 0.98),
}
SEEDS = {"tiny": 1, "small": 2, "full": 3}
WIDTHS = {"tiny": (8,), "small": (128,) * 3, "full": (1024,) * 4}  # of the MLP
D_HIDDEN = {"tiny": 4, "small": 64, "full": 256}  # of the other students
NAMES = {
    "MLP": "MLP",
    "Hypernetwork layer": "hypernetwork (LayerNorm)",
    "Hypernetwork none": "hypernetwork",
    "ModularOracle": "oracle",
}
SCRAMBLED = ", scrambled code"


def runs(scale: str) -> list[Run]:
    """Student x held-out fraction x seed; the MLP and the oracle also with the scrambled code."""
    d_hidden = D_HIDDEN[scale]
    both_codes = [Identity(), IntervalShuffle()]
    students = [
        (MLP(WIDTHS[scale]), both_codes),
        (Hypernetwork(d_hidden), [Identity()]),
        (Hypernetwork(d_hidden, normalisation="none"), [Identity()]),
        (ModularOracle(d_hidden), both_codes),
    ]
    listed = []
    for model, encodings in students:
        listed += sweep(
            _base(scale),
            model=[model],
            encoding=encodings,
            frac_test=FRACTIONS[scale],
            seed=range(SEEDS[scale]),
        )
    return listed


def _base(scale: str) -> Run:
    """The run that all students share: the same recipe for each of them."""
    shared = Run(diagnostics=(), num_evals=1)
    if scale == "tiny":
        family = Hyperteacher(num_modules=5, num_hot=2)
        return replace(shared, family=family, num_steps=20, num_tasks=8)
    if scale == "small":
        return replace(shared, family=Hyperteacher(num_modules=8), num_steps=1000)
    return replace(
        shared,
        family=Hyperteacher(),
        recipe=Fast(),
        num_steps=8000,
        num_tasks=512,
        num_points=4,
    )


def prepare(rows: Frame) -> Frame:
    """The final rows, with the name of each student and whether its code is scrambled."""
    final = final_rows(rows)
    is_hypernetwork = final["model"] == "Hypernetwork"
    kind = final["model"].mask(is_hypernetwork, "Hypernetwork " + final["model.normalisation"])
    final["scrambled"] = final["encoding"] == "IntervalShuffle"
    final["student"] = kind.map(NAMES) + final["scrambled"].map({True: SCRAMBLED, False: ""})
    return final


def tasks_needed(final: Frame) -> dict[str, float]:
    """The number of train tasks that each student needs for a test R2 of TARGET."""
    return {str(student): _tasks_for_target(group) for student, group in final.groupby("student")}


def _tasks_for_target(rows: Frame) -> float:
    scores = rows.groupby("num_train")["test/r2"].mean()
    return statistics.tasks_needed(scores.index, scores, TARGET)


def summary(rows: Frame) -> dict[str, float]:
    """The tasks that every student needs."""
    needed = tasks_needed(prepare(rows))
    return {f"{student}: tasks needed": tasks for student, tasks in needed.items()}


def with_most_tasks(final: Frame) -> Frame:
    """The rows with the most train tasks."""
    return final[final["frac_test"] == final["frac_test"].min()]


def mean_r2(final: Frame, student: str) -> float:
    """The mean test R2 of a student."""
    return float(final.loc[final["student"] == student, "test/r2"].mean())


def tasks_ratio(final: Frame) -> float:
    """How many times as many tasks the MLP needs as the oracle; NaN if the oracle fails."""
    needed = tasks_needed(final)
    ratio = statistics.ratio(needed["MLP"], needed["oracle"])
    return math.nan if ratio is None else ratio


CONTROL = "the oracle with a scrambled code must fail"
CLAIMS = [
    reproduces(
        "not needed",
        f"The MLP reaches R2 {TARGET} on held-out combinations (the oracle's R2 minus the MLP's)",
        published="no modular design is needed",
        rows=with_most_tasks,
        statistic=lambda final: mean_r2(final, "oracle") - mean_r2(final, "MLP"),
        passes=on_value(
            f"the MLP's mean R2 at least {TARGET}",
            lambda measurement: mean_r2(measurement.rows, "MLP") >= TARGET,
        ),
        control=CONTROL,
    ),
    reproduces(
        "saves data",
        "The MLP needs more train tasks than the oracle (ratio of tasks, at least)",
        published="structure helps with data",
        statistic=tasks_ratio,
        passes=above(1.1),
        control=CONTROL,
    ),
    hypothesis(
        "wrong structure",
        "With a scrambled code the MLP has a higher R2 than the oracle (difference)",
        rows=lambda final: with_most_tasks(final[final["scrambled"]]),
        statistic=lambda final: (
            mean_r2(final, "MLP" + SCRAMBLED) - mean_r2(final, "oracle" + SCRAMBLED)
        ),
        passes=all_of(
            above(0.2),
            on_value(
                "the MLP's mean R2 above 0.5",
                lambda measurement: mean_r2(measurement.rows, "MLP" + SCRAMBLED) > 0.5,
            ),
        ),
        control=CONTROL,
    ),
]
FIGURES = [
    curve(
        "test/r2",
        against="num_train",
        color="student",
        rows=where({"scrambled": False}),
        name="students",
        title="Test R² by the number of train tasks",
        log_x=True,
    ),
    curve(
        "test/r2",
        against="num_train",
        color="student",
        rows=where({"model": ["MLP", "ModularOracle"]}),
        name="control",
        title="Students on a scrambled code",
        log_x=True,
    ),
]
