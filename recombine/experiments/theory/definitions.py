"""Are our task families compositional by the paper's definition, and do students need few tasks?

Claim: distinct module weights give distinct tasks, and the description of a family grows
sub-exponentially with its modules while its tasks grow exponentially (arXiv 2507.07207, Definition
2.1). The number of train tasks that a learner needs grows sub-exponentially with the number of all
tasks (Definition 2.2).

Distinct tasks: all tasks of a family, with weights of 1 and, separately, with weights drawn three
times. We measure the distance of the two closest tasks, relative to the mean of all pairs. The
control is a hyperteacher with two equal modules. Description: the numbers in a world, against the
number of tasks. At most half of the modules are active, so that tasks grow exponentially with
modules. (In `GoalGrid` interactions, mazes and objects grow together, so tasks grow as their cube.)
The control is `Unrelated`, whose world has one teacher per task. Tasks needed: the train tasks with
which the students of `scaling_law` reach their target, from its committed table. The control: a
fixed share of all tasks must predict them worse than a power.

Command:  recombine run definitions --scale small
Runtime:  50 to 75 s on 2 busy cores.
Expected: every family has distinct tasks except the control; descriptions are polynomial in the
          number of modules, and a power well below 1 of the number of tasks; tasks needed are a
          power below 1 of all tasks.
"""

from typing import Any

import jax.numpy as jnp
import pandas as pd

from recombine.experiments import claim
from recombine.experiments.claim import Frame, Measurement, Select, where
from recombine.experiments.ledger import RESULTS, recipes_of, shown
from recombine.experiments.paper import scaling_law
from recombine.experiments.plots import bars, curve, log_ticks
from recombine.experiments.theory import _definitions
from recombine.parts.families.goal_grid import GoalGrid
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.families.preference_grid import PreferenceGrid
from recombine.parts.families.unrelated import Unrelated
from recombine.parts.prng import new_key, stream
from recombine.storage.table import Table

TITLE = "What makes a family compositional: distinct tasks, short descriptions, few train tasks"
SOURCE = "arXiv 2507.07207, Definition 2.1"
# Numbers of modules; for GoalGrid, numbers of interactions, of mazes and of objects.
MODULES = {"tiny": (4,), "small": (6, 8), "full": (8, 16)}
GOALS = {"tiny": (2,), "small": (2, 3), "full": (3, 5)}
POINTS = {"tiny": 96, "small": 960, "full": 1920}  # multiples of the families' horizons
DESCRIBED_MODULES = (4, 6, 8, 10, 12, 14, 16)  # at most half of them active
DESCRIBED_GOALS = (2, 3, 4, 5)  # GoalGrid has no names for more
MIN_SIZES = 4  # sizes of a family that a law of growth is judged by
SEEDS = 3
# Of the MLPs in the first table of `scaling_law`, whose cells do not name it.
FIRST_RECIPE = "Fast(learning_rate=0.05, weight_decay=0.02, vector_rate=1), 5,000 steps"
NUM_WEIGHTS = 3  # draws of the weights of each task
# Relative to the mean distance: far above rounding (1e-7), below one action in 1920 points.
TOLERANCE = 1e-4
ONES = "weights 1"
DRAWN = "weights drawn"
TWINS = "two modules equal"
CASES = (
    ("Hyperteacher", ONES),
    ("Hyperteacher", DRAWN),
    ("Hyperteacher", TWINS),
    ("PreferenceGrid", ONES),
    ("PreferenceGrid", DRAWN),
    ("GoalGrid", ONES),
    ("Unrelated", ONES),
)
COMPOSITIONAL = ("Hyperteacher", "PreferenceGrid", "GoalGrid")
OPTIONAL_COLUMNS = ["family", "weights", "num_hot", "state"]  # not of all kinds of cells


def cells(scale: str) -> list[dict[str, Any]]:
    """Distinct tasks by family, weights, size, seed; descriptions; tasks needed by K, M, seed."""
    listed: list[dict[str, Any]] = []
    for family, weights in CASES:
        case = {"what": "injective", "scale": scale, "family": family, "weights": weights}
        for size in (GOALS if family == "GoalGrid" else MODULES)[scale]:
            listed += [case | {"size": size, "seed": seed} for seed in range(SEEDS)]
    for family in (*COMPOSITIONAL, "Unrelated"):
        sizes = DESCRIBED_GOALS if family == "GoalGrid" else DESCRIBED_MODULES
        listed += [{"what": "description", "family": family, "size": size} for size in sizes]
    # Except in tests, tasks needed have the scale of the committed table of `scaling_law`.
    table = Table(RESULTS / "scaling_law.parquet")
    law_scale = scale if scale == "tiny" else table.meta().get("scale", scale)
    recipe = {} if scale == "tiny" else _law_recipe(table)
    for num_hot in scaling_law.NUM_HOT[law_scale]:
        for size in scaling_law.NUM_MODULES[law_scale]:
            curve_of = {"what": "needed", "size": size, "num_hot": num_hot} | recipe
            listed += [curve_of | {"seed": seed} for seed in range(SEEDS)]
    return listed


def _law_recipe(table: Table) -> dict[str, str]:
    """What the cells of tasks needed name beside the curve: the recipe, unless it is the first one.

    So a table that was trained again by another recipe gives other cells, which are computed anew.
    """
    rows = shown(table)
    mlps = pd.DataFrame(rows[rows["model"] == "MLP"]) if len(rows) else rows
    recipe = recipes_of(mlps) if len(mlps) else ""
    return {} if recipe in ("", FIRST_RECIPE) else {"recipe_of_law": recipe}


def measure(what: str, **cell: Any) -> dict[str, Any]:
    """The row of one cell; `what` names the measurement."""
    return {"injective": _injective, "description": _description, "needed": _needed}[what](**cell)


def _family(name: str, size: int, num_hot: int, weights: Any = "khot") -> Any:
    if name == "GoalGrid":
        return GoalGrid(size, size, size)
    if name == "PreferenceGrid":
        return PreferenceGrid(size, num_hot, weights=weights, observation="compact")
    family = {"Hyperteacher": Hyperteacher, "Unrelated": Unrelated}[name]
    return family(size, num_hot, weights=weights)


def _injective(scale: str, family: str, weights: str, size: int, seed: int) -> dict[str, Any]:
    """The two closest tasks of a world."""
    num_hot = 2 if family == "PreferenceGrid" else 3  # episodes take more memory
    made = _family(family, size, num_hot, "discrete" if weights == DRAWN else "khot")
    key = new_key(seed)
    world = made.init(stream(key, "world"))
    if weights == TWINS:
        world = _definitions.with_equal_modules(world)
    num_weights = NUM_WEIGHTS if weights == DRAWN else 1
    tasks = _definitions.weighted_tasks(made, stream(key, "tasks"), num_weights)
    closest = _definitions.closest_tasks(
        made, world, jnp.asarray(tasks), stream(key, "points"), POINTS[scale], TOLERANCE
    )
    first, second = (
        " ".join(f"{weight:g}" for weight in tasks[index])
        for index in (closest.first, closest.second)
    )
    return {
        "num_tasks": len(tasks),
        "closest": f"{first} | {second}",
        "separation": closest.separation,
        "relative": closest.separation / closest.typical,
        "injective": closest.injective,
    }


def _description(family: str, size: int) -> dict[str, Any]:
    """The length of the description of a family, its tasks and its modules."""
    made = _family(family, size, size // 2)
    return {
        "num_tasks": _definitions.num_tasks(made),
        "description": _definitions.description_length(made),
        "num_modules": made.num_modules,
    }


def _needed(size: int, num_hot: int, seed: int, recipe_of_law: str = "") -> dict[str, Any]:
    """The tasks needed by one curve that the committed `scaling_law` table shows, if it has it.

    `recipe_of_law` is that of the table (`_law_recipe`); it only distinguishes cells.
    """
    table = Table(RESULTS / "scaling_law.parquet")
    rows = shown(table)
    if rows.empty:
        return {"state": "missing"}
    curve_of = {"model": "MLP", "K": num_hot, "M": size, "seed": seed}
    final = where(curve_of)(scaling_law.prepare(rows))
    if final.empty:
        return {"state": "missing"}
    target = scaling_law.TARGETS[table.meta()["scale"]][0]
    (crossing,) = scaling_law.crossings(final, "MLP", target).to_dict("records")
    return {name: crossing[name] for name in ("needed", "total", "state")} | {"target": target}


def prepare(rows: Frame) -> Frame:
    """The rows with all columns that select rows; an unfinished sweep may lack some."""
    return rows.reindex(columns=rows.columns.union(OPTIONAL_COLUMNS))


def usable_numbers(frame: Frame) -> Frame:
    """The tasks needed that laws are fitted to.

    As in `scaling_law`, an M counts if the curves of all seeds cross the target.
    """
    needed = frame[frame["what"] == "needed"].rename(columns={"num_hot": "K", "size": "M"})
    is_crossed = needed["state"] == "crossed"
    needed = needed[is_crossed.groupby([needed["K"], needed["M"]]).transform("sum") == SEEDS]
    num_modules = needed.groupby("K")["M"].transform("nunique")
    return needed[num_modules >= scaling_law.MIN_MODULE_COUNTS]


def summary(rows: Frame) -> dict[str, float]:
    """The closest tasks of every case, and the powers of descriptions and of tasks needed."""
    frame = prepare(rows)
    values = {}
    cases = frame[frame["what"] == "injective"].groupby(["family", "weights"])
    for (family, weights), own in cases:
        values[f"{family}, {weights}: closest pair, relative"] = float(own["relative"].min())
    for family, own in frame[frame["what"] == "description"].groupby("family"):
        if len(own) > 1:
            power = growth_with_modules(own).power
            values[f"{family}: description, power of the modules"] = power
            values[f"{family}: description, power of the tasks"] = power_of_tasks(own)
    for num_hot, own in usable_numbers(frame).groupby("K"):
        power = scaling_law.largest_power(own)
        values[f"K={num_hot:g}: tasks needed, power of the total"] = power
    return values


def growth_with_modules(rows: Frame) -> _definitions.Growth:
    """The growth of the description with the number of modules."""
    return _definitions.growth(rows["num_modules"], rows["description"])


def power_of_tasks(rows: Frame) -> float:
    """The power of the number of tasks as which the description grows."""
    return _definitions.growth(rows["num_tasks"], rows["description"]).power


def _equal_modules(frame: Frame) -> Frame:
    return frame[frame["weights"] == TWINS]


def _descriptions(frame: Frame, family: str) -> Frame:
    return frame[(frame["what"] == "description") & (frame["family"] == family)]


def _distinct_tasks(family: str, weights: str) -> claim.DeclaredClaim:
    def select(frame: Frame) -> Frame | None:
        own = where({"what": "injective", "family": family, "weights": weights})(frame)
        return own if len(_equal_modules(frame)) else None

    return claim.reproduces(
        f"injective, {family}, {weights}",
        "Distinct module weights give distinct tasks (distance of the two closest, relative to the "
        f"mean of all pairs); {family}, {weights}",
        published="injective",
        repeats=_drawn_claim(family) if weights == ONES else "",
        rows=select,
        needs=("relative",),
        statistic=claim.min_of("relative"),
        passes=claim.above(TOLERANCE),
        control="a hyperteacher with two equal modules must have two equal tasks",
        control_fails=lambda measurement: (
            not _equal_modules(measurement.all_rows)["injective"].any()
        ),
    )


def _drawn_claim(family: str) -> str:
    """The claim with drawn weights, which are the paper's; empty if a family has none."""
    return f"definitions: injective, {family}, {DRAWN}" if (family, DRAWN) in CASES else ""


def _short_description(family: str) -> claim.DeclaredClaim:
    def select(frame: Frame) -> Frame | None:
        own = _descriptions(frame, family)
        num_sizes = min(len(own), len(_descriptions(frame, "Unrelated")))
        return own if num_sizes >= MIN_SIZES else None

    return claim.reproduces(
        f"description, {family}",
        "The description grows as a power of the number of modules, and as a power below 1 of the "
        f"number of tasks (the latter power); {family}",
        published="sub-exponential in the modules",
        rows=select,
        measure=claim.exact(power_of_tasks),  # a count
        passes=claim.all_of(
            claim.below(1),
            claim.on_value(
                "not exponential in the modules",
                lambda measurement: not growth_with_modules(measurement.rows).is_exponential,
            ),
        ),
        control="the description of unrelated tasks must grow exponentially",
        control_fails=lambda measurement: (
            growth_with_modules(_descriptions(measurement.all_rows, "Unrelated")).is_exponential
        ),
    )


def fixed_share_predicts_worse(measurement: Measurement) -> bool:
    """The control: a fixed share of all tasks predicts the tasks needed worse than a power."""
    share, power = (
        scaling_law.prediction_error(measurement.rows, law, extrapolate=True)
        for law in (scaling_law.SHARE, scaling_law.POWER)
    )
    return share > power


CLAIMS = [
    *(
        _distinct_tasks(family, weights)
        for family, weights in CASES
        if weights != TWINS and family != "Unrelated"
    ),
    *map(_short_description, COMPOSITIONAL),
    claim.reproduces(
        "tasks needed",
        "Train tasks needed for a test R2 grow as a power below 1 of all tasks (largest power of "
        "any K; MLP, the runs of scaling_law)",
        published="sub-exponential growth",
        repeats="scaling_law: MLP: power",
        after_rows=scaling_law.ALL_TARGETS,
        source="arXiv 2507.07207, Definition 2.2",
        rows=usable_numbers,
        statistic=scaling_law.largest_power,
        passes=claim.below(1),
        control="a fixed share of all tasks must predict worse",
        control_fails=fixed_share_predicts_worse,
    ),
]


def _only(what: str) -> Select:
    return where({"what": what})


def _log_axes(figure: Any, rows: Frame) -> None:
    figure.update_xaxes(log_ticks(rows["num_tasks"])).update_yaxes(type="log", dtick=1)


def _finish_needed(figure: Any, rows: Frame) -> None:
    y_title = f"train tasks needed for R² {rows['target'].iloc[0]:g}"
    figure.update_xaxes(log_ticks(rows["total"]))
    figure.update_yaxes(log_ticks(rows["needed"]), type="log", title=y_title)


FIGURES = [
    bars(
        "relative",
        against="family",
        color="weights",
        rows=_only("injective"),
        name="closest",
        title="Distance of the two closest tasks; at 0 they are the same task",
        y_title="distance, relative to the mean of all pairs",
    ),
    curve(
        "description",
        against="num_tasks",
        color="family",
        rows=_only("description"),
        name="description",
        title="Length of the description of a family, by its number of tasks",
        x_title="tasks",
        y_title="numbers in a world",
        log_x=True,
        finish=_log_axes,
    ),
    curve(
        "needed",
        against="total",
        color="K",
        rows=usable_numbers,
        name="needed",
        title="Train tasks needed to generalize, by the number of all tasks",
        x_title="tasks",
        log_x=True,
        finish=_finish_needed,
    ),
]
