"""Do students that generalize, and only they, encode the modules linearly? Decodability against generalization.

Claim: over students that do and do not generalize, the R2 on held-out combinations and the decodability of their
modules correlate (squared correlation above .95; arXiv 2507.07207, section 4).

The headline layer is the third hidden layer before its nonlinearity (`pre2`), with the probe of the public code; the
second and the fourth are reported beside it. The paper does not say which layer it used; we chose ours after seeing
preliminary results for all layers. The first layer is never used: it is affine in the encoded task in any network.

The published correlation is confounded with the number of train tasks: few train tasks make a poor student, but also a
poor probe, which is fitted on the same tasks. So the same probe is fitted to the same network before training. A layer
is evidence only if it explains at least .1 more of the students' R2 than the same layer of the untrained network. If
the published correlation is found but this condition fails, the verdict is *confounded*. Two comparisons avoid the
confound: students with equally many train tasks (they differ in seed, width or encoding), and probes that are fitted on
all tasks, test tasks included. A correlation can be high although the differences are tiny, so notes give the mean
decodability of failing, generalizing and untrained networks.

The students are those of the paper's sweep over the number of train tasks (identity encoding, 4x1024; trained with the
fast recipe, and with AdamW in bfloat16 for 100,000 of the paper's 300,000 steps), of its model-size sweep (six
encodings), and of a larger sweep of ours (three encodings, three widths). Scores below 0 count as 0. A set must have
students with test R2 above .9 and below .5 (model size: .8; fixed before these students were trained). Permuted-label
control: probes fitted on shuffled tasks.

Command:  recombine run decodability --scale small
Runtime:  5 minutes on 2 cores; full: 15 minutes on one H200.
Expected: a squared correlation above .95, clearly less with untrained networks; chance-level scores for shuffled tasks.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from recombine.basics.statistics import over_seeds
from recombine.experiments import claim as ledger
from recombine.experiments.paper import scaling_width
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.diagnostics.shuffled_decodability import ShuffledDecodability
from recombine.parts.encodings.few_shot import FewShot
from recombine.parts.encodings.identity import Identity
from recombine.parts.encodings.interval_shuffle import IntervalShuffle
from recombine.parts.families.hyperteacher import Hyperteacher
from recombine.parts.models.mlp import MLP
from recombine.parts.recipes.paper import Paper
from recombine.reporting import figure
from recombine.sweeps.run import Run, paper, paper_fast, put, sweep

Frame = Any  # a pandas frame
TITLE = "Linear decodability of the modules against compositional generalization"
SOURCE = "arXiv 2507.07207, section 4"
PUBLISHED = 0.95
MIN_GAIN = 0.1  # a layer is evidence if it explains this much more than the same layer of the untrained network
HEADLINE = "pre2"
LAYERS = {
    "pre1": "second",
    "pre2": "third",
    "pre3": "fourth",
}  # hidden layers, before their nonlinearity
PUBLIC, ON_ALL = "LinearDecodability-paper", "LinearDecodability-all"
ENCODINGS = scaling_width.ENCODINGS
SHUFFLED = "ShuffledDecodability/best/test/r2"
MAX_SHUFFLED = 0.1  # R2 below which nothing is decoded
MAX_LOWEST = {
    "model size": 0.8
}  # the worst student of a set must be below this; below .5 in the other sets
ALIKE = 1e-4  # standard deviation of scores that do not differ: what is left below it is rounding
FRACTIONS = {
    "tiny": (0.3, 0.7),
    "small": (0.125, 0.5, 0.8, 0.9),
    "full": (0.125, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98),
}
WIDTHS = {"tiny": (8,), "small": (16, 128), "full": (64, 256, 1024)}
SEEDS = {"tiny": 1, "small": 3, "full": 8}
DIAGNOSTICS = (
    LinearDecodability(by_module=False),
    LinearDecodability(paper=True, by_module=False),
    LinearDecodability(num_fit=1024, fit_on="all", by_module=False),
    ShuffledDecodability(),
)
FIGURES = {
    "data": "identity, widest students",
    "data, paper's recipe": "identity, paper's recipe",
    "model size": "six encodings, four layers",
    "all students": "all students",
}
KEPT = (
    "run",
    "seed",
    "encoding",
    "model.widths",
    "frac_test",
    "recipe",
    "recipe.learning_rate",
    "diagnostics",
)
KEPT += ("test/r2", SHUFFLED)
SIZE_DIAGNOSTICS = (
    "LinearDecodability, LinearDecodability"  # the stored column of the model-size sweep
)
SETS = {
    "data": "identity encoding, widest MLP, several held-out fractions, fast recipe",
    "data, paper's recipe": "identity encoding, 4x1024, seven held-out fractions, AdamW, 100,000 steps",
    "model size": "six encodings, four hidden layers of width 128 to 2048, fast recipe",
    "all students": "several encodings, widths and held-out fractions, fast recipe",
    "IntervalShuffle": "interval shuffle, widest MLP, several held-out fractions, fast recipe",
    "FewShot": "few-shot, widest MLP, several held-out fractions, fast recipe",
}


def runs(scale: str) -> list[Run]:
    """Encoding x width x held-out fraction x seed, trained and untrained; at full scale also by the paper's recipe."""
    axes = {"frac_test": FRACTIONS[scale], "seed": range(SEEDS[scale])}
    trained = [
        run
        for base in _bases(scale)
        for width in WIDTHS[scale]
        for run in sweep(_wide(base, width), **axes)
    ]
    found = [*trained, *map(untrained, trained)]
    return [*found, *papers_recipe(), *model_size()] if scale == "full" else found


def model_size() -> list[Run]:
    """The paper's model-size sweep: six encodings x depth x width x seed, a quarter of the tasks held out."""
    trained = scaling_width.faithful_runs()
    return [*trained, *map(untrained, trained)]


def papers_recipe() -> list[Run]:
    """The paper's data set (identity, 4x1024) with its own recipe, for a third of its steps.

    The untrained baseline of these students is that of the fast recipe: the same seed draws the same network.
    """
    low = Paper(precision="bfloat16")
    base = paper(recipe=low, num_steps=100_000, num_evals=1, diagnostics=DIAGNOSTICS)
    return sweep(base, frac_test=FRACTIONS["full"], seed=range(3))


def untrained(run: Run) -> Run:
    """The same student before its first step."""
    return put(run, {"num_steps": 1, "num_evals": 1, "recipe.learning_rate": 0.0})


def _wide(base: Run, width: int) -> Run:
    return put(base, {"model.widths": (width,) * len(base.model.widths)})  # pyright: ignore[reportAttributeAccessIssue]


def _bases(scale: str) -> list[Run]:
    if scale == "full":
        plain = [
            paper_fast(encoding=encoding, diagnostics=DIAGNOSTICS)
            for encoding in (Identity(), IntervalShuffle())
        ]
        return [*plain, paper_fast(encoding=FewShot(), num_steps=8000, diagnostics=DIAGNOSTICS)]
    if scale == "small":
        return [
            Run(encoding=encoding, num_steps=2000, num_evals=1, diagnostics=DIAGNOSTICS)
            for encoding in (Identity(), IntervalShuffle())
        ]
    family = Hyperteacher(num_modules=5, num_hot=2, d_input=4, d_hidden=4, num_outputs=4)
    probes = tuple(replace(probe, num_fit=32, num_seen=32, num_test=32) for probe in DIAGNOSTICS)
    return [
        Run(
            family,
            model=MLP((8, 8, 8)),
            num_steps=20,
            num_evals=1,
            diagnostics=probes,
            num_eval_tasks=32,
        )
    ]


def by_layer(last: Frame, keep: list[str], probe: str = "LinearDecodability") -> Any:
    """One line per run and layer, the layers from the code to the output in order: how well each tells the task."""
    found = layers_of(last, probe)
    long: Any = last.melt(keep, list(found), "layer", "decodability r2").dropna(
        subset=["decodability r2"]
    )
    return long.assign(layer=pd.Categorical(long["layer"].map(found), list(found.values())))


def layers_of(last: Frame, probe: str = "LinearDecodability") -> dict[str, str]:
    """The layers that a probe has read, from the code to the output: the column of each -> its name."""
    pattern = re.compile(rf"{re.escape(probe)}/(code|pre\d+|hidden\d+|output)/test/r2")
    found = {column: match[1] for column in last if (match := pattern.fullmatch(str(column)))}
    return dict(sorted(found.items(), key=lambda item: depth(item[1])))


def depth(layer: str) -> tuple[int, int, bool]:
    """Where a layer stands: the code, then pre0, hidden0, pre1, …, then the output."""
    place = ("code", "", "output").index(layer) if layer in ("code", "output") else 1
    return place, int(re.sub(r"\D", "", layer) or 0), layer.startswith("hidden")


def twins(last: Any, columns: Mapping[str, str], more: Sequence[str] = ()) -> Any:
    """Trained students with columns of their untrained baselines; `columns` maps each new column to the baseline's.

    A student and its baseline have equal encoding, widths, held-out fraction and seed, and are equal in columns `more`.
    """
    same = ["encoding", "model.widths", "frac_test", "seed", *more]
    before = last[last["recipe.learning_rate"] == 0][same].copy()
    for name, column in columns.items():
        before[name] = last.get(column, math.nan)
    return last[last["recipe.learning_rate"] > 0].merge(before, "left", same)


def untrained_column(column: str) -> str:
    """The name of the column that holds the untrained network's value of `column`."""
    return f"untrained/{column}"


def students(rows: Frame) -> Frame:
    """The last row of every trained student, with its width and the probes of the same network before training."""
    last = ledger.last(rows)
    probed = [
        column
        for column in last
        if re.fullmatch(rf"({PUBLIC}|{ON_ALL})/pre\d+/test/r2", str(column))
    ]
    # Few columns: intervals draw from them again and again.
    last = last[[column for column in last if column in (*KEPT, *probed)]]
    found = twins(last, {untrained_column(column): column for column in probed}, ["diagnostics"])
    found["width"] = found["model.widths"].str.split("x").str[0].astype(int)
    return found


def of_set(last: Frame, name: str) -> Frame:
    """The students of one of the sets."""
    by_paper, sized = last["recipe"] == "Paper", last["diagnostics"] == SIZE_DIAGNOSTICS
    if name == "data, paper's recipe":
        return last[by_paper]
    if name == "model size":
        return last[
            sized & (last["model.widths"].str.count("x") == 3)
        ]  # networks of two layers have no third layer
    fast = last[~by_paper & ~sized]
    widest = fast["width"] == fast["width"].max()
    if name == "all students":  # none of them unless every encoding has its widest students
        return fast if set(fast.loc[widest, "encoding"]) == set(fast["encoding"]) else fast[:0]
    return fast[widest & (fast["encoding"] == ("Identity" if name == "data" else name))]


def explained(last: Frame, column: str, lowest: float = 0.0) -> float:
    """Squared correlation of a decodability column with test R2. Negative scores count as 0.

    0 for a negative correlation and for a column that hardly varies.
    """
    if column not in last:
        return math.nan
    return _squared_correlation(last[["test/r2", column]].dropna().clip(lower=lowest))


def explained_within(last: Frame, column: str) -> float:
    """Squared correlation of a column with test R2 among students with equally many train tasks.

    Both scores are taken relative to their mean at each held-out fraction.
    """
    if column not in last:
        return math.nan
    kept = last[["frac_test", "test/r2", column]].dropna()
    scores = kept[["test/r2", column]].clip(lower=0)
    return _squared_correlation(scores - scores.groupby(kept["frac_test"]).transform("mean"))


def _squared_correlation(pair: Frame) -> float:
    values = pair.to_numpy(float)
    if len(values) < 3 or values[:, 0].std() == 0:
        return math.nan
    if values[:, 1].std() < ALIKE:
        return 0.0
    return float(max(np.corrcoef(values.T)[0, 1], 0.0) ** 2)


def column_of(layer: str, probe: str = PUBLIC, side: str = "test") -> str:
    """The column of a layer's decodability, on held-out combinations unless another side is named."""
    return f"{probe}/{layer}/{side}/r2"


def summary(rows: Frame) -> dict[str, float]:
    """What the decodability of each layer explains of test R2, trained and untrained, in each set."""
    last = students(rows)
    found = {}
    for name in SETS:
        chosen = of_set(last, name)
        for layer in LAYERS:
            column = column_of(layer)
            if not math.isnan(explained(chosen, column)):
                found[f"{name}, {layer}"] = explained(chosen, column)
                found[f"{name}, {layer}, untrained"] = explained(chosen, untrained_column(column))
    found["students with R2 above .9"] = int((last["test/r2"] > 0.9).sum())
    found["students with R2 below .5"] = int((last["test/r2"] < 0.5).sum())
    return found


def figures(rows: Frame) -> dict:
    """Decodability of the third layer against test R2, trained and untrained, and with probes fitted on all tasks."""
    last = students(rows)
    headline, on_all = column_of(HEADLINE), column_of(HEADLINE, ON_ALL)
    found = {}
    for name, title in FIGURES.items():
        chosen = of_set(last, name)
        if len(chosen) and headline in chosen:
            found[_key(name)] = _scatter(chosen, headline, title)
            found[_key(f"{name}, untrained")] = _scatter(
                chosen, untrained_column(headline), f"{title}, before training"
            )
        if name.startswith("data") and len(chosen) and on_all in chosen:
            found[_key(f"{name}, probe of all tasks")] = _scatter(
                chosen, on_all, f"{title}, probe of all tasks"
            )
    return found


def _key(name: str) -> str:
    return re.sub(r"\W+", "_", name.replace("'", ""))


def _scatter(students: Frame, column: str, which: str) -> Any:
    encodings = [name for name in ENCODINGS if name in set(students["encoding"])]
    drawn = students.assign(encoding=pd.Categorical(students["encoding"], encodings))
    drawn = drawn.assign(**{name: students[name].clip(lower=0) for name in ("test/r2", column)})
    return figure.scatter(
        drawn,
        "test/r2",
        column,
        by="encoding",
        title=f"Decodability and test R²: {which}",
        x_title="R² on held-out combinations (below 0 counts as 0)",
        y_title="decodability, third layer (R²)",
        fit=True,
    )


def claims(rows: Frame | None) -> list[ledger.Claim]:
    """The published correlation in each set and layer; the two comparisons without the confound; the control."""
    last = None if rows is None else students(rows)
    published = [_published(last, name, layer) for name in SETS for layer in _layers(name)]
    return [*published, *_equal_train_tasks(last), *_probe_of_all_tasks(last), _shuffled(last)]


def _layers(name: str) -> list[str]:
    """All three layers for the paper's own set, the headline for the others."""
    return (
        [HEADLINE, *(layer for layer in LAYERS if layer != HEADLINE)]
        if name.startswith("data")
        else [HEADLINE]
    )


def _published(last: Frame | None, name: str, layer: str) -> ledger.Claim:
    """The published correlation in one set, and whether the untrained network explains as much.

    It is not judged where students lack their untrained baseline.
    """
    column = column_of(layer)
    chosen = None if last is None else of_set(last, name)
    measured = interval = holds = None
    confounded = False
    control = f"the squared correlation for the untrained network must be at least {MIN_GAIN} lower"
    if chosen is not None and _has_baselines(chosen, column):
        slim = chosen[["seed", "test/r2", column]]
        measured, interval = (
            explained(chosen, column),
            over_seeds(slim, lambda frame: explained(frame, column)),
        )
        before = explained(chosen, untrained_column(column))
        holds = _has_range(chosen, name) and interval[0] > PUBLISHED
        confounded = measured - before < MIN_GAIN
        control += f" (it is {before:.3f})"
        if not _has_range(chosen, name):
            control += f"; there must be students with test R2 above .9 and below {MAX_LOWEST.get(name, 0.5)}"
    return ledger.Claim(
        name=f"{name}: {layer}",
        statement=f"Decodability from the {LAYERS[layer]} layer correlates with test R2 (r squared; {SETS[name]})",
        source=SOURCE,
        published=f"> {PUBLISHED}",
        measured=measured,
        holds=holds,
        control=control,
        interval=interval,
        confounded=confounded,
    )


def _has_baselines(chosen: Frame, column: str) -> bool:
    """Whether there are students, each with its decodability before and after training."""
    columns = [column, untrained_column(column)]
    return (
        len(chosen) >= 3
        and set(columns) <= set(chosen)
        and bool(chosen[columns].notna().all(axis=None))
    )


def _has_range(chosen: Frame, name: str) -> bool:
    """Whether students differ enough for a correlation to mean something."""
    return bool(
        (chosen["test/r2"] > 0.9).any() and (chosen["test/r2"] < MAX_LOWEST.get(name, 0.5)).any()
    )


def gain(statistic: Callable[[Frame, str], float], column: str) -> Callable[[Frame], float]:
    """A function of a frame: the statistic of a column minus that of the untrained network."""
    return lambda frame: statistic(frame, column) - statistic(frame, untrained_column(column))


def _equal_train_tasks(last: Frame | None) -> list[ledger.Claim]:
    """Does decodability predict which students generalize, among students with equally many train tasks?"""
    column = column_of(HEADLINE)
    claims = []
    for name, which in (
        ("identity", "identity encoding; width and seed differ"),
        ("all", "encoding, width and seed differ"),
    ):
        chosen = None
        if last is not None:
            identity = (last["encoding"] == "Identity") & (last["recipe"] == "Fast")
            identity &= last["diagnostics"] != SIZE_DIAGNOSTICS
            chosen = last[identity] if name == "identity" else of_set(last, "all students")
        claims.append(
            _gain_claim(
                chosen,
                f"equal train tasks, {name}",
                f"At equal numbers of train tasks decodability explains test R2 better than untrained ({which})",
                explained_within,
                column,
            )
        )
    return claims


def _probe_of_all_tasks(last: Frame | None) -> list[ledger.Claim]:
    """With probes fitted on all tasks, does decodability explain test R2?"""
    return [
        _gain_claim(
            None if last is None else of_set(last, name),
            f"probe of all tasks, {name}",
            f"With probes fitted on all tasks decodability explains test R2 better than untrained ({SETS[name]})",
            explained,
            column_of(HEADLINE, ON_ALL),
        )
        for name in ("data", "data, paper's recipe")
    ]


def _gain_claim(
    chosen: Frame | None,
    name: str,
    statement: str,
    statistic: Callable[[Frame, str], float],
    column: str,
) -> ledger.Claim:
    measured = interval = None
    note = ""
    if chosen is not None and _has_baselines(chosen, column):
        slim = chosen[["seed", "frac_test", "test/r2", column, untrained_column(column)]]
        measured, interval = (
            gain(statistic, column)(chosen),
            over_seeds(slim, gain(statistic, column)),
        )
        own, before = statistic(chosen, column), statistic(chosen, untrained_column(column))
        note = f"r squared {own:.3f} trained, {before:.3f} untrained; {_spread(chosen, column)}"
    return ledger.Claim(
        name=name,
        statement=f"{statement}; difference of r squared above {MIN_GAIN}",
        source="control",
        published=ledger.OURS,
        measured=measured,
        holds=None if interval is None else interval[0] > MIN_GAIN,
        interval=interval,
        note=note,
    )


def _spread(chosen: Frame, column: str) -> str:
    """How much decodability differs between students that fail and students that generalize."""
    failing = chosen.loc[chosen["test/r2"] < 0.5, column]
    generalizing = chosen.loc[chosen["test/r2"] > 0.9, column]
    before = chosen[untrained_column(column)].mean()
    low = (
        f"{failing.mean():.3f} where test R2 is below .5 ({len(failing)} students), "
        if len(failing)
        else ""
    )
    return f"mean decodability {low}{generalizing.mean():.3f} where test R2 is above .9, {before:.3f} untrained"


def _highest_shuffled(last: Frame) -> float:
    return float(last[SHUFFLED].max())


def _shuffled(last: Frame | None) -> ledger.Claim:
    """Permuted labels: nothing can be decoded, from any student."""
    measured = interval = None
    if last is not None and SHUFFLED in last and last[SHUFFLED].notna().any():
        measured = _highest_shuffled(last)
        interval = over_seeds(last[["seed", SHUFFLED]], _highest_shuffled)
    return ledger.Claim(
        name="shuffled tasks",
        statement="Probes fitted on shuffled tasks score at chance (the highest R2 of any student)",
        source="control",
        published=ledger.OURS,
        measured=measured,
        holds=None if interval is None else interval[1] < MAX_SHUFFLED,
        interval=interval,
    )
