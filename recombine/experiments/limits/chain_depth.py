"""Does scale help on chains longer than those in training, as it does on sums of modules?

Claim: transformers answer new chains of trained lengths, but collapse on longer ones, and larger
students do not help (Dziri et al. 2023, arXiv 2305.18654). Superposition, in which a task is a sum
of modules, does get better with scale (arXiv 2507.07207).

One student, SequenceTransformer, learns both: sums of modules (Hyperteacher) and chains of modules
(Chain). Chains are trained up to a length, with a quarter of them held out, and tested on longer
ones. Width, number of blocks and data vary. A learned executor of single steps is the control that
must not collapse. The control that must fail has a module that never occurs in training.

Command:  recombine run chain_depth --scale small
Runtime:  meant for minutes on 2 cores; full: meant for a quarter of 40 minutes on one H200.
Expected: a gain with width on sums and on trained lengths, none beyond the trained length.
"""

import math
from dataclasses import replace

from recombine.experiments.claim import (
    Frame,
    above,
    at_least,
    at_most,
    below,
    control,
    difference,
    final_rows,
    hypothesis,
    mean_of,
    reproduces,
    where,
)
from recombine.experiments.limits import _chains
from recombine.experiments.plots import curve
from recombine.parts.encodings.identity import Identity
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.supports.missing_module import MissingModule
from recombine.parts.supports.random import Random
from recombine.sweeps.run import Run, sweep

TITLE = "Superposition and sequence: where scale helps"
SOURCE = "Dziri et al. 2023 (arXiv 2305.18654), section 3"
WIDTHS = {"tiny": (8, 16), "small": (16, 32, 64), "full": (16, 32, 64, 128, 256)}
DEPTHS = {"tiny": (1,), "small": (1, 4), "full": (1, 4)}  # beside 2, at the standard width
FRACTIONS = {"tiny": (), "small": (0.5,), "full": (0.5, 0.75)}  # beside 0.25
TRAINED = "trained lengths"
LONGER = "longer chains"
SUMS = "sums of modules"


def runs(scale: str) -> list[Run]:
    """Width, blocks and data of students of chains; widths on sums; the executor; the control."""
    base = _chains.base(scale)
    seeds = range(_chains.SEEDS[scale])
    models = [_chains.student(scale, width=width) for width in WIDTHS[scale]]
    standard = _chains.student(scale)
    deeper = [replace(standard, num_layers=depth) for depth in DEPTHS[scale]]
    missing = replace(base, support=MissingModule(), model=models[-1])
    return [
        *sweep(base, model=[*models, *deeper], seed=seeds),
        *sweep(replace(base, model=standard), frac_test=FRACTIONS[scale], seed=seeds),
        *sweep(_sums(base, scale), model=models, seed=seeds),
        *sweep(replace(base, model=_chains.executor(scale)), seed=seeds),
        *sweep(missing, seed=seeds),
    ]


def _sums(base: Run, scale: str) -> Run:
    family = Hyperteacher() if scale == "full" else Hyperteacher(num_modules=6, num_hot=2)
    return replace(base, family=family, support=Random(), encoding=Identity())


def prepare(rows: Frame) -> Frame:
    """The final rows, with scores on trained lengths, on longer ones and on the longest."""
    final = final_rows(rows).copy()
    is_chain = final["family"] == "Chain"
    final["longest trained"] = final.get("support.longest", math.nan)
    by_length = _chains.accuracy_by_length(final[is_chain])
    is_longer = by_length["length"] > by_length["longest trained"]
    is_longest = by_length["length"] == by_length["family.max_length"]
    for name, mask in ((TRAINED, ~is_longer), (LONGER, is_longer), ("longest", is_longest)):
        means = by_length[mask].groupby("run")["accuracy"].mean()
        final[name] = final["run"].map(means)
    final[SUMS] = final["test/r2"].where(~is_chain) if "test/r2" in final else math.nan
    widths = final.loc[is_chain, "model.width"]
    is_first_sweep = (final.get("model.depth") == 2) & (
        final["frac_test"] == final["frac_test"].min()
    )
    final["in width sweep"] = is_first_sweep & (final["support"] != "MissingModule")
    final["size"] = ""
    final.loc[final["model.width"] == widths.min(), "size"] = "narrowest"
    final.loc[final["model.width"] == widths.max(), "size"] = "widest"
    return final


def curves(final: Frame) -> Frame:
    """One row per run and kind of score, of the sweep over widths."""
    own = final[final["in width sweep"]]
    kinds = [SUMS, TRAINED, LONGER]
    return own.melt(["model.width", "seed"], kinds, "tasks", "score").dropna(subset=["score"])


def by_length(final: Frame) -> Frame:
    """Accuracy by length of the chain, for the sweep over widths and for the executor."""
    is_executor = final["model"] == "Executor"
    own = final[(final["family"] == "Chain") & (final["in width sweep"] | is_executor)]
    long = _chains.accuracy_by_length(own)
    names = "width " + long["model.width"].fillna(0).astype(int).astype(str)
    return long.assign(student=names.mask(long["model"] == "Executor", "executor"))


IN_SWEEP = where({"in width sweep": True})
WIDEST = where({"in width sweep": True, "size": "widest", "family": "Chain"})
CONTROL = "the executor must not collapse; a module that never occurs must fail"
CLAIMS = [
    reproduces(
        "collapse",
        "The widest student answers at most half of the longest chains (accuracy)",
        published="near zero on deeper graphs",
        rows=WIDEST,
        needs=("longest",),
        statistic=mean_of("longest"),
        passes=at_most(0.5),
        control=CONTROL,
    ),
    hypothesis(
        "sums",
        "On sums of modules, R2 on held-out combinations grows with width (widest minus narrowest)",
        rows=where({"in width sweep": True, "family": "Hyperteacher"}),
        needs=(SUMS, "size"),
        statistic=difference(SUMS, "size", "widest", "narrowest"),
        passes=above(0.05),
        control=CONTROL,
    ),
    hypothesis(
        "trained lengths",
        "On new chains of trained lengths, accuracy grows with width (widest minus narrowest)",
        rows=where({"in width sweep": True, "family": "Chain"}),
        needs=(TRAINED, "size"),
        statistic=difference(TRAINED, "size", "widest", "narrowest"),
        passes=above(0.05),
        control=CONTROL,
    ),
    hypothesis(
        "beyond",
        "On longer chains, accuracy grows by less than 0.1 with width (widest minus narrowest)",
        rows=where({"in width sweep": True, "family": "Chain"}),
        needs=(LONGER, "size"),
        statistic=difference(LONGER, "size", "widest", "narrowest"),
        passes=below(0.1),
        control=CONTROL,
    ),
    control(
        "executor",
        "The learned executor of single steps answers the longest chains (accuracy)",
        rows=where({"model": "Executor"}),
        needs=("longest",),
        statistic=mean_of("longest"),
        passes=at_least(0.9),
    ),
    control(
        "missing module",
        "Chains with a module that never occurs in training are not answered (accuracy)",
        rows=where({"support": "MissingModule"}),
        needs=("test/accuracy",),
        statistic=mean_of("test/accuracy"),
        passes=at_most(0.4),
    ),
]
FIGURES = [
    curve(
        "score",
        against="model.width",
        color="tasks",
        rows=curves,
        name="scale",
        title="Superposition against sequence, with the same student",
        log_x=True,
        y_title="R² (sums) or accuracy (chains) on held-out tasks",
    ),
    curve(
        "accuracy",
        against="length",
        color="student",
        rows=by_length,
        name="length",
        title="Accuracy by the length of the chain",
        x_title="length of the chain",
        y_title="accuracy on held-out chains",
    ),
]
