"""Does training find the small network of Theorem 3.1, which is known to generalize?

Claim: a small network that generalizes exists (Theorem 3.1). Training is observed to find one,
which the paper attributes to a preference for simple solutions (arXiv 2507.07207, section 3.2).

Students differ in their initialization only; the training recipe is the same for all. They start at
- the construction of Theorem 3.1,
- the construction plus Gaussian noise of .1, .3 or 1 times the size of its weights,
- a random network of the same shape,
- a random network whose second layer is as wide as its first. (The second layer of the construction
  has only as many neurons as the teacher.)
Each is trained at several widths, with many and with few train combinations. We measure R2 on
held-out combinations, the fewest neurons of the first layer that the network needs, its distance
from the construction, and whether its second layer is a sum of one term per module. The control is
the random network before training, which must fail.

Command:  recombine run found_or_built --scale small
Runtime:  7 to 12 minutes on 2 busy cores, 6 of CPU time; full: 5 minutes on one H200, by the cost
          model.
Expected: open. If training prefers the simple solution, it keeps the construction, noisy starts
          return to it, and random starts reach its R2 with as few neurons at every width.
"""

import math
from typing import Any

import numpy as np

from recombine.experiments import claim
from recombine.experiments.claim import OURS, Frame, Measurement, Select, Statistic, final_rows
from recombine.experiments.plots import Plot, curve
from recombine.parts.diagnostics.compression import Compression
from recombine.parts.diagnostics.distance import Distance
from recombine.parts.diagnostics.factorization import Factorization
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.built import Built
from recombine.parts.models.mlp import MLP
from recombine.parts.recipes.fast import Fast
from recombine.parts.relu_products import widths
from recombine.sweeps.run import Run, replace_fields, sweep

TITLE = "Does training find the network that Theorem 3.1 constructs?"
SOURCE = "arXiv 2507.07207, section 3.2"
MANY = 0.25  # the fraction held out that leaves many train combinations
FEW = 0.9  # the fraction held out that leaves few
NOISES = (0.0, 0.1, 0.3, 1.0)
SMALL_NOISE = 0.1
# Odd numbers: an even number of pieces takes as many neurons as the next odd one.
PIECES = {"tiny": (3,), "small": (3, 5, 7), "full": (3, 5, 9, 17)}
SEEDS = {"tiny": 1, "small": 3, "full": 3}
# Number of modules; number of inputs, hidden units and outputs of the teacher.
SIZES = {"tiny": (6, 2), "small": (8, 4), "full": (16, 8)}
STEPS = {
    "tiny": {"num_steps": 20},
    "small": {"num_steps": 2000},
    "full": {"num_steps": 10_000, "num_tasks": 512, "num_points": 4, "num_eval_tasks": 1024},
}
R2_TOLERANCE = 0.01  # a smaller difference in R2 counts as none
MIN_LEARNED_R2 = 0.5  # on train combinations; below it, counting needed neurons means nothing
BUILT = "construction"
RANDOM = "random"
WIDE = "random, wide"
UNTRAINED = ", untrained"
BEFORE = BUILT + UNTRAINED
FACTORS = "Factorization/pre1/test/r2"
DECODED = "LinearDecodability/hidden0/test/r2"
DISTANCE = "Distance/distance"


def runs(scale: str) -> list[Run]:
    """Pieces x start x held-out fraction x seed, and two of the starts untrained."""
    base = _base(scale)
    family: Any = base.family
    axes = {"frac_test": (MANY, FEW), "seed": range(SEEDS[scale])}
    listed = []
    for pieces in PIECES[scale]:
        shape = widths(family.d_input, family.d_hidden, pieces)
        diagnostics = (*base.diagnostics, Distance(pieces))
        model = Built(family.num_hot, pieces)
        built = replace_fields(base, {"model": model, "diagnostics": diagnostics})
        random = replace_fields(base, {"model": MLP(shape)})
        wide = replace_fields(base, {"model": MLP(shape[:1] * 2)})
        listed += sweep(built, model__noise=NOISES, **axes)
        listed += sweep(random, **axes)
        listed += sweep(wide, **axes)
        # A learning rate of 0, not fewer steps: so they share a program with the trained ones.
        for run in [*sweep(built, **axes), *sweep(random, **axes)]:
            listed.append(replace_fields(run, {"recipe.learning_rate": 0.0}))
    return listed


def _base(scale: str) -> Run:
    num_modules, size = SIZES[scale]
    diagnostics: tuple[Any, ...] = (Compression(), Factorization(), LinearDecodability())
    base = Run(
        Hyperteacher(num_modules=num_modules, d_input=size, d_hidden=size, num_outputs=size),
        # One learning rate for all starts, chosen by train scores of other seeds. No weight decay:
        # it would itself simplify solutions. No bfloat16: it would round the construction.
        recipe=Fast(0.01, 0.0, precision="float32"),
        diagnostics=(Compression(32),) if scale == "tiny" else diagnostics,
        num_evals=1,
        num_eval_tasks=256,
    )
    return replace_fields(base, STEPS[scale])


def prepare(rows: Frame) -> Frame:
    """The final rows, with each start in words, its width, and the neurons that it needs."""
    final = final_rows(rows)
    optional = ["model.noise", "model.pieces", "model.widths", "model.width", DISTANCE]
    final = final.reindex(columns=list(dict.fromkeys([*final.columns, *optional])))
    d_input = final["family.d_input"]
    d_hidden = final["family.d_hidden"]
    built_width: Any = widths(d_input, d_hidden, final["model.pieces"])[0]
    final["model.width"] = final["model.width"].fillna(built_width).astype(int)
    final["start"] = _start(final) + np.where(final["recipe.learning_rate"] > 0, "", UNTRAINED)
    final["squared distance"] = final[DISTANCE] ** 2
    has_learned = final["seen/r2"] > MIN_LEARNED_R2
    final["neurons"] = final["Compression/neurons"].where(has_learned)
    return final


def _start(final: Frame) -> Any:
    noise = final["model.noise"]
    width = final["model.width"].astype(str)
    start = "moved by " + noise.map("{:g}".format)
    start = start.mask(noise == 0, BUILT)
    start = start.mask(final["model"] != "Built", RANDOM)
    return start.mask(final["model.widths"] == width + "x" + width, WIDE)


def means(final: Frame, start: str, column: str, frac_test: float = MANY) -> Any:
    """The mean of a column over seeds, by width, for one start."""
    chosen = final[(final["start"] == start) & (final["frac_test"] == frac_test)]
    return chosen.groupby("model.width")[column].mean()


def advantage(
    final: Frame, start: str, other: str, column: str = "test/r2", frac_test: float = MANY
) -> Any:
    """The mean of a column for one start minus that for another, by width."""
    return means(final, start, column, frac_test) - means(final, other, column, frac_test)


def worst(by_width: Any) -> float:
    """The smallest value of all widths; NaN if one is missing."""
    return float(by_width.min(skipna=False)) if len(by_width) else math.nan


def widest(final: Frame, by_width: Any) -> float:
    """The value at the largest width; NaN if it is missing."""
    return float(by_width.get(final["model.width"].max(), math.nan))


def neurons_exponent(final: Frame) -> float:
    """The exponent of the growth of needed neurons with width, for random wide starts.

    It is 0 if all widths need the same number, and 1 if each needs all of its neurons.
    """
    counts = means(final, WIDE, "neurons").dropna()
    if len(counts) < 2:
        return math.nan
    return float(np.polyfit(np.log(counts.index), np.log(counts), 1)[0])


def remaining_noise(final: Frame) -> float:
    """The share of the squared noise that training does not remove, averaged over widths.

    Training also moves the construction itself. A displacement that is independent of that movement
    adds to it in squares, so the squared distance of the unmoved start is subtracted.
    """
    farther = advantage(final, f"moved by {SMALL_NOISE}", BUILT, "squared distance")
    return float(farther.mean()) / SMALL_NOISE**2


def summary(rows: Frame) -> dict[str, float]:
    """The scores of every start at the largest width."""
    final = prepare(rows)
    columns = {
        "R2 on unseen tasks": "test/r2",
        "neurons": "neurons",
        "distance": DISTANCE,
        "sum of parts, pre1": FACTORS,
        "decodability, hidden0": DECODED,
    }
    values = {}
    for start in sorted(final["start"].unique()):
        for name, column in columns.items():
            if column in final:
                values[f"{start}: {name}"] = widest(final, means(final, start, column))
        few = means(final, start, "test/r2", FEW)
        values[f"{start}: R2 on unseen tasks, few combinations"] = widest(final, few)
    return {name: value for name, value in values.items() if not math.isnan(value)}


def random_start_fails(measurement: Measurement) -> bool:
    """The control: before training, a random network of the construction's shape fails."""
    untrained = means(measurement.all_rows, RANDOM + UNTRAINED, "test/r2")
    return bool(untrained.max() < MIN_LEARNED_R2)


def _claim(
    name: str,
    statement: str,
    statistic: Statistic,
    column: str = "test/r2",
    minimum: float = -math.inf,
    maximum: float = math.inf,
    published: str = OURS,
    repeats: str = "",
) -> claim.DeclaredClaim:
    bound = f"at most {maximum}" if math.isinf(minimum) else f"at least {minimum}"
    return claim.reproduces(
        name,
        f"{statement}: {bound}",
        published=published,
        repeats=repeats,
        source="ours" if published == OURS else SOURCE,
        statistic=statistic,
        passes=claim.within(minimum, maximum),
        needs=("start", "frac_test", "model.width", column),
        control="a random network of the same shape must fail before training",
        control_fails=random_start_fails,
    )


def _kept(name: str, train_combinations: str, frac_test: float) -> claim.DeclaredClaim:
    return _claim(
        name,
        f"Training on {train_combinations} combinations does not make the construction worse "
        "(change of R2 on held-out combinations, worst width)",
        lambda final: worst(advantage(final, BUILT, BEFORE, frac_test=frac_test)),
        minimum=-R2_TOLERANCE,
    )


def _found(name: str, start: str, described: str) -> claim.DeclaredClaim:
    return _claim(
        name,
        f"A random start {described} ends as good as the construction (difference of R2 on "
        "held-out combinations, largest width)",
        lambda final: widest(final, advantage(final, start, BEFORE)),
        minimum=-R2_TOLERANCE,
        published="training finds one",
        repeats="" if start == RANDOM else "found_or_built: found",
    )


CLAIMS = [
    _claim(
        "exists",
        "The construction generalizes (R2 on held-out combinations, largest width)",
        lambda final: widest(final, means(final, BEFORE, "test/r2")),
        minimum=0.99,
        published="a network that generalizes exists",
    ),
    _kept("kept", "many", MANY),
    _kept("kept, few", "few", FEW),
    _claim(
        "comes back",
        f"Training removes noise of {SMALL_NOISE} from the construction (share of the squared "
        "noise that remains, compared with a start without noise)",
        remaining_noise,
        "squared distance",
        maximum=0.5,
    ),
    _found("found", RANDOM, "of the same shape"),
    _found("found, wide", WIDE, "with two wide layers"),
    _claim(
        "simple",
        "A random start with two wide layers needs no more neurons than the construction (ratio, "
        "largest width)",
        lambda final: widest(
            final, means(final, WIDE, "neurons") / means(final, BEFORE, "neurons")
        ),
        "neurons",
        maximum=1.0,
        published="attributed to a preference for simple solutions",
    ),
    _claim(
        "one solution",
        "The neurons that a random start with two wide layers needs do not grow with its width "
        "(exponent)",
        neurons_exponent,
        "neurons",
        maximum=0.5,
    ),
    _claim(
        "sum of parts",
        "After a random start, the second layer is a sum of one term per module as in the "
        "construction (difference of the sum's R2, largest width)",
        lambda final: widest(final, advantage(final, RANDOM, BEFORE, FACTORS)),
        FACTORS,
        minimum=-0.05,
    ),
]


def _shown(final: Frame, frac_test: float = MANY) -> Frame:
    """The trained students and the untrained construction at one held-out fraction."""
    is_shown = ~final["start"].str.endswith(UNTRAINED) | (final["start"] == BEFORE)
    return final[is_shown & (final["frac_test"] == frac_test)]


def _without_noise(final: Frame) -> Frame:
    students = _shown(final)
    return students[~students["start"].str.startswith("moved")]


def _by_width(name: str, y: str, title: str, rows: Select = _without_noise, **options: Any) -> Plot:
    return curve(
        y,
        against="model.width",
        name=name,
        title=title,
        color="start",
        rows=rows,
        x_title="width of the first layer",
        log_x=True,
        **options,
    )


FIGURES = [
    _by_width("many", "test/r2", f"Generalization by start, {MANY:.0%} held out", _shown),
    _by_width(
        "few",
        "test/r2",
        f"Generalization by start, {FEW:.0%} held out",
        lambda final: _shown(final, FEW),
    ),
    _by_width("neurons", "neurons", "Neurons of the first layer that a network needs"),
    _by_width(
        "distance",
        DISTANCE,
        "Distance from the construction after training, relative to its size",
        lambda final: _shown(final).dropna(subset=[DISTANCE]),
        y_title="relative distance",
    ),
    _by_width(
        "factors",
        FACTORS,
        "Is the second layer a sum of one term per module? (Above 1 by chance)",
        y_title="R² of the sum, before the ReLU",
    ),
    _by_width(
        "loss",
        "seen/loss",
        "Loss on train combinations",
        y_title="mean squared error",
        finish=lambda figure, _: figure.update_yaxes(type="log", dtick=1),
    ),
    _by_width(
        "decodability",
        DECODED,
        "Linear decodability of the modules from the first layer",
        y_title="decodability, held-out combinations (R²)",
    ),
]
