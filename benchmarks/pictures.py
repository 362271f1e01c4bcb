"""Draw docs/results/NAME-FIGURE.svg for every figure in a committed table, with Chromium.

A picture is drawn again only if its figure has changed.
"""

import json
import re
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright
from plotly.offline import get_plotlyjs

from recombine.experiments import catalogue
from recombine.experiments.ledger import RESULTS
from recombine.experiments.record import mark
from recombine.storage.table import Table

WIDTH = 760  # pixels; a page on GitHub is wider
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Plotly names its clips and patterns at random. With fixed random numbers, equal figures give equal
# pictures.
DRAW = """([{data, layout}, width]) => {
    let seed = 1
    Math.random = () => (seed = seed * 16807 % 2147483647) / 2147483647
    const options = {format: 'svg', width, height: layout.height || 430, imageDataOnly: true}
    return Plotly.toImage({data, layout}, options)
}"""


def figures(results: Path) -> dict[Path, str]:
    """The path of every picture, and its figure as Plotly JSON."""
    figure_of = {}
    for name in catalogue.experiment_names():
        table = results / f"{name}.parquet"
        if table.exists():
            for figure, text in Table(table).figures().items():
                figure_of[results / f"{name}-{figure}.svg"] = text
    return figure_of


def smaller(svg: str) -> str:
    """The same picture in fewer characters: without classes, and with two decimals per number."""
    svg = re.sub(r' (class|data-[\w-]+)="[^"]*"| style=""', "", svg)
    return re.sub(r'="[^"]*"', _round_decimals, svg)


def _round_decimals(attribute: re.Match[str]) -> str:
    return re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", attribute[0])


def is_drawn(path: Path, text: str) -> bool:
    """Whether a picture is there and belongs to this figure."""
    return path.exists() and mark(text) in path.read_text()


def draw(texts: dict[Path, str]) -> None:
    """Draw these figures to these paths."""
    installed = [path for name in BROWSERS if (path := shutil.which(name))]
    executable = installed[0] if installed else None  # None: playwright's own browser
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(content=get_plotlyjs())
        for path, text in texts.items():
            svg = page.evaluate(DRAW, [json.loads(text), WIDTH])
            path.write_text(smaller(svg) + mark(text) + "\n")
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
        browser.close()


if __name__ == "__main__":
    current = figures(RESULTS)
    for path in set(RESULTS.glob("*.svg")) - set(current):
        path.unlink()
    changed = {path: text for path, text in current.items() if not is_drawn(path, text)}
    if changed:
        draw(changed)
