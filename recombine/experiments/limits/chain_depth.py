"""Does scale help on chains longer than those in training, as it does on sums of modules?

Claim: transformers answer new chains of trained lengths, but collapse on longer ones, and larger
students do not help (Dziri et al. 2023, arXiv 2305.18654). Superposition, in which a task is a sum
of modules, does get better with scale (arXiv 2507.07207).

One student, SequenceTransformer, learns both: sums of modules (Hyperteacher) and chains of modules
(Chain). Chains are trained up to a length, with a quarter of them held out, and tested on longer
ones. Width, number of blocks and number of train chains vary, one at a time.

A student that learned nothing, or that only memorized its train chains, also fails on longer ones.
So a collapse is confounded if the widest student does not answer its train chains or new chains of
trained lengths, or if a learned executor of single steps does not answer the longest chains. The
control that must fail has a module that never occurs in training.

Command:  recombine run chain_depth --scale small
Runtime:  3 minutes of CPU time; full: not measured (estimate: 10 minutes on one H200).
Expected: a gain with width, blocks and data on sums and on trained lengths, none beyond.
"""

import math
from dataclasses import replace

from recombine.experiments.claim import (
    DeclaredClaim,
    Frame,
    Measurement,
    Select,
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

TITLE = "Sums and chains of modules: does scale help?"
SOURCE = "Dziri et al. 2023 (arXiv 2305.18654), section 3"
WIDTHS = {"tiny": (8, 16), "small": (8, 16, 32), "full": (16, 32, 64, 128, 256)}
DEPTHS = {"tiny": (1,), "small": (1, 4), "full": (1, 4)}  # beside 2, at the standard width
FRACTIONS = {"tiny": (), "small": (0.5,), "full": (0.5, 0.75)}  # beside 0.25
STANDARD_BLOCKS = 2
# The name of a sweep; its column; the column that names its ends, and their names.
ENDS = (
    ("width", "model.width", ("size", "narrowest", "widest")),
    ("depth", "model.depth", ("blocks", "fewest", "most")),
    ("data", "num_train", ("data", "least", "most")),
)
MIN_GAIN = 0.05  # in accuracy or R2, that counts as a gain
MAX_GAIN = 0.1  # in accuracy on longer chains, that still counts as no real gain
MAX_COLLAPSED = 0.5  # accuracy on the longest chains that counts as a collapse
MAX_MISSING = 0.4  # accuracy on chains with a module that never occurs in training
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
    sizes = {"tiny": (6, 2), "small": (8, 3), "full": (16, 3)}  # modules; active ones
    family = Hyperteacher(*sizes[scale])
    return replace(base, family=family, support=Random(), encoding=Identity())


def prepare(rows: Frame) -> Frame:
    """The final rows, with scores on trained lengths, on longer ones and on the longest.

    The columns `in width sweep`, `in depth sweep` and `in data sweep` say to which sweeps of
    students of chains (or of sums) a run belongs; `size`, `blocks` and `data` name their ends.
    """
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
    _add_sweeps(final)
    return final


def _add_sweeps(final: Frame) -> None:
    """Add the columns of the three sweeps, which meet in the standard student."""
    is_own = (final["model"] == "SequenceTransformer") & (final["support"] != "MissingModule")
    is_chain = is_own & (final["family"] == "Chain")
    is_standard_depth = final["model.depth"] == STANDARD_BLOCKS
    is_standard_data = final["frac_test"] == final["frac_test"].min()
    deeper = final.loc[is_chain & ~is_standard_depth, "model.width"]
    is_standard_width = final["model.width"].isin(deeper)
    final["in width sweep"] = is_own & is_standard_depth & is_standard_data
    final["in depth sweep"] = is_chain & is_standard_width & is_standard_data
    final["in data sweep"] = is_chain & is_standard_width & is_standard_depth
    for sweep_name, column, ends in ENDS:
        values = final.loc[final[f"in {sweep_name} sweep"] & is_chain, column]
        # Of the sums, the same widths.
        in_sweep = final[f"in {sweep_name} sweep"]
        final[ends[0]] = ""
        final.loc[in_sweep & (final[column] == values.min()), ends[0]] = ends[1]
        final.loc[in_sweep & (final[column] == values.max()), ends[0]] = ends[2]


def in_sweep(name: str, family: str = "Chain") -> Select:
    """The rows of one sweep of students of a family."""
    return where({f"in {name} sweep": True, "family": family})


def curves(final: Frame) -> Frame:
    """One row per run and kind of score, of the sweep over widths."""
    return _kinds_of_scores(final[final["in width sweep"]], "model.width")


def curves_by_depth(final: Frame) -> Frame:
    """One row per run and kind of score, of the sweep over blocks."""
    return _kinds_of_scores(final[final["in depth sweep"]], "model.depth")


def curves_by_data(final: Frame) -> Frame:
    """One row per run and kind of score, of the sweep over train chains."""
    return _kinds_of_scores(final[final["in data sweep"]], "num_train")


def _kinds_of_scores(own: Frame, axis: str) -> Frame:
    kinds = [SUMS, TRAINED, LONGER]
    return own.melt([axis, "seed"], kinds, "tasks", "score").dropna(subset=["score"])


def by_length(final: Frame) -> Frame:
    """Accuracy by length of the chain, for the sweep over widths and for the executor."""
    is_executor = final["model"] == "Executor"
    own = final[(final["family"] == "Chain") & (final["in width sweep"] | is_executor)]
    long = _chains.accuracy_by_length(own)
    names = "width " + long["model.width"].fillna(0).astype(int).astype(str)
    return long.assign(student=names.mask(long["model"] == "Executor", "executor"))


def is_learned_and_executable(measurement: Measurement) -> bool:
    """Whether the widest student answers its train chains, and the executor the longest ones."""
    rows = measurement.all_rows
    widest = {"in width sweep": True, "size": "widest", "family": "Chain"}
    seen = _chains.mean_where(rows, widest, "seen/accuracy")
    executed = _chains.mean_where(rows, {"model": "Executor"}, "longest")
    return seen >= _chains.LEARNED and executed >= _chains.LEARNED


def new_chains_fail_too(measurement: Measurement) -> bool:
    """Whether new chains of trained lengths are not answered either: then depth is not the reason.

    The threshold is that of the claim itself.
    """
    return not measurement.rows[TRAINED].mean() > MAX_COLLAPSED  # also if it is NaN


def missing_module_fails(measurement: Measurement) -> bool:
    """Whether chains with a module that never occurs in training are not answered."""
    missing = _chains.mean_where(
        measurement.all_rows, {"support": "MissingModule"}, "test/accuracy"
    )
    return missing <= MAX_MISSING


GAINS = (
    ("width", "size", "widest", "narrowest", "width"),
    ("depth", "blocks", "most", "fewest", "the number of blocks"),
    ("data", "data", "most", "least", "the number of train chains"),
)


def _gain_claims(
    sweep_name: str, ends: str, high: str, low: str, words: str
) -> list[DeclaredClaim]:
    """Does one axis of scale help on new chains of trained lengths, and on longer ones?"""
    prefix = "" if sweep_name == "width" else f"{sweep_name}: "
    trained = hypothesis(
        f"{prefix}trained lengths",
        f"On new chains of trained lengths, accuracy grows with {words} ({high} minus {low})",
        rows=in_sweep(sweep_name),
        needs=(TRAINED, ends),
        statistic=difference(TRAINED, ends, high, low),
        passes=above(MIN_GAIN),
        control="chains with a module that never occurs must not be answered",
        control_fails=missing_module_fails,
    )
    beyond = hypothesis(
        f"{prefix}beyond",
        f"On longer chains, accuracy grows by less than {MAX_GAIN} with {words} "
        f"({high} minus {low})",
        rows=in_sweep(sweep_name),
        needs=(LONGER, ends),
        statistic=difference(LONGER, ends, high, low),
        passes=below(MAX_GAIN),
        control=CONTROL,
        control_fails=is_learned_and_executable,
    )
    return [trained, beyond]


CONTROL = "the widest student must answer its train chains, and the executor the longest chains"
CLAIMS = [
    reproduces(
        "collapse",
        "The widest student answers at most half of the longest chains (accuracy)",
        published="near zero on deeper graphs",
        rows=where({"in width sweep": True, "size": "widest", "family": "Chain"}),
        needs=("longest",),
        statistic=mean_of("longest"),
        passes=at_most(MAX_COLLAPSED),
        control=f"{CONTROL}; new chains of trained lengths must be answered",
        control_fails=is_learned_and_executable,
        is_confounded=new_chains_fail_too,
        after_rows="the control that new chains of trained lengths must be answered",
    ),
    hypothesis(
        "sums",
        "On sums of modules, R2 on held-out combinations grows with width (widest minus narrowest)",
        rows=in_sweep("width", "Hyperteacher"),
        needs=(SUMS, "size"),
        statistic=difference(SUMS, "size", "widest", "narrowest"),
        passes=above(MIN_GAIN),
        after_rows="the number of train tasks of the sums, which was too small to generalize",
    ),
    *(claim for gain in GAINS for claim in _gain_claims(*gain)),
    control(
        "learned",
        "The widest student answers its train chains (accuracy)",
        rows=where({"in width sweep": True, "size": "widest", "family": "Chain"}),
        needs=("seen/accuracy",),
        statistic=mean_of("seen/accuracy"),
        passes=at_least(_chains.LEARNED),
    ),
    control(
        "executor",
        "The learned executor of single steps answers the longest chains (accuracy)",
        rows=where({"model": "Executor"}),
        needs=("longest",),
        statistic=mean_of("longest"),
        passes=at_least(_chains.LEARNED),
    ),
    control(
        "missing module",
        "Chains with a module that never occurs in training are not answered (accuracy)",
        rows=where({"support": "MissingModule"}),
        needs=("test/accuracy",),
        statistic=mean_of("test/accuracy"),
        passes=at_most(MAX_MISSING),
    ),
]
FIGURES = [
    curve(
        "score",
        against="model.width",
        color="tasks",
        rows=curves,
        name="scale",
        title="Sums and chains of modules, with the same student",
        log_x=True,
        y_title="R² of sums, accuracy of chains",
    ),
    curve(
        "score",
        against="model.depth",
        color="tasks",
        rows=curves_by_depth,
        name="depth",
        title="Chains by the number of blocks",
        x_title="blocks",
        y_title="accuracy on held-out chains",
    ),
    curve(
        "score",
        against="num_train",
        color="tasks",
        rows=curves_by_data,
        name="data",
        title="Chains by the number of train chains",
        log_x=True,
        x_title="train chains",
        y_title="accuracy on held-out chains",
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
