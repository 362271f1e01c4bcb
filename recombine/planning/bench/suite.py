"""The whole benchmark: which sections a machine runs, their rows as a table, and that table as a page."""

import datetime
import json
import platform
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pandas as pd

from recombine.basics.version import __version__
from recombine.parts.diagnostics.linear_decodability import LinearDecodability
from recombine.parts.recipes.fast import Fast
from recombine.planning.bench import fidelity, growth, sampling, speed
from recombine.sweeps.run import Run, paper_fast
from recombine.training import device
from recombine.training.cost import Cost

Section = Callable[[], list[speed.Row]]


class Suite:
    """The sections of one machine. After a run, `rows` holds what was measured and `cost` the fitted model, if any."""

    def __init__(self, quick: bool = False):
        self.quick, self.best = quick, 0.0
        self.cost: Cost | None = None
        self.rows = pd.DataFrame()

    def sections(self) -> dict[str, Section]:
        """What is measured, by title: the paper's work on an accelerator, small students on a CPU."""
        quick, gpu = self.quick, not device.on_cpu()
        large = paper_fast(diagnostics=(LinearDecodability(),))
        small = Run(num_steps=1000, num_evals=1)
        tiny = {
            "widths": (64,) if gpu else (32, 128),
            "num_runs": 16 if gpu else 4,
            "recipes": (Fast(),),
        }
        found: dict[str, Section] = {"Ceiling": self._ceiling}
        if quick:
            found["Against a plain loop"] = lambda: speed.against_plain(
                self.best, **tiny, seconds=0.7, alone=False
            )
            return found
        if gpu:
            found["The paper's recipe"] = lambda: speed.throughput(self.best)
            found["Time to the published quality"] = fidelity.quality
            found["Few-shot encoding"] = fidelity.few_shot
        found["Quickstart's student compared with the paper's recipe"] = fidelity.quickstart
        found["Preference grid"] = lambda: sampling.preference(
            1000 if gpu else 100, 48 if gpu else 4
        )
        found["Growth"] = lambda: self._growth(300)
        widths = (1024,) if gpu else (16, 64, 128, 256)
        found["Decodability"] = lambda: speed.decodability(
            large if gpu else small, 12 if gpu else 4, 1000
        )
        found["Compilation"] = lambda: speed.compilation(large if gpu else small)
        found["Against a plain loop"] = lambda: speed.against_plain(
            self.best, widths, 16 if gpu else 8
        )
        found["Sweeps"] = lambda: growth.linear(1000, 16 if gpu else 4)
        found["Memory"] = growth.memory
        return found

    def measure(self, watch: Callable[[str], None] = lambda _: None) -> Iterator[pd.DataFrame]:
        """Measure section after section; each one's rows come as soon as they are there."""
        for title, section in self.sections().items():
            watch(title)
            frame = pd.DataFrame(section()).assign(section=title, **stamp())
            frame["reached"] = frame["reached"].astype("boolean")
            self.rows = pd.concat([self.rows, frame], ignore_index=True)
            yield frame

    def _ceiling(self) -> list[speed.Row]:
        rows = speed.ceiling()
        self.best = max(row["value"] for row in rows)
        return rows

    def _growth(self, num_steps: int) -> list[speed.Row]:
        rows, self.cost = growth.growth(num_steps)
        return rows


def summary(rows: pd.DataFrame) -> dict[str, Any]:
    """The rows as JSON would have them, with device, versions and date, and the targets that were missed."""
    about = rows.iloc[0][list(stamp())].to_dict()
    columns = ["section", "name", "value", "unit", "target", "reached", "note"]
    records = json.loads(str(rows[columns].to_json(orient="records")))
    return about | {"rows": records, "missed": rows[rows["reached"].eq(False)]["name"].tolist()}


def stamp() -> dict[str, str]:
    """Where and when: device, versions, date."""
    return {
        "device": jax.devices()[0].device_kind,
        "cores": str(device.num_cores()),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "recombine": __version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def shown(row: Any) -> tuple[str, str, str, str]:
    """A row for people: name, number with its unit, target with its verdict, note."""
    target = f"{row.target} {'reached' if row.reached else 'NOT reached'}" if row.target else ""
    digits = 4 if row.unit == "R2" else 3
    number = (
        f"{row.value:,.0f}"
        if abs(row.value) >= 100
        else f"{row.value:.{digits}{'f' if row.unit == 'R2' else 'g'}}"
    )
    return row.name, f"{number} {row.unit}", target, row.note


def markdown(*frames: pd.DataFrame) -> str:
    """The page of one or several machines' tables."""
    lines = [
        "# Benchmark",
        "",
        "Made by `recombine bench`; a line that begins with … belongs to the one above it.",
        "",
    ]
    for frame in frames:
        first = frame.iloc[0]
        where = f"{first['device']} ({first['cores']} host cores)"
        versions = f"Recombine {first['recombine']}, jax {first['jax']}, Python {first['python']}, {first['date']}"
        lines += [f"## {where}", "", versions, ""]
        for title, rows in frame.groupby("section", sort=False):
            lines += [f"### {title}", ""]
            if rows["date"].iloc[0] != first["date"]:
                lines += [f"Measured on {rows['date'].iloc[0]}.", ""]
            lines += ["| what | measured | target | |", "|---|---|---|---|"]
            lines += [
                "| " + " | ".join(shown(row)) + " |"
                for row in rows.drop(columns="section").itertuples()
            ]
            lines.append("")
    return "\n".join(lines)
