"""Do networks with equal outputs and different insides learn a new module equally fast?

Claim: networks that are trained to the same outputs can have fractured, entangled representations,
and these make later learning harder (arXiv 2505.11581, which shows pictures, no numbers).

Four kinds of students solve the same tasks, in which the last module never occurs:
- `faithful`: a recipe under which most units stay alive,
- `old`: an earlier recipe with a high learning rate for vectors, which can kill units,
- `construction`: the network of Theorem 3.1, built from the weights of the teacher,
- `random features`: a random network whose readout is fitted on train tasks.
For each seed, the learning rate of the faithful recipe is chosen among 12 so that its R2 on seen
tasks is closest to that of the old one. Only pairs that differ by at most .0005 are compared. The
other two have an R2 of their own.

Measured for each: dead units, linear decodability and factorization of the last hidden layer, own
subnetworks of modules (`_subnetworks.py`), R2 on the other modules when one module's subnetwork is
ablated, and the samples that it takes to learn the module that never occurred: all weights are
trained by Adam on half of the combinations with this module, and scored on the other half.

Command:  recombine run fractured --scale small
Runtime:  tiny: 20 to 50 seconds of CPU time; small and full were not measured.
Expected: open. If fractures matter, the old student needs more samples for the new module. If both
          need as many, insides that differ at equal outputs do not matter for this test.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from recombine.basics.random_streams import generator
from recombine.experiments import claim
from recombine.experiments.claim import Frame, where
from recombine.experiments.limits import _adaptation, _subnetworks
from recombine.experiments.limits._students import last_score, trained
from recombine.experiments.plots import bars, scatter
from recombine.parts import relu_products
from recombine.parts.decoder import fit_ridges
from recombine.parts.diagnostics.factorization import Factorization
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.prng import new_key, stream
from recombine.parts.recipes.fast import EARLIER_DEFAULT, Fast
from recombine.parts.supports.listed import Listed
from recombine.sweeps.run import Run, replace_fields
from recombine.training import activity
from recombine.training.program import initialize
from recombine.training.task_sampler import Setting, TaskSampler, make_shared, make_split

TITLE = "Equal outputs, different insides: does it matter for a new module?"
SOURCE = "arXiv 2505.11581"
FAITHFUL, OLD = "faithful", "old"
BUILT, RANDOM = "construction", "random features"
KINDS = (FAITHFUL, OLD, BUILT, RANDOM)
MAX_DIFFERENCE = 0.0005  # of R2 on seen tasks, between faithful and old students
TARGET = 0.8  # R2 on held-out combinations with the new module
RATES = tuple(round(0.004 * 1.25**i, 6) for i in range(12))  # of the faithful recipe
FAITHFUL_RECIPE = Fast(0.02, 0.05, vector_rate=0.1)
PIECES = {"tiny": 3, "small": 9, "full": 9}  # of the construction
SEEDS = {"tiny": 3, "small": 3, "full": 8}
SELECTION_SEED = 1000
HELD_OUT = 0.25  # of the combinations of known modules
NUM_SCORES = 25
RIDGE = 1e-4
RUNS: dict[str, Run] = {
    "tiny": Run(
        Hyperteacher(5, 2, 3, 3, 3),
        model=MLP((16, 16)),
        num_steps=50,
        num_evals=1,
        diagnostics=(),
    ),
    "small": Run(Hyperteacher(7, 3, 4, 4, 4), model=MLP((64, 64, 64)), num_evals=1, diagnostics=()),
    "full": Run(
        model=MLP((256, 256, 256)),
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
BUDGETS = {
    "tiny": _adaptation.Budget(25),
    "small": _adaptation.Budget(500),
    "full": _adaptation.Budget(5000),
}
DIAGNOSTICS: dict[str, tuple[Any, Any]] = {
    "tiny": (LinearDecodability(16, 16, 16), Factorization(16, 16, 16)),
    "small": (LinearDecodability(128, 64, 64), Factorization(128, 64, 64)),
    "full": (LinearDecodability(), Factorization()),
}


def cells(scale: str) -> list[dict[str, Any]]:
    """One cell for each kind of student. Its rows are those of all seeds."""
    return [{"scale": scale, "student": kind} for kind in KINDS]


def base_run(scale: str, seed: int) -> Run:
    """A student without the last module. A quarter of the other combinations is held out."""
    run = RUNS[scale]
    table = run.family.tasks()
    known = table[table[:, -1] == 0]
    order = generator(seed, "known combinations").permutation(len(known))
    combinations = [tuple(np.flatnonzero(known[i]).tolist()) for i in order]
    num_held_out = round(HELD_OUT * len(combinations))
    support = Listed(tuple(combinations[num_held_out:]), tuple(combinations[:num_held_out]))
    return dataclasses.replace(run, support=support, seed=seed)


def recipe_runs(scale: str, seed: int, kind: str) -> list[Run]:
    """The run of the old recipe, or those of the faithful recipe with all learning rates."""
    base = base_run(scale, seed)
    if kind == OLD:
        return [dataclasses.replace(base, recipe=EARLIER_DEFAULT)]
    faithful = dataclasses.replace(base, recipe=FAITHFUL_RECIPE)
    return [replace_fields(faithful, {"recipe.learning_rate": rate}) for rate in RATES]


def measure(
    scale: str,
    student: str,
    folder: Path,
    show_progress: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Train or build the students of one kind and measure them: a row for every seed."""
    seeds = [SELECTION_SEED, *range(SEEDS[scale])]
    show_progress(f"{student}: training students")
    measured = _students(scale, student, seeds, folder)
    family = RUNS[scale].family
    students = _subnetworks.stack(
        family, [net for net, _, _ in measured], [world for _, world, _ in measured]
    )
    effort = EFFORTS[scale]
    show_progress(f"{student}: training masks")
    selection = jax.tree.map(lambda leaf: leaf[:1], (students.nets, students.worlds))
    setting = _subnetworks.select(_subnetworks.Students(family, *selection), effort)
    masks = _known_modules(_subnetworks.measure(students, setting, effort, 1))
    show_progress(f"{student}: learning the new module")
    curves = _learn_new_module(scale, students)
    show_progress(f"{student}: probing")
    inside = _inside(scale, seeds, students)
    rows = []
    for i, seed in enumerate(seeds):
        if seed == SELECTION_SEED:
            continue
        row = {"seed": seed} | measured[i][2] | {name: float(v[i]) for name, v in inside.items()}
        row |= _mask_columns(masks, i) | _curve_columns(curves[i], BUDGETS[scale])
        rows.append(row | _subnetworks.setting_columns(setting))
    return rows


def _students(
    scale: str, kind: str, seeds: list[int], folder: Path
) -> list[tuple[Any, Any, dict[str, float]]]:
    """The network, the hidden teacher and further columns of every seed."""
    if kind in (BUILT, RANDOM):
        make = _built if kind == BUILT else _random_features
        return [(*make(scale, seed), {}) for seed in seeds]
    runs = []
    for seed in seeds:
        runs += recipe_runs(scale, seed, OLD) + recipe_runs(scale, seed, FAITHFUL)
    fits = trained(runs, folder)
    per_seed = 1 + len(RATES)
    chosen = []
    for i in range(len(seeds)):
        old, *faithful = fits[i * per_seed : (i + 1) * per_seed]
        goal = last_score(old, "seen/r2")
        nearest = min(faithful, key=lambda fit: abs(last_score(fit, "seen/r2") - goal))
        difference = last_score(nearest, "seen/r2") - goal
        fit = old if kind == OLD else nearest
        rate: Any = fit.run.recipe
        columns = {"difference": difference, "learning_rate": rate.learning_rate}
        chosen.append((fit.net, fit.world, columns))
    return chosen


def _built(scale: str, seed: int) -> tuple[Any, Any]:
    """The construction of Theorem 3.1, and its teacher."""
    run = base_run(scale, seed)
    world = initialize(run)[1]
    num_hot = RUNS[scale].family.num_hot  # pyright: ignore[reportAttributeAccessIssue]
    net = relu_products.network(world, num_hot, num_hot, PIECES[scale])
    return net, world


def _random_features(scale: str, seed: int) -> tuple[Any, Any]:
    """A random network whose last layer is a ridge regression on train tasks, and its teacher."""
    run = base_run(scale, seed)
    net, world, encoding = initialize(run)
    lab = _lab(run, net, Setting(world, encoding))
    seen = lab.observe(stream(new_key(seed), "random features"), "train", run.num_eval_tasks)
    last = f"hidden{len(net.layers) - 2}"
    h = seen.activations[last].reshape(-1, net.layers[-1].weight.shape[1])
    predict = fit_ridges({"": h}, seen.batch.y.reshape(len(h), -1), RIDGE)[""]
    bias = predict(jnp.zeros((1, h.shape[1])))[0]
    weight = (predict(jnp.eye(h.shape[1])) - bias).T
    fitted = eqx.tree_at(lambda n: (n.layers[-1].weight, n.layers[-1].bias), net, (weight, bias))
    return fitted, world


def _lab(run: Run, net: Any, setting: Setting) -> TaskSampler:
    split, _ = make_split(run, run.family.modules(run.family.tasks()))
    return TaskSampler(run, _tables(run), jax.tree.map(jnp.asarray, split), setting, net)


def _tables(run: Run) -> Any:
    """The task tables of the family, as arrays of the device."""
    return jax.tree.map(jnp.asarray, make_shared(run.family))


def _inside(scale: str, seeds: list[int], students: _subnetworks.Students) -> dict[str, Any]:
    """Scores on seen and held-out tasks, dead units, decodability and factorization, by seed."""
    run = base_run(scale, 0)
    splits = [make_split(base_run(scale, seed), run.family.tasks())[0] for seed in seeds]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *splits)
    shared = _tables(run)
    decodability, factorization = DIAGNOSTICS[scale]

    @jax.jit
    @jax.vmap
    def measure_one(net, world, split, seed):
        key = jax.random.fold_in(stream(new_key(0), "inside"), seed)
        lab = TaskSampler(run, shared, split, Setting(world, ()), net)
        columns = {}
        for side in ("seen", "test"):
            part = "train" if side == "seen" else "test"
            observed = lab.observe(stream(key, side), part, run.num_eval_tasks)
            scores = jax.vmap(run.family.score)(observed.prediction, observed.batch.y)
            columns[f"{side}/r2"] = scores["r2"].mean()
            if side == "seen":
                units = activity.measure(net, observed.activations)
                dead = [value for name, value in units.items() if name.endswith("/dead")]
                columns["dead"] = jnp.stack(dead).mean()
        decoded = decodability.measure(stream(key, "decodability"), lab)
        parts = factorization.measure(stream(key, "factorization"), lab)
        columns["decodability"] = decoded["deepest/test/r2"]
        columns["factorization"] = parts["deepest/test/r2"]
        return columns

    measured = measure_one(students.nets, students.worlds, stacked, jnp.array(seeds))
    return jax.device_get(measured)


def _known_modules(measured: _subnetworks.Measured) -> _subnetworks.Measured:
    """The measurements without the last module, which no student knows."""
    square = ("sub", "ablated", "random_sub", "random_ablated")
    changes = {name: getattr(measured, name)[:, :-1, :-1] for name in square}
    changes["student"] = measured.student[:, :-1]
    return measured._replace(**changes)


def _mask_columns(measured: _subnetworks.Measured, i: int) -> dict[str, float]:
    """The means over modules of a student's mask measurements."""
    subnetwork = _subnetworks.effects(measured.sub)[i]
    ablation = _subnetworks.effects(measured.ablated)[i]
    own = (subnetwork > _subnetworks.MIN_EFFECT) & (ablation < -_subnetworks.MIN_EFFECT)
    others = _subnetworks.on_others(measured.ablated)[i]
    return {
        "own": float(own.mean()),
        "subnetwork": float(subnetwork.mean()),
        "ablation": float(ablation.mean()),
        "others after ablation": float(others.mean()),
        "single": float(measured.student[i].mean()),
    }


@functools.partial(jax.jit, static_argnums=(0, 3))
def _curves(scale: str, nets: Any, worlds: Any, budget: _adaptation.Budget) -> Any:
    family: Any = RUNS[scale].family
    new = family.num_modules - 1
    rows = _adaptation.rows_with(family, new, list(range(new)))
    rows = rows[rows.sum(axis=1) > 1]
    rows = rows[generator(0, "new combinations").permutation(len(rows))]
    half = len(rows) // 2
    key = stream(new_key(0), "new module")

    def curve(net, world):
        return _adaptation.learning_curve(
            family, world, net, rows[:half], rows[half:], key, budget, NUM_SCORES
        )

    return jax.vmap(curve)(nets, worlds)


def _learn_new_module(scale: str, students: _subnetworks.Students) -> np.ndarray:
    """R2 on held-out combinations with the new module, before and during training."""
    return jax.device_get(_curves(scale, students.nets, students.worlds, BUDGETS[scale]))


def _curve_columns(curve: np.ndarray, budget: _adaptation.Budget) -> dict[str, float]:
    per_score = budget.num_steps // NUM_SCORES * budget.samples_per_step
    return {
        "samples": _adaptation.samples_needed(curve, TARGET, per_score),
        "reached": float(curve.max() >= TARGET),
        "new/first": float(curve[0]),
        "new/last": float(curve[-1]),
    }


def prepare(rows: Frame) -> Frame:
    """The rows, with whether the pair of faithful and old students of a seed is matched."""
    frame = rows.copy()
    if "difference" not in frame:  # no trained student is finished yet
        frame["difference"] = np.nan
    is_trained = frame["student"].isin([FAITHFUL, OLD])
    frame["is matched"] = frame["difference"].abs() <= MAX_DIFFERENCE
    frame = frame[frame["is matched"] | ~is_trained].copy()
    frame["log samples"] = np.log2(frame["samples"].clip(lower=1))
    return frame


def difference(column: str, first: str, second: str) -> claim.Statistic:
    """The mean of a column for one kind of student, minus that for another."""
    return claim.difference(column, "student", first, second)


MATCHED = where({"student": [FAITHFUL, OLD]})
CLAIMS = [
    claim.hypothesis(
        "dead units",
        "At equal R2 the old recipe leaves more units dead (difference of fractions)",
        rows=MATCHED,
        needs=("student", "dead"),
        statistic=difference("dead", OLD, FAITHFUL),
        passes=claim.above(0.1),
    ),
    claim.hypothesis(
        "decodability",
        "At equal R2 modules are less decodable from the last hidden layer of the old student "
        "(difference of R2)",
        rows=MATCHED,
        needs=("student", "decodability"),
        statistic=difference("decodability", OLD, FAITHFUL),
        passes=claim.below(-0.05),
    ),
    claim.hypothesis(
        "factorization",
        "At equal R2 the last hidden layer of the old student is less a sum of one term per module "
        "(difference of R2)",
        rows=MATCHED,
        needs=("student", "factorization"),
        statistic=difference("factorization", OLD, FAITHFUL),
        passes=claim.below(-0.05),
    ),
    claim.hypothesis(
        "ablation",
        "At equal R2, ablation of one module's subnetwork costs the other modules more in the old "
        "student (difference of their R2)",
        rows=MATCHED,
        needs=("student", "others after ablation"),
        statistic=difference("others after ablation", OLD, FAITHFUL),
        passes=claim.below(-0.05),
    ),
    claim.reproduces(
        "new module",
        f"At equal R2 the old student needs more samples to reach R2 {TARGET} on a new module "
        "(difference of base-2 logarithms)",
        published="fractured representations make later learning harder",
        rows=MATCHED,
        needs=("student", "log samples"),
        statistic=difference("log samples", OLD, FAITHFUL),
        passes=claim.above(0.5),
    ),
    claim.control(
        "random features",
        "A random network with a fitted readout, which has learned no modules, needs more samples "
        "than the faithful student (difference of base-2 logarithms)",
        needs=("student", "log samples"),
        statistic=difference("log samples", RANDOM, FAITHFUL),
        passes=claim.above(0.0),
    ),
    claim.control(
        "new before training",
        "No student knows the new module before it is trained (largest R2; the construction, which "
        "is built from the teacher, is left out)",
        rows=where({"student": [FAITHFUL, OLD, RANDOM]}),
        needs=("new/first",),
        statistic=claim.max_of("new/first"),
        passes=claim.below(0.5),
    ),
]


def summary(rows: Frame) -> dict[str, float]:
    """The means of every kind of student."""
    frame = prepare(rows)
    columns = ("seen/r2", "test/r2", "dead", "decodability", "factorization", "own", "samples")
    means = frame.groupby("student")[list(columns)].mean()
    values = {
        f"{kind}: {column}": float(means.loc[kind, column])
        for kind in means.index
        for column in columns
    }
    return values | {"matched pairs": float((frame["student"] == OLD).sum())}


FIGURES = [
    bars(
        "samples",
        against="student",
        name="samples",
        title="Samples until a new module is learned",
        x_title="student",
        y_title=f"samples until R² {TARGET} on held-out combinations",
    ),
    bars(
        "decodability",
        against="student",
        name="decodability",
        title="Linear decodability of modules from the last hidden layer",
        x_title="student",
        y_title="R² on held-out combinations",
    ),
    scatter(
        "samples",
        against="dead",
        color="student",
        name="dead",
        title="Dead units and the samples for a new module",
        x_title="fraction of dead units",
        y_title=f"samples until R² {TARGET}",
    ),
]
