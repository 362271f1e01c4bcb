"""The whole benchmark: the sections for this machine, their rows as a table, and as a page."""

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
COLUMNS = ["section", "name", "value", "unit", "target", "reached", "note"]
INTRODUCTION = (
    "Written by `recombine bench`. A row that begins with … belongs to the row above it.\n"
    "A run-step is one training step of one run; x is a ratio. Paper and Fast are training recipes."
)


class Suite:
    """The sections for this machine.

    After `measure`, `rows` holds what was measured, and `cost` the fitted cost model if there is
    one.
    """

    def __init__(self, quick: bool = False):
        self.quick = quick
        self.peak = 0.0  # TFLOP/s
        self.cost: Cost | None = None
        self.rows = pd.DataFrame()

    def sections(self) -> dict[str, Section]:
        """What is measured, by title: the paper's students on a GPU, small ones on a CPU."""
        sections: dict[str, Section] = {"Upper bound": self._upper_bound}
        if self.quick:
            sections["Compared with a plain loop"] = self._loop_quick
        elif device.on_cpu():
            sections |= self._cpu_sections()
        else:
            sections |= self._gpu_sections()
        return sections

    def measure(self, watch: Callable[[str], None] = lambda _: None) -> Iterator[pd.DataFrame]:
        """Measure one section after another, and yield the rows of each.

        `watch` is called with the title of a section before it is measured.
        """
        for title, section in self.sections().items():
            watch(title)
            frame = pd.DataFrame(section()).assign(section=title, **stamp())
            frame["reached"] = frame["reached"].astype("boolean")
            self.rows = pd.concat([self.rows, frame], ignore_index=True)
            yield frame

    def _gpu_sections(self) -> dict[str, Section]:
        run = paper_fast(diagnostics=(LinearDecodability(),))
        return {
            "The paper's recipe": lambda: speed.throughput(self.peak),
            "Time to the published score": fidelity.quality,
            "Few-shot encoding": fidelity.few_shot,
            "Quickstart student compared with the paper's recipe": fidelity.quickstart,
            "Preference grid": lambda: sampling.preference(1000, 48),
            "Cost by size": self._cost_by_size,
            "Cost of the probe": lambda: speed.decodability(run, 12, 1000),
            "Compilation": lambda: speed.compilation(run),
            "Compared with a plain loop": lambda: speed.compared_with_loop(self.peak, (1024,), 16),
            "Cost by number of runs": lambda: growth.linear(1000, 16),
            "Memory": growth.memory,
        }

    def _cpu_sections(self) -> dict[str, Section]:
        run = Run(num_steps=1000, num_evals=1)
        widths = (16, 64, 128, 256)
        return {
            "Quickstart student compared with the paper's recipe": fidelity.quickstart,
            "Preference grid": lambda: sampling.preference(100, 4),
            "Cost by size": self._cost_by_size,
            "Cost of the probe": lambda: speed.decodability(run, 4, 1000),
            "Compilation": lambda: speed.compilation(run),
            "Compared with a plain loop": lambda: speed.compared_with_loop(self.peak, widths, 8),
            "Cost by number of runs": lambda: growth.linear(1000, 4),
            "Memory": growth.memory,
        }

    def _upper_bound(self) -> list[speed.Row]:
        rows = speed.matrix_product()
        self.peak = max(row["value"] for row in rows)
        return rows

    def _loop_quick(self) -> list[speed.Row]:
        on_cpu = device.on_cpu()
        return speed.compared_with_loop(
            self.peak,
            widths=(32, 128) if on_cpu else (64,),
            num_runs=4 if on_cpu else 16,
            seconds=0.7,
            recipes=(Fast(),),
            alone=False,
        )

    def _cost_by_size(self) -> list[speed.Row]:
        rows, self.cost = growth.growth(num_steps=300)
        return rows


def summary(rows: pd.DataFrame) -> dict[str, Any]:
    """The rows as JSON values, with device, versions and date, and the targets that were missed."""
    about = rows.iloc[0][list(stamp())].to_dict()
    records = json.loads(str(rows[COLUMNS].to_json(orient="records")))
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


def format_row(row: Any) -> tuple[str, str, str, str]:
    """A row as text: name, value with its unit, target with its verdict, note."""
    target = f"{row.target} {'reached' if row.reached else 'NOT reached'}" if row.target else ""
    if abs(row.value) >= 100:
        number = f"{row.value:,.0f}"
    elif row.unit == "R2":
        number = f"{row.value:.4f}"
    else:
        number = f"{row.value:.3g}"
    return row.name, f"{number} {row.unit}", target, row.note


def markdown(*frames: pd.DataFrame) -> str:
    """The page of the tables of one or several machines."""
    lines = ["# Benchmark", "", INTRODUCTION, ""]
    for frame in frames:
        first = frame.iloc[0]
        lines += [f"## {first['device']} ({first['cores']} host cores)", ""]
        versions = f"Recombine {first['recombine']}, jax {first['jax']}, Python {first['python']}"
        lines += [f"{versions}, {first['date']}", ""]
        for title, rows in frame.groupby("section", sort=False):
            lines += [f"### {title}", ""]
            date = rows["date"].iloc[0]
            if date != first["date"]:
                lines += [f"Measured on {date}.", ""]
            lines += ["| measurement | value | target | note |", "|---|---|---|---|"]
            for row in rows.drop(columns="section").itertuples():
                lines.append(f"| {' | '.join(format_row(row))} |")
            lines.append("")
    return "\n".join(lines)
