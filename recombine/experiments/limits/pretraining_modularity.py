"""Does pretraining make the subnetworks of modules more consistent?

Claim: after pretraining, more modules have their own subnetwork, whose ablation removes this module
only (arXiv 2301.10884; on language 51 of 72 runs instead of 31).

All students are trained on a quarter of the combinations of all modules. They differ in their
start:
- `scratch`: a random network,
- `pretrained`: a student of the same teacher that was trained on most combinations without the last
  module (`Run.start`),
- `other teacher`: a student that was trained in the same way on another teacher. It shares no
  module with the new tasks: a control for pretraining as such,
- `longer`: a random network, trained for as many steps as pretraining and training together.
The masks are trained and judged as in `subnetworks`, with a setting that is selected for each kind
on other seeds. Modules of one student are not independent, so standard errors are clustered by
student. Controls: the starts above, and random masks that keep as many weights.

Command:  recombine run pretraining_modularity --scale small
Runtime:  small: at most 6 minutes on 2 cores; full scale was not measured.
Expected: open. In the source, pretraining adds own subnetworks in 20 of 72 runs.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from recombine.experiments import claim
from recombine.experiments.claim import Frame, Measured, Measurement
from recombine.experiments.limits import _subnetworks
from recombine.experiments.limits._students import last_score, trained
from recombine.experiments.limits.subnetworks import EFFORTS, RUNS
from recombine.experiments.plots import bars, scatter
from recombine.parts.supports.missing_module import MissingModule
from recombine.sweeps.run import Run

TITLE = "Does pretraining make subnetworks more consistent?"
SOURCE = "arXiv 2301.10884"
SCRATCH, PRETRAINED, OTHER, LONGER = "scratch", "pretrained", "other teacher", "longer"
FEW = 0.75  # held out when all modules are trained
SEEDS = {"tiny": 3, "small": 8, "full": 12}
FIRST_SELECTION_SEED = 1000
NUM_SELECTION_SEEDS = {"tiny": 1, "small": 2, "full": 3}
FIRST_OTHER_SEED = 5000
CLUSTERED = "95% interval, clustered by student"


def cells(scale: str) -> list[dict[str, Any]]:
    """One cell for each start. Its rows are those of all seeds and modules."""
    return [{"scale": scale, "start": kind} for kind in (SCRATCH, PRETRAINED, OTHER, LONGER)]


def student(scale: str, start: str, seed: int) -> Run:
    """The run of one student."""
    run = dataclasses.replace(RUNS[scale], frac_test=FEW, seed=seed)
    if start == LONGER:
        return dataclasses.replace(run, num_steps=2 * run.num_steps)
    if start == SCRATCH:
        return run
    teacher_seed = seed if start == PRETRAINED else FIRST_OTHER_SEED + seed
    parent = dataclasses.replace(
        RUNS[scale], support=MissingModule(), frac_test=0.25, seed=teacher_seed
    )
    return dataclasses.replace(run, start=parent)


def measure(
    scale: str,
    start: str,
    folder: Path,
    show_progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Train students and masks, and score them: a row for every seed and module."""
    seeds = list(range(SEEDS[scale]))
    selection_seeds = [FIRST_SELECTION_SEED + i for i in range(NUM_SELECTION_SEEDS[scale])]
    show_progress(f"{start}: training students")
    runs = [student(scale, start, seed) for seed in [*selection_seeds, *seeds]]
    fits = trained(runs, folder)
    num_selection = len(selection_seeds)
    effort = EFFORTS[scale]
    show_progress(f"{start}: selecting a setting")
    setting = _subnetworks.select(_stacked(fits[:num_selection]), effort)
    show_progress(f"{start}: training masks")
    reported = fits[num_selection:]
    measured = _subnetworks.measure(_stacked(reported), setting, effort, 1)
    rows = []
    for seed, fitted, of_student in zip(seeds, reported, _subnetworks.rows(measured), strict=True):
        about = {"seed": seed, "test/r2": last_score(fitted, "test/r2")}
        about |= _subnetworks.setting_columns(setting)
        rows += [about | row for row in of_student]
    return rows


def _stacked(fits: list[Any]) -> _subnetworks.Students:
    family = fits[0].run.family
    return _subnetworks.stack(family, [fit.net for fit in fits], [fit.world for fit in fits])


def prepare(rows: Frame) -> Frame:
    """The rows, with whether each module has its own subnetwork, also by random masks."""
    frame = rows.copy()
    frame["own"] = _subnetworks.has_own(frame).astype(float)
    frame["random own"] = _subnetworks.has_own(frame, "random ").astype(float)
    return frame


def clustered_difference(frame: Frame, column: str, first: str, second: str) -> Measured:
    """The difference of the means of two starts, with standard errors clustered by student.

    A student is a start and a seed. All students have as many modules, so the variance of a mean is
    that of the students' means over their number.
    """
    from scipy.stats import t

    means = [
        frame[frame["start"] == start].groupby("seed")[column].mean().to_numpy()
        for start in (first, second)
    ]
    if min(map(len, means)) < 2:
        return Measured(math.nan)
    value = float(means[0].mean() - means[1].mean())
    error = math.sqrt(sum(values.var(ddof=1) / len(values) for values in means))
    freedom = sum(map(len, means)) - 2
    half_width = float(t.ppf(0.975, freedom)) * error
    interval = (value - half_width, value + half_width)
    return Measured(value, interval, CLUSTERED, min(map(len, means)))


def _gain(column: str, first: str, second: str = SCRATCH) -> claim.Measure:
    return lambda frame: clustered_difference(frame, column, first, second)


def _explained_by_a_control(measurement: Measurement) -> bool:
    """Whether more steps, or pretraining on another teacher, add as many own subnetworks."""
    gains = [
        clustered_difference(measurement.all_rows, "own", start, SCRATCH).value
        for start in (OTHER, LONGER)
    ]
    return bool(np.max(gains) >= measurement.value)


NEEDS = ("start", "subnetwork", "ablation", "own")
CLAIMS = [
    claim.reproduces(
        "more consistent",
        "After pretraining, more modules have their own subnetwork (difference of shares)",
        published="31 of 72 to 51 of 72 runs",
        needs=NEEDS,
        measure=_gain("own", PRETRAINED),
        passes=claim.above(0.0),
        control="more steps, or pretraining on another teacher, must add fewer",
        is_confounded=_explained_by_a_control,
    ),
    claim.hypothesis(
        "ablation",
        "After pretraining, ablation removes the own module more (difference of the mean effect "
        "of the ablation)",
        needs=NEEDS,
        measure=_gain("ablation", PRETRAINED),
        passes=claim.below(0.0),
    ),
    claim.hypothesis(
        "overlap",
        "After pretraining, masks of two modules overlap less (difference of Jaccard indices)",
        needs=("start", "overlap"),
        measure=_gain("overlap", PRETRAINED),
        passes=claim.below(0.0),
    ),
    claim.control(
        "pretraining helps",
        "Pretraining on the same teacher raises R2 on held-out combinations (difference; "
        "precondition of the other claims)",
        needs=("start", "test/r2"),
        measure=_gain("test/r2", PRETRAINED),
        passes=claim.above(0.0),
    ),
    claim.control(
        "random masks",
        "Random masks of the same sizes find no own subnetworks (share)",
        needs=("random own",),
        statistic=claim.mean_of("random own"),
        passes=claim.at_most(0.05),
    ),
]


def summary(rows: Frame) -> dict[str, float]:
    """The means of every start."""
    frame = prepare(rows)
    columns = ("test/r2", "student", "subnetwork", "ablation", "own", "size", "overlap")
    means = frame.groupby("start")[list(columns)].mean()
    return {
        f"{kind}: {column}": float(means.loc[kind, column])
        for kind in means.index
        for column in columns
    }


def by_student(frame: Frame) -> Frame:
    """The means over the modules of every student, so that intervals are over students."""
    return frame.groupby(["start", "seed"], as_index=False)[["own", "overlap"]].mean()


FIGURES = [
    bars(
        "own",
        against="start",
        rows=by_student,
        name="own",
        title="Modules with their own subnetwork",
        x_title="start of training",
        y_title="share of modules",
    ),
    scatter(
        "ablation",
        against="subnetwork",
        color="start",
        name="effects",
        title="Effects of a module's subnetwork and of its ablation",
        x_title="effect of the subnetwork (own module minus others, R²)",
        y_title="effect of the ablation",
    ),
    bars(
        "overlap",
        against="start",
        rows=by_student,
        name="overlap",
        title="Overlap of the masks of two modules",
        x_title="start of training",
        y_title="overlap (Jaccard index)",
    ),
]
