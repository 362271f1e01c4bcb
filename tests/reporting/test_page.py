"""The report page of a table."""

import base64
import html
import io
import math
import re

import pandas as pd
import pytest

from recombine.basics.errors import InputError
from recombine.reporting import figure
from recombine.reporting import page as report
from recombine.storage.table import Table

EVIL = "</script><script>alert('x')</script>"
TITLES = {"x_title": "width", "y_title": "test R²"}


def build(path, num_seeds: int = 3, **meta) -> Table:
    """A table of a sweep over widths and supports, with three figures."""
    rows = pd.DataFrame(
        [
            {
                "run": f"{width}-{support}-{seed}",
                "step": step,
                "family": "Hyperteacher",
                "width": width,
                "support": support,
                "learning_rate": 3e-4 * (1 + seed % 2),
                "seen/r2": 0.99,
                "test/r2": (width / 130 if support == "random" else -5.0) * step / 100,
                "test/num_hot=2/r2": 0.5,
                "LinearDecodability/deepest/test/r2": math.nan if width == 16 else 0.98765,
            }
            for width in (16, 32, 128)
            for support in ("random", "disconnected")
            for seed in range(num_seeds)
            for step in (0, 100)
        ]
    )
    table = Table(path)
    table.append(rows)
    last = rows[rows["step"] == 100]
    figures = {
        "lines": figure.lines(
            last, "width", "test/r2", "support", title=f"Lines {EVIL}", log_x=True, **TITLES
        ),
        "scatter": figure.scatter(
            last, "width", "test/r2", title="Scatter", text="support", fit=True, **TITLES
        ),
        "bars": figure.bars(last, "support", "test/r2", "width", title="Bars", **TITLES),
    }
    table.save_figures({name: drawn.to_json() for name, drawn in figures.items()})
    table.note(
        **{"experiment": "scaling", "title": "Scaling", "command": "recombine run scaling", **meta}
    )
    return table


def without_plotly(text: str) -> str:
    """The page without its longest script."""
    blocks = re.findall(r"<script>.*?</script>", text, flags=re.DOTALL)
    return text.replace(max(blocks, key=len), "")


def cells(text: str) -> list[list[str]]:
    """The cells of the table of results, row by row."""
    body = text.split("<tbody>")[1].split("</tbody>")[0]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in body.split("</tr>") if "<td" in row]


def test_the_page_has_description_summary_command_and_versions(tmp_path):
    table = build(
        tmp_path,
        description=(
            "The first paragraph,\nbroken, has `code`.\n\nThe second.\n\n    recombine run it\n"
        ),
        summary={"best": 0.98461, "tiny": 3e-5, "control": "fails"},
        versions={"jax": "0.10.2"},
        device="one H200",
        seconds=312.4,
        programs=4,
        runs=18,
        scale="small",
        date="2025-11-15",
    )
    text = report.page(table)
    for expected in (
        "<h1>Scaling</h1>",
        '<p class="lead">The first paragraph, broken, has <code>code</code>.</p>',
        "<pre>recombine run it</pre>",
        "<dt>best</dt><dd>0.985</dd>",
        "<dt>tiny</dt><dd>3e-05</dd>",
        "<pre>recombine run scaling</pre>",
        "jax 0.10.2",
        "one H200",
        "5 min 12 s",
        "2025-11-15",
    ):
        assert expected in text
    assert len(text) < 6e6


def test_the_table_has_a_line_per_run_and_the_columns_that_differ(tmp_path):
    text = report.page(build(tmp_path))
    headers = re.findall(r"<th .*?</th>", text)
    names = [html.unescape(re.sub("<.*?>", "", header)) for header in headers]
    scores = ["seen/r2", "test/r2", "LinearDecodability/deepest/test/r2"]
    assert names == ["width", "support", "learning_rate", *scores]
    lines = cells(text)
    assert len(lines) == 18
    assert lines[0] == ["16", "disconnected", "0.0003", "0.990", "-5.000", "NaN"]
    assert lines[-1] == ["128", "random", "0.0006", "0.990", "0.985", "0.988"]
    assert "<code>test/r2</code>: held-out combinations." in text


def test_fields_of_some_parts_are_left_out_unless_they_distinguish_runs():
    runs = {
        "run": ["a", "b", "c"],
        "step": 1,
        "model": ["MLP", "Net", "Net"],
        "model.widths": ["8", None, None],
    }
    runs |= {"model.norm": [None, "layer", "none"], "seed": [0, 0, 0], "test/r2": [0.1, 0.2, 0.3]}
    assert list(report.results_table(pd.DataFrame(runs))) == [
        "run",
        "model",
        "model.norm",
        "test/r2",
    ]


def test_a_cell_of_many_rows_is_described_by_what_they_share():
    rows = [
        {"run": str(w), "step": 0, "width": w, "what": what, "failed": w / 9}
        for w in (1, 2)
        for what in "ab"
    ]
    assert list(report.results_table(pd.DataFrame(rows))) == ["run", "width", "failed"]
    rows[0]["failed"] = 0.9
    table = report.results_table(pd.DataFrame(rows))
    assert list(table) == ["run", "width"], "what differs within a cell does not describe it"
    assert len(table) == 2


def test_a_single_run_is_shown_by_its_name(tmp_path):
    table = Table(tmp_path)
    table.append(
        pd.DataFrame({"run": ["abc"], "step": [1], "width": [8], "test/accuracy": [-0.0001]})
    )
    text = report.page(table)
    assert cells(text) == [["abc", "0.000"]]
    assert len(text) < 1e5  # no figures, no plotly.js


def test_the_csv_has_all_runs(tmp_path):
    table = build(tmp_path, num_seeds=100)
    text = report.page(table)
    assert len(cells(text)) == report.MAX_TABLE_ROWS
    assert "600 runs, each at its last step; the table has the first 500" in text
    data = base64.b64decode(re.search(r"data:text/csv;base64,([^\"]*)", text)[1])
    csv = pd.read_csv(io.BytesIO(data))
    assert csv["run"].nunique() == len(csv) == 600
    assert csv["LinearDecodability/deepest/test/r2"].max() == 0.98765


def with_activity(table: Table, dead: float, name: str = "again") -> Table:
    rows = table.read()
    activity = {
        f"activity/hidden{layer}/{name}": dead
        for layer in range(2)
        for name in ("dead", "rare", "active", "rank")
    }
    again = Table(table.path.with_name(name))
    again.append(rows.assign(**activity))
    again.save_figures(table.figures())
    again.note(**table.meta())
    return again


def test_the_page_has_dead_units_of_any_experiment(tmp_path):
    table = build(tmp_path / "rows", summary={"best": 0.5})
    before = report.page(table)
    assert "Dead units" not in before
    assert 'class="warning"' not in before
    assert before.count("<figure>") == 3
    page = report.page(with_activity(table, dead=0.5))
    head, main = page.split("<main>")
    line = (
        "Dead units: 50% in hidden0, 50% in hidden1 "
        "(means over 18 runs; highest of a single run 50% in hidden0)"
    )
    assert (
        head.index("<dt>best</dt>")
        < head.index(f'<p class="note">{line}</p>')
        < head.index('<p class="warning">')
    )
    assert main.count("<figure>") == 4, "the saved figures, and dead units by layer"
    assert "<figcaption>Dead units by hidden layer" in main
    calm = report.page(with_activity(table, dead=0.0, name="calm"))
    assert "Dead units: 0% in hidden0" in calm
    assert 'class="warning"' not in calm
    assert set(table.figures()) == {"lines", "scatter", "bars"}, "nothing is added to the table"


def test_notes_and_warnings_are_escaped():
    fields = {
        "title": "",
        "category": "",
        "description": "",
        "summary": {},
        "figures": {},
        "results": "",
        "origin": "",
    }
    page = report.render(**fields, notes=[EVIL], warnings=[EVIL])
    assert page.count(html.escape(EVIL)) == 2
    assert EVIL not in page


def test_everything_is_escaped(tmp_path):
    table = build(
        tmp_path / "results.parquet",
        summary={EVIL: EVIL},
        **dict.fromkeys(
            ("experiment", "title", "description", "command", "device", "scale", "date"), EVIL
        ),
        versions={EVIL: EVIL},
    )
    table.append(
        pd.DataFrame({"run": [EVIL], "step": [1], EVIL.replace("/", ""): [EVIL], "support": [EVIL]})
    )
    text = report.page(table)
    assert "alert(" in text
    # No occurrence can open or close an element, or end an attribute.
    assert "<script>alert" not in text
    assert "</script><script>a" not in text
    assert EVIL not in text
    assert text.count("<script>") == 2 + text.count("`<script>`")


def test_the_page_loads_nothing(tmp_path):
    text = without_plotly(report.page(build(tmp_path)))
    links = re.findall(r"(?:src|href)\s*=\s*[\"']?([^\"'\s>]+)", text)
    assert links
    assert all(link.startswith("data:") for link in links)
    assert not re.search(r"@import|url\(|https?://", text)


def test_an_empty_table_names_the_command_to_run(tmp_path):
    with pytest.raises(
        InputError, match="has no results to report: run `recombine run NAME`"
    ) as caught:
        report.write(Table(tmp_path / "missing"), tmp_path / "report.html")
    assert "\n" not in str(caught.value)
    table = Table(tmp_path / "empty.parquet")
    table.note(command="recombine run scaling --scale tiny")
    with pytest.raises(InputError, match="run `recombine run scaling --scale tiny` first"):
        report.page(table)
    assert not (tmp_path / "report.html").exists()


def test_a_broken_figure_is_named(tmp_path):
    table = build(tmp_path)
    for text in ("{", "[]", '{"data": []}'):
        table.save_figures({"wrong": text})
        with pytest.raises(InputError, match="figure 'wrong'"):
            report.page(table)


def test_write_accepts_a_file_or_a_folder(tmp_path):
    table = build(tmp_path / "rows")
    assert report.write(table, tmp_path / "new" / "page.html") == tmp_path / "new" / "page.html"
    assert report.write(table, tmp_path) == tmp_path / "report.html"
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == report.page(table)
    with pytest.raises(InputError, match="cannot write the report"):
        report.write(table, tmp_path / "report.html" / "below.html")


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_draws_offline_in_light_and_dark(chromium, tmp_path, scheme):
    table = build(tmp_path / "rows", summary={"evil": EVIL})
    path = report.write(table, tmp_path / "report.html")
    context = chromium.new_context(offline=True, color_scheme=scheme)
    page = context.new_page()
    errors = []
    requests = []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.locator(".chart").nth(2).locator(".xtick text").first.wait_for(timeout=15_000)
    plots = page.locator("svg.main-svg .cartesianlayer").count()
    points = page.locator(".cartesianlayer .point").count()
    page.locator("th button").first.click()
    page.locator("th button").first.click()
    first = page.locator("tbody td").first.inner_text()
    text_color = page.evaluate(
        "getComputedStyle(document.querySelector('.chart .xtick text')).fill"
    )
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    widths = page.evaluate(
        "[...document.querySelectorAll('.chart')].map(plot => plot._fullLayout.width)"
    )
    context.close()
    assert errors == []
    assert plots == 3
    assert points > 18
    assert widths == [680] * 3
    assert requests == [path.as_uri()]
    assert first == "128"  # sorted by width, descending
    dark, light = (text_color, background) if scheme == "light" else (background, text_color)
    assert brightness(dark) < 80 < 200 < brightness(light)


def brightness(color: str) -> float:
    """The mean of red, green and blue."""
    return sum(map(int, re.findall(r"\d+", color)[:3])) / 3


def test_downloaded_texts_are_no_formulas():
    frame = pd.DataFrame(
        {
            "=name": ["=1+1", "@SUM(A1)", "+cmd|calc", " -x", "-1.5", "plain", None],
            "number": [-1.0, 2, 3, 4, 5, 6, 7],
        }
    )
    text = report.data_table(frame, "label", "note", "name")
    data = base64.b64decode(re.search(r"data:text/csv;base64,([^\"]*)", text)[1]).decode()
    cells = [line.rsplit(",", 1)[0] for line in data.splitlines()]
    assert cells == ["'=name", "'=1+1", "'@SUM(A1)", "'+cmd|calc", "' -x", "-1.5", "plain", ""]
    assert "-1.0" in data
    assert frame["=name"][0] == "=1+1", "the frame itself is as before"
