"""Check that the fast recipe trains the same networks as the paper's recipe.

A recipe can be fast and leave most units dead. So the benchmark reports unit activity and
decodability with every training time, and compares them with a reference. The reference was trained
with the paper's recipe (`faithful_recipe`, docs/results). Its means are in `reference.json`, which
`python benchmarks/reference.py` makes from that table.
"""

import functools
import json
import math
from collections.abc import Mapping
from importlib import resources
from typing import Any

import pandas as pd

from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.encodings.few_shot import FewShot
from recombine.planning.bench.speed import PUBLIC_SECONDS, PUBLISHED_R2, Row, measure, row, seeds
from recombine.sweeps.run import Run, paper_fast

Frame = Any  # a pandas frame
ByLayer = Mapping[str, float]
MAX_MORE_DEAD = 0.04  # fraction of a layer's units, beyond the reference
MIN_RANK = 0.75  # of the reference's effective rank
MAX_DECODABILITY_GAP = 0.05  # in either direction
MAX_SECONDS = 3.1  # per run, to the published score
MIN_SPEEDUP = 100  # over the public code
MIN_FEW_SHOT_R2 = 0.965
MAX_FEW_SHOT_SECONDS = 30  # per run
PROBE = LinearDecodability(paper=True, by_module=False)  # as in the public code
# Students of the reference.
LARGE = "4x1024 MLP"
FEW_SHOT = "FewShot"
QUICKSTART = "quickstart's student"


@functools.cache
def reference() -> dict[str, Any]:
    """The means of each student with the paper's recipe.

    The keys of a student are `recipe`, `runs` (their number), `device`, `seconds` (per run), `seen`
    and `test` (scores), and `dead`, `rank` and `decodability` (by layer).
    """
    file = resources.files("recombine.planning.bench").joinpath("reference.json")
    return json.loads(file.read_text(encoding="utf-8"))


def layer_means(last: Frame) -> dict[str, dict[str, float]]:
    """Mean dead units, effective rank and decodability by hidden layer, from last rows of runs.

    The first layer has no decodability: it is an affine map of the code.
    """
    dead: dict[str, float] = {}
    rank: dict[str, float] = {}
    decodability: dict[str, float] = {}
    for column in last:
        kind, _, rest = str(column).partition("/")
        layer, _, name = rest.partition("/")
        if kind != "activity" or last[column].isna().any():
            continue
        if name == "dead":
            dead[layer] = float(last[column].mean())
        elif name == "rank":
            rank[layer] = float(last[column].mean())
    for layer in dead:
        column = f"{PROBE.label}/pre{layer.removeprefix('hidden')}/test/r2"
        if layer != "hidden0" and column in last and last[column].notna().all():
            decodability[layer] = float(last[column].mean())
    return {"dead": dead, "rank": rank, "decodability": decodability}


def compare(last: Frame, student: str, dead_only: bool = False) -> list[Row]:
    """Compare the layers of trained runs with the reference, if there is one.

    A layer that the runs lack misses its target. With `dead_only`, only dead units have a target,
    and the reference's effective rank and decodability are notes. That is the rule for the few-shot
    student: half of the second layer is dead in its reference.
    """
    measured = layer_means(last)
    known = reference().get(student)
    if known is None:
        return _rows_without_reference(measured)
    return [
        *_dead_rows(measured["dead"], known["dead"]),
        *_rank_rows(measured["rank"], known["rank"], has_target=not dead_only),
        *_decodability_rows(
            measured["decodability"], known["decodability"], has_target=not dead_only
        ),
    ]


def _dead_rows(measured: ByLayer, known: ByLayer) -> list[Row]:
    rows = []
    for layer, reference_value in known.items():
        value = measured.get(layer, math.nan)
        limit = reference_value + MAX_MORE_DEAD
        target = f"<= {100 * limit:.1f}"
        note = f"paper's recipe: {100 * reference_value:.1f} %"
        rows.append(row(f"… dead units, {layer}", 100 * value, "%", target, value <= limit, note))
    return rows


def _rank_rows(measured: ByLayer, known: ByLayer, has_target: bool) -> list[Row]:
    rows = []
    for layer, reference_value in known.items():
        value = measured.get(layer, math.nan)
        limit = MIN_RANK * reference_value
        target = f">= {limit:.1f}" if has_target else ""
        reached = value >= limit if has_target else None
        note = f"paper's recipe: {reference_value:.1f}"
        rows.append(row(f"… effective rank, {layer}", value, "directions", target, reached, note))
    return rows


def _decodability_rows(measured: ByLayer, known: ByLayer, has_target: bool) -> list[Row]:
    rows = []
    for layer, reference_value in known.items():
        value = measured.get(layer, math.nan)
        is_close = abs(value - reference_value) <= MAX_DECODABILITY_GAP
        target = f"within {MAX_DECODABILITY_GAP} of {reference_value:.3f}" if has_target else ""
        note = f"paper's recipe: {reference_value:.4f}"
        reached = is_close if has_target else None
        rows.append(row(f"… decodability, {layer}", value, "R2", target, reached, note))
    return rows


def _rows_without_reference(measured: Mapping[str, ByLayer]) -> list[Row]:
    note = "no reference"
    rows = []
    for layer, value in measured["dead"].items():
        rows.append(row(f"… dead units, {layer}", 100 * value, "%", note=note))
    for layer, value in measured["rank"].items():
        rows.append(row(f"… effective rank, {layer}", value, "directions", note=note))
    for layer, value in measured["decodability"].items():
        rows.append(row(f"… decodability, {layer}", value, "R2", note=note))
    return rows


def quality_rows(last: Frame, seconds: float) -> list[Row]:
    """The large student with the fast recipe: score, seconds per run, and layers."""
    r2 = last["test/r2"]
    known = reference()[LARGE]
    reached = bool(r2.mean() >= PUBLISHED_R2)
    speedup = PUBLIC_SECONDS / seconds
    name = f"Fast, {int(last['num_steps'].iloc[0]):,} steps, {len(last)} runs: mean test R2"
    note = (
        f"runs: {r2.min():.4f} to {r2.max():.4f}; seen {last['seen/r2'].mean():.4f}; "
        f"{_reference_scores(known)}"
    )
    time_note = _reference_seconds(known)
    is_fast = reached and seconds <= MAX_SECONDS
    is_speedup = reached and speedup >= MIN_SPEEDUP
    return [
        row(name, r2.mean(), "R2", f">= {PUBLISHED_R2}", reached, note),
        row("… seconds per run", seconds, "s", f"<= {MAX_SECONDS}", is_fast, time_note),
        row("… compared with the public code", speedup, "x", f">= {MIN_SPEEDUP}", is_speedup),
        *compare(last, LARGE),
    ]


def _reference_scores(known: Mapping[str, Any]) -> str:
    return f"paper's recipe: test {known['test']:.4f}, seen {known['seen']:.4f}"


def _reference_seconds(known: Mapping[str, Any]) -> str:
    return f"paper's recipe: {known['seconds']:.1f} s on {known['device']}"


def few_shot_rows(last: Frame, seconds: float) -> list[Row]:
    """The large student with a code of 50 examples: score, seconds per run, and layers."""
    r2 = float(last["test/r2"].mean())
    known = reference()[FEW_SHOT]
    reached = r2 >= MIN_FEW_SHOT_R2
    name = f"FewShot, {int(last['num_steps'].iloc[0]):,} steps, {len(last)} runs: mean test R2"
    is_fast = reached and seconds <= MAX_FEW_SHOT_SECONDS
    max_seconds = f"<= {MAX_FEW_SHOT_SECONDS}"
    time_note = _reference_seconds(known)
    return [
        row(name, r2, "R2", f">= {MIN_FEW_SHOT_R2}", reached, _reference_scores(known)),
        row("… seconds per run", seconds, "s", max_seconds, is_fast, time_note),
        *compare(last, FEW_SHOT, dead_only=True),
    ]


def quickstart_rows(last: Frame, seconds: float) -> list[Row]:
    """The widest student of `quickstart`: score, seconds per run, and layers."""
    seen = float(last["seen/r2"].mean())
    known = reference()[QUICKSTART]
    name = f"widest student of quickstart, {len(last)} runs: mean seen R2"
    note = f"test {last['test/r2'].mean():.4f}; {_reference_scores(known)}"
    return [
        row(name, seen, "R2", f">= {known['seen']:.4f}", seen >= known["seen"], note),
        row("… seconds per run", seconds, "s", note=_reference_seconds(known)),
        *compare(last, QUICKSTART),
    ]


def quality(num_runs: int = 12) -> list[Row]:
    """Train the large student, many runs in one program."""
    return quality_rows(*_train(paper_fast(diagnostics=(PROBE,)), num_runs))


def few_shot(num_runs: int = 8) -> list[Row]:
    """Train the few-shot student."""
    return few_shot_rows(*_train(paper_fast(encoding=FewShot(), diagnostics=(PROBE,)), num_runs))


def quickstart(num_runs: int = 4) -> list[Row]:
    """Train the widest student of `quickstart`."""
    run = Run(num_steps=1200, num_evals=1, diagnostics=(PROBE,))
    return quickstart_rows(*_train(run, num_runs))


def _train(run: Run, num_runs: int) -> tuple[Frame, float]:
    """Train several seeds of a run side by side; return their last rows and the seconds per run."""
    trained = measure(seeds(run, num_runs), again=False)
    last = pd.DataFrame([rows[-1] for rows in trained.rows]).assign(num_steps=run.num_steps)
    return last, trained.seconds / num_runs
