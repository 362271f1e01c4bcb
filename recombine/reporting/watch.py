"""How far a sweep is, for whoever looks: as one plain value and as a live picture in the terminal.

A `Sweep` is a folder that a driver may be writing to at this moment. What it tells comes from the status
(`status.py`) and from the rows, which are read again only when they changed. `serve` shows the same in a browser.
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

from recombine.basics.console import duration
from recombine.basics.errors import require
from recombine.basics.suggest import counted
from recombine.reporting.page import PLACES, SCORES, results_table, shorten
from recombine.storage import status
from recombine.storage.table import Table

STYLES = {
    "training": "cyan",
    "finished": "green",
    "failed": "red",
    "stopped": "yellow",
    "interrupted": "yellow",
}
NUM_BINS = 20
MAX_SHOWN = 8  # lines of each list in the terminal
BLOCKS = " ▁▂▃▄▅▆▇█"
NOTHING = pd.DataFrame({"run": [], "step": []})
# What holds where a sweep told nothing about itself.
UNTOLD = {
    "state": "finished",
    "reused": 0,
    "left": None,
    "rate": None,
    "began": None,
    "host": None,
    "command": None,
}
UNTOLD |= {"now": [], "failures": [], "notes": []}


class Sweep:
    """A folder or `.parquet` file of results, read as often as somebody looks."""

    def __init__(self, folder: str | Path):
        self.table = Table(folder)
        self.stamp: Any = None
        self.rows = self.lines = NOTHING
        self.arrived: dict[str, None] = {}  # runs in the order in which they were first met
        self.diverged: list[dict[str, Any]] = []
        self.scores: dict[str, Any] | None = None

    def refresh(self) -> dict[str, Any]:
        """Read the rows again if they changed, and give the metadata."""
        meta = self.table.meta()
        shown = meta.get("shown")
        stamp = [
            _files(self.table),
            shown,
        ]  # taken first: what comes while reading is read the next time
        if stamp != self.stamp:
            rows = self.table.read()
            rows = _in_order(rows.drop_duplicates(["run", "step"]), shown) if len(rows) else NOTHING
            known = rows.drop(columns=["diverged", "diverged_at"], errors="ignore")
            self.rows, self.lines = rows, results_table(known) if len(rows) else NOTHING
            self.arrived |= dict.fromkeys(rows["run"])
            self.diverged, self.scores = _diverged(rows, self.lines), _scores(self.lines)
            self.stamp = stamp
        return meta

    def state(self) -> dict[str, Any]:
        """Everything that the views show, as plain JSON values."""
        path = self.table.path
        held = status.alive(path)  # asked before and after: a sweep may end or begin in between
        told, meta = status.read(path), self.refresh()
        require(
            told is not None or len(self.lines) > 0,
            f"{path} holds no sweep: name the folder (or .parquet file) that `recombine run` writes to",
        )
        told = UNTOLD | (
            told
            or {
                "runs": len(self.lines),
                "finished": len(self.lines),
                "seconds": meta.get("seconds"),
            }
        )
        if told["state"] == "training" and not held and not status.alive(path):
            told["state"] = "interrupted"
        if (
            told["state"] == "training"
        ):  # the time goes on while nothing is told, during a compilation say
            waited = _age(path / status.NAME)
            told["seconds"] += waited
            told["left"] = None if told["left"] is None else max(told["left"] - waited, 0.0)
        else:
            told |= {"now": [], "left": None}
        partly = sum(chunk["runs"] * chunk["step"] / chunk["num_steps"] for chunk in told["now"])
        name = meta.get("experiment", path.stem)
        return plain(
            {
                "folder": str(path),
                "experiment": name,
                "title": meta.get("title", name),
                "scale": meta.get("scale"),
            }
            | told
            | {
                "command": meta.get("command", told["command"]),
                "began": told["began"] or meta.get("date"),
            }
            | {"fraction": min((told["finished"] + partly) / max(told["runs"], 1), 1.0)}
            | {"diverged": self.diverged, "scores": self.scores, "rows": len(self.rows)}
        )


def state(folder: str | Path) -> dict[str, Any]:
    """How far the sweep in a folder is, as plain JSON values."""
    return Sweep(folder).state()


def show(folder: str | Path, once: bool = False, interval: float = 1.0) -> None:
    """Show a sweep in the terminal until it ends; elsewhere, or if asked to, show it once."""
    sweep, console = Sweep(folder), Console()
    now = sweep.state()
    if once or not console.is_terminal:
        console.print(picture(sweep, now, console.width))
        return
    with Live(picture(sweep, now, console.width), console=console, auto_refresh=False) as live:
        while now["state"] == "training":
            time.sleep(interval)
            now = sweep.state()
            live.update(picture(sweep, now, console.width), refresh=True)


def picture(sweep: Sweep, now: dict[str, Any], width: int) -> Group:
    """The state of a sweep for a terminal of this width."""
    style = STYLES.get(now["state"], "")
    bar = RichTable.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_row(
        ProgressBar(1.0, now["fraction"], complete_style=style, finished_style=style),
        f"{now['fraction']:.0%}",
    )
    parts: list[Any] = [
        Text(now["title"], style="bold"),
        Text(now["state"], style=style).append(_where(now), style="dim"),
        bar,
        Text(_counts(now)),
        *_some([Text(f"  {_chunk(chunk)}") for chunk in now["now"]]),
    ]
    if now["scores"] is not None:
        parts.append(Text(_histogram(now["scores"])))
    troubles = _some([Text(line) for line in _troubles(now)])
    if troubles:
        parts.append(
            Panel(Group(*troubles), title="problems", title_align="left", border_style="red")
        )
    if len(sweep.lines):
        parts.append(_latest(sweep, width))
    parts += [Text(note, style="dim") for note in [*now["notes"], _next(now)] if note]
    return Group(*parts)


def plain(value: Any) -> Any:
    """The same with plain numbers, and null where JSON knows no number."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    return (
        None if value is pd.NA or (isinstance(value, float) and not math.isfinite(value)) else value
    )


def swept(lines: pd.DataFrame) -> list[str]:
    """The columns of a table of results that tell its runs apart."""
    return [name for name in lines if name != "run" and "/" not in name]


def _files(table: Table) -> Any:
    if not table.packed:
        return {part.name for part in (table.path / "rows").glob("part-*.parquet")}
    return table.path.stat().st_mtime_ns if table.path.exists() else None


def _in_order(rows: pd.DataFrame, shown: list[str] | None) -> pd.DataFrame:
    """The rows of the last command's runs, in the order of its sweep; the table may hold others too."""
    if shown is None:
        return rows
    place = {run: number for number, run in enumerate(shown)}
    rows = rows.loc[rows["run"].isin(place), :]
    return rows.iloc[np.argsort([place[run] for run in rows["run"]], kind="stable")].reset_index(
        drop=True
    )


def _age(path: Path) -> float:
    try:
        return max(time.time() - path.stat().st_mtime, 0.0)
    except OSError:
        return 0.0


def _diverged(rows: pd.DataFrame, lines: pd.DataFrame) -> list[dict[str, Any]]:
    if "diverged" not in rows:
        return []
    last = rows.groupby("run").tail(1)
    steps = dict(
        zip(last["run"], last["diverged_at"].where(last["diverged"].eq(True)), strict=True)
    )
    return [
        {
            "run": line["run"],
            "what": {name: line[name] for name in swept(lines) if pd.notna(line[name])},
            "reason": f"loss not finite at step {step:.0f}"
            if step >= 0
            else "test loss not finite",
        }
        for line in lines.to_dict("records")
        if pd.notna(step := steps[line["run"]])
    ]


def _scores(lines: pd.DataFrame) -> dict[str, Any] | None:
    """The first kind of test score that there is: best, median and how many runs have how much."""
    for name in [name for name in SCORES if name in lines and name.startswith("test/")]:
        values = lines[name].to_numpy(float)
        values = values[np.isfinite(values)]
        if len(values):
            low = (
                0.0 if values.min() >= 0 else -1.0
            )  # R2 has no lower bound: the first bin holds all below it
            counts, _ = np.histogram(values.clip(low, 1.0), NUM_BINS, (low, 1.0))
            found = {"name": name, "best": values.max(), "median": np.median(values), "low": low}
            return found | {"below": bool(values.min() < low), "counts": counts.tolist()}
    return None


def _where(now: dict[str, Any]) -> str:
    about = ", ".join(str(now[key]) for key in ("experiment", "scale") if now[key])
    began = now["began"] and datetime.datetime.fromisoformat(now["began"])
    since = f", since {began.astimezone():%Y-%m-%d %H:%M}" if began and began.tzinfo else ""
    return f"  {about}" + (f" on {now['host']}" if now["host"] else "") + since


def _counts(now: dict[str, Any]) -> str:
    facts = [f"{now['finished']} of {now['runs']} runs"]
    facts += [f"{now['reused']} reused"] if now["reused"] else []
    facts += [duration(now["seconds"])] if now["seconds"] is not None else []
    facts += [f"{duration(now['left'])} left"] if now["left"] is not None else []
    facts += [f"{now['rate']:,.0f} run-steps/s"] if now["rate"] is not None else []
    return ", ".join(facts)


def _chunk(chunk: dict[str, Any]) -> str:
    score = "" if chunk.get("score") is None else f", test score {chunk['score']:.3f}"
    return f"{chunk['phase']} {_runs(chunk['runs'])}, step {chunk['step']:,} of {chunk['num_steps']:,}{score}"


def _runs(number: int) -> str:
    return counted(number, "run")


def _histogram(scores: dict[str, Any]) -> str:
    most = max(scores["counts"])
    bars = "".join(BLOCKS[math.ceil(count / most * 8)] for count in scores["counts"])
    low = f"{'≤' if scores['below'] else ''}{scores['low']:.0f}"
    return f"{scores['name']}  {low} |{bars}| 1  best {scores['best']:.3f}, median {scores['median']:.3f}"


def _troubles(now: dict[str, Any]) -> list[str]:
    found = [
        f"{_runs(len(failure['runs']))} failed: {failure['reason']}" for failure in now["failures"]
    ]
    for lost in now["diverged"]:
        what = [f"{_label(name)} {shorten(str(value))}" for name, value in lost["what"].items()]
        found.append(f"{', '.join(what) or lost['run']} diverged: {lost['reason']}")
    return found


def _some(lines: list[Text]) -> list[Text]:
    more = len(lines) - MAX_SHOWN
    return lines if more <= 0 else [*lines[:MAX_SHOWN], Text(f"  … and {more} more", style="dim")]


def _latest(sweep: Sweep, width: int) -> RichTable:
    """The runs that finished last, with as many columns as fit."""
    lines = sweep.lines.set_index("run", drop=False)
    latest = lines.loc[[run for run in sweep.arrived if run in lines.index][: -MAX_SHOWN - 1 : -1]]
    told = swept(lines) or ["run"]
    scores = [name for name in lines if name in SCORES]
    cells = {
        name: [_cell(value, name in scores) for value in latest[name]] for name in [*told, *scores]
    }
    names, left_out = list(cells), []
    while (
        len(names) > 1
        and sum(max(map(len, [_label(name), *cells[name]])) + 2 for name in names) > width
    ):
        spare = [name for name in names[1:] if name in told] or names[1:]
        left_out.append(names.pop(names.index(spare[-1])))
    title = (
        f"The latest {len(latest)} of {len(lines)} finished runs"
        if len(latest) < len(lines)
        else "Finished runs"
    )
    hidden = f"no room for {', '.join(map(_label, reversed(left_out)))}" if left_out else None
    table = RichTable(
        title=title, caption=hidden, title_justify="left", caption_justify="left", box=None
    )
    for name in names:
        table.add_column(
            _label(name), justify="right" if name in scores else "left", header_style="dim"
        )
    for row in zip(*(cells[name] for name in names), strict=True):
        table.add_row(*map(Text, row))
    return table


def _label(name: str) -> str:
    return "decodability" if name.startswith(PLACES[2]) else name.rpartition(".")[2]


def _cell(value: Any, score: bool) -> str:
    if pd.isna(value):
        return "NaN" if score else "–"
    if isinstance(value, float):
        return f"{value:.3f}" if score else f"{value:g}"
    return shorten(str(value))


def _next(now: dict[str, Any]) -> str | None:
    if now["state"] == "finished":
        return f"recombine report {now['folder']} makes a page of it"
    if now["state"] == "training":
        return None
    killed = "nobody trains here any more: " if now["state"] == "interrupted" else ""
    return f"{killed}the same command goes on from here: {now['command'] or 'recombine run'}"
