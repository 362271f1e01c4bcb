"""Three variants of the public code: growing train sets, continuous weights, a deeper teacher.

Claim: the number of train tasks needed grows much more slowly than the number of all tasks (arXiv
2507.07207, section 3). The public code has supports for this question, but the paper reports
no result with them: train sets that grow linearly (8 tasks per module) or quadratically (M^2
tasks) with the number M of modules. The public code also has continuous weights of active modules
and deeper teachers. Compositional generalization should hold with these, too.

- Growth: at up to 4 active modules, test R2 does not fall as modules are added if train tasks grow
  quadratically with M; all tasks grow with the fourth power. The control is a train set of fixed
  size: its score must fall. The linear law is reported.
- Continuous weights, deeper teacher: with a quarter of the tasks held out, test R2 is at least .9
  of the seen R2. The control are students with few train tasks, which must stay below.

Command:  recombine run variants --scale small
Runtime:  not measured on free cores; full: 48 students of 4x1024 on a GPU.
Expected: no fall with the quadratic law; test R2 close to seen R2 with both kinds of teachers.
"""

import numpy as np
import pandas as pd

from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    Measurement,
    Select,
    at_least,
    at_most,
    final_rows,
    hypothesis,
    reproduces,
)
from recombine.experiments.plots import bars, curve
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.supports.growing import Growing
from recombine.sweeps.run import Run, paper_fast, replace_fields, sweep

TITLE = "Growing train sets, continuous weights and a deeper teacher"
SOURCE = "arXiv 2507.07207, section 3, and its public code"
NUM_HOT = {"tiny": 2, "small": 3, "full": 4}
MODULES = {"tiny": (4, 5), "small": (8, 10, 12), "full": (12, 16, 20, 24)}
# At full scale, the factors of both laws are those of the public code. With fewer modules, 8 tasks
# per module are nearly all tasks.
LINEAR_FACTOR = {"tiny": 1.5, "small": 3.5, "full": 8.0}
QUADRATIC_FACTOR = {"tiny": 0.25, "small": 0.5, "full": 1.0}
CONSTANT = {"tiny": 4, "small": 16, "full": 48}  # train tasks of the control
FRACTIONS = {"tiny": (0.25, 0.5), "small": (0.25, 0.9), "full": (0.25, 0.95)}
CONTINUOUS = "continuous weights"
DEEPER = "deeper teacher"
TEACHERS = {CONTINUOUS: {"family.weights": "continuous"}, DEEPER: {"family.num_layers": 2}}
LAWS = ("linear", "quadratic", "constant")
SEEDS = {"tiny": 1, "small": 3, "full": 3}
MAX_FALL = 0.05  # in test R2; a smaller fall counts as none
MIN_SHARE = 0.9  # of the seen R2, for students that generalize
MIN_SEEN = 0.5  # seen R2 below which a student does not fit its train tasks


def base_run(scale: str) -> Run:
    """The run that all sweeps vary."""
    if scale == "full":
        return paper_fast(diagnostics=())
    run = Run(num_steps=2000, num_evals=1, diagnostics=())
    if scale == "small":
        return run
    changes = {"family.num_modules": 5, "model": MLP((8,)), "num_eval_tasks": 64, "num_steps": 20}
    return replace_fields(run, changes)


def runs(scale: str) -> list[Run]:
    """Law of growth x modules x seed, and teacher x held-out fraction x seed."""
    base = base_run(scale)
    seeds = range(SEEDS[scale])
    listed = []
    for num_modules in MODULES[scale]:
        family = Hyperteacher(num_modules, NUM_HOT[scale])
        grown = replace_fields(base, {"family": family, "frac_test": 0.25})
        listed += sweep(grown, support=growing(scale, num_modules), seed=seeds)
    for changes in TEACHERS.values():
        taught = replace_fields(base, changes)
        listed += sweep(taught, frac_test=FRACTIONS[scale], seed=seeds)
    return listed


def growing(scale: str, num_modules: int) -> list[Growing]:
    """The supports of the three laws; that of the constant law is a linear one at a single M."""
    return [
        Growing("linear", LINEAR_FACTOR[scale]),
        Growing("quadratic", QUADRATIC_FACTOR[scale]),
        Growing("linear", CONSTANT[scale] / num_modules),
    ]


def prepare(rows: Frame) -> Frame:
    """The final rows. Added columns:

    - `M`, and the `law` of train sets that grow;
    - `teacher` of the other students;
    - `share`: test R2 as a fraction of the seen R2, 0 for a student that does not fit.
    """
    final = final_rows(rows)
    final["M"] = final["family.num_modules"]
    is_growing = final["support"] == "Growing"
    is_linear = is_growing & (final["support.law"] == "linear")
    is_constant = is_linear & ~final["support.factor"].isin(list(LINEAR_FACTOR.values()))
    final["law"] = final["support.law"].mask(is_constant, "constant")
    is_continuous = final["family.weights"] == "continuous"
    names = np.where(is_continuous, CONTINUOUS, DEEPER)
    final["teacher"] = pd.Series(names, final.index).mask(is_growing)
    share = final["test/r2"] / final["seen/r2"]
    final["share"] = share.where(final["seen/r2"] > MIN_SEEN, 0.0)
    return final


def fall(rows: Frame, law: str) -> float:
    """The mean test R2 with the fewest modules minus that with the most."""
    means = rows[rows["law"] == law].groupby("M")["test/r2"].mean()
    return float(means.iloc[0] - means.iloc[-1])


def all_laws(final: Frame) -> Frame | None:
    """The students of growing train sets; None unless all laws have the same two M or more."""
    rows = final[final["law"].notna()]
    num_modules = rows.groupby("law")["M"].nunique()
    is_complete = set(num_modules.index) == set(LAWS) and num_modules.nunique() == 1
    return rows if is_complete and num_modules.iloc[0] > 1 else None


def of_teacher(teacher: str) -> Select:
    """The students of a kind of teacher; None unless two held-out fractions were trained."""

    def select(final: Frame) -> Frame | None:
        rows = final[final["teacher"] == teacher]
        return rows if rows["frac_test"].nunique() > 1 else None

    return select


def most_trained(rows: Frame) -> Frame:
    """The students with the most train tasks."""
    return rows[rows["frac_test"] == rows["frac_test"].min()]


def share_kept(rows: Frame) -> float:
    """The mean share of the students with the most train tasks."""
    return float(most_trained(rows)["share"].mean())


def few_tasks_fail(measurement: Measurement) -> bool:
    """Whether students with the fewest train tasks have a share below `MIN_SHARE`."""
    fewest = measurement.rows[measurement.rows["frac_test"] == measurement.rows["frac_test"].max()]
    return float(fewest["share"].mean()) < MIN_SHARE


def constant_falls(measurement: Measurement) -> bool:
    """Whether test R2 falls with a train set of fixed size, by more than `MAX_FALL`."""
    return fall(measurement.rows, "constant") > MAX_FALL


def growth_note(measurement: Measurement) -> str:
    """The falls with the other two laws, as text."""
    linear, constant = (fall(measurement.rows, law) for law in ("linear", "constant"))
    return f"fall {linear:.3f} linear, {constant:.3f} constant"


def summary(rows: Frame) -> dict[str, float]:
    """Mean test R2 by law and M, and by teacher and held-out fraction."""
    final = prepare(rows)
    by_law = final.groupby(["law", "M"])["test/r2"].mean()
    by_teacher = final.groupby(["teacher", "frac_test"])["test/r2"].mean()
    return {
        **{f"{law}, M={m}": float(score) for (law, m), score in by_law.items()},
        **{
            f"{teacher}, {fraction:.0%} held out": float(score)
            for (teacher, fraction), score in by_teacher.items()
        },
    }


def _teacher_claim(teacher: str, what: str) -> DeclaredClaim:
    return hypothesis(
        teacher,
        f"Students of a teacher with {what} generalize: with a quarter of the tasks held out, test "
        f"R2 is at least {MIN_SHARE} of the seen R2",
        source="the public code of arXiv 2507.07207",
        rows=of_teacher(teacher),
        needs=("frac_test", "share"),
        statistic=share_kept,
        passes=at_least(MIN_SHARE),
        control="students with few train tasks stay below",
        control_fails=few_tasks_fail,
        note=lambda measurement: f"test R2 {most_trained(measurement.rows)['test/r2'].mean():.3f}",
    )


CLAIMS = [
    reproduces(
        "quadratic growth",
        "With train tasks that grow as M^2, test R2 does not fall as modules are added (fewest M "
        f"minus most M, at most {MAX_FALL})",
        published="sub-exponential growth",
        repeats="scaling_law: MLP: power",
        rows=all_laws,
        needs=("law", "M", "test/r2"),
        statistic=lambda rows: fall(rows, "quadratic"),
        passes=at_most(MAX_FALL),
        control=f"with a train set of fixed size it falls by more than {MAX_FALL}",
        control_fails=constant_falls,
        note=growth_note,
    ),
    _teacher_claim(CONTINUOUS, "continuous weights of modules"),
    _teacher_claim(DEEPER, "two hidden layers of modules"),
]
FIGURES = [
    curve(
        "test/r2",
        against="M",
        color="law",
        rows=all_laws,
        name="growth",
        title="Generalization as modules are added, by the law of the number of train tasks",
    ),
    bars(
        "test/r2",
        against="teacher",
        color="held out",
        rows=lambda final: final[final["teacher"].notna()].assign(
            **{"held out": final["frac_test"].map("{:.0%} held out".format)}
        ),
        name="teachers",
        title="Continuous weights and a deeper teacher",
        x_title="teacher",
    ),
]
