"""Does long training bring composition of known facts, and for which facts?

Claim: transformers learn to compose two known facts in distribution, long after they know their
train tasks; facts that were never composed in training are not composed, however long the training
(Wang et al. 2024, arXiv 2405.15071).

A fact leads from a symbol by a relation to a symbol, by a random map. All facts are trained alone.
Pairs of facts are trained too, but for a part that is held out: these pairs are *in distribution*.
A quarter of the facts is apart: they occur in training alone, never in a pair. Pairs of such facts
are *out of distribution*. Both are scored apart, at every evaluation. Weight decay is an axis; the
claims are judged with the highest one.

An answer to a pair can be guessed: the trivial baseline answers with the most frequent answer of
pairs with the same second relation. A learned executor of single facts is the control that
must compose the facts that are apart. If it does not, if students do not know these facts
themselves, or if they compose nothing at all, the failure out of distribution is confounded.

Command:  recombine run grokked_composition --scale small
Runtime:  0.7 minutes of CPU time; full: not measured (meant for ten minutes on one H200).
Expected: in distribution composition comes late; out of distribution it does not come.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from recombine.experiments.claim import (
    Frame,
    Measurement,
    Statistic,
    above,
    at_least,
    at_most,
    control,
    hypothesis,
    last,
    mean_of,
    reproduces,
)
from recombine.experiments.limits import _chains
from recombine.experiments.plots import curve
from recombine.parts.families.two_hop import ALONE, APART, PAIR, TwoHop
from recombine.parts.models.executor import Executor
from recombine.parts.models.sequence_transformer import SequenceTransformer
from recombine.parts.recipes.paper import Paper
from recombine.parts.supports.held_out_kinds import HeldOutKinds
from recombine.sweeps.run import Run, sweep

TITLE = "Long training: composition in and out of distribution"
SOURCE = "Wang et al. 2024 (arXiv 2405.15071)"
FAMILIES = {
    "tiny": TwoHop(4, 3, facts=True),
    "small": TwoHop(12, 8, facts=True),
    "full": TwoHop(60, 12, facts=True),
}
DECAYS = {"tiny": (0.1,), "small": (0.01, 0.1), "full": (0.01, 0.1, 0.3)}
SEEDS = {"tiny": 1, "small": 3, "full": 3}
STEPS = {"tiny": 8, "small": 2400, "full": 100_000}
LEARNING_RATE = {"tiny": 2e-3, "small": 2e-3, "full": 1e-3}
EVALS = {"tiny": 2, "small": 8, "full": 25}
FRAC_TEST = 0.2  # of the pairs whose facts are not apart
FITTED = 0.95  # accuracy on train tasks from which on a student counts as fitted
GROKKED = 0.9
MAX_APART = 0.3  # accuracy on pairs of facts apart that still counts as no composition
MAX_GUESSED = 0.5  # accuracy of the trivial baseline that leaves room for composition
GUESSED_IN, GUESSED_OUT = "guessed in distribution", "guessed out of distribution"
TRANSFORMER, EXECUTOR = "transformer", "executor"
IN, OUT, FACTS = "in distribution", "out of distribution", "facts that are trained alone"


def runs(scale: str) -> list[Run]:
    """Weight decays x seeds of the transformer, and the executor of single facts."""
    is_full = scale == "full"
    base = replace(
        _chains.base(scale),
        family=FAMILIES[scale],
        support=HeldOutKinds(),
        frac_test=FRAC_TEST,
        num_steps=STEPS[scale],
        num_evals=EVALS[scale],
        num_tasks=512 if is_full else 64,
        num_points=1,
        num_eval_tasks=4096 if is_full else 256,
        num_eval_points=1,
    )
    width = {"tiny": 8, "small": 32, "full": 128}[scale]
    transformer = SequenceTransformer(2, width, 1 if width < 64 else 2, 4 * width)
    recipes = [Paper(LEARNING_RATE[scale], decay) for decay in DECAYS[scale]]
    seeds = range(SEEDS[scale])
    executor = replace(base, model=Executor((2 * width,) * 2))
    return [
        *sweep(base, model=[transformer], recipe=recipes, seed=seeds),
        *sweep(executor, seed=seeds),
    ]


def prepare(rows: Frame) -> Frame:
    """All evaluations, with scores by kind of task; `is last` marks the last ones.

    The columns `fitted in` and `fitted out` have the scores at the first evaluation at which the
    student knows its train tasks.
    """
    frame = rows.copy()
    frame["student"] = np.where(frame["model"] == "Executor", EXECUTOR, TRANSFORMER)
    frame["weight decay"] = frame["recipe.weight_decay"]
    for name, column in (
        (IN, f"test/kind={PAIR}/accuracy"),
        (OUT, f"test/kind={APART}/accuracy"),
        (FACTS, f"seen/kind={ALONE}/accuracy"),
    ):
        frame[name] = frame.get(column, math.nan)
    is_transformer = frame["student"] == TRANSFORMER
    frame["is highest decay"] = is_transformer & (
        frame["weight decay"] == frame.loc[is_transformer, "weight decay"].max()
    )
    frame["is last"] = frame["step"] == frame.groupby("run")["step"].transform("max")
    first = frame[frame["seen/accuracy"] >= FITTED].sort_values("step").groupby("run")[IN].first()
    frame["in distribution when fitted"] = frame["run"].map(first)
    frame["gain after fitting"] = frame[IN] - frame["in distribution when fitted"]
    finals = last(rows).to_dict("records")
    for name, kind in ((GUESSED_IN, PAIR), (GUESSED_OUT, APART)):
        guessed = {row["run"]: guessed_accuracy(_family(row), kind) for row in finals}
        frame[name] = frame["run"].map(guessed)
    return frame


def _family(row: dict) -> TwoHop:
    names = ("num_symbols", "num_relations", "table_seed")
    sizes = {name: int(row[f"family.{name}"]) for name in names}
    return TwoHop(facts=True, frac_apart=float(row["family.frac_apart"]), **sizes)


def guessed_accuracy(family: TwoHop, kind: int) -> float:
    """The accuracy of the trivial baseline on pairs of a kind.

    It guesses the likeliest answer of the second relation, counted in all pairs that are not apart.
    """
    rows = family.tasks().astype(int)
    kinds = family.kinds(rows)
    answers = _answers(family, rows)
    is_right: list[bool] = []
    for relation in range(1, family.num_relations + 1):
        own = rows[:, 2] == relation
        known = answers[own & (kinds == PAIR)]
        asked = answers[own & (kinds == kind)]
        if len(known):
            is_right.extend(asked == np.bincount(known).argmax())
    return float(np.mean(is_right)) if is_right else math.nan


def _answers(family: TwoHop, rows: np.ndarray) -> np.ndarray:
    """The answers of pairs of facts; for facts, numbers without a meaning."""
    symbol, r1, r2 = rows.T - 1
    lookup = family.first_map()
    return lookup[r2, lookup[r1, symbol]]


def judged(frame: Frame) -> Frame:
    """The last evaluations of the transformers with the highest weight decay."""
    return frame[frame["is highest decay"] & frame["is last"]]


def executors(frame: Frame) -> Frame:
    """The last evaluations of the executors."""
    return frame[(frame["student"] == EXECUTOR) & frame["is last"]]


def last_of_all_decays(frame: Frame) -> Frame:
    """The last evaluations of all transformers."""
    return frame[(frame["student"] == TRANSFORMER) & frame["is last"]]


def decay_difference(column: str) -> Statistic:
    """The mean of a column with the highest weight decay minus that with the lowest."""

    def statistic(frame: Frame) -> float:
        means = frame.groupby("weight decay")[column].mean()
        return float(means.iloc[-1] - means.iloc[0]) if len(means) > 1 else math.nan

    return statistic


def facts_are_known_and_composable(measurement: Measurement) -> bool:
    """Whether transformers know all facts alone, and the executor composes those apart."""
    knows = judged(measurement.all_rows)[FACTS].mean() >= FITTED
    return bool(knows and executors(measurement.all_rows)[OUT].mean() >= GROKKED)


def nothing_is_composed(measurement: Measurement) -> bool:
    """Whether pairs in distribution are not answered either, so that nothing was learned."""
    return not judged(measurement.all_rows)[IN].mean() >= GROKKED  # also if it is NaN


def guesses_fail(measurement: Measurement) -> bool:
    """Whether the likeliest answers are wrong for most pairs in distribution."""
    return measurement.rows[GUESSED_IN].mean() <= MAX_GUESSED


def curves(frame: Frame) -> Frame:
    """One row per evaluation and kind of task, of the transformers with the highest decay."""
    return _kinds(frame[frame["is highest decay"]], [FACTS, IN, OUT])


def curves_by_decay(frame: Frame) -> Frame:
    """One row per evaluation of all transformers, on pairs in distribution."""
    own = frame[frame["student"] == TRANSFORMER]
    return own.assign(decay=own["weight decay"].map("weight decay {:g}".format))


def _kinds(own: Frame, kinds: Sequence[str]) -> pd.DataFrame:
    return own.melt(["step", "seed"], list(kinds), "tasks", "score").dropna(subset=["score"])


CLAIMS = [
    reproduces(
        "in distribution",
        "After long training, held-out pairs whose facts occur in other train pairs (in "
        "distribution) are answered (accuracy)",
        published="full accuracy after long training",
        rows=judged,
        needs=(IN,),
        statistic=mean_of(IN),
        passes=at_least(GROKKED),
        control="the most frequent answer of the second relation must be wrong",
        control_fails=guesses_fail,
        note=lambda measurement: (
            f"accuracy of the most frequent answer: {measurement.rows[GUESSED_IN].mean():.2f}"
        ),
    ),
    reproduces(
        "late",
        "Composition in distribution comes after the train tasks are known (gain in accuracy since "
        f"the first evaluation with {FITTED:g} on train tasks)",
        published="generalization long after fitting",
        rows=judged,
        needs=("gain after fitting",),
        statistic=mean_of("gain after fitting"),
        passes=above(0.2),
    ),
    reproduces(
        "out of distribution",
        "After the same training, pairs of facts that occur in no train pair (out of "
        "distribution) are answered wrongly (accuracy)",
        published="no composition out of distribution",
        rows=judged,
        needs=(OUT,),
        statistic=mean_of(OUT),
        passes=at_most(MAX_APART),
        control="the facts themselves must be known, the executor must compose them, and pairs in "
        "distribution must be answered",
        control_fails=facts_are_known_and_composable,
        is_confounded=nothing_is_composed,
        after_rows="the control that pairs in distribution must be answered",
        note=lambda measurement: (
            f"accuracy of the most frequent answer: {measurement.rows[GUESSED_OUT].mean():.2f}"
        ),
    ),
    hypothesis(
        "weight decay",
        "Weight decay helps composition in distribution (highest minus lowest; accuracy)",
        rows=last_of_all_decays,
        needs=(IN, "weight decay"),
        statistic=decay_difference(IN),
        passes=above(0.05),
    ),
    control(
        "known facts",
        "Transformers know the facts that are trained alone (accuracy)",
        rows=judged,
        needs=(FACTS,),
        statistic=mean_of(FACTS),
        passes=at_least(FITTED),
    ),
    control(
        EXECUTOR,
        "The executor of single facts composes facts that occur in no train pair (accuracy)",
        rows=executors,
        needs=(OUT,),
        statistic=mean_of(OUT),
        passes=at_least(GROKKED),
    ),
]
FIGURES = [
    curve(
        "score",
        against="step",
        color="tasks",
        rows=curves,
        name="steps",
        title="Facts and pairs of facts, with the highest weight decay",
        log_x=True,
        x_title="steps",
        y_title="accuracy",
    ),
    curve(
        IN,
        against="step",
        color="decay",
        rows=curves_by_decay,
        name="decay",
        title="Held-out pairs in distribution, by weight decay",
        log_x=True,
        x_title="steps",
        y_title="accuracy",
    ),
]
