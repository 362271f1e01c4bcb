"""Are the lab's families compositional, as defined, and does generalisation over them need few tasks, as defined?

Claim: distinct rows of module weights give distinct tasks, and what describes a family grows sub-exponentially with
its modules while its tasks grow exponentially (arXiv 2507.07207, Definition 2.1); the train tasks that a learner needs
grow sub-exponentially with all tasks (Definition 2.2).

Injective: every row of the table, with active weights of 1 and, apart, with weights drawn three times; the distance of
the closest two tasks, relative to that of all pairs. The control is a hyperteacher with two equal modules. Description:
the numbers in a world against the number of tasks, with half of the modules active at most, so that tasks grow
exponentially with modules (of `GoalGrid` interactions, mazes and objects grow together, its tasks as their cube). The
control is `Unrelated`, whose world is a teacher for each task. Needed: the train tasks with which the students of
`scaling_law` reach their target, read from its committed table; the control is that a fixed share of all tasks, instead
of a power of them, must predict worse.

Command:  recombine run definitions --scale small
Runtime:  50 to 75 s on 2 cores that had other work too.
Expected: every family injective but the control; descriptions polynomial in the number of modules, and a power well
          below 1 of the number of tasks; tasks needed a power below 1 of all tasks.
Measured: small (2026-11-16, 3 worlds each): the closest two tasks are .53 of the typical distance apart (hyperteacher;
          .07 with drawn weights), .30 (preferences) and .02 (goals that differ in the interaction, one step of an
          episode). With drawn weights preferences are not injective: those that differ by a factor make the same
          choices. Descriptions grow as powers .15, .16 and .33 of the number of tasks, that of unrelated tasks as 1.13.
          Tasks needed grow as powers .41 (.39 to .43; K=4), .34 (K=5) and .31 (K=6) of all tasks.
"""

from typing import Any

import jax.numpy as jnp
import pandas as pd

from recombine.basics import statistics
from recombine.experiments import claim as ledger
from recombine.experiments.paper import scaling_law
from recombine.experiments.paper.scaling_data import ticks
from recombine.experiments.theory import _definitions
from recombine.parts.families.goal_grid import GoalGrid
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.families.preference_grid import PreferenceGrid
from recombine.parts.families.unrelated import Unrelated
from recombine.parts.prng import new_key, stream
from recombine.reporting import figure
from recombine.storage.table import Table

TITLE = "What makes a family compositional: distinct tasks, short descriptions, few train tasks"
# Of each kind of world the numbers of modules (of GoalGrid, of interactions, mazes and objects each).
MODULES = {"tiny": (4,), "small": (6, 8), "full": (8, 16)}
GOALS = {"tiny": (2,), "small": (2, 3), "full": (3, 5)}
POINTS = {"tiny": 96, "small": 960, "full": 1920}  # multiples of all horizons
GROWING = (4, 6, 8, 10, 12, 14, 16)  # modules, half of them active at most
GROWING_GOALS = (2, 3, 4, 5)  # there are words for no more
SEEDS = 3
TIMES = 3  # that weights of a row are drawn
TOLERANCE = (
    1e-4  # of the typical distance: far above rounding (1e-7), below one action in 1920 points
)
ONES, DRAWN, TWINS = "weights 1", "weights drawn", "two modules equal"
CASES = (
    ("Hyperteacher", ONES),
    ("Hyperteacher", DRAWN),
    ("Hyperteacher", TWINS),
    ("PreferenceGrid", ONES),
    ("PreferenceGrid", DRAWN),
    ("GoalGrid", ONES),
    ("Unrelated", ONES),
)
COLUMNS = (
    *("what", "family", "weights", "size", "seed", "num_tasks", "relative", "injective"),
    *("num_modules", "description", "num_hot", "needed", "total", "target", "state"),
)
SHORT = ("Hyperteacher", "PreferenceGrid", "GoalGrid")
SOURCE = "arXiv 2507.07207, Definition"


def cells(scale: str) -> list[dict[str, Any]]:
    """Closest pairs by family, weights, size and world; descriptions by family and size; tasks needed by K, M, seed."""
    found: list[dict[str, Any]] = [
        {
            "what": "injective",
            "scale": scale,
            "family": family,
            "weights": weights,
            "size": size,
            "seed": seed,
        }
        for family, weights in CASES
        for size in (GOALS if family == "GoalGrid" else MODULES)[scale]
        for seed in range(SEEDS)
    ]
    for family in (*SHORT, "Unrelated"):
        sizes = GROWING_GOALS if family == "GoalGrid" else GROWING
        found += [{"what": "description", "family": family, "size": size} for size in sizes]
    # Of whatever scale that table is, if more than a test is wanted.
    law = (
        scale
        if scale == "tiny"
        else Table(ledger.RESULTS / "scaling_law.parquet").meta().get("scale", scale)
    )
    for num_hot in scaling_law.HOTS[law]:
        for size in scaling_law.MODULES[law]:
            found += [
                {"what": "needed", "size": size, "num_hot": num_hot, "seed": seed}
                for seed in range(SEEDS)
            ]
    return found


def measure(what: str, **cell: Any) -> dict[str, Any]:
    """The row of one cell, by what is asked."""
    return {"injective": _injective, "description": _description, "needed": _needed}[what](**cell)


def _family(name: str, size: int, num_hot: int, weights: Any = "khot") -> Any:
    if name == "GoalGrid":
        return GoalGrid(size, size, size)
    if name == "PreferenceGrid":
        return PreferenceGrid(size, num_hot, weights=weights, observation="compact")
    return {"Hyperteacher": Hyperteacher, "Unrelated": Unrelated}[name](
        size, num_hot, weights=weights
    )


def _injective(scale: str, family: str, weights: str, size: int, seed: int) -> dict[str, Any]:
    num_hot = 2 if family == "PreferenceGrid" else 3  # episodes take more memory
    made = _family(family, size, num_hot, "discrete" if weights == DRAWN else "khot")
    key = new_key(seed)
    world = made.init(stream(key, "world"))
    tasks = _definitions.weighings(made, stream(key, "tasks"), TIMES if weights == DRAWN else 1)
    found = _definitions.injective(
        made,
        _definitions.twinned(world) if weights == TWINS else world,
        jnp.asarray(tasks),
        stream(key, "points"),
        POINTS[scale],
        TOLERANCE,
    )
    pair = (
        " ".join(f"{weight:g}" for weight in tasks[place]) for place in (found.first, found.second)
    )
    return {
        "num_tasks": len(tasks),
        "closest": " | ".join(pair),
        "separation": found.separation,
        "relative": found.separation / found.typical,
        "injective": found.injective,
    }


def _description(family: str, size: int) -> dict[str, Any]:
    made = _family(family, size, size // 2)
    numbers = {
        "num_tasks": _definitions.num_tasks(made),
        "description": _definitions.description(made),
    }
    return numbers | {"num_modules": made.num_modules}


def _needed(size: int, num_hot: int, seed: int) -> dict[str, Any]:
    """What the committed runs of `scaling_law` tell; nothing where they do not have this curve."""
    table = Table(ledger.RESULTS / "scaling_law.parquet")
    rows = table.read()
    if rows.empty:
        return {"state": "missing"}
    last = ledger.last(rows)
    last = last[
        (last["model"] == "MLP") & (last["family.num_modules"] == size) & (last["seed"] == seed)
    ]
    last = last[last["family.num_hot"] == num_hot]
    if last.empty:
        return {"state": "missing"}
    last["total"] = last["support/num_train"] + last["support/num_test"]
    target = scaling_law.TARGETS[table.meta()["scale"]][0]
    (found,) = statistics.crossings(last, ["total"], scaling_law.SCORE, target).to_dict("records")
    return {
        "needed": found["needed"],
        "total": found["total"],
        "state": found["state"],
        "target": target,
    }


def _of(rows, what: str) -> Any:
    """The rows of one kind, none where there are none; a half-done sweep lacks columns of the others."""
    rows = pd.DataFrame(columns=list(COLUMNS)) if rows is None else rows
    return rows.reindex(columns=rows.columns.union(COLUMNS))[rows["what"] == what]


def _known(rows) -> Any:
    """The numbers that were measured, as `scaling_law` takes them: an M counts if all seeds have crossed."""
    found = _of(rows, "needed").rename(columns={"num_hot": "K", "size": "M"})
    crossed = (found["state"] == "crossed").groupby([found["K"], found["M"]]).transform("sum")
    found = found[crossed == SEEDS]
    return found[found.groupby("K")["M"].transform("nunique") >= scaling_law.LEAST]


def summary(rows) -> dict[str, float]:
    """The closest tasks of every case, the powers of descriptions, and of tasks needed."""
    found = {}
    for (family, weights), one in _of(rows, "injective").groupby(["family", "weights"]):
        found[f"{family}, {weights}: closest pair, relative"] = float(one["relative"].min())
    for family, one in _of(rows, "description").groupby("family"):
        if len(one) > 1:
            grown = _definitions.growth(one["num_modules"], one["description"])
            found[f"{family}: description, power of the modules"] = grown.power
            found[f"{family}: description, power of the tasks"] = _power(one)
    for num_hot, one in _known(rows).groupby("K"):
        found[f"K={num_hot:g}: tasks needed, power of the total"] = scaling_law.power(one)
    return found


def _power(one) -> float:
    return _definitions.growth(one["num_tasks"], one["description"]).power


def figures(rows) -> dict:
    """The closest pairs; descriptions against tasks; tasks needed against all tasks."""
    drawn = {}
    if len(told := _of(rows, "injective")):
        drawn["closest"] = figure.bars(
            told,
            "family",
            "relative",
            by="weights",
            title="How far apart the two closest tasks are; at 0 they are the same",
            x_title="family",
            y_title="distance, relative to that of all pairs",
        )
    axes: dict[str, Any] = {"log_x": True, "x_title": "tasks"}
    if len(told := _of(rows, "description")):
        title = "What describes a family, against the number of its tasks"
        shown = figure.lines(
            told,
            "num_tasks",
            "description",
            "family",
            title=title,
            y_title="numbers in a world",
            **axes,
        )
        drawn["description"] = shown.update_xaxes(ticks(told["num_tasks"])).update_yaxes(
            type="log", dtick=1
        )
    if len(told := _known(rows)):
        title = f"Train tasks needed for R² {told['target'].iloc[0]:g} on unseen ones"
        shown = figure.lines(
            told, "total", "needed", "K", title=title, y_title="train tasks needed", **axes
        )
        drawn["needed"] = shown.update_xaxes(ticks(told["total"])).update_yaxes(
            ticks(told["needed"]), type="log"
        )
    return drawn


def claims(rows) -> list:
    """Definition 2.1, injective and short, for each family; Definition 2.2 for the students of `scaling_law`."""
    distinct = [
        _distinct(rows, *case) for case in CASES if case[1] != TWINS and case[0] != "Unrelated"
    ]
    return [*distinct, *(_short(rows, family) for family in SHORT), _few(rows)]


def _distinct(rows, family: str, weights: str) -> ledger.Claim:
    told = _of(rows, "injective")
    twins, points = (
        told[told["weights"] == TWINS],
        told[(told["family"] == family) & (told["weights"] == weights)],
    )
    return ledger.judged(
        points if len(points) and len(twins) else None,
        lambda points: float(points["relative"].min()),  # pyright: ignore[reportArgumentType]
        lambda low, high: low > TOLERANCE and not twins["injective"].any(),
        name=f"injective, {family}, {weights}",
        statement=f"Distinct rows give distinct tasks (the closest two, relative to all pairs); {family}, {weights}",
        source=f"{SOURCE} 2.1",
        published="injective",
        control="a hyperteacher with two equal modules must be found not injective",
    )


def _short(rows, family: str) -> ledger.Claim:
    told = _of(rows, "description")
    one, other = (told[told["family"] == name] for name in (family, "Unrelated"))
    measured = holds = interval = None
    if min(len(one), len(other)) >= len(
        GROWING_GOALS
    ):  # a half-done sweep has too few to tell laws apart
        grown, control = (
            _definitions.growth(of["num_modules"], of["description"]) for of in (one, other)
        )
        measured = _power(one)
        interval = measured, measured  # counted: no seed enters
        holds = not grown.exponential and measured < 1 and control.exponential
    return ledger.Claim(
        name=f"description, {family}",
        statement="What describes the family grows as a power of its modules, and as a power below 1 of its tasks "
        f"(the latter power); {family}",
        source=f"{SOURCE} 2.1",
        published="sub-exponential in the modules",
        measured=measured,
        holds=holds,
        interval=interval,
        control="the description of unrelated tasks must grow exponentially",
    )


def _few(rows) -> ledger.Claim:
    known = _known(rows)

    def passes(low: float, high: float) -> bool:
        share, power = (
            scaling_law.error(known, law, True) for law in (scaling_law.SHARE, scaling_law.POWER)
        )
        return high < 1 and share > power

    return ledger.judged(
        known if len(known) else None,
        scaling_law.power,
        passes,
        name="tasks needed",
        statement="Train tasks needed for a test R2 grow as a power below 1 of all tasks (the largest of all K; MLP, "
        "the runs of scaling_law)",
        source=f"{SOURCE} 2.2",
        published="sub-exponential growth",
        control="a fixed share of all tasks must predict worse",
    )
