"""Is the fast recipe faithful? Score, time, unit activity and decodability compared with the paper's recipe.

A recipe can be fast and leave most units dead, so the benchmark reports unit activity and decodability with every
training time. The reference is trained with the paper's recipe (`faithful_recipe`, docs/results). Its means are in
`recombine/planning/bench/reference.json`, which `python benchmarks/reference.py` makes from that table.
"""

import functools
import json
import math
from importlib import resources
from typing import Any

import pandas as pd

from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.encodings.few_shot import FewShot
from recombine.planning.bench.speed import PUBLIC_SECONDS, PUBLISHED_R2, Row, measure, row, seeds
from recombine.sweeps.run import Run, paper_fast

Frame = Any  # a pandas frame
MAX_MORE_DEAD = 0.04  # fraction of a layer's units, beyond the reference
MIN_RANK = 0.75  # of the reference's effective rank
MAX_DECODABILITY_GAP = 0.05  # in either direction
PROBE = LinearDecodability(paper=True, by_module=False)  # of the public code
LARGE, FEW_SHOT, QUICKSTART = (
    "4x1024 MLP",
    "FewShot",
    "quickstart's student",
)  # students of the reference


@functools.cache
def reference() -> dict[str, Any]:
    """The means of each student by the paper's recipe: scores; dead units, effective rank, decodability by layer."""
    return json.loads(
        resources.files("recombine.planning.bench")
        .joinpath("reference.json")
        .read_text(encoding="utf-8")
    )


def layer_means(last: Frame) -> dict[str, dict[str, float]]:
    """Mean dead units and effective rank of every hidden layer, and decodability from the second one on."""
    dead, rank, decodability = {}, {}, {}
    for column in last:
        kind, _, rest = str(column).partition("/")
        layer, _, name = rest.partition("/")
        if kind == "activity" and last[column].notna().all():
            if name == "dead":
                dead[layer] = float(last[column].mean())
            if name == "rank":
                rank[layer] = float(last[column].mean())
    for layer in dead:
        column = f"{PROBE.label}/pre{layer.removeprefix('hidden')}/test/r2"
        if (
            layer != "hidden0" and column in last and last[column].notna().all()
        ):  # the first is affine in the code
            decodability[layer] = float(last[column].mean())
    return {"dead": dead, "rank": rank, "decodability": decodability}


def compare(last: Frame, student: str, dead_only: bool = False) -> list[Row]:
    """The layers of trained runs compared with those of the reference; no targets where there is no reference.

    A layer of the reference that the runs lack misses its target. With `dead_only`, only dead units have a target; the
    reference's effective rank and decodability are notes. That is the rule for the few-shot student, whose reference
    has half of its second layer dead.
    """
    own, known = layer_means(last), reference().get(student)
    if known is None:
        return _without_reference(own)
    found = []
    for layer, other in known["dead"].items():
        value, limit = own["dead"].get(layer, math.nan), other + MAX_MORE_DEAD
        note = f"paper's recipe: {100 * other:.1f} %"
        found.append(
            row(
                f"… dead units, {layer}",
                100 * value,
                "%",
                f"<= {100 * limit:.1f}",
                value <= limit,
                note,
            )
        )
    return found + (_beside(own, known) if dead_only else _within_limits(own, known))


def _within_limits(own: dict[str, dict[str, float]], known: dict[str, Any]) -> list[Row]:
    found = []
    for layer, other in known["rank"].items():
        value, limit = own["rank"].get(layer, math.nan), MIN_RANK * other
        note = f"paper's recipe: {other:.1f}"
        found.append(
            row(
                f"… effective rank, {layer}",
                value,
                "directions",
                f">= {limit:.1f}",
                value >= limit,
                note,
            )
        )
    for layer, other in known["decodability"].items():
        value = own["decodability"].get(layer, math.nan)
        reached = abs(value - other) <= MAX_DECODABILITY_GAP
        note = f"paper's recipe: {other:.4f}"
        found.append(
            row(
                f"… decodability, {layer}", value, "R2", f"within .05 of {other:.3f}", reached, note
            )
        )
    return found


def _beside(own: dict[str, dict[str, float]], known: dict[str, Any]) -> list[Row]:
    ranks = [
        row(
            f"… effective rank, {layer}",
            own["rank"].get(layer, math.nan),
            "directions",
            note=f"paper's recipe: {other:.1f}",
        )
        for layer, other in known["rank"].items()
    ]
    return ranks + [
        row(
            f"… decodability, {layer}",
            own["decodability"].get(layer, math.nan),
            "R2",
            note=f"paper's recipe: {other:.4f}",
        )
        for layer, other in known["decodability"].items()
    ]


def _without_reference(own: dict[str, dict[str, float]]) -> list[Row]:
    found = [
        row(f"… dead units, {layer}", 100 * value, "%", note="no reference")
        for layer, value in own["dead"].items()
    ]
    for layer, value in own["rank"].items():
        found.append(row(f"… effective rank, {layer}", value, "directions", note="no reference"))
    for layer, value in own["decodability"].items():
        found.append(row(f"… decodability, {layer}", value, "R2", note="no reference"))
    return found


def quality_rows(last: Frame, seconds: float) -> list[Row]:
    """The large student by the fast recipe: its score, its seconds a run, and its layers beside the reference."""
    r2, known = last["test/r2"], reference()[LARGE]
    reached, ratio = bool(r2.mean() >= PUBLISHED_R2), PUBLIC_SECONDS / seconds
    note = f"from {r2.min():.4f} to {r2.max():.4f}; seen {last['seen/r2'].mean():.4f}"
    note += f"; paper's recipe {known['test']:.4f}, seen {known['seen']:.4f}"
    name = f"Fast, {int(last['num_steps'].iloc[0]):,} steps, {len(last)} runs: mean test R2"
    return [
        row(name, r2.mean(), "R2", ">= .9967", reached, note),
        row("… seconds a run", seconds, "s", "<= 3.1", reached and seconds <= 3.1),
        row("… against the public code", ratio, "x", ">= 100", reached and ratio >= 100),
        *compare(last, LARGE),
    ]


def few_shot_rows(last: Frame, seconds: float) -> list[Row]:
    """The same with a code of 50 examples."""
    r2 = float(last["test/r2"].mean())
    name = f"FewShot, {int(last['num_steps'].iloc[0]):,} steps, {len(last)} runs: mean test R2"
    return [
        row(name, r2, "R2", ">= .965", r2 >= 0.965),
        row("… seconds a run", seconds, "s", "<= 30", r2 >= 0.965 and seconds <= 30),
        *compare(last, FEW_SHOT, dead_only=True),
    ]


def quickstart_rows(last: Frame, seconds: float) -> list[Row]:
    """The widest student of `quickstart` beside the same one by the paper's recipe."""
    seen, known = float(last["seen/r2"].mean()), reference()[QUICKSTART]
    name = f"quickstart's widest student, {len(last)} runs: mean seen R2"
    note = f"test {last['test/r2'].mean():.4f}; paper's recipe {known['test']:.4f}, seen {known['seen']:.4f}"
    return [
        row(name, seen, "R2", f">= {known['seen']:.4f}", seen >= known["seen"], note),
        row("… seconds a run", seconds, "s"),
        *compare(last, QUICKSTART),
    ]


def quality(num_runs: int = 12) -> list[Row]:
    """Train the large student, many runs in one program, on seeds that tuning never used."""
    return quality_rows(*_trained(paper_fast(diagnostics=(PROBE,)), num_runs))


def few_shot(num_runs: int = 8) -> list[Row]:
    """Train the few-shot student."""
    return few_shot_rows(*_trained(paper_fast(encoding=FewShot(), diagnostics=(PROBE,)), num_runs))


def quickstart(num_runs: int = 4) -> list[Row]:
    """Train the student that users start with."""
    return quickstart_rows(
        *_trained(Run(num_steps=1200, num_evals=1, diagnostics=(PROBE,)), num_runs)
    )


def _trained(run: Run, num_runs: int) -> tuple[Frame, float]:
    """The last rows of several seeds of a run that train side by side, and the seconds a run."""
    trained = measure(seeds(run, num_runs), again=False)
    last = pd.DataFrame([rows[-1] for rows in trained.rows]).assign(num_steps=run.num_steps)
    return last, trained.seconds / num_runs
