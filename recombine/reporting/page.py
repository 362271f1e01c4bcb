"""Rows and figures to one HTML page that needs nothing but itself: no server, no network, no web fonts.

The page tells what was claimed, what came out, every run, and the command that makes it again. Its frame is
`report.html`; everything put into it is escaped here.
"""

from __future__ import annotations

import base64
import html
import inspect
import json
import math
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd

from recombine.basics.console import duration
from recombine.basics.errors import InputError, require
from recombine.basics.suggest import counted
from recombine.reporting import unit_activity
from recombine.storage.table import Table, replace

PLACES = ("seen", "test", "LinearDecodability/deepest/test")
SCORES = [
    f"{place}/{score}" for score in ("r2", "accuracy", "trajectory_accuracy") for place in PLACES
]
MAX_LINES = 500


def write(table: Table, out: Path) -> Path:
    """Write the report of a table to a file, or to `report.html` in a folder, and return its path."""
    return save(page(table), out / "report.html" if out.is_dir() else out)


def save(text: str, out: Path) -> Path:
    """Write a page to a file and return its path."""
    try:
        require(not out.is_dir(), f"{out} is a folder: name a file for the report")
        require(
            out.is_file() or not out.exists(),
            f"{out} is not a file: name another one for the report",
        )
        return replace(out, text.encode())
    except OSError as error:
        raise InputError(
            f"cannot write the report to {out} ({error.strerror}): name another file"
        ) from error


def page(table: Table) -> str:
    """Return the report of a table as one self-contained HTML page."""
    rows, meta, figures = table.read(), table.meta(), table.figures()
    if "shown" in meta and len(rows):  # the last command's runs; the table may hold others too
        rows = rows.loc[rows["run"].isin(meta["shown"]), :]
    command = meta.get("command", "recombine run NAME")
    require(len(rows) > 0, f"{table.path} holds no rows to report: run `{command}` first")
    name = str(meta.get("experiment", table.path.stem))
    dead_units = unit_activity.summary_line(rows)
    return filled(
        title=str(meta.get("title", name)),
        kind=f"Recombine experiment: {name}"
        + (f", {meta['scale']} scale" if "scale" in meta else ""),
        description=meta.get("description") or "",
        summary=meta.get("summary") or {},
        figures=figures | unit_activity.figures(rows),
        notes=[] if dead_units is None else [dead_units],
        warnings=unit_activity.warnings(rows),
        results=_results(results_table(rows), name),
        making=_making(meta, _made_with(rows), table.path),
    )


def filled(
    title: str,
    kind: str,
    description: str,
    summary: dict[str, Any],
    figures: dict[str, str],
    results: str,
    making: str,
    heading: str = "Results",
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> str:
    """The frame with plain text and figures put into it; `results` and `making` are HTML, escaped already.

    `notes` and `warnings` are plain sentences below the summary.
    """
    frame = Template(
        resources.files("recombine.reporting")
        .joinpath("templates", "report.html")
        .read_text(encoding="utf-8")
    )
    return frame.substitute(
        title=escaped(title),
        kind=escaped(kind),
        description=_description(description),
        summary=pairs("summary", summary)
        + _sentences("note", notes)
        + _sentences("warning", warnings),
        figures="\n".join(_figure(number, *item) for number, item in enumerate(figures.items())),
        heading=escaped(heading),
        results=results,
        making=making,
        plotly=_plotly() if figures else "",
    )


def _made_with(rows: pd.DataFrame) -> dict[str, str]:
    """What a reader should know of how the runs were made: several versions or devices, memory that was short."""
    last, told = rows.groupby("run").tail(1), {}
    for word in [word for word in ("jax", "code", "device") if f"meta/{word}" in last]:
        counts = last[f"meta/{word}"].fillna("unknown").value_counts().sort_index()
        if len(counts) > 1:
            told[f"{word}, mixed"] = ", ".join(
                f"{value} ({counted(n, 'run')})" for value, n in counts.items()
            )
    notes = set(last["meta/note"].dropna() if "meta/note" in last else ()) - {""}
    return told | ({"notes": "; ".join(sorted(notes))} if notes else {})


def escaped(value: Any) -> str:
    """A value as text that no page takes for its own; numbers to three decimals or digits."""
    return number(value) if isinstance(value, float) else html.escape(str(value))


def number(value: float) -> str:
    """A number as a reader wants it: whole as it is, else to three decimals unless they would hide or drown it."""
    if math.isnan(value):
        return "not known"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == round(value) and abs(value) < 1e6:
        return str(round(value))
    return f"{value:.3f}" if 1e-2 <= abs(value) < 1e4 else f"{value:.3g}"


def _description(text: str) -> str:
    """Paragraphs, the first of them as the lead; indented ones are code."""
    blocks = [block for block in re.split(r"\n[ \t]*\n", inspect.cleandoc(text)) if block.strip()]
    return "\n".join(
        _paragraph(block, "lead" if number == 0 else "") for number, block in enumerate(blocks)
    )


def _paragraph(block: str, kind: str) -> str:
    if all(line.startswith("  ") for line in block.splitlines()):
        return f"<pre>{escaped(inspect.cleandoc(block))}</pre>"
    # "Command: …", "Runtime: …": a label begins a line of its own.
    lines = [escaped(" ".join(line.split())) for line in re.split(r"\n(?=[A-Z]\w+:\s)", block)]
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", "<br>\n".join(lines))
    return f'<p class="{kind}">{marked}</p>'


def pairs(kind: str, told: dict[str, Any]) -> str:
    """Names and values, beside each other."""
    items = [
        f"<div><dt>{escaped(key)}</dt><dd>{escaped(value)}</dd></div>"
        for key, value in told.items()
    ]
    return f'<dl class="{kind}">{"".join(items)}</dl>' if items else ""


def _sentences(kind: str, lines: Sequence[str]) -> str:
    return "".join(f'\n<p class="{kind}">{escaped(line)}</p>' for line in lines)


def _figure(number: int, name: str, text: str) -> str:
    """The place and the data of one figure; its title becomes the caption, where it can wrap."""
    try:
        figure = json.loads(text)
        layout = figure["layout"]
        title = layout.pop("title", None) or name
        caption = escaped(title.get("text", name) if isinstance(title, dict) else title)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"figure {name!r} is not Plotly JSON ({error}): run the experiment again"
        ) from error
    layout["margin"] = layout.get("margin", {}) | {"t": 20}
    data = json.dumps(figure).replace("<", r"\u003c")  # nothing in the data may end the script
    height = layout.get("height")
    low = (
        f' style="min-height: {height}px"' if isinstance(height, int) else ""
    )  # no blank room below a low one
    place = f'<div class="chart"{low} data-figure="figure{number}" role="img" aria-label="{caption}"></div>'
    return (
        f"<figure><figcaption>{caption}</figcaption>\n{place}</figure>\n"
        f'<script type="application/json" id="figure{number}">{data}</script>'
    )


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return f"<script>{get_plotlyjs()}</script>"


def results_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per run, at its last step: what differs between the runs, and how they scored."""
    last = rows.groupby("run").tail(1)
    described = [name for name in last if "/" not in name and name not in ("run", "step")]
    ends = rows[rows["step"] == rows.groupby("run")["step"].transform("last")]
    if len(ends) > len(
        last
    ):  # a computed cell may have many rows: what differs between them does not describe it
        differing: Any = ends.groupby("run")[described].nunique(dropna=False).max() > 1
        described = [name for name in described if not differing[name]]
    swept = [name for name in described if len(last[name].drop_duplicates()) > 1]
    # Fields that only some parts have are left out where the runs differ without them: the part's name says it.
    for name in [name for name in reversed(swept) if bool(last[name].isna().any())]:
        others = [other for other in swept if other != name]
        if len(last[others].drop_duplicates()) == len(last[swept].drop_duplicates()):
            swept = others
    scores = [name for name in SCORES if name in last]
    scores = [
        name for name in scores if bool(last[name].notna().any())
    ] or scores  # another family's are left out
    ordered = last.sort_values(swept or ["run"], key=_sortable)
    return ordered.loc[:, ["run", *swept, *scores]]


def _sortable(values: pd.Series) -> pd.Series:
    # 16x16 before 128x128: numbers inside text are compared as numbers.
    return (
        values
        if _numeric(values)
        else values.astype(str).str.replace(r"\d+", lambda m: m[0].zfill(9), regex=True)
    )


def _numeric(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _results(lines: pd.DataFrame, name: str) -> str:
    # A run's hash tells a reader nothing where the swept columns tell the runs apart.
    told = (
        lines.drop(columns="run")
        if any("/" not in column for column in lines.columns[1:])
        else lines
    )
    return listing(
        told,
        "Results of every run",
        f"{counted(len(lines), 'run')}, each at its last step",
        name,
        lines,
    )


def listing(
    told: pd.DataFrame, label: str, note: str, name: str, whole: pd.DataFrame | None = None
) -> str:
    """Lines as a table that a reader can sort, and all of them (or what they were made from) to download as CSV."""
    csv = base64.b64encode((told if whole is None else whole).to_csv(index=False).encode()).decode()
    cut = f"; the first {MAX_LINES} are shown" if len(told) > MAX_LINES else ""
    heads, cells = zip(
        *(_column(str(key), values) for key, values in told.head(MAX_LINES).items()), strict=True
    )
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in zip(*cells, strict=True))
    return (
        f'<p class="soft">{escaped(note)}{cut}. <a class="download" '
        f'download="{escaped(name)}.csv" href="data:text/csv;base64,{csv}">All as CSV</a></p>\n'
        f'<div class="rows" tabindex="0" role="region" aria-label="{escaped(label)}">\n'
        f"<table><thead><tr>{''.join(heads)}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _column(name: str, values: pd.Series) -> tuple[str, list[str]]:
    kind = ' class="number"' if _numeric(values) else ""
    label = escaped(name).replace("/", "/<wbr>") if len(name) > 20 else escaped(name)
    head = f'<th scope="col"{kind}><button type="button">{label}</button></th>'
    return head, [f"<td{kind}>{_cell(value, name in SCORES)}</td>" for value in values]


def _cell(value: Any, score: bool) -> str:
    if pd.isna(value):
        return "NaN" if score else "–"
    if isinstance(value, float):
        # Adding zero turns -0.0 into 0.0.
        return f"{round(value, 3) + 0:.3f}" if score and abs(value) < 1e4 else f"{value:g}"
    return escaped(shorten(str(value)))


def shorten(text: str, most: int = 40) -> str:
    """A long value cut to what fits a cell; the CSV has it whole."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _making(meta: dict[str, Any], made_with: dict[str, str], path: Path) -> str:
    command = f"<pre>{escaped(meta['command'])}</pre>\n" if "command" in meta else ""
    facts = {
        key: meta[key] for key in ("date", "scale", "device", "runs", "programs") if key in meta
    }
    if "seconds" in meta:
        facts["time"] = duration(meta["seconds"])
    if meta.get("versions"):
        facts["versions"] = ", ".join(
            f"{name} {version}" for name, version in meta["versions"].items()
        )
    return command + pairs("facts", facts | made_with | {"rows": path})
