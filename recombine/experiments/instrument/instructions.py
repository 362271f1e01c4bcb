"""Which held-out instructions will a language model get wrong? Predicted from its activations.

Claim: a network fails on the combinations whose parts cannot be decoded from its activations. The
paper reports this for image models and has no language model (arXiv 2507.07207, section on image
generation). Here it is tested on small language models.

Small Llamas are trained from random weights to follow instructions such as "reverse and mirror and
rotate : d a f b e c =". They are trained on some combinations of operations; the others are held
out. The outcome is how often a held-out instruction is answered wrong on new lists; an answer
counts as a whole.

Each student is saved, loaded with the adapter for transformers, and recorded at three positions:
the end of the instruction, the start of the answer, and the mean over the positions that write the
answer. The claims are about the mean, which corresponds to the paper's measure. Ridge probes are
fitted on train instructions, which also choose the layer. Another probe uses all layers at once.

Baselines: the number of operations, the rarity of their pairs in training (no activations), the
student's own uncertainty about its answers, and the same probes on the untrained student. Control:
probes fitted on the operations of another instruction. Students that answer nearly all or nearly
none of the held-out instructions correctly are left out: there is nothing to rank.

Command:  recombine run instructions --scale full
Runtime:  full: 3.5 minutes on an H200, 7 on one that is shared; small: 3 minutes on two cores.
Expected: more train instructions give more correct answers; a rank correlation above .1 and above
          that of the baselines without activations; none for the control.
"""

import importlib
from typing import Any

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError
from recombine.basics.random_streams import generator
from recombine.basics.statistics import rank_correlation
from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    above,
    control,
    hypothesis,
    mean_difference,
    mean_of,
    reproduces,
    where,
    within,
)
from recombine.experiments.instrument._instructions.grammar import Language
from recombine.experiments.plots import bars, curve
from recombine.parts.supports.disconnected import Disconnected
from recombine.parts.supports.random import Random

TITLE = (
    "Which held-out instructions will a language model get wrong? Predicted from its activations"
)
SOURCE = "arXiv 2507.07207, section on image generation"
LANGUAGES = {
    "tiny": Language(num_modules=4, num_hot=2, length=4, num_letters=4),
    "small": Language(num_modules=6, num_hot=3, length=4, num_letters=5),
    "full": Language(num_modules=10, num_hot=3, length=6, num_letters=8),
}
WIDTHS = {"tiny": (32,), "small": (64,), "full": (128, 64)}
TRAINING: dict[str, dict[str, Any]] = {  # fields of `Size`
    "tiny": {"depth": 1, "num_steps": 10, "batch_size": 8, "learning_rate": 3e-3},
    "small": {"depth": 2, "num_steps": 1000, "batch_size": 64, "learning_rate": 3e-3},
    "full": {"depth": 4, "num_steps": 3000, "batch_size": 256, "learning_rate": 2e-3},
}
SEEDS = {"tiny": 2, "small": 2, "full": 4}
HELD_OUT = {"tiny": (0.5,), "small": (0.25,), "full": (0.25, 0.5, 0.9)}  # fractions of instructions
GROUPS = {"tiny": (2, 2), "small": (3, 3), "full": (5, 5)}  # of operations that are never mixed
NUM_JUDGED = {"tiny": 4, "small": 32, "full": 64}  # lists per instruction that are scored
NUM_PROBED = {"tiny": 2, "small": 8, "full": 8}  # lists per instruction that probes are fitted on
RANDOM = "random"
NEVER_MIXED = "never mixed"
FAILURE_RANGE = (0.05, 0.95)  # share of wrong answers; outside it, there is nothing to rank
MIN_ACCURACY = 0.9  # on held-out instructions, to count as compositional
MIN_CORRELATION = 0.7  # a rank correlation that would be useful in practice
MIN_AUROC = 0.8  # an AUROC that would be useful in practice
NO_CORRELATION = 0.1  # rank correlations up to this count as none
STUDENT = ["width", "support", "frac_test", "seed"]  # the columns that identify a student
PREDICTORS = {
    "answer": "probe of the best layer",
    "last": "probe of the last layer",
    "whole": "probe of all layers",
    "start": "probe at the start of the answer",
    "asked": "probe at the end of the instruction",
    "rarity": "rare pairs (no activations)",
    "length": "number of operations (no activations)",
    "doubt": "the student's own uncertainty",
    "twin": "probe of the untrained student",
    "control": "control: probe of another instruction",
}
PLOTTED = ("whole", "answer", "twin", "length", "doubt", "control")  # more bars are not readable


def cells(scale: str) -> list[dict[str, Any]]:
    """One cell per width. All its students are trained together."""
    return [{"scale": scale, "width": width} for width in WIDTHS[scale]]


def students(scale: str) -> list[dict[str, Any]]:
    """The support, the seed and the split of every student of a width.

    `parts` has one entry per task: 1 for a train task, 2 for a held-out task. Students of a random
    support with equally many train tasks are the control of those whose groups are never mixed.
    """
    tasks = LANGUAGES[scale].tasks()
    seeds = range(SEEDS[scale])
    unmixed = Disconnected(GROUPS[scale])
    unmixed_parts = [unmixed.parts(tasks, generator(seed, "apart"), 0.5) for seed in seeds]
    unmixed_fraction = float(np.mean([(parts == 2).mean() for parts in unmixed_parts]))
    listed = [
        {"support": NEVER_MIXED, "seed": seed, "parts": parts, "frac_test": unmixed_fraction}
        for seed, parts in enumerate(unmixed_parts)
    ]
    for fraction in sorted((*HELD_OUT[scale], unmixed_fraction)):
        for seed in seeds:
            parts = Random().parts(tasks, generator(seed, "support"), fraction)
            listed.append({"support": RANDOM, "seed": seed, "parts": parts, "frac_test": fraction})
    return listed


def measure(scale: str, width: int) -> list[dict[str, Any]]:
    """Train all students of a width and compare predicted with actual failures.

    Gives one row per student and one row per student and held-out instruction.
    """
    _require_torch()
    from recombine.experiments.instrument._instructions.probing import Answers, probe_student
    from recombine.experiments.instrument._instructions.student import (
        Sentences,
        Size,
        Students,
        one_thread,
    )

    language = LANGUAGES[scale]
    listed = students(scale)
    seeds = [student["seed"] for student in listed]
    splits = [student.pop("parts") for student in listed]
    train = [np.flatnonzero(parts == 1) for parts in splits]
    rows = []
    with one_thread():
        group = Students(language, Size(width, **TRAINING[scale]), seeds, train)
        group.learn(seed=width)
        sentences = Sentences(language, group.device, seed=width + 1)
        prompts, correct = sentences.all(len(seeds), NUM_JUDGED[scale])
        is_wrong = (group.answer(prompts)[0] != correct).any(dim=-1)
        failed = _means_by_task(is_wrong.float(), NUM_JUDGED[scale])
        prompts, _ = sentences.all(len(seeds), NUM_PROBED[scale])
        answers, doubt = group.answer(prompts)
        tokens = np.concatenate([prompts.cpu(), answers[..., :-1].cpu()], axis=-1)
        doubt = _means_by_task(doubt, NUM_PROBED[scale])
        for i, student in enumerate(listed):
            answered = Answers(splits[i], tokens[i], doubt[i], failed[i])
            rows += [student | row for row in probe_student(group, i, seeds[i], answered)]
    return rows


def _require_torch() -> None:
    """Raise an error that says what to install if torch or transformers is missing."""
    try:
        importlib.import_module("torch")
        importlib.import_module("transformers")  # after torch: it looks for torch only once
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed: pip install 'recombine[torch]'"
        ) from error


def _means_by_task(values: Any, num_samples: int) -> np.ndarray:
    """Means over the samples of every task, from a tensor of students x (tasks x samples)."""
    samples = values.cpu().numpy()
    return samples.reshape(len(samples), -1, num_samples).mean(axis=-1)


def prepare(rows: Frame) -> Frame:
    """All rows, with labels for figures.

    `length/spearman` is the rank correlation of the number of operations with failures, over the
    held-out instructions of a student.
    """
    prepared = rows.copy()
    correlations = {
        student: rank_correlation(instructions["num_hot"], instructions["failed"])
        for student, instructions in rows[rows["what"] == "instruction"].groupby(STUDENT)
    }
    keys = rows[STUDENT].itertuples(index=False, name=None)
    prepared["length/spearman"] = [correlations.get(key, np.nan) for key in keys]
    prepared["students"] = rows["support"] + ", width " + rows["width"].astype(str)
    is_unmixed = rows["support"] == NEVER_MIXED
    prepared["held out"] = rows["frac_test"].map("{:.0%}".format)
    prepared.loc[is_unmixed, "held out"] += f", {NEVER_MIXED}"
    return prepared


all_students = where({"what": "student"})
random_students = where({"what": "student", "support": RANDOM})


def students_with_failures(frame: Frame) -> Frame:
    """The students whose share of wrong answers leaves something to rank."""
    selected = all_students(frame)
    return selected[(1 - selected["test"]).between(*FAILURE_RANGE)]


def summary(rows: Frame) -> dict[str, float]:
    """Shares of correct answers by support, and rank correlations of predictors with failures."""
    frame = prepare(rows)
    groups = all_students(frame).groupby(["width", "support", "frac_test"])
    values = {
        f"width {width}, {support}, {frac_test:.0%} held out: right": float(group["test"].mean())
        for (width, support, frac_test), group in groups
    }
    ranked = students_with_failures(frame)
    for name in PREDICTORS:
        column = f"{name}/spearman"
        if column in ranked and ranked[column].notna().any():
            values[f"rank correlation, {name}"] = float(ranked[column].mean())
    return values


def most_trained(final: Frame) -> float:
    """The share of correct answers of the students with the most train instructions."""
    return float(final.loc[final["frac_test"] == final["frac_test"].min(), "test"].mean())


def gain_by_data(final: Frame) -> float:
    """The students with the most train instructions minus those with the fewest."""
    fewest = final.loc[final["frac_test"] == final["frac_test"].max(), "test"].mean()
    return most_trained(final) - float(fewest)


def gain_by_width(final: Frame) -> float:
    """The widest students minus the narrowest; NaN if there is only one width."""
    means = final.groupby("width")["test"].mean()
    return float(means.iloc[-1] - means.iloc[0]) if len(means) > 1 else np.nan


def loss_if_never_mixed(final: Frame) -> float:
    """Random supports minus those with unmixed groups, with equally many train instructions."""
    fractions = final.loc[final["support"] == NEVER_MIXED, "frac_test"]
    means = final[final["frac_test"].isin(fractions)].groupby("support")["test"].mean()
    return float(means.get(RANDOM, np.nan) - means.get(NEVER_MIXED, np.nan))


def by_predictor(frame: Frame) -> Frame:
    """One row per student with failures and plotted predictor."""
    ranked = students_with_failures(frame)
    names = {f"{name}/spearman": PREDICTORS[name] for name in PLOTTED}
    columns = [column for column in names if column in ranked]
    long = ranked.melt(["run", "held out"], columns, "predictor", "rank correlation")
    labels = [names[column] for column in columns]
    return long.assign(predictor=pd.Categorical(long["predictor"].map(names), labels))


def by_fifth(frame: Frame) -> Frame:
    """Mean failures of every student's held-out instructions, in fifths by decoding error."""
    ranked = students_with_failures(frame)[STUDENT]
    instructions = frame[frame["what"] == "instruction"].merge(ranked, on=STUDENT)
    predictor = "whole" if "whole" in instructions else "answer"  # old rows lack the first
    rank = instructions.groupby(STUDENT)[predictor].rank(pct=True)
    instructions["fifth"] = np.ceil(5 * rank)
    groups = instructions.groupby([*STUDENT, "held out", "fifth"], as_index=False)
    fifths = groups["failed"].mean()
    return fifths.assign(fifth=fifths["fifth"].map("{:.0f}".format))


OTHER_LABELS = "probes fitted on another instruction's operations must predict nothing"
GENERALIZATION = "arXiv 2507.07207, on other students"
MORE_IS_BETTER = "more data and width: more is composed"


def _reaches(name: str, statement: str, column: str, threshold: float) -> DeclaredClaim:
    """The claim that a score exceeds a threshold, on average over students with failures."""
    return hypothesis(
        name,
        f"{statement} above {threshold:g}",
        source="ours",
        statistic=mean_of(column),
        passes=above(threshold),
        rows=students_with_failures,
        needs=(column,),
        control=OTHER_LABELS,
    )


def _beats(name: str, predictor: str, baseline: str, described: str) -> DeclaredClaim:
    """The claim that a predictor ranks held-out instructions better than a baseline."""
    columns = (f"{predictor}/spearman", f"{baseline}/spearman")
    return hypothesis(
        name,
        f"A {PREDICTORS[predictor]} ranks held-out instructions by failures better than "
        f"{described} (difference in rank correlation)",
        source="ours",
        statistic=mean_difference(*columns),
        passes=above(0),
        rows=students_with_failures,
        needs=columns,
        control=OTHER_LABELS,
    )


def _predicts_nothing(name: str, probe: str, column: str) -> DeclaredClaim:
    """The control that a probe with the labels of another instruction predicts no failures."""
    return control(
        name,
        f"A {probe} that is fitted on another instruction's operations predicts nothing "
        "(rank correlation)",
        statistic=mean_of(column),
        passes=within(-NO_CORRELATION, NO_CORRELATION),
        rows=students_with_failures,
        needs=(column,),
    )


COMPOSITION_CLAIMS = [
    hypothesis(
        "composes",
        "With the most train instructions, the share of correct answers to held-out instructions "
        f"is above {MIN_ACCURACY:.0%}",
        source="ours",
        statistic=most_trained,
        passes=above(MIN_ACCURACY),
        rows=random_students,
        needs=("frac_test", "test"),
        control="equally many instructions with groups that are never mixed",
    ),
    reproduces(
        "more instructions",
        "More train instructions give more correct answers to held-out ones (most minus fewest)",
        source=GENERALIZATION,
        published=MORE_IS_BETTER,
        repeats="data_slice: tasks",
        statistic=gain_by_data,
        passes=above(0),
        rows=random_students,
        needs=("frac_test", "test"),
        control="steps and batches are the same",
    ),
    reproduces(
        "width",
        "Wider students give more correct answers to held-out instructions (widest minus "
        "narrowest)",
        source=GENERALIZATION,
        published=MORE_IS_BETTER,
        repeats="scaling_width: Identity: width",
        statistic=gain_by_width,
        passes=above(0),
        rows=random_students,
        needs=("width", "test"),
        control="the same instructions and steps",
    ),
    reproduces(
        "failing support",
        "If two groups of operations are never mixed in training, fewer held-out instructions are "
        "answered correctly than after equally many random ones",
        source=GENERALIZATION,
        published="disconnected supports fail",
        repeats="support_conditions: unmixed, as published",
        statistic=loss_if_never_mixed,
        passes=above(0),
        rows=all_students,
        needs=("support", "frac_test", "test"),
        control="equally many random instructions",
    ),
]
BEST_LAYER_CLAIMS = [
    reproduces(
        "ranked",
        "Held-out instructions whose operations are poorly decodable while the answer is written "
        "fail more often (rank correlation)",
        published="image models: decodability predicts success",
        repeats="image_concepts: ranked",
        statistic=mean_of("answer/spearman"),
        passes=above(NO_CORRELATION),
        rows=students_with_failures,
        needs=("answer/spearman",),
        control=OTHER_LABELS,
    ),
    _reaches(
        "ranked well",
        "Decoding errors rank held-out instructions by failures, rank correlation",
        "answer/spearman",
        MIN_CORRELATION,
    ),
    _reaches(
        "told apart",
        "Decoding errors separate instructions that fail more often than not, AUROC",
        "answer/auroc",
        MIN_AUROC,
    ),
    _reaches(
        "equally long",
        "Decoding errors rank also held-out instructions with the same, largest number of "
        "operations, rank correlation",
        "answer/longest/spearman",
        NO_CORRELATION,
    ),
    _beats("beyond counting", "answer", "rarity", "the rarity of their pairs in training"),
    _beats("beyond length", "answer", "length", "their number of operations"),
    _beats("beyond the text", "answer", "twin", "the same probe of the untrained student"),
    _beats("beyond its doubt", "answer", "doubt", "the student's own uncertainty"),
]
ALL_LAYERS_CLAIMS = [
    _beats("all layers", "whole", "answer", "a probe of the best layer"),
    _reaches(
        "all, ranked well",
        "A probe of all layers ranks held-out instructions by failures, rank correlation",
        "whole/spearman",
        MIN_CORRELATION,
    ),
    _reaches(
        "all, told apart",
        "A probe of all layers separates instructions that fail more often than not, AUROC",
        "whole/auroc",
        MIN_AUROC,
    ),
    _reaches(
        "all, equally long",
        "A probe of all layers ranks also held-out instructions with the same, largest number of "
        "operations, rank correlation",
        "whole/longest/spearman",
        NO_CORRELATION,
    ),
    _beats("all, counting", "whole", "rarity", "the rarity of their pairs in training"),
    _beats("all, doubt", "whole", "doubt", "the student's own uncertainty"),
    _beats("all, length", "whole", "length", "their number of operations"),
    _beats("all, text", "whole", "whole twin", "the same probe of the untrained student"),
    _predicts_nothing("all, control", "probe of all layers", "whole control/spearman"),
]
CLAIMS = [
    *COMPOSITION_CLAIMS,
    *BEST_LAYER_CLAIMS,
    *ALL_LAYERS_CLAIMS,
    _predicts_nothing("control", "probe of the best layer", "control/spearman"),
]
FIGURES = [
    curve(
        "test",
        against="num_train",
        color="students",
        rows=all_students,
        name="right",
        title="Held-out instructions that are answered correctly",
        x_title="train instructions",
        y_title="share of correct answers",
        y_range=(-0.05, 1.05),
    ),
    bars(
        "rank correlation",
        against="held out",
        color="predictor",
        rows=by_predictor,
        name="rank",
        title="What predicts which held-out instructions fail",
        x_title="instructions held out",
        y_title="rank correlation with failures",
    ),
    curve(
        "failed",
        against="fifth",
        color="held out",
        rows=by_fifth,
        name="fifths",
        title="Instructions that are hard to decode are answered wrong more often",
        x_title="fifth of the held-out instructions, from the lowest decoding error to the highest",
        y_title="share of wrong answers",
        y_range=(-0.05, 1.05),
    ),
]
