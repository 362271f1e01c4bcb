"""Coverage as one self-contained page, as lines for the terminal, and the command that gives them.

The page is `report.html` with other things in it: the four conditions, which values meet, the groups, the rarest values
and the suggestions. Where there are too many values to draw, the rarest are drawn.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from recombine.coverage.coverage import Coverage
from recombine.coverage.tally import Source
from recombine.reporting import figure
from recombine.reporting import page as report

if TYPE_CHECKING:  # imported where a figure is made
    import plotly.graph_objects as go

GAIN = (
    "how far a suggestion lowers the expected drop in R2 of the missing combinations, after those before it; by what "
    "the lab measured on hyperteachers, so the order is what is meant"
)
DRAWN = 60  # values that a picture can show with their names
NAME = 24  # letters of a name beside a picture: longer ones would leave it no room
CELL = 18, 7  # pixels of a cell of a matrix, and of a letter beside it
CONDITIONS = {
    "compositional": "every value occurs",
    "connected": "shared combinations link all values",
    "balanced": "values of a factor are equally frequent",
    "spanned": "the others follow linearly",
}


def answer(
    table: Source,
    factors: str,
    suggest: int = 20,
    out: Path | None = None,
    separator: str = ";",
    held_out: Path | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """What `recombine coverage` says: all of it as plain values, and lines for a person; a page where one is named."""
    coverage = Coverage(table, [name.strip() for name in factors.split(",")], separator, held_out)
    result = coverage.result(suggest)
    if out is None:
        return result, lines(result)
    page = write(coverage, result, out, Path(str(table)).name)
    return result | {"report": str(page)}, [*lines(result), f"Report: {page}"]


def lines(result: dict[str, Any]) -> list[str]:
    """The result in words."""
    told = [
        f"{result['examples']:,} examples of {result['combinations']:,} combinations; {_missing(result)}"
    ]
    told += [
        f"{'yes' if result[name] else 'NO ':<4} {name}: {words}"
        for name, words in CONDITIONS.items()
    ]
    rare = [f"{one['value']} ({one['combinations']:,})" for one in result["rarest"][:5]]
    told.append(f"rarest, by combinations: {', '.join(rare)}")
    if result["suggestions"]:
        told.append(
            "to add, the best first (gain in R2 by what the lab measured; the order is what is meant):"
        )
    named = [spell(one["combination"]) for one in result["suggestions"]]
    wide = max(map(len, named), default=0)
    for name, one in zip(named, result["suggestions"], strict=True):
        told.append(f"  {name:<{wide}}  {one['gain']:+8.2g}  {one['why']}")
    return [*told, *proofs(result), *(f"note: {note}" for note in result["notes"])]


def _missing(result: dict[str, Any]) -> str:
    missing = result["missing"]
    return f"{missing['count']:,} of {missing['of']:,} are missing"


def spell(combination: dict[str, str] | list[str]) -> str:
    """A combination in one line."""
    return ", ".join(combination.values() if isinstance(combination, dict) else combination)


def proofs(result: dict[str, Any]) -> list[str]:
    """How good the suggestions are, goal by goal."""
    told = []
    for goal in result["goals"]:
        name, suggested, needed = goal["name"], goal["suggested"], goal["needed"]
        if name == "lift" and suggested:
            best = (
                "optimal"
                if goal["optimal"]
                else f"at least {math.floor(1000 * goal['share']) / 10}% of the optimum"
            )
            told.append(f"to lift rare values, {suggested} of them: {best}")
        elif name != "lift" and needed:
            best = "optimal, no fewer can" if goal["optimal"] else f"no fewer than {needed} can"
            told.append(
                f"to {name}, {suggested} of them: {best}{'' if goal['met'] else '; it takes more than these'}"
            )
    return told


def write(coverage: Coverage, result: dict[str, Any], out: Path, name: str = "a table") -> Path:
    """Write the page and return its path."""
    return report.save(page(coverage, result, name), out)


def page(coverage: Coverage, result: dict[str, Any], name: str) -> str:
    """The page as text."""
    verdict = {
        f"{key}: {words}": "✓ yes" if result[key] else "✗ no" for key, words in CONDITIONS.items()
    }
    factors = ",".join(result["factors"])
    drawn = {
        "meeting": meeting(coverage),
        "groups": groups(coverage),
        "rarest": rarest(coverage, result),
    }
    return report.filled(
        title=f"What {name} covers",
        kind="Recombine coverage",
        description=f"{lines(result)[0]}.",
        summary=verdict,
        figures={key: str(one.to_json()) for key, one in drawn.items()},
        heading="What to add",
        results=_suggestions(result),
        making=f"<pre>{report.escaped(f'recombine coverage {name} --factors {factors}')}</pre>"
        + report.pairs("facts", {"gain": GAIN} | {"notes": "; ".join(result["notes"]) or "none"}),
    )


def _suggestions(result: dict[str, Any]) -> str:
    """The suggestions as a table, under what is known of how good they are."""
    told = result["suggestions"]
    if not told:
        return "<p>Nothing to add: no combination is missing, or none was asked for.</p>"
    many = isinstance(told[0]["combination"], dict)
    frame = pd.DataFrame(
        [one["combination"] if many else {"concepts": spell(one["combination"])} for one in told]
    )
    gains = [float(f"{one['gain']:.3g}") for one in told]
    frame = frame.assign(**{"why": [one["why"] for one in told], "expected gain": gains})
    sure = "".join(f'<p class="soft">{report.escaped(line)}.</p>' for line in proofs(result))
    return sure + report.listing(
        frame, "Combinations to add", f"{len(frame)} of them, the best first", "suggested"
    )


def _shown(coverage: Coverage) -> np.ndarray:
    """The modules that a picture shows, the rarest where not all fit; a factor's modules beside each other."""
    return np.sort(np.argsort(coverage.trained.counts, kind="stable")[:DRAWN])


def _labels(coverage: Coverage, modules: np.ndarray) -> list[str]:
    return [
        report.escaped(report.shorten(coverage.modules.names[module], NAME)) for module in modules
    ]


def _title(told: str, coverage: Coverage) -> str:
    total = coverage.space.num_modules
    return told if total <= DRAWN else f"{told} (the {DRAWN} rarest of {total} values)"


def meeting(coverage: Coverage) -> go.Figure:
    """Which values meet in how many combinations: a heat map with a cross where two never do."""
    modules = _shown(coverage)
    counts = coverage.together[np.ix_(modules, modules)]
    block = np.searchsorted([part[-1] for part in coverage.space.blocks], modules)
    rivals = (
        block[:, None] == block
        if len(coverage.space.blocks) > 1
        else np.eye(len(modules), dtype=bool)
    )
    never, names = np.argwhere((counts == 0) & ~rivals), _labels(coverage, modules)
    most = float(np.where(rivals, 0, counts).max())
    drawn = figure.blank(
        _title("Which values meet, in how many combinations", coverage), "", "", True
    )
    drawn.add_heatmap(
        z=np.where((counts > 0) & ~rivals, counts, np.nan).tolist(),
        colorscale=[[0, "#cfe6f5"], [1, "#0072B2"]],
        zmin=0,
        zmax=max(1.0, most),
        colorbar={
            "title": {"text": "combinations"},
            "thickness": 12,
            "dtick": max(1, math.ceil(most / 6)),
        },
        text=[[f"{one} and {other}" for other in names] for one in names],
        hovertemplate="%{text}: %{z}<extra></extra>",
        xgap=1,
        ygap=1,
    )
    marker = {"symbol": "x-thin", "size": 7, "line": {"width": 2, "color": figure.COLOURS[1]}}
    across, up = never[:, 1].tolist(), never[:, 0].tolist()
    drawn.add_scatter(
        x=across, y=up, mode="markers", marker=marker, name="never together", hoverinfo="skip"
    )
    ticks = {
        "tickvals": list(range(len(names))),
        "ticktext": names,
        "showgrid": False,
        "zeroline": False,
    }
    drawn.update_xaxes(**ticks, tickangle=-90, range=[-0.5, len(names) - 0.5])
    drawn.update_yaxes(**ticks, range=[len(names) - 0.5, -0.5])
    return drawn.update_layout(
        height=max(430, 130 + CELL[0] * len(names) + CELL[1] * max(map(len, names)))
    )


def groups(coverage: Coverage) -> go.Figure:
    """The values on a circle, lines between those that meet, and a colour and a symbol for each group."""
    shown, parts = set(_shown(coverage).tolist()), coverage.trained.groups()
    members = [[module for module in part.tolist() if module in shown] for part in parts]
    modules = [module for part in members for module in part]
    angle = 2 * np.pi * np.arange(len(modules)) / len(modules)
    x, y = (
        dict(zip(modules, np.cos(angle), strict=True)),
        dict(zip(modules, np.sin(angle), strict=True)),
    )
    number = "1 group" if len(parts) == 1 else f"{len(parts)} groups"
    drawn = figure.blank(
        _title(f"{number} of values that combinations link", coverage), "", "", True
    )
    linked = [(a, b) for a in modules for b in modules if a < b and coverage.together[a, b] > 0]
    ends = [[place for a, b in linked for place in (at[a], at[b], None)] for at in (x, y)]
    line = {"color": "rgba(128,128,128,0.35)", "width": 1}
    drawn.add_scatter(
        x=ends[0], y=ends[1], mode="lines", line=line, hoverinfo="skip", showlegend=False
    )
    last = len(figure.COLOURS) - 1
    for place, part in enumerate(members):
        look = {
            "size": 11,
            "color": figure.COLOURS[min(place, last)],
            "symbol": figure.SYMBOLS[min(place, last)],
        }
        told = (
            f"group {place + 1}: {len(parts[place])} values" if place < last else "further groups"
        )
        drawn.add_scatter(
            x=[x[module] for module in part],
            y=[y[module] for module in part],
            mode="markers",
            marker=look,
            name=told,
            showlegend=place <= last,
            hovertext=_labels(coverage, np.array(part, int)),
            hovertemplate="%{hovertext}<extra></extra>",
        )
    for module, label in zip(modules, _labels(coverage, np.array(modules, int)), strict=True):
        side, away = ("left", 8) if x[module] > 0 else ("right", -8)
        if len(modules) <= DRAWN // 2:
            drawn.add_annotation(
                x=x[module], y=y[module], text=label, showarrow=False, xanchor=side, xshift=away
            )
    drawn.update_xaxes(visible=False, range=[-2.2, 2.2])
    drawn.update_yaxes(visible=False, range=[-1.15, 1.15], scaleanchor="x")
    return drawn.update_layout(height=520)


def rarest(coverage: Coverage, result: dict[str, Any]) -> go.Figure:
    """The values in the fewest combinations."""
    frame = pd.DataFrame(result["rarest"])
    short = [report.shorten(value, NAME) for value in frame["value"]]
    # Names that are cut alike would share a bar.
    frame["value"] = short if len(set(short)) == len(short) else frame["value"]
    frame["value"] = pd.Categorical(frame["value"], frame["value"])
    drawn = figure.bars(
        frame,
        "value",
        "combinations",
        title="The rarest values",
        x_title="",
        y_title="combinations that hold it",
    )
    drawn.update_traces(
        visible=False, selector={"type": "scatter"}
    )  # one row per bar: no dots, no interval
    return drawn.update_traces(error_y={"visible": False}, selector={"type": "bar"})
