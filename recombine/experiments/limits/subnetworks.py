"""Do the modules of a task have their own subnetworks in a trained student?

Claim: a network that solves a compositional task has a subnetwork for each part. The subnetwork
solves its part only, and without it the network loses that part only (arXiv 2301.10884). In the
source, both effects are above .2 in 31 of 72 runs on language.

For every module of the hyperteacher we train a mask on the weights of a student, on tasks in which
only this module is active (`_subnetworks.py`). The effect of a network is its R2 on the module,
cut off at 0, minus the mean over the other modules. Students are trained with 25, 50, 75 and 90% of
the combinations held out, so that they generalize well or badly. The settings of the mask training
are selected from a grid of 8, on students of other seeds. (The source selects on the effect that it
reports.) Controls: masks of untrained networks, with their own selection, and random masks that
keep as many weights of each layer.

Command:  recombine run subnetworks --scale small
Runtime:  small: 12 minutes on 2 very busy cores; full scale was not measured.
Expected: open. Untrained networks have subnetworks, too, so only the ablation counts: it should
          remove the own module only, and more so in students that generalize.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from recombine.basics.statistics import rank_correlation
from recombine.experiments import claim
from recombine.experiments.claim import Frame, Measurement, where
from recombine.experiments.limits import _subnetworks
from recombine.experiments.limits._students import last_score, trained
from recombine.experiments.plots import curve, scatter
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.recipes.fast import Fast
from recombine.sweeps.run import Run, sweep
from recombine.training.program import initialize

TITLE = "Do modules have their own subnetworks?"
SOURCE = "arXiv 2301.10884"
FRACTIONS = (0.25, 0.5, 0.75, 0.9)  # held out
GENERALIZES, FAILS = "25% held out", "90% held out"
UNTRAINED = "untrained"
PUBLISHED_SHARE = 31 / 72
LOSS = "mean loss by ablation"  # over the modules of a student
SINGLE = "mean student"  # R2 of the whole student on tasks of a single module, mean over modules
SEEDS = {"tiny": 3, "small": 8, "full": 8}
FIRST_SELECTION_SEED = 1000
NUM_SELECTION_SEEDS = {"tiny": 1, "small": 2, "full": 3}
RUNS: dict[str, Run] = {
    "tiny": Run(
        Hyperteacher(6, 3, 3, 3, 3), model=MLP((16, 16)), num_steps=100, num_evals=1, diagnostics=()
    ),
    "small": Run(Hyperteacher(6, 3, 6, 6, 6), model=MLP((64, 64)), num_evals=1, diagnostics=()),
    "full": Run(
        model=MLP((256, 256, 256)),
        family=Hyperteacher(),
        recipe=Fast(0.02, 0.05, vector_rate=0.1),
        num_steps=8000,
        num_evals=1,
        num_tasks=512,
        num_points=4,
        diagnostics=(),
    ),
}
EFFORTS = {
    "tiny": _subnetworks.Effort(10, 4, 8, 4, 16),
    "small": _subnetworks.Effort(),
    "full": _subnetworks.Effort(num_steps=1000),
}


def cells(scale: str) -> list[dict[str, Any]]:
    """One cell for each kind of student. Its rows are those of all seeds and modules."""
    kinds = [f"{fraction:.0%} held out" for fraction in FRACTIONS] + [UNTRAINED]
    return [{"scale": scale, "students": kind} for kind in kinds]


def measure(
    scale: str,
    students: str,
    folder: Path,
    show_progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Train students and masks, and score them: a row for every seed and module."""
    seeds = range(SEEDS[scale])
    selection_seeds = [FIRST_SELECTION_SEED + i for i in range(NUM_SELECTION_SEEDS[scale])]
    show_progress(f"{students}: training students")
    networks = _networks(scale, students, [*selection_seeds, *seeds], folder)
    effort = EFFORTS[scale]
    num_selection = len(selection_seeds)
    show_progress(f"{students}: selecting a setting")
    setting = _subnetworks.select(_stacked(scale, networks[:num_selection]), effort)
    show_progress(f"{students}: training masks")
    measured = _subnetworks.measure(_stacked(scale, networks[num_selection:]), setting, effort, 1)
    shared = _subnetworks.setting_columns(setting)
    rows = []
    for seed, network, of_student in zip(
        seeds, networks[num_selection:], _subnetworks.rows(measured), strict=True
    ):
        about = {"seed": seed, "test/r2": network["r2"]} | shared
        rows += [about | row for row in of_student]
    return rows


def _networks(scale: str, students: str, seeds: list[int], folder: Path) -> list[dict[str, Any]]:
    """The network, the hidden teacher and the test score of every student."""
    base = RUNS[scale]
    if students == UNTRAINED:
        initial = [initialize(run) for run in sweep(base, seed=seeds)]
        return [{"net": net, "world": world, "r2": 0.0} for net, world, _ in initial]
    fraction = float(students.partition("%")[0]) / 100
    fits = trained(sweep(base, frac_test=[fraction], seed=seeds), folder)
    return [
        {"net": fitted.net, "world": fitted.world, "r2": last_score(fitted, "test/r2")}
        for fitted in fits
    ]


def _stacked(scale: str, networks: list[dict[str, Any]]) -> _subnetworks.Students:
    nets = [network["net"] for network in networks]
    return _subnetworks.stack(RUNS[scale].family, nets, [network["world"] for network in networks])


def prepare(rows: Frame) -> Frame:
    """The rows, with whether each module has its own subnetwork, also by random masks."""
    frame = rows.copy()
    frame["own"] = _subnetworks.has_own(frame).astype(float)
    frame["random own"] = _subnetworks.has_own(frame, "random ").astype(float)
    frame["loss by ablation"] = -frame["ablation"]
    of_student = frame.groupby(["students", "seed"])
    for column in (LOSS, SINGLE):
        frame[column] = of_student[column.removeprefix("mean ")].transform("mean")
    return frame


def share(column: str, students: str) -> claim.Statistic:
    """The share of a student's modules with their own subnetwork, averaged over students."""
    return lambda frame: float(frame.loc[frame["students"] == students, column].mean())


def by_student(frame: Frame) -> Frame:
    """One row of every trained student. The columns `mean …` are means over its modules."""
    return frame[(frame["students"] != UNTRAINED) & (frame["module"] == 0)]


def correlation(column: str) -> claim.Statistic:
    """The rank correlation of a column with test R2 over trained students."""

    def statistic(frame: Frame) -> float:
        students = by_student(frame)
        return rank_correlation(students[column], students["test/r2"])

    return statistic


def _explained_by_single_tasks(measurement: Measurement) -> bool:
    """Whether R2 on single-module tasks, which needs no mask, predicts test R2 as well."""
    return correlation(SINGLE)(measurement.all_rows) >= measurement.value


def _random_masks_fail(measurement: Measurement) -> bool:
    return share("random own", GENERALIZES)(measurement.all_rows) < share("own", GENERALIZES)(
        measurement.all_rows
    )


NEEDS = ("students", "subnetwork", "ablation", "own")
CLAIMS = [
    claim.reproduces(
        "own subnetworks",
        "Modules of students that generalize have their own subnetwork: both effects above "
        f"{_subnetworks.MIN_EFFECT} (share of modules)",
        published="31 of 72 runs",
        needs=NEEDS,
        statistic=share("own", GENERALIZES),
        passes=claim.at_least(PUBLISHED_SHARE),
        control="random masks of the same sizes must have a smaller share",
        control_fails=_random_masks_fail,
    ),
    claim.reproduces(
        "untrained networks",
        "In untrained networks, masks find a network that solves one module better than the others "
        "(effect of the subnetwork)",
        published="random networks pass the subnetwork test",
        rows=where({"students": UNTRAINED}),
        needs=("subnetwork",),
        statistic=claim.mean_of("subnetwork"),
        passes=claim.above(_subnetworks.MIN_EFFECT),
    ),
    claim.hypothesis(
        "sign",
        "Ablation removes the own module more than others, in students that generalize (mean "
        "effect of the ablation)",
        rows=where({"students": GENERALIZES}),
        needs=("ablation",),
        statistic=claim.mean_of("ablation"),
        passes=claim.below(0.0),
    ),
    claim.hypothesis(
        "generalization",
        "The loss by ablation grows with generalization (rank correlation with test R2 over "
        "students)",
        needs=("students", "module", "test/r2", LOSS),
        statistic=correlation(LOSS),
        passes=claim.at_least(0.5),
        control="R2 of the whole student on single modules must predict test R2 less well",
        is_confounded=_explained_by_single_tasks,
    ),
    claim.control(
        "others survive",
        "Ablation leaves the other modules, so that its effect can be seen (their R2)",
        rows=where({"students": GENERALIZES}),
        needs=("ablation, others",),
        statistic=claim.mean_of("ablation, others"),
        passes=claim.above(_subnetworks.MIN_EFFECT),
    ),
    claim.control(
        "untrained, ablation",
        "In untrained networks, no module passes both tests, subnetwork and ablation (share)",
        needs=NEEDS,
        statistic=share("own", UNTRAINED),
        passes=claim.at_most(0.05),
    ),
    claim.control(
        "random masks",
        "Random masks of the same sizes find no own subnetworks (share)",
        needs=("students", "random own"),
        statistic=share("random own", GENERALIZES),
        passes=claim.at_most(0.05),
    ),
]


def summary(rows: Frame) -> dict[str, float]:
    """The means of every kind of student."""
    frame = prepare(rows)
    columns = ("test/r2", "student", "subnetwork", "ablation", "own", "size", "overlap")
    means = frame.groupby("students")[list(columns)].mean()
    return {
        f"{kind}: {column}": float(means.loc[kind, column])
        for kind in means.index
        for column in columns
    }


def _with_overlap_by_chance(frame: Frame) -> Frame:
    measured = frame.assign(masks="found")
    chance = frame.assign(masks="independent, same sizes", overlap=frame["overlap by chance"])
    return pd.concat([measured, chance])


FIGURES = [
    scatter(
        "ablation",
        against="subnetwork",
        color="students",
        name="effects",
        title="Effects of a module's subnetwork and of its ablation",
        x_title="effect of the subnetwork (own module minus others, R²)",
        y_title="effect of the ablation",
    ),
    scatter(
        LOSS,
        against="test/r2",
        color="students",
        rows=by_student,
        name="generalization",
        title="Loss by ablation and generalization, one point per student",
        y_title="loss of own minus others (R²)",
    ),
    curve(
        "overlap",
        against="students",
        color="masks",
        rows=_with_overlap_by_chance,
        name="overlap",
        title="Overlap of the masks of two modules",
        x_title="students",
        y_title="overlap (Jaccard index)",
    ),
]
