"""Is depth or width better for chains of modules, at a fixed number of parameters?

Claim: among small networks with equally many parameters, an interior depth is best (MobileLLM, Liu
et al. 2024, arXiv 2402.14905), and depth helps composition, with diminishing returns (Petty et al.
2023, arXiv 2310.19956).

Students of several depths have the same number of parameters within 2%, which is checked on the
shapes of their arrays. They learn chains of continuous modules, one length at a time, or sums of
modules. Scores are R2 on held-out chains of the full length. A chain of one module cannot be held
out, so its score is that of train chains at new points.

Every shape has its own learning rate: the one with the best score on train tasks in tuning seeds,
which claims never use. Two controls: chains of one need no composition, so depth must not help
them; and if residual connections move the best depth of an MLP to the deepest shape, plain networks
were only hard to train.

Command:  recombine run depth_or_width --scale small
Runtime:  meant for minutes on 2 cores; full: meant for ten minutes on one H200.
Expected: an interior best depth on long chains, which is deeper than on short ones.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    Measurement,
    Select,
    Statistic,
    above,
    at_least,
    at_most,
    control,
    final_rows,
    hypothesis,
    reproduces,
    where,
)
from recombine.experiments.limits import _iso_shapes
from recombine.experiments.plots import curve
from recombine.parts.encodings.identity import Identity
from recombine.parts.encodings.language import Language
from recombine.parts.families.chain import Chain
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.protocols import Model
from recombine.parts.recipes.fast import Fast
from recombine.parts.supports.held_out_sequences import HeldOutSequences
from recombine.parts.supports.missing_module import MissingModule
from recombine.parts.supports.random import Random
from recombine.sweeps.run import Run, sweep

TITLE = "Depth or width, at a fixed number of parameters"
SOURCE = "Petty et al. 2023 (arXiv 2310.19956); Liu et al. 2024 (arXiv 2402.14905)"
SUMS = 0  # in the column `chain`: tasks are sums of modules, not chains
LENGTHS = {"tiny": (1, 2), "small": (1, 2, 4), "full": (1, 2, 4, 8)}
NUM_MODULES = {"tiny": 2, "small": 2, "full": 8}
SIZE = {"tiny": 2, "small": 4, "full": 16}  # units of a chain
MLP_DEPTHS = {"tiny": (1, 2), "small": (1, 2, 4), "full": (1, 2, 3, 4, 6, 8, 12)}
# Transformers take too long for the small scale.
BLOCKS = {"tiny": (1, 2), "small": (), "full": (1, 2, 3, 4, 6, 8)}
MLP_WIDTH = {"tiny": 26, "small": 64, "full": 512}  # of the MLP with two layers
D_MODEL = {"tiny": 8, "small": 16, "full": 128}  # of the transformer with two blocks
LEARNING_RATES = {"tiny": (0.02,), "small": (0.03, 0.1), "full": (0.002, 0.006, 0.02)}
SEEDS = {"tiny": 1, "small": 3, "full": 3}
TUNING_SEEDS = {"tiny": (100,), "small": (100,), "full": (100, 101)}
FIRST_TUNING_SEED = 100
STEPS = {"tiny": 4, "small": 1000, "full": 6000}
MLP, RESIDUAL, TRANSFORMER = "MLP", "MLP with residual connections", "transformer"
MIN_GAIN = 0.01  # R2 by which an interior depth must be better than both ends
MAX_BENEFIT = 0.02  # R2 that depth may add to chains of one


def runs(scale: str) -> list[Run]:
    """Shapes x learning rates x seeds on chains of each length, and on sums (MLP only).

    With residual connections, MLPs are trained on the longest chains only.
    """
    lengths = LENGTHS[scale]
    listed = []
    for length in (SUMS, *lengths):
        base = _base(scale, length)
        widths = (MLP_DEPTHS[scale], MLP_WIDTH[scale], base.family, base.encoding)
        listed += _tuned(base, _iso_shapes.mlps(*widths), scale)
        if length == max(lengths):
            listed += _tuned(base, _iso_shapes.mlps(*widths, residual=True), scale)
        if length != SUMS and BLOCKS[scale]:
            words = replace(base, encoding=Language())
            sizes = (BLOCKS[scale], D_MODEL[scale], words.family, words.encoding)
            listed += _tuned(words, _iso_shapes.transformers(*sizes), scale)
    return listed


def _tuned(base: Run, models: Sequence[Model], scale: str) -> list[Run]:
    recipes = [Fast(rate, 0.05, vector_rate=0.2) for rate in LEARNING_RATES[scale]]
    seeds = [*range(SEEDS[scale]), *TUNING_SEEDS[scale]]
    return sweep(base, model=models, recipe=recipes, seed=seeds)


def _base(scale: str, length: int) -> Run:
    """The run of all shapes that learn chains up to a length, or sums of modules."""
    is_full = scale == "full"
    shared = Run(
        encoding=Identity(),
        diagnostics=(),
        num_steps=STEPS[scale],
        num_evals=1,
        num_tasks=128 if is_full else 32,
        num_points=8 if is_full else 4,
        num_eval_tasks=1024 if is_full else 64,
    )
    if length == SUMS:
        sums = Hyperteacher() if is_full else Hyperteacher(num_modules=6, num_hot=2)
        return replace(shared, family=sums, support=Random())
    num_modules = NUM_MODULES[scale]
    chain = Chain(
        num_modules, length, "continuous", SIZE[scale], max_per_length=2000 if is_full else 200
    )
    if length == 1:  # a further module is held out, because a split needs a test task
        chain = replace(chain, num_modules=num_modules + 1)
        frac_test = 1 / (num_modules + 1)
        return replace(shared, family=chain, support=MissingModule(), frac_test=frac_test)
    return replace(shared, family=chain, support=HeldOutSequences("positions"))


def prepare(rows: Frame) -> Frame:
    """The rows of the claims' seeds with the learning rate of their shape.

    Columns: `chain` (its length; 0 for sums), `student`, and `score`.
    """
    final = final_rows(rows).copy()
    is_chain = final["family"] == "Chain"
    final["chain"] = final["family.max_length"].where(is_chain, SUMS).astype(int)
    final["student"] = [_name(row) for row in final.to_dict("records")]
    final["score"] = [_score(row) for row in final.to_dict("records")]
    final["tasks"] = final["chain"].map(lambda length: f"chains of {length}" if length else "sums")
    return _with_tuned_rate(final)


def _name(row: dict) -> str:
    if row["model"] != "MLP":
        return TRANSFORMER
    return RESIDUAL if row["model.residual"] else MLP


def _score(row: dict) -> float:
    """R2 on held-out tasks; on chains of one, R2 on train chains at new points."""
    length = row["chain"]
    if length == 1:
        return row["seen/r2"]
    return row["test/r2"] if length == SUMS else row.get(f"test/length={length}/r2", math.nan)


def _with_tuned_rate(final: Frame) -> Frame:
    """Of each shape, the rows with the rate that is best on train tasks in the tuning seeds."""
    shape = ["student", "chain", "model.depth"]
    rate = "recipe.learning_rate"
    is_tuning = final["seed"] >= FIRST_TUNING_SEED
    seen = final[is_tuning].groupby([*shape, rate])["seen/r2"].mean().dropna().reset_index()
    best = seen.loc[seen.groupby(shape)["seen/r2"].idxmax(), [*shape, rate]]
    return final[~is_tuning].merge(best, on=[*shape, rate])


def scores_by_depth(final: Frame, student: str, chain: int) -> Any:
    """The mean score of each depth, as a series."""
    own = final[(final["student"] == student) & (final["chain"] == chain)]
    return own.groupby("model.depth")["score"].mean()


def _longest(final: Frame) -> int:
    return int(final["chain"].max())


def interior_gain(student: str) -> Statistic:
    """On the longest chains, the best score of an interior depth minus the better end."""

    def statistic(final: Frame) -> float:
        scores = scores_by_depth(final, student, _longest(final))
        if len(scores) < 3:
            return math.nan
        return float(scores.iloc[1:-1].max() - max(scores.iloc[0], scores.iloc[-1]))

    return statistic


def benefit(student: str, chain: int | None = None) -> Statistic:
    """The best score of any depth minus that of the shallowest; on the longest chains if None."""

    def statistic(final: Frame) -> float:
        length = _longest(final) if chain is None else chain
        scores = scores_by_depth(final, student, length)
        return float(scores.max() - scores.iloc[0]) if len(scores) > 1 else math.nan

    return statistic


def deeper_with_length(student: str) -> Statistic:
    """How many times the best depth doubles from chains of two to the longest."""

    def statistic(final: Frame) -> float:
        longest = scores_by_depth(final, student, _longest(final))
        shortest = scores_by_depth(final, student, 2)
        if _longest(final) == 2 or len(longest) < 2 or len(shortest) < 2:
            return math.nan
        return float(np.log2(longest.idxmax()) - np.log2(shortest.idxmax()))

    return statistic


def of(*students: str) -> Select:
    """The rows of students."""
    return where({"student": list(students)})


def _claims_of(student: str) -> list[DeclaredClaim]:
    def chains_of_one_do_not_benefit(measurement: Measurement) -> bool:
        return benefit(student, 1)(measurement.all_rows) <= MAX_BENEFIT

    def residual_moves_it_to_the_deepest(measurement: Measurement) -> bool:
        return not interior_gain(RESIDUAL)(measurement.all_rows) > 0  # also if it is NaN

    is_mlp = student == MLP
    no_benefit = "depth must not help on chains of one"
    residual = "; the best depth must stay interior with residual connections"
    return [
        reproduces(
            f"{student}: interior",
            "On the longest chains, an interior depth is better than the shallowest and the "
            f"deepest shape ({student}; difference in R2)",
            published="an interior depth is best",
            needs=("student", "chain", "model.depth", "score"),
            rows=of(student),
            statistic=interior_gain(student),
            passes=above(MIN_GAIN),
            control=no_benefit + (residual if is_mlp else ""),
            control_fails=chains_of_one_do_not_benefit,
            is_confounded=residual_moves_it_to_the_deepest if is_mlp else None,
        ),
        hypothesis(
            f"{student}: deeper with length",
            "The best depth on the longest chains is at least twice that on chains of two "
            f"({student}; number of doublings)",
            needs=("student", "chain", "model.depth", "score"),
            rows=of(student),
            statistic=deeper_with_length(student),
            passes=at_least(1),
            control=no_benefit,
            control_fails=chains_of_one_do_not_benefit,
        ),
        control(
            f"{student}: chains of one",
            f"On chains of one, no depth is better than the shallowest ({student}; difference in "
            "R2)",
            needs=("student", "chain", "model.depth", "score"),
            rows=of(student),
            statistic=benefit(student, 1),
            passes=at_most(MAX_BENEFIT),
        ),
    ]


def more_than_on_sums(final: Frame) -> float:
    """The benefit of depth for MLPs on the longest chains minus that on sums of modules."""
    return benefit(MLP)(final) - benefit(MLP, SUMS)(final)


CLAIMS = [
    *(claim for student in (MLP, TRANSFORMER) for claim in _claims_of(student)),
    hypothesis(
        "residual",
        "With residual connections too, an interior depth is best on the longest chains (MLP; "
        "difference in R2)",
        needs=("student", "chain", "model.depth", "score"),
        rows=of(RESIDUAL),
        statistic=interior_gain(RESIDUAL),
        passes=above(MIN_GAIN),
    ),
    hypothesis(
        "sums",
        "Depth helps more on the longest chains than on sums of modules (MLP; difference in R2)",
        needs=("student", "chain", "model.depth", "score"),
        rows=of(MLP),
        statistic=more_than_on_sums,
        passes=above(MAX_BENEFIT),
    ),
]
FIGURES = [
    curve(
        "score",
        against="model.depth",
        color="tasks",
        rows=of(student),
        name=name,
        title=f"Depth at a fixed number of parameters: {student}",
        log_x=True,
        x_title="hidden layers (MLP) or blocks (transformer)",
        y_title="R² (chains of one: on train chains)",
    )
    for student, name in ((MLP, "mlp"), (RESIDUAL, "residual"), (TRANSFORMER, "transformer"))
]
