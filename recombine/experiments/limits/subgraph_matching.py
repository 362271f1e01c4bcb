"""Does the frequency of a computation in training predict whether it is done right?

Claim: transformers match subgraphs: nodes that are right have subgraphs that occur more often in
training than nodes that are wrong (Dziri et al. 2023, arXiv 2305.18654).

Deep nodes are rarer and harder, so frequency and correctness correlate without any matching. Nodes
are therefore compared within the same layer and the same length (`SubgraphFrequency`), with a
permutation test. Students write their intermediate values. The train set varies in size. If the
correlation vanishes within layer and length, depth explains it and the claim is confounded. An
untrained student is the control that must show no correlation.

Command:  recombine run subgraph_matching --scale small
Runtime:  0.9 minutes of CPU time (6 minutes on 2 busy cores); full: meant for a few
          minutes on one H200.
Expected: a correlation over all nodes; a smaller one within layer and length.
"""

from dataclasses import replace

from recombine.experiments.claim import (
    Frame,
    Measurement,
    above,
    control,
    final_rows,
    hypothesis,
    mean_of,
    reproduces,
    within,
)
from recombine.experiments.limits import _chains
from recombine.experiments.plots import curve
from recombine.experiments.untrained import is_untrained, untrained
from recombine.parts.diagnostics.subgraph_frequency import SubgraphFrequency
from recombine.sweeps.run import Run, sweep

TITLE = "Does the frequency of a subgraph predict correctness, beyond depth?"
SOURCE = "Dziri et al. 2023 (arXiv 2305.18654), section 3"
NUM_TASKS = {"tiny": 16, "small": 128, "full": 1024}  # that are judged
FRACTIONS = {"tiny": (0.25,), "small": (0.25, 0.75), "full": (0.25, 0.5, 0.75, 0.9)}
FREQUENCY = "SubgraphFrequency/test"


def runs(scale: str) -> list[Run]:
    """Held-out fraction x seed of the student with a scratchpad, and the untrained baselines."""
    model = _chains.student(scale, "scratchpad")
    probe = SubgraphFrequency("emitted", NUM_TASKS[scale], NUM_TASKS[scale])
    base = replace(_chains.base(scale), model=model, diagnostics=(probe,))
    trained = sweep(base, frac_test=FRACTIONS[scale], seed=range(_chains.SEEDS[scale]))
    return [*trained, *map(untrained, trained)]


def prepare(rows: Frame) -> Frame:
    """The final rows, with the student in words."""
    final = final_rows(rows)
    names = {True: "untrained", False: "scratchpad"}
    return final.assign(student=is_untrained(final).map(names))


def trained(final: Frame) -> Frame:
    """The rows of trained students."""
    return final[final["student"] == "scratchpad"]


def baselines(final: Frame) -> Frame:
    """The rows of untrained students."""
    return final[final["student"] == "untrained"]


WITHIN = f"{FREQUENCY}/within/correlation"
MIN_CORRELATION = 0.1  # over all nodes
MIN_WITHIN = 0.05  # within equal layer and length; smaller ones count as none


def is_explained_by_depth(measurement: Measurement) -> bool:
    """Whether the correlation of trained students vanishes within equal layer and length."""
    return not trained(measurement.all_rows)[WITHIN].mean() > MIN_WITHIN  # also if it is NaN


def untrained_nodes_do_not_correlate(measurement: Measurement) -> bool:
    """Whether the untrained students show no correlation over all nodes."""
    return baselines(measurement.all_rows)[f"{FREQUENCY}/correlation"].mean() < MIN_CORRELATION


def untrained_nodes_do_not_correlate_within(measurement: Measurement) -> bool:
    """Whether the untrained students show no correlation within equal layer and length."""
    return abs(baselines(measurement.all_rows)[WITHIN].mean()) <= MIN_WITHIN


CLAIMS = [
    reproduces(
        "frequency",
        "Right nodes have more frequent subgraphs than wrong ones (correlation over all nodes)",
        published="right nodes are seen more often",
        rows=trained,
        needs=(f"{FREQUENCY}/correlation",),
        statistic=mean_of(f"{FREQUENCY}/correlation"),
        passes=above(MIN_CORRELATION),
        control="depth must not explain it: the correlation remains within equal layer and length; "
        "an untrained student must show none",
        control_fails=untrained_nodes_do_not_correlate,
        is_confounded=is_explained_by_depth,
    ),
    hypothesis(
        "beyond depth",
        "The correlation remains within the same layer and length",
        rows=trained,
        needs=(WITHIN,),
        statistic=mean_of(WITHIN),
        passes=above(MIN_WITHIN),
        control="an untrained student must show no correlation within layer and length",
        control_fails=untrained_nodes_do_not_correlate_within,
    ),
    control(
        "untrained",
        "An untrained student shows no correlation within the same layer and length",
        rows=baselines,
        needs=(WITHIN,),
        statistic=mean_of(WITHIN),
        passes=within(-MIN_WITHIN, MIN_WITHIN),
    ),
]
FIGURES = [
    curve(
        f"{FREQUENCY}/{kind}",
        against="num_train",
        color="student",
        name=name,
        title=title,
        log_x=True,
        y_title="correlation of frequency and correctness",
    )
    for kind, name, title in (
        ("correlation", "all", "Frequency and correctness of all nodes"),
        ("within/correlation", "within", "The same within equal layer and length"),
    )
]
