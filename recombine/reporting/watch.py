"""The progress of a sweep, as plain values and as a live view in the terminal.

A `Sweep` is a folder that a process may be writing to. Its state comes from the status file
(`status.py`) and from the rows, which are read again only when they change. `serve` shows the same
state in a browser.
"""

from __future__ import annotations

import datetime
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from recombine.basics.console import duration, printable
from recombine.basics.errors import require
from recombine.basics.suggest import counted
from recombine.reporting.page import SCORE_COLUMNS, results_table, shorten
from recombine.storage import status
from recombine.storage.table import Table

STYLES = {
    "training": "cyan",
    "finished": "green",
    "failed": "red",
    "stopped": "yellow",
    "interrupted": "yellow",
}
NUM_BINS = 20  # of the histogram of scores
MAX_LISTED = 8  # lines of each list in the terminal
BLOCKS = " ▁▂▃▄▅▆▇█"
NO_ROWS = pd.DataFrame({"run": [], "step": []})
DECODABILITY = "LinearDecodability/deepest/test"
# The state of a sweep without a status file.
DEFAULT_STATUS = {
    "state": "finished",
    "reused": 0,
    "left": None,
    "rate": None,
    "began": None,
    "host": None,
    "command": None,
    "now": [],
    "failures": [],
    "notes": [],
}


class Sweep:
    """A folder or `.parquet` file of results. Its rows are read again when they change.

    `lines` is the table of results, with a line per finished run. `version` identifies the rows
    that were read last.
    """

    def __init__(self, folder: str | Path):
        self.table = Table(folder)
        self.version: Any = None
        self.rows = NO_ROWS
        self.lines = NO_ROWS
        self.arrived: dict[str, None] = {}  # runs in the order in which they finished
        self.diverged: list[dict[str, Any]] = []
        self.scores: dict[str, Any] | None = None

    def refresh(self) -> dict[str, Any]:
        """Read the rows again if they changed, and return the metadata."""
        meta = self.table.meta()
        last_runs = meta.get("shown")  # of the last command
        # Taken before reading: rows that arrive in between are read by the next call.
        version = [_row_files(self.table), last_runs]
        if version != self.version:
            self._read_rows(last_runs)
            self.version = version
        return meta

    def _read_rows(self, last_runs: list[str] | None) -> None:
        rows = self.table.read()
        if len(rows):
            rows = _in_order(rows.drop_duplicates(["run", "step"]), last_runs)
        self.rows = rows if len(rows) else NO_ROWS
        described = self.rows.drop(columns=["diverged", "diverged_at"], errors="ignore")
        self.lines = results_table(described) if len(rows) else NO_ROWS
        self.arrived |= dict.fromkeys(self.rows["run"])
        self.diverged = _diverged(self.rows, self.lines)
        self.scores = _score_summary(self.lines)

    def state(self) -> dict[str, Any]:
        """Everything that the views show, as plain JSON values."""
        path = self.table.path
        # Checked before and after reading: a sweep may end or begin in between.
        was_active = status.is_active(path)
        known = status.read(path)
        meta = self.refresh()
        require(
            known is not None or len(self.lines) > 0,
            f"{path} has no results of a sweep: give the folder (or .parquet file) that "
            "`recombine run --out` wrote",
        )
        if known is None:
            number = len(self.lines)
            known = {"runs": number, "finished": number, "seconds": meta.get("seconds")}
        current = DEFAULT_STATUS | known
        if current["state"] == "training" and not was_active and not status.is_active(path):
            current["state"] = "interrupted"
        current |= _times(current, path)
        name = meta.get("experiment", path.stem)
        state = {
            "folder": str(path),
            "experiment": name,
            "title": meta.get("title", name),
            "scale": meta.get("scale"),
        }
        state |= current
        state |= {
            "command": meta.get("command", current["command"]),
            "began": current["began"] or meta.get("date"),
            "fraction": _fraction_done(current),
            "diverged": self.diverged,
            "scores": self.scores,
            "rows": len(self.rows),
        }
        return to_json_values(state)


def state(folder: str | Path) -> dict[str, Any]:
    """The state of the sweep in a folder, as plain JSON values."""
    return Sweep(folder).state()


def show(folder: str | Path, once: bool = False, interval: float = 1.0) -> None:
    """Show a sweep in the terminal until it ends; once, if asked to or without a terminal."""
    sweep = Sweep(folder)
    console = Console()
    current = sweep.state()
    if once or not console.is_terminal:
        console.print(view(sweep, current, console.width))
        return
    first_view = view(sweep, current, console.width)
    with Live(first_view, console=console, auto_refresh=False) as live:
        while current["state"] == "training":
            time.sleep(interval)
            current = sweep.state()
            live.update(view(sweep, current, console.width), refresh=True)


def view(sweep: Sweep, state: dict[str, Any], width: int) -> Group:
    """The state of a sweep for a terminal of this width."""
    style = STYLES.get(state["state"], "")
    parts: list[Any] = [
        Text(state["title"], style="bold"),
        Text(state["state"], style=style).append(_origin(state), style="dim"),
        _progress_bar(state["fraction"], style),
        Text(_counts(state)),
        *_at_most_listed([Text(f"  {_chunk(chunk)}") for chunk in state["now"]]),
    ]
    if state["scores"] is not None:
        parts.append(Text(_histogram(state["scores"])))
    problems = _at_most_listed([Text(line) for line in _problems(state)])
    if problems:
        panel = Panel(Group(*problems), title="problems", title_align="left", border_style="red")
        parts.append(panel)
    if len(sweep.lines):
        parts.append(_latest_runs(sweep, width))
    for note in [*state["notes"], _next_command(state)]:
        if note:
            parts.append(Text(note, style="dim"))
    return Group(*parts)


def to_json_values(value: Any) -> Any:
    """The same value for JSON: plain numbers, None for NaN and infinity, and printable text."""
    if isinstance(value, dict):
        return {str(key): to_json_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_json_values(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    is_not_finite = isinstance(value, float) and not math.isfinite(value)
    if isinstance(value, str):
        return printable(value)
    return None if value is pd.NA or is_not_finite else value


def swept_columns(lines: pd.DataFrame) -> list[str]:
    """The columns of a table of results that differ between its runs."""
    return [name for name in lines if name != "run" and "/" not in name]


def _row_files(table: Table) -> Any:
    """A value that changes when the rows of a table change."""
    if not table.packed:
        return {part.name for part in (table.path / "rows").glob("part-*.parquet")}
    return table.path.stat().st_mtime_ns if table.path.exists() else None


def _in_order(rows: pd.DataFrame, last_runs: list[str] | None) -> pd.DataFrame:
    """The rows of the last command's runs, in its order. The table may hold other runs too."""
    if last_runs is None:
        return rows
    positions = {run: position for position, run in enumerate(last_runs)}
    rows = rows.loc[rows["run"].isin(positions), :]
    order = np.argsort([positions[run] for run in rows["run"]], kind="stable")
    return rows.iloc[order].reset_index(drop=True)


def _times(current: dict[str, Any], path: Path) -> dict[str, Any]:
    """The seconds spent and left now. The status file can be old, e.g. during a compilation."""
    if current["state"] != "training":
        return {"now": [], "left": None}
    age = _age(path / status.NAME)
    left = current["left"]
    return {
        "seconds": current["seconds"] + age,
        "left": None if left is None else max(left - age, 0.0),
    }


def _age(path: Path) -> float:
    """The seconds since a file was written."""
    try:
        return max(time.time() - path.stat().st_mtime, 0.0)
    except OSError:
        return 0.0


def _fraction_done(current: dict[str, Any]) -> float:
    """The fraction of all runs that is done; runs that train count in part."""
    in_progress = sum(
        chunk["runs"] * chunk["step"] / chunk["num_steps"] for chunk in current["now"]
    )
    return min((current["finished"] + in_progress) / max(current["runs"], 1), 1.0)


def _diverged(rows: pd.DataFrame, lines: pd.DataFrame) -> list[dict[str, Any]]:
    """The runs that diverged: what distinguishes each of them, and when it happened."""
    if "diverged" not in rows:
        return []
    last = rows.groupby("run").tail(1)
    steps = last["diverged_at"].where(last["diverged"].eq(True))
    step_by_run = dict(zip(last["run"], steps, strict=True))
    diverged = []
    for line in lines.to_dict("records"):
        step = step_by_run[line["run"]]
        if pd.isna(step):
            continue
        during_training = step >= 0
        loss = f"loss not finite at step {step:.0f}" if during_training else "test loss not finite"
        fields = {name: line[name] for name in swept_columns(lines) if pd.notna(line[name])}
        diverged.append({"run": line["run"], "what": fields, "reason": loss})
    return diverged


def _score_summary(lines: pd.DataFrame) -> dict[str, Any] | None:
    """Best, median and histogram of the first test score that was measured."""
    for name in SCORE_COLUMNS:
        if name not in lines or not name.startswith("test/"):
            continue
        values = lines[name].to_numpy(float)
        values = values[np.isfinite(values)]
        if not len(values):
            continue
        # R2 has no lower bound: the first bin also counts all values below it.
        low = 0.0 if values.min() >= 0 else -1.0
        counts, _ = np.histogram(values.clip(low, 1.0), NUM_BINS, (low, 1.0))
        return {
            "name": name,
            "best": values.max(),
            "median": np.median(values),
            "low": low,
            "below": bool(values.min() < low),
            "counts": counts.tolist(),
        }
    return None


def _progress_bar(fraction: float, style: str) -> RichTable:
    row = RichTable.grid(padding=(0, 1), expand=True)
    row.add_column(ratio=1)
    bar = ProgressBar(1.0, fraction, complete_style=style, finished_style=style)
    row.add_row(bar, f"{fraction:.0%}")
    return row


def _origin(state: dict[str, Any]) -> str:
    """The experiment, its scale, the machine, and when it began."""
    text = f"  {state['experiment']}"
    if state["scale"]:
        text += f", {state['scale']} scale"
    if state["host"]:
        text += f" on {state['host']}"
    began = state["began"] and datetime.datetime.fromisoformat(state["began"])
    if began and began.tzinfo:
        text += f", started {began.astimezone():%Y-%m-%d %H:%M}"
    return text


def _counts(state: dict[str, Any]) -> str:
    facts = [f"{state['finished']} of {state['runs']} runs"]
    if state["reused"]:
        facts.append(f"{state['reused']} reused")
    if state["seconds"] is not None:
        facts.append(duration(state["seconds"]))
    if state["left"] is not None:
        facts.append(f"{duration(state['left'])} left")
    if state["rate"] is not None:
        facts.append(f"{state['rate']:,.0f} run-steps/s")
    return ", ".join(facts)


def _chunk(chunk: dict[str, Any]) -> str:
    runs = counted(chunk["runs"], "run")
    text = f"{chunk['phase']} {runs}, step {chunk['step']:,} of {chunk['num_steps']:,}"
    if chunk.get("score") is not None:
        text += f", test score {chunk['score']:.3f}"
    return text


def _histogram(scores: dict[str, Any]) -> str:
    highest = max(scores["counts"])
    bars = "".join(BLOCKS[math.ceil(count / highest * 8)] for count in scores["counts"])
    low = f"{'≤' if scores['below'] else ''}{scores['low']:.0f}"
    summary = f"best {scores['best']:.3f}, median {scores['median']:.3f}"
    return f"{scores['name']}  {low} |{bars}| 1  {summary}"


def _problems(state: dict[str, Any]) -> list[str]:
    """The runs that failed or diverged, a line for each."""
    problems = []
    for failure in state["failures"]:
        problems.append(f"{counted(len(failure['runs']), 'run')} failed: {failure['reason']}")
    for run in state["diverged"]:
        fields = [f"{_label(name)} {shorten(str(value))}" for name, value in run["what"].items()]
        problems.append(f"{', '.join(fields) or run['run']} diverged: {run['reason']}")
    return problems


def _at_most_listed(lines: list[Text]) -> list[Text]:
    """The first lines, and the number of those that are left out."""
    num_more = len(lines) - MAX_LISTED
    if num_more <= 0:
        return lines
    return [*lines[:MAX_LISTED], Text(f"  … and {num_more} more", style="dim")]


def _latest_runs(sweep: Sweep, width: int) -> RichTable:
    """The runs that finished last, with as many columns as fit."""
    lines = sweep.lines.set_index("run", drop=False)
    finished = [run for run in sweep.arrived if run in lines.index]
    latest = lines.loc[finished[: -MAX_LISTED - 1 : -1]]
    fields = swept_columns(lines) or ["run"]
    scores = [name for name in lines if name in SCORE_COLUMNS]
    cells = {
        name: [_cell(value, name in scores) for value in latest[name]]
        for name in [*fields, *scores]
    }
    names, left_out = _fit_columns(cells, fields, width)
    title = "Finished runs"
    if len(latest) < len(lines):
        title = f"The latest {len(latest)} of {len(lines)} finished runs"
    table = RichTable(
        title=title,
        caption=f"columns that do not fit: {', '.join(map(_label, left_out))}"
        if left_out
        else None,
        title_justify="left",
        caption_justify="left",
        box=None,
    )
    for name in names:
        justify = "right" if name in scores else "left"
        table.add_column(_label(name), justify=justify, header_style="dim")
    for row in zip(*(cells[name] for name in names), strict=True):
        table.add_row(*map(Text, row))
    return table


def _fit_columns(
    cells: dict[str, list[str]], fields: list[str], width: int
) -> tuple[list[str], list[str]]:
    """The columns that fit into a width, and the others. Fields are left out before scores."""
    widths = {name: max(map(len, [_label(name), *texts])) + 2 for name, texts in cells.items()}
    names = list(cells)
    left_out = []
    while len(names) > 1 and sum(widths[name] for name in names) > width:
        removable = [name for name in names[1:] if name in fields] or names[1:]
        names.remove(removable[-1])
        left_out.insert(0, removable[-1])
    return names, left_out


def _label(name: str) -> str:
    """A short name of a column."""
    return "decodability" if name.startswith(DECODABILITY) else name.rpartition(".")[2]


def _cell(value: Any, is_score: bool) -> str:
    if pd.isna(value):
        return "NaN" if is_score else "–"
    if isinstance(value, float):
        return f"{value:.3f}" if is_score else f"{value:g}"
    return shorten(printable(str(value)))


def _next_command(state: dict[str, Any]) -> str | None:
    """What to run next: the report of a finished sweep, or the command that continues it."""
    if state["state"] == "training":
        return None
    if state["state"] == "finished":
        return f"write a page: recombine report {state['folder']}"
    command = f"continue with the same command: {state['command'] or 'recombine run'}"
    if state["state"] == "interrupted":
        return f"training was interrupted; {command}"
    return command
