"""Turn rows and figures into one self-contained HTML page: no server, no network, no web fonts.

The page has the claim, a summary, the figures, the results of every run, and the command that
produced them. Its template is `templates/report.html`. Everything that is put into it is escaped
here.
"""

from __future__ import annotations

import base64
import contextlib
import html
import inspect
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd

from recombine.basics.atomic_io import write_atomically
from recombine.basics.console import duration
from recombine.basics.errors import InputError, require
from recombine.basics.suggest import counted
from recombine.reporting import unit_activity, unseen_features
from recombine.storage.table import Table

METRICS = ("r2", "accuracy", "trajectory_accuracy")
# The beginning of each score's column, and what the score is measured on.
SCORE_PREFIXES = {
    "seen": "new samples of the train tasks",
    "test": "held-out combinations",
    "LinearDecodability/deepest/test": (
        "linear decodability of the modules from the deepest layer, on held-out combinations"
    ),
}
SCORE_COLUMNS = [f"{prefix}/{metric}" for metric in METRICS for prefix in SCORE_PREFIXES]
MAX_TABLE_ROWS = 500
MAX_CELL_LENGTH = 40  # characters
MIN_LENGTH_TO_WRAP = 20  # a longer column name may be broken at a slash
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # in the cell of a spreadsheet
# Row columns that describe how a run was made, and their labels on the page.
ORIGINS = {"jax": "jax versions", "code": "code versions", "device": "devices"}
# Older rows do not have these columns. They do not count as a difference.
LATER_ORIGINS = {
    "num_devices": "numbers of devices",
    "cpu": "CPUs",
    "xla_flags": "XLA flags",
    "settings": "JAX settings",
    "libraries": "library versions",
}


FIGURE_LEGEND = (
    "In the figures, large markers and bars are means over runs, and faint dots are single runs. "
    "Error bars show 95% bootstrap intervals; below eight runs, the range. Triangles at the edge "
    "are values outside the axis."
)


def write(table: Table, out: Path) -> Path:
    """Write the report of a table to a file, or to `report.html` in a folder; return its path."""
    with contextlib.suppress(OSError):  # the name is too long: `save` reports it
        if out.is_dir():
            out = out / "report.html"
    return save(page(table), out)


def save(text: str, out: Path) -> Path:
    """Write a page to a file and return its path."""
    try:
        require(not out.is_dir(), f"{out} is a folder: name a file for the report")
        require(
            out.is_file() or not out.exists(),
            f"{out} is not a regular file: name another file for the report",
        )
        return write_atomically(out, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise InputError(
            f"cannot write the report to {out} ({error.strerror}): name another file"
        ) from error


def page(table: Table) -> str:
    """The report of a table as one self-contained HTML page."""
    rows = table.read()
    meta = table.meta()
    if "shown" in meta and len(rows):  # the runs of the last command; the table may hold others
        rows = rows.loc[rows["run"].isin(meta["shown"]), :]
    command = meta.get("command", "recombine run NAME")
    require(len(rows) > 0, f"{table.path} has no results to report: run `{command}` first")
    name = str(meta.get("experiment", table.path.stem))
    scale = f", {meta['scale']} scale" if "scale" in meta else ""
    notes = [unit_activity.summary_line(rows), unseen_features.summary_line(rows)]
    return render(
        title=str(meta.get("title", name)),
        category=f"Recombine experiment: {name}{scale}",
        description=meta.get("description") or "",
        summary=meta.get("summary") or {},
        figures=table.figures() | unit_activity.figures(rows),
        figure_legend=FIGURE_LEGEND,
        notes=[note for note in notes if note is not None],
        warnings=unit_activity.warnings(rows),
        results=_results(results_table(rows), name),
        origin=_origin(meta, rows, table.path),
    )


def render(
    title: str,
    category: str,
    description: str,
    summary: Mapping[str, Any],
    figures: Mapping[str, str],
    results: str,
    origin: str,
    heading: str = "Results",
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
    figure_legend: str = "",
) -> str:
    """Fill the template of a page.

    `category` is the line above the title. `figures` are Plotly JSON by name. `results` (below
    `heading`) and `origin` (how the page was made) are HTML and must be escaped. The others are
    plain text; `notes` and `warnings` are sentences below the summary, `figure_legend` is the text
    below the figures.
    """
    template = resources.files("recombine.reporting").joinpath("templates", "report.html")
    parts = [
        definition_list("summary", summary),
        *(f'\n<p class="note">{escape(note)}</p>' for note in notes),
        *(f'\n<p class="warning">{escape(warning)}</p>' for warning in warnings),
    ]
    drawn = [_figure(number, *item) for number, item in enumerate(figures.items())]
    if drawn and figure_legend:
        drawn.append(f'<p class="soft legend">{escape(figure_legend)}</p>')
    return Template(template.read_text(encoding="utf-8")).substitute(
        title=escape(title),
        category=escape(category),
        description=_description(description),
        summary="".join(parts),
        figures="\n".join(drawn),
        heading=escape(heading),
        results=results,
        origin=origin,
        plotly=_plotly_script() if figures else "",
    )


def escape(value: Any) -> str:
    """A value as text for HTML; floats are rounded for reading."""
    return format_number(value) if isinstance(value, float) else html.escape(str(value))


def format_number(value: float) -> str:
    """A number for reading: three decimals, or three digits if it is very small or very large."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == round(value) and abs(value) < 1e6:
        return str(round(value))
    return f"{value:.3f}" if 1e-2 <= abs(value) < 1e4 else f"{value:.3g}"


def shorten(text: str, max_length: int = MAX_CELL_LENGTH) -> str:
    """A long text cut to this number of characters."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def definition_list(css_class: str, items: Mapping[str, Any]) -> str:
    """Names and values as an HTML list; nothing if there are none."""
    entries = [
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in items.items()
    ]
    return f'<dl class="{css_class}">{"".join(entries)}</dl>' if entries else ""


def _description(text: str) -> str:
    """The paragraphs of a text as HTML; the first is large, and indented ones are code."""
    blocks = [block for block in re.split(r"\n[ \t]*\n", inspect.cleandoc(text)) if block.strip()]
    paragraphs = [_paragraph(block, "" if i else "lead") for i, block in enumerate(blocks)]
    return "\n".join(paragraphs)


def _paragraph(block: str, css_class: str) -> str:
    if all(line.startswith("  ") for line in block.splitlines()):
        return f"<pre>{escape(inspect.cleandoc(block))}</pre>"
    # A label such as "Command:" begins a line of its own.
    lines = [escape(" ".join(line.split())) for line in re.split(r"\n(?=[A-Z]\w+:\s)", block)]
    with_code = re.sub(r"`([^`]+)`", r"<code>\1</code>", "<br>\n".join(lines))
    return f'<p class="{css_class}">{with_code}</p>'


def _figure(number: int, name: str, text: str) -> str:
    """The element and the data of a figure. Its title becomes the caption, which can wrap."""
    try:
        figure = json.loads(text)
        layout = figure["layout"]
        title = layout.pop("title", None) or name
        caption = escape(title.get("text", name) if isinstance(title, dict) else title)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"figure {name!r} is not Plotly JSON ({error}): run the experiment again"
        ) from error
    layout["margin"] = layout.get("margin", {}) | {"t": 20}
    data = json.dumps(figure).replace("<", r"\u003c")  # no data can end the script element
    height = layout.get("height")
    # A figure that is lower than usual leaves no empty space below it.
    style = f' style="min-height: {height}px"' if isinstance(height, int) else ""
    return (
        f"<figure><figcaption>{caption}</figcaption>\n"
        f'<div class="chart"{style} data-figure="figure{number}" role="img" '
        f'aria-label="{caption}"></div></figure>\n'
        f'<script type="application/json" id="figure{number}">{data}</script>'
    )


def _plotly_script() -> str:
    from plotly.offline import get_plotlyjs

    return f"<script>{get_plotlyjs()}</script>"


def results_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per run, at its last step: `run`, the columns that differ, and the scores."""
    last = rows.groupby("run").tail(1)
    swept = _swept_columns(last, _describing_columns(rows, last))
    scores = [name for name in SCORE_COLUMNS if name in last]
    # Scores of another family are NaN in all of these runs.
    measured = [name for name in scores if bool(last[name].notna().any())]
    ordered = last.sort_values(swept or ["run"], key=_natural_order)
    return ordered.loc[:, ["run", *swept, *(measured or scores)]]


def _describing_columns(rows: pd.DataFrame, last: pd.DataFrame) -> list[str]:
    """The columns that describe a run. `last` are the last rows of the runs."""
    columns = [name for name in last if "/" not in name and name not in ("run", "step")]
    final_step = rows.groupby("run")["step"].transform("last")
    at_final_step = rows[rows["step"] == final_step]
    if len(at_final_step) == len(last):
        return columns
    # A computed cell can have many rows. A column that differs among them does not describe it.
    num_values: Any = at_final_step.groupby("run")[columns].nunique(dropna=False).max()
    return [name for name in columns if num_values[name] <= 1]


def _swept_columns(last: pd.DataFrame, columns: Sequence[str]) -> list[str]:
    """The columns that differ between the runs.

    A field that only some parts have is left out if the other columns distinguish the runs.
    """
    swept = [name for name in columns if len(last[name].drop_duplicates()) > 1]
    partly_missing = [name for name in swept if bool(last[name].isna().any())]
    for name in reversed(partly_missing):
        others = [other for other in swept if other != name]
        if len(last[others].drop_duplicates()) == len(last[swept].drop_duplicates()):
            swept = others
    return swept


def _natural_order(values: pd.Series) -> pd.Series:
    """Sorting keys: numbers inside text are compared as numbers (16x16 before 128x128)."""
    if _is_numeric(values):
        return values
    return values.astype(str).str.replace(r"\d+", lambda match: match[0].zfill(9), regex=True)


def _is_numeric(values: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)


def _results(lines: pd.DataFrame, name: str) -> str:
    """The table of results as HTML, with the meaning of its scores."""
    has_swept_columns = any("/" not in column for column in lines.columns[1:])
    # The hash of a run is of no use to readers if other columns distinguish the runs.
    visible = lines.drop(columns="run") if has_swept_columns else lines
    note = f"{counted(len(lines), 'run')}, each at its last step"
    table = data_table(visible, "Results of every run", note, name, csv=lines)
    return table + _score_legend(list(lines.columns))


def _score_legend(columns: Sequence[str]) -> str:
    meanings = []
    for column in columns:
        prefix = column.rpartition("/")[0]
        if column in SCORE_COLUMNS:
            meanings.append(f"<code>{escape(column)}</code>: {escape(SCORE_PREFIXES[prefix])}.")
    return f'\n<p class="soft legend">{" ".join(meanings)}</p>' if meanings else ""


def data_table(
    frame: pd.DataFrame, label: str, note: str, name: str, csv: pd.DataFrame | None = None
) -> str:
    """A frame as a sortable HTML table, with a link that downloads all rows as CSV.

    `note` is the line above it. The download is `csv` if there is one, and called `name`.
    """
    text = _without_formulas(frame if csv is None else csv).to_csv(index=False)
    encoded = base64.b64encode(text.encode()).decode()
    if len(frame) > MAX_TABLE_ROWS:
        note += f"; the table has the first {MAX_TABLE_ROWS}"
    columns = [_column(str(key), values) for key, values in frame.head(MAX_TABLE_ROWS).items()]
    head = "".join(header for header, _ in columns)
    rows = zip(*(cells for _, cells in columns), strict=True)
    body = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        f'<p class="soft">{escape(note)}. <a class="download" '
        f'download="{escape(name)}.csv" href="data:text/csv;base64,{encoded}">All as CSV</a></p>\n'
        f'<div class="rows" tabindex="0" role="region" aria-label="{escape(label)}">\n'
        f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _without_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame, with an apostrophe before every text that a spreadsheet would run as a formula."""
    escaped = frame.rename(columns=_escape_formula)
    for position, (_, values) in enumerate(frame.items()):
        if not _is_numeric(values):
            escaped.isetitem(position, values.astype(object).map(_escape_formula))
    return escaped


def _escape_formula(value: Any) -> Any:
    """A text that begins like a formula gets an apostrophe; numbers written as text do not."""
    if not isinstance(value, str) or not value.lstrip(" \n").startswith(FORMULA_STARTS):
        return value
    with contextlib.suppress(ValueError):
        float(value)
        return value
    return f"'{value}"


def _column(name: str, values: pd.Series) -> tuple[str, list[str]]:
    """The header and the cells of a column as HTML."""
    css_class = ' class="number"' if _is_numeric(values) else ""
    label = escape(name)
    if len(name) > MIN_LENGTH_TO_WRAP:
        label = label.replace("/", "/<wbr>")
    header = f'<th scope="col"{css_class}><button type="button">{label}</button></th>'
    is_score = name in SCORE_COLUMNS
    return header, [f"<td{css_class}>{_cell(value, is_score)}</td>" for value in values]


def _cell(value: Any, is_score: bool) -> str:
    if pd.isna(value):
        return "NaN" if is_score else "–"
    if not isinstance(value, float):
        return escape(shorten(str(value)))
    if is_score and abs(value) < 1e4:
        return f"{round(value, 3) + 0:.3f}"  # adding zero turns -0.0 into 0.0
    return f"{value:g}"


def _origin(meta: Mapping[str, Any], rows: pd.DataFrame, path: Path) -> str:
    """How the results were made: the command, and facts about the runs."""
    command = f"<pre>{escape(meta['command'])}</pre>\n" if "command" in meta else ""
    keys = ("date", "scale", "device", "runs")
    facts = {key: meta[key] for key in keys if key in meta}
    if "programs" in meta:
        facts["compiled programs"] = meta["programs"]
    if "seconds" in meta:
        facts["time"] = duration(meta["seconds"])
    if meta.get("versions"):
        versions = [f"{name} {version}" for name, version in meta["versions"].items()]
        facts["versions"] = ", ".join(versions)
    return command + definition_list("facts", facts | mixtures(rows) | {"table": path})


def mixtures(rows: pd.DataFrame) -> dict[str, str]:
    """What differs in how the runs were made (versions, devices), and notes of the trainer."""
    last = rows.groupby("run").tail(1)
    facts = {}
    for name, label in (ORIGINS | LATER_ORIGINS).items():
        column = f"meta/{name}"
        if column not in last:
            continue
        values = last[column].fillna("unknown") if name in ORIGINS else last[column].dropna()
        num_runs = values.value_counts().sort_index()
        if len(num_runs) > 1:
            values = [f"{value} ({counted(num, 'run')})" for value, num in num_runs.items()]
            facts[f"mixed {label}"] = ", ".join(values)
    notes = set(last["meta/note"].dropna()) - {""} if "meta/note" in last else set()
    if notes:
        facts["notes"] = "; ".join(sorted(notes))
    return facts
