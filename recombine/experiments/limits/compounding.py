"""Do errors compound along a chain, and which errors dominate?

Claim: errors of single steps compound, so accuracy falls with the number of steps, and students
collapse on longer chains (Dziri et al. 2023, arXiv 2305.18654). If steps fail independently with
probability eps, accuracy is (1 - eps)^n after n steps.

A student with a scratchpad writes every intermediate value; it sees true ones in training and its
own in evaluation. Every value is labeled correct, local, propagated or restored.
eps is the error of a step after correct steps, on train chains. A student without a scratchpad is
decoded, and so is its untrained baseline. The learned executor applies one step again and again: it
is the control that must follow (1 - eps)^n. If the executor itself collapses, or does not follow,
a collapse of the scratchpad is confounded.

Command:  recombine run compounding --scale small
Runtime:  at most 8 minutes on 2 cores; full: not measured (meant for minutes on one H200).
Expected: the executor follows the prediction; the scratchpad falls below it on longer chains.
"""

import math
from dataclasses import replace

import pandas as pd

from recombine.experiments.claim import (
    Frame,
    Measurement,
    above,
    at_least,
    at_most,
    control,
    difference,
    final_rows,
    hypothesis,
    mean_of,
    reproduces,
    where,
)
from recombine.experiments.limits import _chains
from recombine.experiments.plots import curve
from recombine.experiments.untrained import untrained
from recombine.parts.diagnostics.error_propagation import LABELS, ErrorPropagation
from recombine.sweeps.run import Run, sweep

TITLE = "Errors of single steps along a chain"
SOURCE = "Dziri et al. 2023 (arXiv 2305.18654), section 3"
NUM_TASKS = {"tiny": 16, "small": 128, "full": 1024}  # that are labeled
EMITTED = "ErrorPropagation"
SCRATCHPAD = "scratchpad"
EXECUTOR = "executor"
DIRECT = "no scratchpad, decoded"
BASELINE = "untrained, decoded"
MAX_COLLAPSED = 0.5  # accuracy on the longest chains that counts as a collapse
MAX_DEVIATION = 0.05  # of accuracy from (1 - eps)^n that still counts as following it


def runs(scale: str) -> list[Run]:
    """Scratchpad and executor, emitted; a student without scratchpad and untrained, decoded."""
    num_tasks = NUM_TASKS[scale]
    base = _chains.base(scale)
    emitted = replace(base, diagnostics=(ErrorPropagation("emitted", num_tasks, num_tasks),))
    decoded = replace(base, diagnostics=(ErrorPropagation("decoded", num_tasks, num_tasks),))
    writers = [_chains.student(scale, "scratchpad"), _chains.executor(scale)]
    seeds = range(_chains.SEEDS[scale])
    direct = sweep(decoded, model=[_chains.student(scale)], seed=seeds)
    return [*sweep(emitted, model=writers, seed=seeds), *direct, *map(untrained, direct)]


def prepare(rows: Frame) -> Frame:
    """The final rows, with the student, the prediction (1 - eps)^n and the deviation from it."""
    final = final_rows(rows).copy()
    final["student"] = [_name(row) for row in final.to_dict("records")]
    eps = final.get(f"{EMITTED}/seen/step_error", pd.Series(math.nan, final.index))
    final["eps"] = eps
    long = predicted_by_length(final)
    deviation = (long["accuracy"] - long["predicted"]).abs()
    final["largest deviation"] = final["run"].map(deviation.groupby(long["run"]).max())
    is_longest = long["length"] == long["family.max_length"]
    longest = long[is_longest].set_index("run")
    final["longest"] = final["run"].map(longest["accuracy"])
    final["shortfall"] = final["run"].map(longest["predicted"] - longest["accuracy"])
    final["propagated minus local"] = _at_last_layer(final, "propagated") - _at_last_layer(
        final, "local"
    )
    return final


def _name(row: dict) -> str:
    if row["model"] == "Executor":
        return EXECUTOR
    if row["model.targets"] == "scratchpad":
        return SCRATCHPAD
    return BASELINE if row["recipe.learning_rate"] == 0 else DIRECT


def _at_last_layer(final: Frame, label: str) -> pd.Series:
    """The fraction of a label in the last layer of the longest chains."""
    values = pd.Series(math.nan, final.index)
    for length, group in final.groupby("family.max_length"):
        column = f"{EMITTED}/test/layer={length}/{label}"
        if column in final:
            values[group.index] = group[column]
    return values


def predicted_by_length(final: Frame) -> Frame:
    """One row per run and length, with the accuracy on test chains and (1 - eps)^length."""
    long = _chains.accuracy_by_length(final)
    return long.assign(predicted=(1 - long["eps"]) ** long["length"])


def observed_and_predicted(final: Frame) -> Frame:
    """The accuracies of the students that write their steps, beside the predictions."""
    own = final[final["student"].isin([SCRATCHPAD, EXECUTOR])]
    long = predicted_by_length(own)
    predicted = long.assign(accuracy=long["predicted"], student=long["student"] + ", (1-eps)^n")
    return pd.concat([long, predicted])


def labels_by_layer(final: Frame) -> Frame:
    """One row per run, layer and label, for the scratchpad on test chains."""
    own = final[final["student"] == SCRATCHPAD]
    pieces = []
    for layer in range(1, int(final["family.max_length"].max()) + 1):
        for label in LABELS:
            column = f"{EMITTED}/test/layer={layer}/{label}"
            if column in own:
                pieces.append(own[["seed"]].assign(layer=layer, label=label, share=own[column]))
    return pd.concat(pieces) if pieces else final[:0]


def executor_does_not_collapse(measurement: Measurement) -> bool:
    """Whether the executor answers more than `MAX_COLLAPSED` of the longest chains."""
    return (
        _chains.mean_where(measurement.all_rows, {"student": EXECUTOR}, "longest") > MAX_COLLAPSED
    )


def executor_follows(measurement: Measurement) -> bool:
    """Whether the executor's accuracy follows (1 - eps)^n at every length."""
    rows = measurement.all_rows
    deviation = _chains.mean_where(rows, {"student": EXECUTOR}, "largest deviation")
    return deviation <= MAX_DEVIATION


FOLLOWS = "the executor, whose errors are independent, must follow (1 - eps)^n"
CLAIMS = [
    reproduces(
        "collapse",
        "The scratchpad answers at most half of the longest chains (accuracy)",
        published="near zero on deeper graphs",
        rows=where({"student": SCRATCHPAD}),
        needs=("longest",),
        statistic=mean_of("longest"),
        passes=at_most(MAX_COLLAPSED),
        control="the executor must not collapse",
        control_fails=executor_does_not_collapse,
    ),
    hypothesis(
        "worse than independent",
        "On the longest chains the scratchpad falls below (1 - eps)^n (prediction minus accuracy)",
        rows=where({"student": SCRATCHPAD}),
        needs=("shortfall",),
        statistic=mean_of("shortfall"),
        passes=above(0.1),
        control=FOLLOWS,
        control_fails=executor_follows,
    ),
    hypothesis(
        "propagated",
        "In the last layer, more errors are propagated than local (difference of fractions)",
        rows=where({"student": SCRATCHPAD}),
        needs=("propagated minus local",),
        statistic=mean_of("propagated minus local"),
        passes=above(0.0),
    ),
    hypothesis(
        "decoded",
        "Without a scratchpad, more nodes of train chains are correct than in the untrained "
        "baseline (difference of fractions)",
        rows=where({"student": [DIRECT, BASELINE]}),
        needs=(f"{EMITTED}/seen/correct", "student"),
        statistic=difference(f"{EMITTED}/seen/correct", "student", DIRECT, BASELINE),
        passes=above(0.1),
        control="the untrained baseline, which is subtracted",
    ),
    control(
        "learned",
        "The scratchpad answers its train chains (accuracy)",
        rows=where({"student": SCRATCHPAD}),
        needs=("seen/accuracy",),
        statistic=mean_of("seen/accuracy"),
        passes=at_least(_chains.LEARNED),
    ),
    control(
        "executor",
        "The executor follows (1 - eps)^n at every length (largest deviation)",
        rows=where({"student": EXECUTOR}),
        needs=("largest deviation",),
        statistic=mean_of("largest deviation"),
        passes=at_most(MAX_DEVIATION),
    ),
]
FIGURES = [
    curve(
        "accuracy",
        against="length",
        color="student",
        rows=observed_and_predicted,
        name="length",
        title="Accuracy by length, and the prediction from single steps",
        x_title="length of the chain",
        y_title="accuracy on held-out chains",
    ),
    curve(
        "share",
        against="layer",
        color="label",
        rows=labels_by_layer,
        name="labels",
        title="Labels of the steps that the scratchpad writes, test chains",
        x_title="layer of the graph",
        y_title="fraction of steps",
    ),
]
