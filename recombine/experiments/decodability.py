"""Do students that generalise, and only they, tell the modules linearly? Decodability against generalisation.

Claim: over students that do and do not generalise, the R2 on unseen tasks and the decodability of their modules
correlate (R2 > .95; arXiv 2507.07207, section 4).

Students differ in their encoding, width and number of train tasks; the claim is judged over all of them, and for each
encoding over the widest students, which differ in their train tasks alone. The decoder's layer is the one that decodes
best on fresh samples of train tasks; every layer is reported beside it. Scores below 0 count as 0: nothing is
predicted, or nothing is read. Two controls: one reads every task from the activations of another, where nothing must be
found. The other is every student's untrained twin, read in the same way: few train tasks make a poor student, but a
poor decoder, too, so what the twin's decodability tells of the student's score is not due to what the student learned.

Command:  recombine run decodability --scale small
Runtime:  5 minutes on 2 busy cores; full: 6 minutes on an H200 that another sweep shared.
Expected: a squared correlation above .95 with the layer chosen on train tasks; less with the twin's; nothing read of
          shuffled tasks.
Measured: full (2026-11-16, M=16, K=3, 189 students): it depends on what the code tells. Few-shot students have to find
          the modules out: .997 (.997 to .999) at width 1024, .96 over all widths. Under interval shuffle at width 1024
          .92 (.88 to .98) in the chosen layer and .96 in the third, but .37 in the deepest. Under identity the chosen
          layer tells the modules whatever is learned (every score is 1.0000, which explains nothing); the layer behind
          it explains .99, but that of the untrained twin .97: both follow the number of train tasks. Over all students
          .51 (.49 to .53) with the chosen layer, .45 with the deepest, .66 with the best of all layers, .05 with the
          untrained twin: encodings and widths differ in how much is read at equal R2, so one decodability does not tell
          how well another student generalises. small (2026-11-15, M=8, identity and interval shuffle, 48 students): .62
          (.59 to .70) with the layer chosen on train tasks, since under identity that is the first one, which tells the
          modules whatever follows; .86 (.83 to .87) with the deepest hidden layer, .92 with the one before its ReLU and
          the one before that, .36 with the untrained twin. Under interval shuffle at width 128 alone it is .91 and .99.
          Nothing is read of shuffled tasks.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from recombine import claims as ledger
from recombine import figure
from recombine.bootstrap import over_seeds
from recombine.diagnostics.linear_decodability import LinearDecodability
from recombine.diagnostics.shuffled_decodability import ShuffledDecodability
from recombine.encodings.few_shot import FewShot
from recombine.encodings.identity import Identity
from recombine.encodings.interval_shuffle import IntervalShuffle
from recombine.families.hyperteacher import Hyperteacher
from recombine.models.mlp import MLP
from recombine.recipe import Fast
from recombine.run import Run, paper, put, sweep

TITLE = "Linear decodability of the modules against compositional generalization"
SOURCE = "arXiv 2507.07207, section 4"
PUBLISHED = 0.95
PROBES = {
    "chosen on train tasks": "LinearDecodability/best/test/r2",
    "deepest": "LinearDecodability/deepest/test/r2",
    "public constants": "LinearDecodability-paper/best/test/r2",
    "untrained twin": "twin/best/test/r2",
}
WORDS = {
    "chosen on train tasks": "layer chosen on train tasks",
    "deepest": "deepest hidden layer",
    "public constants": "probe of the public code",
    "untrained twin": "untrained twins",
}
ENCODINGS = ("Identity", "IntervalShuffle", "FewShot")
SHUFFLED = "ShuffledDecodability/best/test/r2"
NOTHING = 0.1  # R2 below which nothing is read
ALIKE = 1e-4  # standard deviation of scores that do not differ: what is left below it is rounding
FRACTIONS = {"tiny": (0.3, 0.7), "small": (0.125, 0.5, 0.8, 0.9), "full": (0.125, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)}
WIDTHS = {"tiny": (8,), "small": (16, 128), "full": (64, 256, 1024)}
SEEDS = {"tiny": 1, "small": 3, "full": 3}


def runs(scale: str) -> list[Run]:
    """Encoding x width x held-out fraction x seed, trained and untrained."""
    axes = {"frac_test": FRACTIONS[scale], "seed": range(SEEDS[scale])}
    trained = [run for base in _bases(scale) for width in WIDTHS[scale] for run in sweep(_wide(base, width), **axes)]
    return [*trained, *map(untrained, trained)]


def untrained(run: Run) -> Run:
    """The same student before its first step."""
    return put(run, {"num_steps": 1, "num_evals": 1, "recipe.learning_rate": 0.0})


def _wide(base: Run, width: int) -> Run:
    return put(base, {"model.widths": (width,) * len(base.model.widths)})  # pyright: ignore[reportAttributeAccessIssue]


def _bases(scale: str) -> list[Run]:
    probes = (LinearDecodability(), LinearDecodability(paper=True), ShuffledDecodability())
    if scale == "full":  # the recipes are chosen by seen scores (recombine/bench/speed.py)
        shared = {"num_tasks": 512, "num_points": 4, "num_evals": 1, "diagnostics": probes, "recipe": Fast(0.05, 0.02)}
        plain = [paper(encoding=encoding, num_steps=5000, **shared) for encoding in (Identity(), IntervalShuffle())]
        shared["recipe"] = Fast(0.015, 0.02)
        return [*plain, paper(encoding=FewShot(), num_steps=8000, **shared)]
    if scale == "small":
        return [
            Run(encoding=encoding, num_steps=2000, num_evals=1, diagnostics=probes)
            for encoding in (Identity(), IntervalShuffle())
        ]
    family = Hyperteacher(num_modules=5, num_hot=2, d_input=4, d_hidden=4, num_outputs=4)
    sizes = tuple(type(probe)(num_fit=32, num_seen=32, num_test=32) for probe in probes[::2])
    return [Run(family, model=MLP((8, 8)), num_steps=20, num_evals=1, diagnostics=sizes, num_eval_tasks=32)]


def by_layer(last: pd.DataFrame, keep: list[str], probe: str = "LinearDecodability") -> Any:
    """One line per run and layer, the layers from the code to the output in order: how well each tells the task."""
    found = layers_of(last, probe)
    long: Any = last.melt(keep, list(found), "layer", "decodability r2").dropna(subset=["decodability r2"])
    return long.assign(layer=pd.Categorical(long["layer"].map(found), list(found.values())))


def layers_of(last: pd.DataFrame, probe: str = "LinearDecodability") -> dict[str, str]:
    """The layers that a probe has read, from the code to the output: the column of each -> its name."""
    pattern = re.compile(rf"{re.escape(probe)}/(code|pre\d+|hidden\d+|output)/test/r2")
    found = {column: match[1] for column in last if (match := pattern.fullmatch(str(column)))}
    return dict(sorted(found.items(), key=lambda item: depth(item[1])))


def depth(layer: str) -> tuple[int, int, bool]:
    """Where a layer stands: the code, then pre0, hidden0, pre1, …, then the output."""
    place = ("code", "", "output").index(layer) if layer in ("code", "output") else 1
    return place, int(re.sub(r"\D", "", layer) or 0), layer.startswith("hidden")


def twins(last: Any, columns: Mapping[str, str]) -> Any:
    """Trained students, each with columns of its untrained twin beside its own (name there -> column of the twin)."""
    same = ["encoding", "model.widths", "frac_test", "seed"]
    before = last[last["recipe.learning_rate"] == 0][same].copy()
    for name, column in columns.items():
        before[name] = last.get(column, math.nan)
    return last[last["recipe.learning_rate"] > 0].merge(before, "left", same)


def _last(rows) -> Any:
    last = twins(ledger.last(rows), {PROBES["untrained twin"]: PROBES["chosen on train tasks"]})
    last["width"] = last["model.widths"].str.split("x").str[0].astype(int)
    return last


def explained(last: pd.DataFrame, column: str, lowest: float = 0.0) -> float:
    """The squared correlation of a decoder's score with the R2 on unseen tasks, both counted from 0; 0 where one falls
    as the other grows, or where the decoder reads all students alike."""
    pair = last[["test/r2", column]].dropna().clip(lower=lowest).to_numpy(float)
    if len(pair) < 3 or pair[:, 0].std() == 0:
        return float("nan")
    return 0.0 if pair[:, 1].std() < ALIKE else float(max(np.corrcoef(pair.T)[0, 1], 0.0) ** 2)


def summary(rows) -> dict[str, float]:
    """What every layer's decodability explains of generalisation, and the chosen layer's."""
    last = _last(rows)
    found = {f"explained, {name}": explained(last, column) for name, column in PROBES.items() if column in last}
    found["explained, chosen on train tasks, scores below 0 as they are"] = explained(
        last, PROBES["chosen on train tasks"], -math.inf
    )
    for layer in by_layer(last, ["run"])["layer"].cat.categories:
        found[f"explained, {layer}"] = explained(last, f"LinearDecodability/{layer}/test/r2")
    found["students with R2 above .9"] = int((last["test/r2"] > 0.9).sum())
    found["students with R2 below .5"] = int((last["test/r2"] < 0.5).sum())
    return found


def figures(rows) -> dict:
    """Decodability against generalisation: the chosen layer, the deepest one, public constants, the untrained twin; and
    the chosen layer of the widest students alone."""
    last = _last(rows)
    widest = last[last["width"] == last["width"].max()]
    chosen, *others = ((name, WORDS[name], last, column) for name, column in PROBES.items())
    width = f"width {widest['width'].max()}"
    wanted = [chosen, (f"{width}, {chosen[0]}", f"{width}, {chosen[1]}", widest, chosen[3]), *others]
    return {
        re.sub(r"\W+", "_", name): figure.scatter(
            _counted(students, column),
            "test/r2",
            column,
            by="encoding",
            title=f"Decodability and generalisation: {told}",
            x_title="R² on unseen combinations (below 0 counts as 0)",
            y_title="decodability on them (R²)",
            fit=True,
        )
        for name, told, students, column in wanted
        if column in students and students[column].notna().any()
    }


def _counted(students: pd.DataFrame, column: str) -> pd.DataFrame:
    """The students with both scores counted from 0, as they are judged, encodings in their order."""
    encodings = [name for name in ENCODINGS if name in set(students["encoding"])]
    drawn = students.assign(encoding=pd.Categorical(students["encoding"], encodings))
    return drawn.assign(**{name: students[name].clip(lower=0) for name in ("test/r2", column)})


def claims(rows) -> list:
    """The published correlation, over all students by layer, and for each encoding by itself; and the controls."""
    last = None if rows is None else _last(rows)
    layers = [name for name in PROBES if name != "untrained twin"]
    pooled = [_claim(last, name, PROBES[name], f"all students; {WORDS[name]}") for name in layers]
    alike = [
        _claim(_widest(last, name), name, PROBES[layers[0]], f"widest students, {name}; {WORDS[layers[0]]}")
        for name in ENCODINGS
    ]
    return [*pooled, *alike, _control(last), _shuffled(last)]


def _widest(last, encoding: str):
    """The widest students of an encoding, which differ in their train tasks alone."""
    return None if last is None else last[(last["encoding"] == encoding) & (last["width"] == last["width"].max())]


def _claim(last, name: str, column: str, which: str) -> ledger.Claim:
    measured = interval = holds = None
    control = "students that do and that do not generalise are both there, and untrained twins explain less"
    if last is not None and column in last and not math.isnan(explained(last, column)):
        measured, interval = explained(last, column), over_seeds(last, lambda frame: explained(frame, column))
        both = bool((last["test/r2"] > 0.9).any() and (last["test/r2"] < 0.5).any())
        twin = explained(last, PROBES["untrained twin"])
        holds = both and interval[0] > PUBLISHED and not twin >= interval[0]
        control += "" if math.isnan(twin) else f" ({twin:.2f})"
    return ledger.Claim(
        name=name,
        statement=f"Decodability and R2 on unseen tasks go together (squared correlation; {which})",
        source=SOURCE,
        published=f"> {PUBLISHED}",
        measured=measured,
        holds=holds,
        interval=interval,
        control=control,
    )


def _ahead(last) -> float:
    """By how much more a student's own decodability explains than that of its untrained twin."""
    return explained(last, PROBES["chosen on train tasks"]) - explained(last, PROBES["untrained twin"])


def _control(last) -> ledger.Claim:
    measured = interval = None
    if last is not None and not math.isnan(_ahead(last)):
        measured, interval = _ahead(last), over_seeds(last, _ahead)
    return ledger.Claim(
        name="untrained twin",
        statement="A student's own decodability explains more of its score than its untrained twin's (difference)",
        source="control",
        published=ledger.OURS,
        measured=measured,
        holds=None if interval is None else interval[0] > 0.1,
        interval=interval,
    )


def _shuffled(last) -> ledger.Claim:
    """Nothing can be read of shuffled tasks, by any student."""
    measured = interval = None
    if last is not None and SHUFFLED in last and last[SHUFFLED].notna().any():
        measured = float(last[SHUFFLED].max())
        interval = over_seeds(last, lambda frame: frame[SHUFFLED].max())  # pyright: ignore[reportArgumentType]
    return ledger.Claim(
        name="shuffled tasks",
        statement="Of shuffled tasks nothing is read (the highest R2 of any student)",
        source="control",
        published=ledger.OURS,
        measured=measured,
        holds=None if interval is None else interval[1] < NOTHING,
        interval=interval,
    )
