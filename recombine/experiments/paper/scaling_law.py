"""How many train tasks does compositional generalization need, as the number of modules grows?

Claim: the number of train tasks needed grows sub-exponentially with the number of all tasks (arXiv
2507.07207, section 3: the scaling law, MLP and transformer, balanced support).

We measure the number of train tasks n at which the curve of test R2 crosses a target (.95; the
claims must hold for .9 and .97, too), for each student, K, M and seed. Four laws are fitted to
log n, for each K separately:

    power of the total     n = a N^b      N: number of all tasks; if b < 1, the share needed falls
    polynomial in M        n = a M^b
    exponential in M       n = a exp(bM)
    share of the total     n = a N        the control: a fixed share is needed

At a fixed K, N is a polynomial in M, so every student that needs at most N tasks is
"sub-exponential in M". Two statements can fail: that b is below 1 and predicts better than a fixed
share (b could hardly be 1 within these runs for K = 5 and 6, but it could for K = 4); and that the
exponential predicts worse than the power and the polynomial. A law is scored at numbers of modules
that it was not fitted to: the two largest M, or each M in turn. If the most train tasks do not
reach the target, or the fewest already do, n is unknown: such an M is left out of the fits.

The paper compares the two students in the same way: an MLP needs more train tasks than a
transformer. We judge the ratio of the tasks needed at each target, over all K and M and for every
M alone. When its threshold was fixed, the ratio at R2 .95 was known, those at .9 and .97 were not.
An M counts if both students cross the target; none may be crossed by the MLP alone.

n train tasks can connect M modules only if n(K-1)+1 >= M: `impossible(scale)` lists the runs of the
published grid with fewer, 1,236 of 2,700 at full scale (held-out numbers are rounded down, as this
count implies). At full scale `runs` keeps runs near the crossing, with 1 to 20 train tasks per
module (.75 to 9 for transformers); `spared(scale)` lists the others. The largest M come first.

At full scale both students have the faithful fast recipe (experiment `faithful_recipe`): with few
train tasks, scores depend on the recipe (experiment `data_slice`).

Command:  recombine run scaling_law --scale small
Runtime:  3 minutes on 2 cores; full: 651 students on a GPU.
Expected: b below 1 for every K; the exponential predicts worse than both other laws; ratios of MLP
          to transformer above 1.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np
import pandas as pd

from recombine.basics import statistics
from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    Measurement,
    Statistic,
    above,
    all_of,
    below,
    on_value,
    reproduces,
)
from recombine.experiments.paper.scaling_data import can_connect_modules, is_possible, prepare
from recombine.experiments.plots import Plot, curve, custom, log_ticks
from recombine.parts import khot
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.models.transformer import Transformer
from recombine.parts.recipes.fast import Fast
from recombine.parts.supports.balanced import Balanced
from recombine.reporting import figure
from recombine.sweeps.run import Run, paper_fast, replace_fields, sweep

TITLE = "Tasks needed for compositional generalization, as modules are added"
SOURCE = "arXiv 2507.07207, section 3"
NUM_HOT = {"tiny": (2,), "small": (3, 4), "full": (4, 5, 6)}
NUM_MODULES = {"tiny": (5, 4), "small": (12, 10, 8, 6), "full": tuple(range(28, 8, -2))}
FRACTIONS = {
    "tiny": (0.25, 0.5),
    "small": (0.5, 0.7, 0.85, 0.93, 0.97),
    "full": (
        *(0.9, 0.95, 0.98, 0.99, 0.995, 0.9975, 0.999, 0.9995, 0.99975),
        *(0.9999, 0.99995, 0.999975, 0.99999, 0.999995, 0.999999),
    ),
}
# At full scale: the fewest and the most train tasks per module.
TASKS_PER_MODULE = {MLP: (1, 20), Transformer: (0.75, 9)}
SEEDS = {"tiny": 1, "small": 3, "full": 3}
BASE = Run(support=Balanced(), diagnostics=(), num_evals=1)
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"num_tasks": 8},
    "small": {},
    "full": {"num_tasks": 512, "num_points": 4, "num_eval_tasks": 1024},
}
# Students with their recipe and their number of steps. Those of full scale are the faithful ones,
# chosen by scores on seen tasks and by unit activity, on seeds that are not used here.
MODELS: dict[str, dict[Any, tuple[Fast, int]]] = {
    "tiny": {MLP((8,)): (Fast(), 20), Transformer(1, 8, 2, 16): (Fast(0.02), 20)},
    "small": {MLP((128,) * 2): (Fast(), 1000)},
    "full": {
        MLP(): (cast(Fast, paper_fast().recipe), paper_fast().num_steps),
        Transformer(): (Fast(0.02, 0.02, vector_rate=0.2), 5000),
    },
}
# R2 that counts as generalized. On seen tasks, students of small scale reach about .9, those of
# full scale .99. Summary and figures use the first target; a claim must hold for each.
TARGETS = {"tiny": (0.8,), "small": (0.8,), "full": (0.95, 0.9, 0.97)}
LAWS: dict[str, Callable[[Frame], Any]] = {
    "power of the total": lambda cells: np.log(cells["total"]),
    "polynomial in M": lambda cells: np.log(cells["M"]),
    "exponential in M": lambda cells: cells["M"].astype(float),
    "share of the total": lambda cells: np.log(cells["total"]),
}
POWER, POLYNOMIAL, EXPONENTIAL, SHARE = LAWS
MIN_MODULE_COUNTS = 4  # numbers of modules that a law is judged by: two to fit it, two to score it
MAX_CURVES = 6  # numbers of modules in one figure
SCORE = "test/r2"
COMPARED = ("MLP", "Transformer")


def grid(scale: str) -> list[Run]:
    """Student x M (the largest first) x K x held-out fraction x seed, impossible runs included."""
    listed = []
    families = [Hyperteacher(m, k) for m in NUM_MODULES[scale] for k in NUM_HOT[scale]]
    for (model, trained_by), family in itertools.product(MODELS[scale].items(), families):
        recipe, num_steps = trained_by
        changes = {"family": family, "model": model, "recipe": recipe, "num_steps": num_steps}
        listed += sweep(
            replace_fields(BASE, SIZES[scale] | changes),
            frac_test=_fractions(scale, family.num_tasks),
            seed=range(SEEDS[scale]),
        )
    return listed


def _fractions(scale: str, total: int) -> list[float]:
    """Held-out fractions that are whole numbers of tasks: a run rounds to the nearest one."""
    return [math.floor(fraction * total) / total for fraction in FRACTIONS[scale]]


def runs(scale: str) -> list[Run]:
    """Every run of the grid that is possible and close enough to the crossing."""
    return [run for run in grid(scale) if is_possible(run) and is_near_crossing(scale, run)]


def impossible(scale: str) -> list[Run]:
    """Every run of the grid whose train tasks are too few to connect the modules."""
    return [run for run in grid(scale) if not is_possible(run)]


def spared(scale: str) -> list[Run]:
    """Every run of the grid that is possible, but not needed to find where a curve crosses."""
    return [run for run in grid(scale) if is_possible(run) and not is_near_crossing(scale, run)]


def is_near_crossing(scale: str, run: Run) -> bool:
    """Whether a run has as many train tasks per module as `TASKS_PER_MODULE` asks for."""
    if scale != "full":
        return True
    family = cast(Hyperteacher, run.family)
    num_train = round(family.num_tasks * (1 - run.frac_test))
    fewest, most = TASKS_PER_MODULE[type(run.model)]
    return fewest * family.num_modules <= num_train <= most * family.num_modules


def scale_of(final: Frame) -> str:
    """The scale at which rows were trained; full if none has their number of steps."""
    scales = {
        num_steps: scale for scale, students in MODELS.items() for _, num_steps in students.values()
    }
    return scales.get(final["num_steps"].max(), "full")


def crossings(final: Frame, model: str, target: float) -> Frame:
    """The tasks that a student needs to reach a target, for each K, M and seed."""
    of_model = final[final["model"] == model]
    return statistics.crossings(of_model, ["K", "M", "total", "seed"], SCORE, target)


def usable_crossings(final: Frame, model: str, target: float) -> Frame:
    """The crossings that laws are fitted to, with the column `target`.

    An M counts if the curves of all seeds cross the target; a K counts if `MIN_MODULE_COUNTS` of
    its M do.
    """
    cells = crossings(final, model, target).assign(target=target)
    num_crossed = (cells["state"] == "crossed").groupby([cells["K"], cells["M"]]).transform("sum")
    cells = cells[num_crossed == cells["seed"].nunique()]
    return cells[cells.groupby("K")["M"].transform("nunique") >= MIN_MODULE_COUNTS]


def usable_at_all_targets(final: Frame, model: str) -> Frame:
    """The usable crossings of a student for every target."""
    targets = TARGETS[scale_of(final)]
    return pd.concat([usable_crossings(final, model, target) for target in targets])


def fit(cells: Frame, law: str) -> tuple[float, float]:
    """The slope and the intercept of a law, by least squares of log n."""
    x = LAWS[law](cells)
    y = np.log(cells["needed"])
    slope = 1.0 if law == SHARE else float(np.polyfit(x, y, 1)[0])
    return slope, float((y - slope * x).mean())


def predict(cells: Frame, law: str, fitted_to: Frame) -> Any:
    """Log n of these cells by a law that was fitted to others."""
    slope, intercept = fit(fitted_to, law)
    return slope * LAWS[law](cells) + intercept


def prediction_error(cells: Frame, law: str, *, extrapolate: bool) -> float:
    """The RMS error of log n at numbers of modules that a law was not fitted to.

    These are the two largest M (`extrapolate`), or each M in turn.
    """
    errors = []
    for _, cells_of_k in cells.groupby("K"):
        modules = sorted(cells_of_k["M"].unique())
        left_out = [modules[-2:]] if extrapolate else [[number] for number in modules]
        for numbers in left_out:
            is_left_out = cells_of_k["M"].isin(numbers)
            tested = cells_of_k[is_left_out]
            predicted = predict(tested, law, fitted_to=cells_of_k[~is_left_out])
            errors.append(np.log(tested["needed"]) - predicted)
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2)))


def largest_power(cells: Frame) -> float:
    """The power b of the total, the largest over K and targets."""
    return max(fit(group, POWER)[0] for _, group in cells.groupby(["K", "target"]))


def exponential_margin(cells: Frame, *, extrapolate: bool) -> float:
    """The error of the exponential minus that of the worse of power and polynomial."""
    errors = {
        law: prediction_error(cells, law, extrapolate=extrapolate)
        for law in (EXPONENTIAL, POWER, POLYNOMIAL)
    }
    return errors[EXPONENTIAL] - max(errors[POWER], errors[POLYNOMIAL])


def worst_margin(cells: Frame, *, extrapolate: bool) -> float:
    """The smallest margin of the exponential at any target."""
    return min(
        exponential_margin(at_target, extrapolate=extrapolate)
        for _, at_target in cells.groupby("target")
    )


def fixed_share_predicts_worse(measurement: Measurement) -> bool:
    """Whether a fixed share misses the two largest M by more than the power, at every target."""
    return all(
        prediction_error(at_target, SHARE, extrapolate=True)
        > prediction_error(at_target, POWER, extrapolate=True)
        for _, at_target in measurement.rows.groupby("target")
    )


def judged_on(measurement: Measurement) -> str:
    """The targets and the numbers of active modules that a claim was judged on."""
    targets = ", ".join(f"{target:g}" for target in sorted(measurement.rows["target"].unique()))
    num_hot = ", ".join(f"{number:g}" for number in sorted(measurement.rows["K"].unique()))
    return f"worst of R2 {targets}; K = {num_hot}"


def compared(final: Frame, target: float) -> Frame:
    """The tasks needed by both students, one row per K, M and seed that both have.

    The columns `MLP` and `Transformer` have the tasks, `MLP state` and `Transformer state` whether
    the curve crosses the target, and `ratio` the tasks of the MLP over those of the transformer.
    """
    keys = ["K", "M", "seed"]
    sides = []
    for model in COMPARED:
        cells = crossings(final, model, target)[[*keys, "needed", "state"]]
        sides.append(cells.rename(columns={"needed": model, "state": f"{model} state"}))
    both = sides[0].merge(sides[1], on=keys)
    return both.assign(ratio=both["MLP"] / both["Transformer"], target=target)


def task_ratios(final: Frame, target: float) -> Frame:
    """The rows of `compared` in which both students cross the target."""
    both = compared(final, target)
    crossed = [both[f"{model} state"] == "crossed" for model in COMPARED]
    return both[crossed[0] & crossed[1]]


def ratios_by_modules(cells: Frame) -> Any:
    """The geometric mean of the ratio for every M."""
    return np.exp(np.log(cells["ratio"]).groupby(cells["M"]).mean())


def mean_ratio(cells: Frame) -> float:
    """The geometric mean of the ratio over K, M and seeds."""
    return float(np.exp(np.log(cells["ratio"]).mean()))


def smallest_ratio(cells: Frame) -> float:
    """The smallest of `ratios_by_modules`."""
    return float(ratios_by_modules(cells).min())


def summary(rows: Frame) -> dict[str, float]:
    """For each student: the powers, the errors of the laws, and unknown and impossible numbers."""
    final = prepare(rows)
    scale = scale_of(final)
    target = TARGETS[scale][0]
    values = {}
    for model in final["model"].unique():
        usable = usable_crossings(final, model, target)
        for num_hot, cells_of_k in usable.groupby("K"):
            values[f"{model}, K={num_hot}: power of the total"] = fit(cells_of_k, POWER)[0]
        for law in LAWS if len(usable) else ():
            error = prediction_error(usable, law, extrapolate=True)
            values[f"{model}, {law}: error of log n at the two largest M"] = error
        cells = crossings(final, model, target)
        for state in ("crossed", "never", "at once"):
            num_curves = (cells["state"] == state).sum()
            values[f"{model}: curves that reach the target {state}"] = float(num_curves)
        num_impossible = sum(
            not can_connect_modules(cell.K, cell.M, fraction)
            for cell in cells.itertuples()
            for fraction in _fractions(scale, cell.total)
        )
        values[f"{model}: impossible runs, left out"] = float(num_impossible)
    return values | summary_of_ratios(final, TARGETS[scale])


def summary_of_ratios(final: Frame, targets: Iterable[float]) -> dict[str, float]:
    """The tasks of the MLP over those of the transformer, over all M and for every M."""
    values = {}
    if not set(COMPARED) <= set(final["model"]):
        return values
    for target in targets:
        cells = task_ratios(final, target)
        if len(cells):
            name = f"MLP over transformer, R2 {target:g}"
            values[name] = mean_ratio(cells)
            for num_modules, value in ratios_by_modules(cells).items():
                values[f"{name}, M={num_modules}"] = float(value)
    return values


def draw_needed(final: Frame, model: str) -> Any:
    """The tasks needed against M, and the laws fitted to all but the two largest M."""
    if model not in set(final["model"]):
        return None
    target = TARGETS[scale_of(final)][0]
    cells = crossings(final, model, target)
    cells = cells[cells["state"] == "crossed"]
    drawn = figure.lines(
        cells,
        "M",
        "needed",
        by="K",
        title=f"{model}: tasks needed for R² {target}; laws without the two largest M",
        x_title="modules M",
        y_title="train tasks needed",
    )
    drawn.update_traces(mode="markers", selector={"mode": "lines+markers"})
    drawn.update_yaxes(log_ticks(cells["needed"]), type="log")
    colors = dict(zip(sorted(cells["K"].unique()), figure.COLOURS, strict=False))
    _add_laws(drawn, usable_crossings(final, model, target), colors)
    return drawn


def _add_laws(drawn: Any, usable: Frame, colors: Mapping[Any, str]) -> None:
    """A line for each law and K; the legend has one entry per law."""
    for law, dash in zip((POWER, POLYNOMIAL, EXPONENTIAL), figure.DASHES, strict=False):
        legend_line = {"color": figure.INK, "dash": dash}
        drawn.add_scatter(x=[None], y=[None], mode="lines", line=legend_line, name=law)
        for num_hot, cells in usable.groupby("K"):
            modules = np.arange(cells["M"].min(), cells["M"].max() + 1)
            totals = [khot.count_rows(int(number), num_hot) for number in modules]
            largest = sorted(cells["M"].unique())[-2:]
            fitted_to = cells[~cells["M"].isin(largest)]
            predicted = predict(pd.DataFrame({"M": modules, "total": totals}), law, fitted_to)
            drawn.add_scatter(
                x=modules,
                y=np.exp(predicted),
                mode="lines",
                line={"color": colors[num_hot], "width": 1.5, "dash": dash},
                showlegend=False,
                hoverinfo="skip",
            )


def few_module_counts(final: Frame, model: str) -> Frame:
    """The rows of a student with at most `MAX_CURVES` numbers of modules, evenly spaced."""
    of_model = final[final["model"] == model]
    modules = sorted(of_model["M"].unique())
    step = max(1, math.ceil(len(modules) / MAX_CURVES))
    return of_model[of_model["M"].isin(modules[::step])]


ALL_TARGETS = "a claim must hold at all targets, not only at .95"


def _power_claim(model: str) -> DeclaredClaim:
    return reproduces(
        f"{model}: power",
        f"{model}: tasks needed grow as a power below 1 of the number of all tasks (largest power "
        "of any K)",
        published="sub-exponential growth",
        after_rows=ALL_TARGETS,
        rows=lambda final: usable_at_all_targets(final, model),
        statistic=largest_power,
        passes=below(1),
        control="a fixed share of all tasks must predict worse",
        control_fails=fixed_share_predicts_worse,
        note=judged_on,
    )


def _exponential_claim(model: str, name: str, left_out: str, extrapolate: bool) -> DeclaredClaim:
    return reproduces(
        f"{model}: {name}",
        f"{model}: at {left_out}, an exponential in M predicts the tasks needed worse than the "
        "other laws (difference in RMS error of log n)",
        published="sub-exponential growth",
        repeats=f"scaling_law: {model}: power",
        after_rows=ALL_TARGETS,
        rows=lambda final: usable_at_all_targets(final, model),
        statistic=lambda cells: worst_margin(cells, extrapolate=extrapolate),
        passes=above(0),
        control="the exponential must fail",
        note=judged_on,
    )


FIRST_RATIO = "ratio, R2 0.9"
KNOWN_TARGET = 0.95
RATIO_KNOWN = "the ratio at this R2 was known when the threshold was fixed"


def _ratio_claim(target: float, name: str, where: str, statistic: Statistic) -> DeclaredClaim:
    def both_students(final: Frame) -> Frame | None:
        return task_ratios(final, target) if set(COMPARED) <= set(final["model"]) else None

    def num_only_mlp(final: Frame) -> int:
        both = compared(final, target)
        only_mlp = (both["MLP state"] == "crossed") & (both["Transformer state"] == "never")
        return int(only_mlp.sum())

    def note(measurement: Measurement) -> str:
        num_compared = len(compared(measurement.all_rows, target))
        by_modules = ratios_by_modules(measurement.rows)
        values = ", ".join(f"{number}: {value:.2f}" for number, value in by_modules.items())
        return (
            f"{len(measurement.rows)} of {num_compared} pairs of curves are compared; in "
            f"{num_only_mlp(measurement.all_rows)} pairs only the MLP reaches the target; by M "
            f"{values}"
        )

    full_name = f"{name}, R2 {target:g}"
    return reproduces(
        full_name,
        f"An MLP needs more train tasks than a transformer for test R2 {target:g} "
        f"(tasks of the MLP over those of the transformer, geometric mean over K and seeds, "
        f"{where})",
        published="an MLP needs more tasks",
        repeats="" if full_name == FIRST_RATIO else f"scaling_law: {FIRST_RATIO}",
        after_rows=RATIO_KNOWN if target == KNOWN_TARGET else "",
        rows=both_students,
        statistic=statistic,
        passes=all_of(
            above(1),
            on_value(
                "no pair of curves in which only the MLP reaches the target",
                lambda measurement: num_only_mlp(measurement.all_rows) == 0,
            ),
        ),
        control="the MLP never reaches the target where the transformer does not",
        note=note,
    )


def ratios_at_all_targets(final: Frame) -> Frame | None:
    """The ratios at every target, for a figure."""
    if not set(COMPARED) <= set(final["model"]):
        return None
    targets = TARGETS[scale_of(final)]
    ratios = pd.concat([task_ratios(final, target) for target in sorted(targets)])
    return ratios.assign(target=ratios["target"].map("R² {:g}".format))


def _curves(model: str) -> Plot:
    return curve(
        SCORE,
        against="num_train",
        color="M",
        rows=lambda final: few_module_counts(final, model),
        each="K",
        name=f"{model}-{{}}-active",
        title=f"{model}: generalization by train tasks, up to {{}} active modules",
        log_x=True,
        finish=lambda drawn, rows: drawn.update_xaxes(log_ticks(rows["num_train"])),
    )


CLAIMS = [
    _power_claim("MLP"),
    _exponential_claim("MLP", "largest M", "the two largest M", extrapolate=True),
    _exponential_claim("MLP", "each M", "each M left out", extrapolate=False),
    _power_claim("Transformer"),
    _exponential_claim("Transformer", "largest M", "the two largest M", extrapolate=True),
    _exponential_claim("Transformer", "each M", "each M left out", extrapolate=False),
    *(_ratio_claim(target, "ratio", "all M", mean_ratio) for target in TARGETS["full"]),
    *(
        _ratio_claim(target, "ratio at every M", "the smallest of any M", smallest_ratio)
        for target in TARGETS["full"]
    ),
]
FIGURES = [
    custom("MLP-needed", lambda final: draw_needed(final, "MLP")),
    custom("Transformer-needed", lambda final: draw_needed(final, "Transformer")),
    _curves("MLP"),
    _curves("Transformer"),
    curve(
        "ratio",
        against="M",
        color="target",
        rows=ratios_at_all_targets,
        name="ratio",
        title="Train tasks that an MLP needs, as a multiple of those of a transformer",
        y_title="tasks of the MLP / tasks of the transformer",
    ),
]
