"""Draw docs/results/NAME-FIGURE.svg for every figure in a committed table, with Chromium; what is drawn is kept."""

import json
import re
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright
from plotly.offline import get_plotlyjs

from recombine.experiments import catalogue
from recombine.experiments.claim import RESULTS
from recombine.experiments.record import mark
from recombine.storage.table import Table

WIDTH = 760  # pixels; a page on GitHub is wider
# Plotly draws names for its clips and patterns: always the same ones, or equal figures would differ.
DRAW = """([{data, layout}, width]) => {
    let seed = 1
    Math.random = () => (seed = seed * 16807 % 2147483647) / 2147483647
    return Plotly.toImage({data, layout}, {format: 'svg', width, height: layout.height || 430, imageDataOnly: true})
}"""


def figures(results: Path) -> dict[Path, str]:
    """The pictures that there should be, with their figures."""
    names = [
        name for name in catalogue.experiment_names() if (results / f"{name}.parquet").exists()
    ]
    return {
        results / f"{name}-{figure}.svg": text
        for name in names
        for figure, text in Table(results / f"{name}.parquet").figures().items()
    }


def smaller(svg: str) -> str:
    """The same picture in fewer characters: nothing refers to classes, and two decimals are enough for pixels."""
    svg = re.sub(r' (class|data-[\w-]+)="[^"]*"| style=""', "", svg)
    return re.sub(
        r'="[^"]*"',
        lambda value: re.sub(r"\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}", value[0]),
        svg,
    )


def draw(wanted: dict[Path, str]) -> None:
    """Draw these figures into these files."""
    found = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page()
        page.add_script_tag(content=get_plotlyjs())
        for path, text in wanted.items():
            svg = page.evaluate(DRAW, [json.loads(text), WIDTH])
            path.write_text(smaller(svg) + mark(text) + "\n")
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")
        browser.close()


if __name__ == "__main__":
    wanted = figures(RESULTS)
    for stale in set(RESULTS.glob("*.svg")) - set(wanted):
        stale.unlink()
    left = {
        path: text
        for path, text in wanted.items()
        if not path.exists() or mark(text) not in path.read_text()
    }
    if left:
        draw(left)
