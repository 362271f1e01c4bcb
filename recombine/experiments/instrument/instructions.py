"""Can one tell from a language model's activations which instructions it will get wrong?

Claim: combinations whose parts cannot be read from a network's activations are those that it fails on. The paper says
so of image models (arXiv 2507.07207, section on image generation) and has no language model; here is one.

Small Llamas are trained from random weights to follow instructions, "reverse and mirror and rotate : d a f b e c =", on
some combinations of operations; the others are never seen. Outcome: how often an unseen instruction is answered wrongly
on new lists, whole answers counting. Each student is saved, loaded by the instrument's adapter of transformers and
recorded: where the instruction ends, where the answer starts, and on average over the places that its letters are
written from. The last is the equivalent of the paper's, and what the claims are about. Ridge probes are fitted on train
instructions, which also choose the layer. Compared with: how many operations the instruction names, and how rare their
pairs are in training (no activations), how unlikely the student itself holds its answers, probes of another
instruction's operations (the control), and the same probes on the untrained twin, which reads the same sentences with
random weights. All this also with a probe of all layers at once, which chooses none. Students that get nearly all or
nearly none of the unseen instructions right are left out of these: there is nothing to rank.

Command:  recombine run instructions --scale full
Runtime:  full: 3.5 minutes on an H200, 7 on one that is shared; small: 3 minutes on two cores.
Expected: the more is trained on, the more is followed; a rank correlation above .1 and counting's, not the control's.
Measured: full (2026-11-16, 4 seeds, 40 students in 2 cells): of answers to unseen ones .86 are right after 131 of 175
          instructions, .58 after 50, .03 after 17 (width 128); .23 after 50 in which two groups of operations are never
          mixed. What fails (32 students): from the best read layer rank correlation .30 (.27 to .33), AUROC .67; the
          number of operations does better (.37), rare pairs, too (.36), an untrained twin nearly (.27), the control not
          (.01). From all layers at once .59 (.57 to .61) and .85 (.84 to .87), among equally long ones .53: more than
          the number of operations, than the twin's layers (.23), and the control has .03. The student's own doubt has
          more, .67: .77 where instructions are random, but .37 where groups were never mixed, and there all layers have
          .60. The best read layer is the first in 31 of 32, read with an R2 of .80 to .99 also where most answers are
          wrong: to know what is asked is not to do it.
"""

import importlib
from typing import Any

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError
from recombine.basics.random_streams import generator
from recombine.basics.statistics import rank_correlation
from recombine.experiments import claim as ledger
from recombine.reporting import figure

TITLE = "Which unseen instructions will a language model get wrong? Predicted from its activations"
SOURCE = "arXiv 2507.07207, section on image generation"
# Operations, at most so many at once, length of a list and number of letters.
LANGUAGES = {"tiny": (4, 2, 4, 4), "small": (6, 3, 4, 5), "full": (10, 3, 6, 8)}
# Widths, depth, steps, batch, learning rate.
STUDENTS: dict[str, tuple[tuple[int, ...], int, int, int, float]] = {
    "tiny": ((32,), 1, 10, 8, 3e-3),
    "small": ((64,), 2, 1000, 64, 3e-3),
    "full": ((128, 64), 4, 3000, 256, 2e-3),
}
SEEDS = {"tiny": 2, "small": 2, "full": 4}
FRACTIONS = {"tiny": (0.5,), "small": (0.25,), "full": (0.25, 0.5, 0.9)}  # of instructions held out
GROUPS = {"tiny": (2, 2), "small": (3, 3), "full": (5, 5)}  # of operations that are never mixed
SAMPLES = {
    "tiny": (2, 4),
    "small": (8, 32),
    "full": (8, 64),
}  # lists of an instruction that are read, and judged
RANDOM, APART = "random", "never mixed"
MIXED = (0.05, 0.95)  # of unseen answers are wrong: below and above there is nothing to rank
NONE = 0.1  # rank correlation that counts as none
STRONG, TOLD, WORKS = (
    0.7,
    0.8,
    0.9,
)  # a rank correlation, an AUROC and a share of right answers that would be of use
STUDENT = ["width", "support", "frac_test", "seed"]  # what tells one from another
PREDICTORS = {
    "answer": "read from the best read layer",
    "last": "read from the last layer",
    "whole": "read from all layers at once",
    "start": "read where the answer starts",
    "asked": "read where the instruction ends",
    "rarity": "rare pairs (no activations)",
    "length": "how many operations (no activations)",
    "doubt": "its own doubt in its answers",
    "twin": "read from its untrained twin",
    "control": "control: read as another instruction",
}
DRAWN = ("whole", "answer", "twin", "length", "doubt", "control")  # more cannot be told apart


def cells(scale: str) -> list[dict[str, Any]]:
    """One cell for each width: all its students learn at once."""
    return [{"scale": scale, "width": width} for width in STUDENTS[scale][0]]


def students(scale: str) -> list[dict[str, Any]]:
    """The supports and seeds of all students of a width, with the parts of the tasks."""
    from recombine.experiments.instrument._instructions.grammar import Language
    from recombine.parts.supports.disconnected import Disconnected
    from recombine.parts.supports.random import Random

    tasks = Language(*LANGUAGES[scale]).tasks()
    apart = [
        Disconnected(GROUPS[scale]).parts(tasks, generator(s, "apart"), 0.5)
        for s in range(SEEDS[scale])
    ]
    as_many = float(np.mean([(parts == 2).mean() for parts in apart]))
    found = [
        {"support": APART, "seed": seed, "parts": parts, "frac_test": as_many}
        for seed, parts in enumerate(apart)
    ]
    for fraction in sorted((*FRACTIONS[scale], as_many)):
        for seed in range(SEEDS[scale]):
            parts = Random().parts(tasks, generator(seed, "support"), fraction)
            found.append({"support": RANDOM, "seed": seed, "parts": parts, "frac_test": fraction})
    return found


def measure(scale: str, width: int) -> list[dict[str, Any]]:
    """Train all students of a width, and compare what is read from each with what it gets wrong."""
    try:
        from recombine.experiments.instrument._instructions.student import (
            Sentences,
            Size,
            Students,
            one_thread,
        )

        importlib.import_module(
            "transformers"
        )  # only after torch, or it would not look for it again
    except ModuleNotFoundError as error:
        raise InputError(
            f"{error.name} is not installed: pip install 'recombine[torch]'"
        ) from error
    from recombine.experiments.instrument._instructions.grammar import Language
    from recombine.experiments.instrument._instructions.reading import look

    language, who, (num_read, num_judged) = (
        Language(*LANGUAGES[scale]),
        students(scale),
        SAMPLES[scale],
    )
    seeds, parts = [one["seed"] for one in who], [one.pop("parts") for one in who]
    train, size = [np.flatnonzero(one == 1) for one in parts], Size(width, *STUDENTS[scale][1:])
    with one_thread():
        group = Students(language, size, seeds, train)
        group.learn(seed=width)
        new = Sentences(language, group.device, seed=width + 1)
        asked, right = new.all(len(who), num_judged)
        wrong = (group.answer(asked)[0] != right).any(dim=-1).unflatten(1, (-1, num_judged))
        failed = wrong.float().mean(dim=-1).cpu().numpy()
        asked, _ = new.all(len(who), num_read)
        written, doubt = (found.cpu().numpy() for found in group.answer(asked))
        told, doubts = (
            np.concatenate([asked.cpu(), written[..., :-1]], axis=-1),
            doubt.reshape(*failed.shape, -1),
        )
        known = zip(parts, told, doubts.mean(axis=-1), failed, strict=True)
        return [
            who[i] | row for i, seen in enumerate(known) for row in look(group, i, seeds[i], *seen)
        ]


def _students(rows: Any) -> Any:
    """Rows of students, with how well the number of operations alone ranks their unseen instructions."""
    found, asked = rows[rows["what"] == "student"], rows[rows["what"] == "instruction"]
    told = {
        who: rank_correlation(one["num_hot"], one["failed"]) for who, one in asked.groupby(STUDENT)
    }
    return found.assign(
        **{"length/spearman": [told.get(tuple(who), np.nan) for who in found[STUDENT].to_numpy()]}
    )


def mixed(rows: Any) -> Any:
    """Students with something to rank: neither nearly all nor nearly none of their unseen answers are wrong."""
    found = _students(rows)
    return found[(1 - found["test"]).between(*MIXED)]


def _mean(column: str, minus: str | None = None) -> Any:
    """The mean over students of a column, or of its difference from another; NaN without students, or without it."""
    there = [column, minus] if minus else [column]
    sign = np.array([1, -1])[: len(there)]
    return lambda frame: float(
        (frame.reindex(columns=there) * sign).sum(axis=1, skipna=False).mean()
    )


def summary(rows) -> dict[str, float]:
    """Shares of right answers by support, and what predicts the wrong ones."""
    found = {}
    for (width, support, held), frame in _students(rows).groupby(["width", "support", "frac_test"]):
        found[f"width {width}, {support}, {held:.0%} held out: right"] = float(frame["test"].mean())
    means = {
        f"rank correlation, {name}": _mean(f"{name}/spearman")(mixed(rows)) for name in PREDICTORS
    }
    return found | {name: float(value) for name, value in means.items() if not pd.isna(value)}


def figures(rows) -> dict[str, Any]:
    """Right answers by train instructions, what predicts wrong ones, and how many are wrong in each fifth."""
    who, ranked = _students(rows), mixed(rows)
    drawn = {
        "right": figure.lines(
            who.assign(
                of=[
                    f"{one}, width {width}"
                    for one, width in zip(who["support"], who["width"], strict=True)
                ]
            ),
            "num_train",
            "test",
            "of",
            title="Unseen instructions that are answered right",
            x_title="train instructions",
            y_title="share of right answers",
            y_range=(-0.05, 1.05),
        )
    }
    if ranked.empty:
        return drawn
    there = {name: PREDICTORS[name] for name in DRAWN if f"{name}/spearman" in ranked}
    parts = [
        ranked.assign(predictor=told, found=ranked[f"{name}/spearman"])
        for name, told in there.items()
    ]
    whole = pd.concat(parts, ignore_index=True).assign(held=_held)
    whole["predictor"] = pd.Categorical(whole["predictor"], list(there.values()))
    drawn["rank"] = figure.bars(
        whole,
        "held",
        "found",
        "predictor",
        title="What predicts which unseen instructions fail",
        x_title="instructions held out",
        y_title="rank correlation with failures",
    )
    asked = rows[rows["what"] == "instruction"].merge(ranked[STUDENT], on=STUDENT)
    by = "whole" if "whole" in asked else "answer"
    place = asked.groupby(STUDENT)[by].rank(pct=True)  # within each student
    fifths = (
        asked.assign(fifth=np.ceil(5 * place))
        .groupby([*STUDENT, "fifth"], as_index=False)["failed"]
        .mean()
    )
    drawn["fifths"] = figure.lines(
        fifths.assign(held=_held(fifths), fifth=fifths["fifth"].map("{:.0f}".format)),
        "fifth",
        "failed",
        "held",
        title=f"Unseen instructions by how badly they are {PREDICTORS[by]}",
        x_title="fifth of the unseen instructions, the last is read worst",
        y_title="share of wrong answers",
        y_range=(-0.05, 1.05),
    )
    return drawn


def _held(frame: Any) -> Any:
    """How much is held out, in words."""
    return frame["frac_test"].map("{:.0%}".format) + np.where(
        frame["support"] == APART, f", {APART}", ""
    )


def claims(rows) -> list[ledger.Claim]:
    """Unseen instructions are followed, a failing support fails, and activations tell which are not followed."""
    return (
        [*_composing(None), *_ranking(None)]
        if rows is None
        else [*_composing(_students(rows)), *_ranking(mixed(rows))]
    )


def _composing(who: Any) -> list[ledger.Claim]:
    drawn = None if who is None else who[who["support"] == RANDOM]

    def most(frame: Any) -> float:
        return float(frame[frame["frac_test"] == frame["frac_test"].min()]["test"].mean())

    def gained(frame: Any) -> float:
        return most(frame) - float(
            frame[frame["frac_test"] == frame["frac_test"].max()]["test"].mean()
        )

    def lost(frame: Any) -> float:
        alike = frame[frame["frac_test"].isin(frame[frame["support"] == APART]["frac_test"])]
        means = alike.groupby("support")["test"].mean()
        return float(means.get(RANDOM, np.nan) - means.get(APART, np.nan))

    def wider(frame: Any) -> float:
        means = frame.groupby("width")["test"].mean()
        return float(means.iloc[-1] - means.iloc[0]) if len(means) > 1 else np.nan

    works = f"trained on most combinations, more than {WORKS:.0%} of unseen instructions' answers are right"
    more = "the more instructions are trained on, the more unseen ones are followed (most minus fewest)"
    wide = "a wider student follows more unseen instructions (widest minus narrowest)"
    fails = "groups of operations never mixed: fewer unseen ones are followed than after as many random ones"
    paper, grows = "arXiv 2507.07207, on other students", "more data and width: more is composed"
    told: list[tuple[str, str, Any, Any, str, str, str]] = [
        (
            "composes",
            works,
            drawn,
            most,
            "ours",
            ledger.OURS,
            "as many instructions without mixed groups",
        ),
        ("more instructions", more, drawn, gained, paper, grows, "steps and batches are the same"),
        ("width", wide, drawn, wider, paper, grows, "the same instructions and steps"),
        (
            "failing support",
            fails,
            who,
            lost,
            paper,
            "disconnected supports fail",
            "as many random instructions",
        ),
    ]
    found = []
    for name, statement, rows, statistic, source, published, control in told:
        shared = {
            "name": name,
            "statement": statement,
            "source": source,
            "published": published,
            "control": control,
        }
        found.append(_judged(rows, statistic, _above(WORKS if name == "composes" else 0), **shared))
    return found


def _ranking(ranked: Any) -> list[ledger.Claim]:
    read = "unseen instructions whose operations are read badly while the answer is written fail more often"
    rare = "activations rank unseen instructions better than how rare their pairs of operations are in training"
    well = f"how badly operations are read ranks unseen instructions by failures, rank correlation above {STRONG:g}"
    long = "how badly operations are read also ranks unseen instructions with the same number of them, the largest"
    apart = f"how badly operations are read tells what fails more often than not from the rest, AUROC above {TOLD:g}"
    many = "activations rank unseen instructions better than how many operations they name"
    twin = "activations rank unseen instructions better than those of an untrained twin that reads the same sentences"
    whole = "a probe of all layers at once ranks unseen instructions better than"
    joined = "a probe of all layers at once tells which unseen instructions fail"
    same = "a probe of all layers at once also ranks unseen instructions with equally many operations, the most"
    mixed_up = "a probe of all layers at once, of another instruction's operations, predicts nothing (rank correlation)"
    other = "probes of another instruction's operations predict nothing (rank correlation)"
    doubt = "activations rank unseen instructions better than how unlikely the student itself holds its answers"
    mine, all_of = _mean("answer/spearman"), _mean("whole/spearman")
    gains, nothing = _above(0), lambda low, high: low > -NONE and high < NONE
    told: list[tuple[str, str, Any, Any]] = [
        ("ranked", f"{read} (rank correlation)", mine, _above(NONE)),
        ("ranked well", well, mine, _above(STRONG)),
        ("told apart", apart, _mean("answer/auroc"), _above(TOLD)),
        ("equally long", long, _mean("answer/longest/spearman"), _above(NONE)),
        ("beyond counting", rare, _mean("answer/spearman", "rarity/spearman"), gains),
        ("beyond length", many, _mean("answer/spearman", "length/spearman"), gains),
        ("beyond the text", twin, _mean("answer/spearman", "twin/spearman"), gains),
        ("beyond its doubt", doubt, _mean("answer/spearman", "doubt/spearman"), gains),
        (
            "all layers",
            f"{whole} one of the best read layer",
            _mean("whole/spearman", "answer/spearman"),
            gains,
        ),
        (
            "all, ranked well",
            f"{joined}, rank correlation above {STRONG:g}",
            all_of,
            _above(STRONG),
        ),
        ("all, told apart", f"{joined}, AUROC above {TOLD:g}", _mean("whole/auroc"), _above(TOLD)),
        ("all, equally long", same, _mean("whole/longest/spearman"), _above(NONE)),
        ("all, counting", f"{whole} rare pairs", _mean("whole/spearman", "rarity/spearman"), gains),
        (
            "all, doubt",
            f"{whole} the student's doubt",
            _mean("whole/spearman", "doubt/spearman"),
            gains,
        ),
        ("all, length", f"{whole} their length", _mean("whole/spearman", "length/spearman"), gains),
        (
            "all, text",
            f"{whole} its untrained twin",
            _mean("whole/spearman", "whole twin/spearman"),
            gains,
        ),
        ("all, control", mixed_up, _mean("whole control/spearman"), nothing),
        ("control", other, _mean("control/spearman"), nothing),
    ]
    theirs, found = (
        {"source": SOURCE, "published": "prompts of image models: decodability goes with success"},
        [],
    )
    for name, statement, statistic, passes in told:
        is_one = name.endswith("control")
        ours = {"source": "control" if is_one else "ours", "published": ledger.OURS}
        shared = {"name": name, "statement": statement, "control": "" if is_one else other}
        found.append(
            _judged(ranked, statistic, passes, **shared, **(theirs if name == "ranked" else ours))
        )
    return found


def _above(least: float) -> Any:
    return lambda low, high: low > least


def _judged(rows: Any, statistic: Any, passes: Any, **told: Any) -> ledger.Claim:
    enough = rows is not None and rows["seed"].nunique() > 1 and not np.isnan(statistic(rows))
    return ledger.judged(rows if enough else None, statistic, passes, **told)
