"""Can the task be recovered from the code of a model that is mostly right, and is the bound tight?

Claim: if a model is right on a share 1 - delta of all (task, input) pairs, a decoder recovers the
task from its code for a share 1 - sqrt(delta) of the tasks (arXiv 2507.07207, Theorem 4.1). In
trained students a linear decoder does so.

The decoder of the proof (`_theorem_41.py`) chooses the candidate task whose answers agree with the
model's most often, that is, differ by at most tau. The theorem's assumption, which we call the
check: every two tasks differ by more than 2 tau on more than 2 sqrt(delta) of the inputs. tau is a
share of half the distance of the two closest tasks, so it does not depend on any student.

The bound is compared with what is recovered from students, on all tasks and on held-out tasks, and
from the teacher with wrong answers. An adversary places these so that as many tasks as possible are
lost; random errors are the comparison. Their number is a multiple of the largest delta at which the
check holds. Three other decoders are compared. One takes each candidate's answers for those of the
next candidate: a control, which must fail. Two are ridge regressions from the code and from the
deepest hidden layer (mean over inputs), fitted on train tasks; they choose the nearest candidate.
The control of the last is the same layer of the untrained network.

Command:  recombine run theorem_41 --scale small
Runtime:  2.6 minutes on 2 cores, 5.5 on 2 busy cores.
Expected: the bound always holds if the check does; the adversary breaks it if the check fails, and
          comes close to it at the border.
"""

import dataclasses
import functools
import itertools
from typing import Any

import numpy as np

from recombine.basics.random_streams import generator
from recombine.experiments import claim
from recombine.experiments.claim import Frame, Measurement, final_rows, where
from recombine.experiments.plots import curve, scatter
from recombine.experiments.theory import _theorem_41
from recombine.parts.encodings.identity import Identity
from recombine.parts.encodings.interval_shuffle import IntervalShuffle
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.recipes.fast import Fast
from recombine.reporting.figure import INK
from recombine.sweeps.run import Run, sweep
from recombine.training.chunk import Chunk, fit_chunk
from recombine.training.fitted import Fitted
from recombine.training.program import initialize

TITLE = "Recovering the task from a code: a theorem, its bound and an adversary"
SOURCE = "arXiv 2507.07207, Theorem 4.1"
# The recipe of the committed rows.
RECIPE = "Fast(learning_rate=0.04, weight_decay=0.1, vector_rate=0.2), 1,500 steps"
ENCODINGS = {"Identity": Identity(), "IntervalShuffle": IntervalShuffle()}
WIDTHS = {"tiny": (8,), "small": (16, 64, 128), "full": (64, 256, 1024)}
WIDEST = {scale: widths[-1] for scale, widths in WIDTHS.items()}
FRACTIONS = (0.25, 0.75)
SEEDS = 3
TAUS = (0.25, 0.5, 0.75, 0.9)  # shares of half the distance of the two closest tasks
BUDGETS = (0.1, 0.4, 0.7, 0.99, 2.0, 4.0)  # multiples of the largest delta at which the check holds
NUM_INPUTS = {"tiny": 100, "small": 1000, "full": 1000}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"family": Hyperteacher(5, 2, 4, 4, 4), "num_steps": 20, "num_tasks": 8},
    "small": {"family": Hyperteacher(8, 3, 8, 8, 8), "num_steps": 1500},
    "full": {
        "family": Hyperteacher(),
        "num_steps": 8000,
        "num_tasks": 512,
        "num_points": 4,
        "recipe": Fast(),
    },
}
DEPTH = {"tiny": 1, "small": 3, "full": 4}
THEOREM = "recovery/theorem"
PERMUTED = "recovery/permuted"
CODE = "recovery/code"
HIDDEN = "recovery/hidden"
UNTRAINED = "recovery/untrained"
DECODERS = {
    THEOREM: "theorem's",
    HIDDEN: "linear, deepest layer",
    CODE: "linear, code",
    UNTRAINED: "linear, untrained",
}
STUDENT_COLUMNS = ("encoding", "width", "frac_test", CODE, HIDDEN, UNTRAINED)
DASHED = {"color": INK, "dash": "dash"}


def cells(scale: str) -> list[dict[str, Any]]:
    """Every student x tau x side, and every corruption x number of errors x tau, for each seed."""
    axes = (ENCODINGS, WIDTHS[scale], FRACTIONS, range(SEEDS), TAUS, ("all", "test"))
    names = ("encoding", "width", "frac_test", "seed", "tau", "side")
    students = [
        {"scale": scale, "model": "student"} | dict(zip(names, values, strict=True))
        for values in itertools.product(*axes)
    ]
    corrupted = [
        {"scale": scale, "model": model, "seed": seed, "tau": tau, "side": "all", "budget": budget}
        for seed in range(SEEDS)
        for tau in TAUS
        for model in ("adversary", "random")
        for budget in BUDGETS
    ]
    return students + corrupted


def measure(
    scale: str, model: str, seed: int, tau: float, side: str, budget: float = 0.0, **student: Any
) -> dict[str, Any]:
    """The errors of a model, the theorem's bound for them, and the tasks that decoders recover."""
    known = _candidates(scale, seed)
    tau_index = TAUS.index(tau)
    if model == "student":
        return _measure_student(_student(scale, seed, **student), known, tau_index, side)
    min_apart = float(known.apart[tau_index])
    taus = known.taus[tau_index : tau_index + 1]
    delta = budget * (min_apart / 2) ** 2
    if model == "adversary":
        answers = _theorem_41.adversary(known.functions, float(taus[0]), delta)
    else:
        rng = generator(seed, f"scattered {delta}")
        answers = _theorem_41.random_errors(known.functions, delta, rng)
    (agrees,) = _theorem_41.agreement(answers, known.functions, taus)
    return _theorem_41.evaluate(agrees, np.arange(len(known.tasks)), min_apart)


def _measure_student(
    student: _theorem_41.Student, known: _theorem_41.Candidates, tau_index: int, side: str
) -> dict[str, Any]:
    tasks = student.held_out if side == "test" else np.arange(len(known.tasks))
    row: dict[str, Any] = {
        f"recovery/{decoder}": float(is_recovered[tasks].mean())
        for decoder, is_recovered in student.linear.items()
    }
    row["test/r2"] = student.r2
    agrees = student.agrees[tau_index]
    return row | _theorem_41.evaluate(agrees[tasks], tasks, float(known.apart[tau_index]))


def _run(scale: str, encoding: str, width: int) -> Run:
    return Run(
        encoding=ENCODINGS[encoding],
        model=MLP((width,) * DEPTH[scale]),
        diagnostics=(),
        num_evals=1,
        **SIZES[scale],
    )


@functools.lru_cache(maxsize=SEEDS)
def _candidates(scale: str, seed: int) -> _theorem_41.Candidates:
    run = dataclasses.replace(_run(scale, "Identity", WIDTHS[scale][0]), seed=seed)
    world = initialize(run)[1]
    return _theorem_41.candidates(run.family, world, seed, NUM_INPUTS[scale], TAUS)


@functools.lru_cache(maxsize=1)
def _trained(scale: str, encoding: str, width: int) -> dict[tuple[float, int], Fitted]:
    """All students of one structure, trained in one program, by held-out fraction and seed."""
    runs = sweep(_run(scale, encoding, width), frac_test=FRACTIONS, seed=range(SEEDS))
    chunk = Chunk(tuple(runs), len(runs))
    return {(fitted.run.frac_test, fitted.run.seed): fitted for fitted in fit_chunk(chunk)}


@functools.lru_cache(maxsize=1)
def _student(
    scale: str, seed: int, encoding: str, width: int, frac_test: float
) -> _theorem_41.Student:
    fitted = _trained(scale, encoding, width)[frac_test, seed]
    untrained = initialize(fitted.run)[0]
    return _theorem_41.decode_student(fitted, untrained, _candidates(scale, seed))


def prepare(rows: Frame) -> Frame:
    """The rows, with sqrt(delta), the excess over the bound, and lost tasks over sqrt(delta)."""
    final = final_rows(rows)
    optional = [*STUDENT_COLUMNS, "budget"]
    final = final.reindex(columns=list(dict.fromkeys([*final.columns, *optional])))
    final["root"] = final["delta"] ** 0.5
    final["gap"] = final[THEOREM] - final["bound"]
    final["lost"] = (1 - final[THEOREM]) / final["root"].where(final["root"] > 0)
    return final


def _on_held_out_tasks(final: Frame) -> Frame:
    """Students with the most train tasks, on held-out tasks, at the largest tau."""
    return where({"side": "test", "frac_test": FRACTIONS[0], "tau": TAUS[-1]})(final)


def _widest(final: Frame, encoding: str) -> Frame:
    """The widest students with this encoding, on held-out tasks."""
    own = _on_held_out_tasks(final[final["encoding"] == encoding])
    return own[own["width"] == own["scale"].map(WIDEST)]


def summary(rows: Frame) -> dict[str, float]:
    """The smallest excess over the bound by model and check, and what the decoders recover."""
    final = prepare(rows)
    values = {}
    for (model, check_holds), points in final.groupby(["model", "check"]):
        name = f"{model}, check {'holds' if check_holds else 'fails'}"
        values[f"{name}: points"] = float(len(points))
        values[f"{name}: smallest gap"] = float(points["gap"].min())
    for encoding in sorted(final["encoding"].dropna().unique()):
        means = _widest(final, encoding)[list(DECODERS)].mean().dropna()
        for column, mean in means.items():
            values[f"{encoding}, {DECODERS[column]}: tasks recovered"] = float(mean)
    return values


FIRST_BOUND = "students"


def _bound_claim(name: str, models: tuple[str, ...]) -> claim.DeclaredClaim:
    return claim.reproduces(
        f"bound, {name}",
        "If the check holds, the decoder recovers at least 1 - sqrt(delta) of the tasks from the "
        f"code (smallest excess over the bound); {name}",
        published="1 - sqrt(delta)",
        repeats="" if name == FIRST_BOUND else f"theorem_41: bound, {FIRST_BOUND}",
        rows=where({"check": True, "model": models}),
        needs=("gap",),
        statistic=claim.min_of("gap"),
        threshold_published=True,
        passes=claim.at_least(-1e-9),  # the bound may be attained, up to rounding
        control="a decoder that takes each candidate's answers for those of the next candidate "
        "must stay below the bound",
        control_fails=lambda measurement: all(
            measurement.rows[PERMUTED] < measurement.rows["bound"]
        ),
    )


def _random_errors(measurement: Measurement, check: bool) -> Frame:
    """The rows with random errors, with or without the check."""
    return where({"model": "random", "check": check})(measurement.all_rows)


CLAIMS = [
    _bound_claim(FIRST_BOUND, ("student",)),
    _bound_claim("corrupted teachers", ("adversary", "random")),
    claim.hypothesis(
        "tight",
        "The bound is tight up to a factor of 2: if the check holds, an adversary loses more than "
        "half of the sqrt(delta) tasks that the bound allows (largest share)",
        rows=where({"model": "adversary", "check": True}),
        needs=("lost",),
        statistic=claim.max_of("lost"),
        passes=claim.above(0.5),
        control="as many random errors must lose fewer tasks",
        control_fails=lambda measurement: all(
            _random_errors(measurement, True)["lost"] < measurement.low
        ),
    ),
    claim.hypothesis(
        "check",
        "The check is necessary: if it fails, an adversary breaks the bound (smallest excess over "
        "the bound)",
        rows=where({"model": "adversary", "check": False}),
        needs=("gap",),
        statistic=claim.min_of("gap"),
        passes=claim.below(0),
        control="as many random errors must not break the bound",
        control_fails=lambda measurement: all(_random_errors(measurement, False)["gap"] >= 0),
    ),
    claim.reproduces(
        "linear, code",
        "From an interval-shuffled code, the theorem's decoder recovers more held-out tasks than a "
        "linear one (difference, widest student)",
        published="input decoder R2 .73",
        repeats="encodings: IntervalShuffle: input decoder",
        rows=lambda final: _widest(final, "IntervalShuffle"),
        needs=(THEOREM, CODE),
        statistic=lambda points: float((points[THEOREM] - points[CODE]).mean()),
        passes=claim.above(0),
        control="from an identity code the linear decoder must recover all tasks",
        control_fails=lambda measurement: all(
            _widest(measurement.all_rows, "Identity")[CODE] > 0.99
        ),
    ),
    claim.reproduces(
        "linear, hidden",
        "With an interval-shuffled code, a linear decoder recovers more held-out tasks from the "
        "deepest layer than from the code and from the untrained layer (difference to the better "
        "of the two, widest student)",
        published="task decoder R2 .96, input decoder .73",
        repeats="encodings: IntervalShuffle: task decoder",
        rows=lambda final: _widest(final, "IntervalShuffle"),
        needs=(HIDDEN, CODE, UNTRAINED),
        statistic=lambda points: float(
            (points[HIDDEN] - points[[CODE, UNTRAINED]].max(axis=1)).mean()
        ),
        passes=claim.above(0),
        control="fewer tasks must be recovered from the code and from the untrained layer",
    ),
]


def _with_kind(final: Frame) -> Frame:
    """Every point with its kind of model and the outcome of the check."""
    outcomes = final["check"].map({True: ", check holds", False: ", check fails"})
    kind = final["model"] + outcomes
    apart = final["apart"].map("{:.2f}".format)
    needed = (2 * final["root"]).map("{:.2f}".format)
    hover = "tasks differ on " + apart + " of the inputs, 2√δ = " + needed + ": " + kind
    return final.assign(kind=kind, hover=hover)


def _corrupted(final: Frame) -> Frame:
    """The adversary at every tau, and random errors at the largest."""
    is_shown = (final["model"] == "adversary") | (final["tau"] == TAUS[-1])
    points = final[final["budget"].notna() & is_shown]
    return points.assign(kind=points["model"] + ", tau " + points["tau"].map("{:g}".format))


def _by_decoder(final: Frame) -> Frame:
    points = _on_held_out_tasks(final).rename(columns=DECODERS)
    return points.melt(["encoding", "width"], list(DECODERS.values()), "decoder", "accuracy")


def _draw_bound(figure: Any, _: Frame) -> None:
    figure.add_scatter(x=[0, 1], y=[1, 0], mode="lines", line=DASHED, name="the bound")


def _draw_limits(figure: Any, _: Frame) -> None:
    figure.add_hline(1, line=DASHED).add_vline(1, line=DASHED)


FIGURES = [
    scatter(
        THEOREM,
        against="root",
        color="kind",
        rows=_with_kind,
        name="bound",
        title="Share of tasks recovered, against the bound 1 - √δ",
        x_title="√δ",
        y_title="tasks recovered",
        text="hover",
        finish=_draw_bound,
    ),
    curve(
        "lost",
        against="budget",
        color="kind",
        rows=_corrupted,
        name="corrupted",
        title="Tasks lost to wrong answers, over the √δ that the bound allows",
        x_title="wrong pairs, in multiples of the largest δ at which the check holds",
        y_title="tasks lost / √δ",
        log_x=True,
        finish=_draw_limits,
    ),
    curve(
        "accuracy",
        against="width",
        color="decoder",
        rows=_by_decoder,
        each="encoding",
        name="decoders-{}",
        title="Held-out tasks that each decoder recovers, {} code",
        x_title="width of the student",
        y_title="tasks recovered",
        log_x=True,
    ),
]
