"""How many train tasks does compositional generalization need, as the number of modules grows?

Claim: the number of train tasks needed grows sub-exponentially with the number of all tasks (arXiv 2507.07207, section
3: the scaling law, MLP and transformer, balanced support). Here: the tasks needed for a test R2 of .95 (.9 and .97 must
agree), for each K, student and seed, and laws compared by what they predict for numbers of modules not fitted to.

    power of the total     n = a N^b      N tasks in all; b below 1: an ever smaller share of them is enough
    polynomial in M        n = a M^b
    exponential in M       n = a exp(bM)
    share of the total     n = a N        the control: a fixed share is needed

At a fixed K the total N is itself a polynomial in M, so needing at most N tasks is "sub-exponential in M" whatever the
student does: that alone says nothing. What can fail is the power of the total (b below 1, or a fixed share predicts as
well; for K = 5 and 6 b could hardly be 1 within the runs below, for K = 4 it could), and over the M at hand the
exponential could still predict best. Laws are fitted to log n for each K apart, to all but the two largest M and then
to all but each one, and scored by their error at the M left out.

A number needed is measured where the curve of R2 crosses the target. Where the most tasks do not reach it, or the
fewest already do, it is not known: such an M is left out of the fits and counted in the summary. Impossible runs (n
train tasks connect M modules only if n(K-1)+1 >= M) are 1,236 of the 2,700 published ones: `impossible(scale)` lists
them, `runs` leaves them out. Held-out numbers are rounded down, as that count implies. Of the others `runs` has those
from which a crossing can be read: 1 to 20 train tasks a module (the MLP's curves of M=28 were trained whole: they cross
at 7 and are flat from 20 on), for transformers, which cross at 4.6 or fewer there, .75 to 9. `spared(scale)` lists the
rest. Student by student the largest M come first: half a sweep tells what it can.

Command:  recombine run scaling_law --scale small
Runtime:  3 minutes on 2 cores; full: on an H200 about 2.5 s for a run of an MLP and 4 s for one of a transformer.
Expected: b below 1 for every K; the exponential worse than both others at the M left out.
Measured: full (2026-11-16, R2 .95, 3 seeds; 87 of 90 curves of MLPs cross): the power b of all tasks is .41 (.39 to
          .43) with K=4, .34 with K=5 and .31 with K=6, at most .41 for R2 .9 and .97; as a polynomial M^1.6, M^1.7 and
          M^1.9. With M=28 and K=4, 5 and 6 students need 192, 157 and 140 tasks of 24,157, 122,437 and 499,177. A fixed
          share misses by 1.4 in log n at the two largest M. Whether the exponential is worse (not reproduced) depends
          on what is asked: at each M left out it misses .026 more for R2 .95, .021 for .97, but .001 less for .9.
          Transformers (89 of 90 curves cross) need fewer tasks than MLPs from M=18 on (with M=28 111, 81 and 85), with
          K=4 and 5 as many or more up to 16 (M=12, K=5: 53 to 34), so that modules cost them less: b is .19 (.13 to
          .23), .14 and .14, as a polynomial M^.8, M^.7 and M^.9. Their seeds differ by more than laws do: the
          exponential misses .21 at each M left out, the others .20; the fixed share misses by 2.2. small (2026-11-15,
          MLP, M 6 to 12, R2 .8, 3 seeds): b is .85 (.81 to .89) with K=3 and .57 with K=4; four M cannot tell the laws
          apart (at the two largest the exponential misses by .12, the power by .15, the polynomial by .17).
"""

import math
from typing import Any, cast

import numpy as np
import pandas as pd

from recombine.basics import statistics
from recombine.experiments import claim as ledger
from recombine.experiments.paper.scaling_data import enough, possible, ticks
from recombine.parts import khot
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.models.transformer import Transformer
from recombine.parts.recipes.fast import EARLIER_FAST, Fast
from recombine.parts.supports.balanced import Balanced
from recombine.reporting import figure
from recombine.sweeps.run import Run, sweep

TITLE = "Tasks needed for compositional generalization, as modules are added"
HOTS = {"tiny": (2,), "small": (3, 4), "full": (4, 5, 6)}
MODULES = {"tiny": (5, 4), "small": (12, 10, 8, 6), "full": tuple(range(28, 8, -2))}
FRACTIONS = {
    "tiny": (0.25, 0.5),
    "small": (0.5, 0.7, 0.85, 0.93, 0.97),
    "full": (
        *(0.9, 0.95, 0.98, 0.99, 0.995, 0.9975, 0.999, 0.9995, 0.99975),
        *(0.9999, 0.99995, 0.999975, 0.99999, 0.999995, 0.999999),
    ),
}
# At full scale, by student: train tasks a module.
WINDOW = {MLP: (1, 20), Transformer: (0.75, 9)}
SEEDS = {"tiny": 1, "small": 3, "full": 3}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"num_steps": 20, "num_tasks": 8},
    "small": {"num_steps": 1000},
    "full": {"num_steps": 5000, "num_tasks": 512, "num_points": 4, "num_eval_tasks": 1024},
}
# R2 that counts as generalised: on seen tasks the students of small scale have about .9, those of full scale .99.
# Numbers and pictures are of the first; a claim must hold with each.
TARGETS = {"tiny": (0.8,), "small": (0.8,), "full": (0.95, 0.9, 0.97)}
# Learning rates by seen scores, on seeds that are not used here; those of transformers in `transformer_efficiency`.
MODELS: dict[str, dict[Any, Fast]] = {
    "tiny": {MLP((8,)): Fast(), Transformer(1, 8, 2, 16): Fast(0.02)},
    "small": {MLP((128,) * 2): Fast()},
    "full": {MLP(): EARLIER_FAST, Transformer(): Fast(0.02, 0.02, vector_rate=1.0)},
}
LAWS = {
    "power of the total": lambda cells: np.log(cells["total"]),
    "polynomial in M": lambda cells: np.log(cells["M"]),
    "exponential in M": lambda cells: cells["M"].astype(float),
    "share of the total": lambda cells: np.log(cells["total"]),
}
POWER, POLYNOMIAL, EXPONENTIAL, SHARE = LAWS
STATES = ("crossed", "never", "at once")
LEAST = 4  # numbers of modules that a law is judged by: two to fit it, two to score it
MOST_LINES = 6  # numbers of modules in one picture
SCORE = "test/r2"
SOURCE = "arXiv 2507.07207, section 3"


def grid(scale: str) -> list[Run]:
    """Student x M, the largest first, x K x held-out fraction x seed, impossible runs included."""
    found = []
    for model, recipe in MODELS[scale].items():
        for family in (Hyperteacher(m, k) for m in MODULES[scale] for k in HOTS[scale]):
            base = Run(
                family,
                Balanced(),
                model=model,
                recipe=recipe,
                diagnostics=(),
                num_evals=1,
                **SIZES[scale],
            )
            found += sweep(
                base, frac_test=_fractions(scale, family.num_tasks), seed=range(SEEDS[scale])
            )
    return found


def _fractions(scale: str, total: int) -> list[float]:
    # Exact ones, as a run rounds its held-out number to the nearest.
    return [math.floor(f * total) / total for f in FRACTIONS[scale]]


def runs(scale: str) -> list[Run]:
    """Every run of the grid that is possible and near enough to a crossing."""
    return [run for run in grid(scale) if possible(run) and _wanted(scale, run)]


def impossible(scale: str) -> list[Run]:
    """Every run of the grid whose train tasks are too few to connect the modules."""
    return [run for run in grid(scale) if not possible(run)]


def spared(scale: str) -> list[Run]:
    """Every run of the grid that is possible, but not needed to tell where a curve crosses."""
    return [run for run in grid(scale) if possible(run) and not _wanted(scale, run)]


def _wanted(scale: str, run: Run) -> bool:
    family, (fewest, most) = cast(Hyperteacher, run.family), WINDOW[type(run.model)]
    modules, num_train = family.num_modules, round(family.num_tasks * (1 - run.frac_test))
    return scale != "full" or fewest * modules <= num_train <= most * modules


def _scale(rows) -> str:
    """The scale at which rows were trained; full where none of ours fits."""
    return {sizes["num_steps"]: scale for scale, sizes in SIZES.items()}.get(
        rows["num_steps"].max(), "full"
    )


def _last(rows):
    last = ledger.last(rows)
    last["K"], last["M"] = last["family.num_hot"], last["family.num_modules"]
    last["total"] = last["support/num_train"] + last["support/num_test"]
    return last


def _crossings(rows, model: str, target: float | None = None):
    """The tasks that a student needs, for each K, M and seed."""
    last, target = _last(rows), target or TARGETS[_scale(rows)][0]
    return statistics.crossings(
        last[last["model"] == model], ["K", "M", "total", "seed"], SCORE, target
    )


def _known(rows, model: str, target: float | None = None):
    """The numbers that were measured, for each K with enough of them; an M counts if all seeds have crossed."""
    cells = _crossings(rows, model, target)
    crossed = (cells["state"] == "crossed").groupby([cells["K"], cells["M"]]).transform("sum")
    cells = cells[crossed == cells["seed"].nunique()]
    return cells[cells.groupby("K")["M"].transform("nunique") >= LEAST]


def fit(cells, law: str) -> tuple[float, float]:
    """The slope and the height of a law's line, by least squares of log n."""
    x, y = LAWS[law](cells), np.log(cells["needed"])
    slope = 1.0 if law == SHARE else float(np.polyfit(x, y, 1)[0])
    return slope, float((y - slope * x).mean())


def error(cells, law: str, largest: bool) -> float:
    """The RMS error of log n at numbers of modules left out of the fit: the two largest at once, or each in turn."""
    missed = []
    for _, one in cells.groupby("K"):
        modules = sorted(one["M"].unique())
        for held in [modules[-2:]] if largest else [[m] for m in modules]:
            out = one["M"].isin(held)
            slope, height = fit(one[~out], law)
            missed.append(np.log(one["needed"][out]) - slope * LAWS[law](one[out]) - height)
    return float(np.sqrt(np.mean(np.concatenate(missed) ** 2)))


def power(cells) -> float:
    """The power of the total: the largest of all K."""
    return max(fit(one, POWER)[0] for _, one in cells.groupby("K"))


def margin(cells, largest: bool) -> float:
    """By how much the exponential misses more than the worse of the two other laws."""
    return error(cells, EXPONENTIAL, largest) - max(
        error(cells, law, largest) for law in (POWER, POLYNOMIAL)
    )


def summary(rows) -> dict[str, float]:
    """For each student: the powers, the errors of the laws, and how many numbers are not known or impossible."""
    found, scale = {}, _scale(rows)
    for model in rows["model"].unique():
        cells, known = _crossings(rows, model), _known(rows, model)
        found |= {
            f"{model}, K={k}: power of the total": fit(one, POWER)[0]
            for k, one in known.groupby("K")
        }
        for law in LAWS if len(known) else ():
            found[f"{model}, {law}: error of log n at the two largest M"] = error(
                known, law, largest=True
            )
        states = cells["state"].value_counts()
        found |= {
            f"{model}: curves that reach the target {s}": float(states.get(s, 0)) for s in STATES
        }
        lost = [
            not enough(cell.K, cell.M, f)
            for cell in cells.itertuples()
            for f in _fractions(scale, cell.total)
        ]
        found[f"{model}: impossible runs, left out"] = float(sum(lost))
    return found


def figures(rows) -> dict:
    """Tasks needed against M with the fitted laws, for each student; test R2 against train tasks by M, for each K."""
    last, found = _last(rows), {}
    for model in last["model"].unique():
        found[f"{model}-needed"] = _needed(rows, model)
    for (model, k), frame in last.groupby(["model", "K"]):
        modules = sorted(frame["M"].unique())
        kept = modules[:: math.ceil(len(modules) / MOST_LINES)]
        found[f"{model}-{k}-active"] = figure.lines(
            frame[frame["M"].isin(kept)],
            "support/num_train",
            SCORE,
            by="M",
            title=f"{model}: generalisation by train tasks, up to {k} active modules",
            x_title="train tasks",
            y_title="R² on unseen combinations",
            log_x=True,
        ).update_xaxes(ticks(frame["support/num_train"]))
    return found


def _needed(rows, model: str):
    """The tasks needed for the target against M, and the laws of every K."""
    cells, known = _crossings(rows, model), _known(rows, model)
    cells = cells[cells["state"] == "crossed"]
    drawn = figure.lines(
        cells,
        "M",
        "needed",
        by="K",
        title=f"{model}: tasks needed for R² {TARGETS[_scale(rows)][0]}; laws without the two largest M",
        x_title="modules M",
        y_title="train tasks needed",
    )
    drawn.update_traces(mode="markers", selector={"mode": "lines+markers"}).update_yaxes(
        ticks(cells["needed"]), type="log"
    )
    colours = dict(zip(sorted(cells["K"].unique()), figure.COLOURS, strict=False))
    for law, dash in zip((POWER, POLYNOMIAL, EXPONENTIAL), figure.DASHES, strict=False):
        drawn.add_scatter(
            x=[None], y=[None], mode="lines", line={"color": figure.INK, "dash": dash}, name=law
        )
        for k, one in known.groupby("K"):
            line = {"color": colours[k], "width": 1.5, "dash": dash}
            drawn.add_scatter(
                **_predicted(one, k, law),
                mode="lines",
                line=line,
                showlegend=False,
                hoverinfo="skip",
            )
    return drawn


def _predicted(cells, num_hot: int, law: str) -> dict[str, Any]:
    """What a law says at every M, fitted to all but the two largest."""
    modules = np.arange(cells["M"].min(), cells["M"].max() + 1)
    places = pd.DataFrame({"M": modules, "total": [khot.count(int(m), num_hot) for m in modules]})
    slope, height = fit(cells[~cells["M"].isin(sorted(cells["M"].unique())[-2:])], law)
    return {"x": modules, "y": np.exp(slope * LAWS[law](places) + height)}


def claims(rows) -> list:
    """The published law, for each student: the power of the total, and the exponential against the other laws."""
    return [claim for model in ("MLP", "Transformer") for claim in _claims(rows, model)]


def _claims(rows, model: str) -> list[ledger.Claim]:
    targets = TARGETS["full" if rows is None else _scale(rows)]
    parts = (
        []
        if rows is None
        else [_known(rows, model, target).assign(target=target) for target in targets]
    )
    known: Any = pd.concat(parts) if parts else ()
    missed = (
        "An exponential in M misses the tasks needed at {} more than the other laws (RMS of log n)"
    )
    told = {
        "power": (
            lambda cells: max(power(one) for _, one in cells.groupby("target")),
            "Tasks needed grow as a power below 1 of all tasks (the largest power of all K)",
            "a fixed share of all tasks must predict worse",
        ),
        "largest M": (
            lambda cells: min(margin(one, largest=True) for _, one in cells.groupby("target")),
            missed.format("the two largest M"),
            "the exponential must fail",
        ),
        "each M": (
            lambda cells: min(margin(one, largest=False) for _, one in cells.groupby("target")),
            missed.format("each M left out"),
            "the exponential must fail",
        ),
    }
    made = []
    for name, (statistic, statement, control) in told.items():
        measured = interval = holds = None
        if len(known):
            measured, interval = statistic(known), statistics.over_seeds(known, statistic)
            of_each = [one for _, one in known.groupby("target")]
            control_fails = all(
                error(one, SHARE, largest=True) > error(one, POWER, largest=True) for one in of_each
            )
            holds = interval[1] < 1 and control_fails if name == "power" else interval[0] > 0
        judged = ", ".join(f"{k:g}" for k in sorted(known["K"].unique())) if len(known) else ""
        told_of = (
            f"{model}, the worst of R2 {', '.join(f'{target:g}' for target in sorted(targets))}"
        )
        names = f"{model}: {name}", f"{statement}; {told_of}" + f"; K = {judged}" * bool(judged)
        made.append(
            ledger.Claim(
                *names, SOURCE, "sub-exponential growth", measured, holds, control, interval
            )
        )
    return made
