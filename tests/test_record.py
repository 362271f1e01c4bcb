"""The record: what is told of made-up tables, and that the committed page and pictures are of the committed tables."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from recombine import find, record
from recombine.claims import OURS, RESULTS, Claim, ledger
from recombine.table import Table

PAGE = (RESULTS / "README.md").read_text()
TABLES = [name for name in find.names("experiments") if (RESULTS / f"{name}.parquet").exists()]
UNTOLD = {"coverage_advice", "memorisation"}  # they still spell it "none"
DOCSTRING = """A title line.

Claim: one | two (a source
of it).

Command:  recombine run made
Measured: full: .5
          and more.
"""
PUBLISHED = {"source": "Fig. 2", "published": "R2 > 0.9"}


def claims(rows):
    best, *holds = (None, None, None) if rows is None else (rows["test/r2"].max(), True, False)
    return [
        Claim("first", "Wide *and* long " * 8, measured=best, holds=holds[0], interval=(0.5, 1e6), **PUBLISHED),
        Claim("second", "It is | odd", measured=float("inf"), holds=holds[1], control="none", **PUBLISHED),
    ]


MADE = SimpleNamespace(claims=claims, TITLE="How wide?", __doc__=DOCSTRING)
STUDENT = {"family": "Hyperteacher", "model": "MLP", "model.widths": "1024x1024x1024x1024"}


def rows(**changes) -> pd.DataFrame:
    """Two runs side by side, with two evaluations each."""
    about = STUDENT | {"meta/seconds": 2.0, "meta/compile_seconds": 16.0, "meta/device": "NVIDIA H200"} | changes
    return pd.DataFrame([{"run": run, "step": step, "test/r2": 0.97 - step} | about for run in "ab" for step in (0, 1)])


def made(folder: Path, name: str, frame: pd.DataFrame) -> None:
    table = Table(folder / f"{name}.parquet")
    table.append(frame)
    table.note(scale="full", device=frame["meta/device"][0], date="2030-01-02")
    table.save_figures({"width": json.dumps({"data": [], "layout": {"title": {"text": "By width"}}})})


def test_lines_for_a_terminal(tmp_path):
    made(tmp_path, "made", rows())
    told = record.lines(ledger({"made": MADE, "todo": MADE}, tmp_path).to_dict("records"), 80)
    text = "\n".join(told)
    lines = [line for line in text.splitlines() if "recombine run" not in line]
    assert max(map(len, lines)) <= 80
    assert text.startswith("made: How wide?\n  Full scale, NVIDIA H200, 2030-01-02: 2 runs, 20 s of device time\n")
    assert "\n  reproduced      Wide *and* long Wide" in text
    assert f"\n{' ' * 18}measured 0.9700 [0.5000, 1,000,000]; published: R2 > 0.9\n{' ' * 18}source: Fig. 2\n" in text
    assert "\n  not reproduced  It is | odd\n" in text
    assert "measured ∞; published" in text
    assert "control: none" in text
    assert "\ntodo: How wide?\n  Not yet run\n  recombine run todo --scale full --out " in text
    counts, time = told[-1].split("; ")
    assert counts == "4 published claims: 1 reproduced, 1 not reproduced, 2 not yet run"
    assert " ".join(time.split()) == "device time: 20 s on NVIDIA H200"


def test_what_nobody_published_is_counted_and_told_apart(tmp_path):
    def asked(rows):
        return [*claims(rows), Claim("third", "Our question", "ours", OURS, 0.5, holds=False)]

    found = ledger({"made": SimpleNamespace(claims=asked, __doc__=DOCSTRING)}, tmp_path).to_dict("records")
    text = "\n".join(record.lines(found, 200))
    assert "measured 0.5000; ours\n" in text
    told = "2 published claims: 2 not yet run; 1 control or question of our own: 1 not reproduced"
    assert text.splitlines()[-1] == f"{told}; device time: none"
    table = record._verdicts(found)
    assert f"\n{told}.\n" in table
    assert "| Our question | ours | 0.5000 | not reproduced |" in table
    assert record._item(found[2]) == "- **not reproduced**: Our question: 0.5000; ours"


@pytest.fixture
def page(tmp_path, monkeypatch) -> str:
    monkeypatch.setattr(record, "_experiments", lambda: dict.fromkeys(["made", "other", "small", "todo"], MADE))
    made(tmp_path, "made", rows())
    made(tmp_path, "other", rows(model="Transformer"))
    made(tmp_path, "small", rows(**{"meta/device": "cpu", "meta/seconds": 1800.0}))
    return record.page(tmp_path)


def test_a_page_tells_all(page):
    line = "| [made](#made) | It is \\| odd | R2 > 0.9 | ∞ | not reproduced |"
    assert line in page
    section = page[page.index("## made") : page.index("## other")]
    for text in (
        "Claim: one \\| two (a source of it).\n",
        "**How wide?**",
        "Full scale, NVIDIA H200, 2030-01-02: 2 runs, 20 s of device time.",
        "--scale full --out ",
        "- **reproduced**: Wide \\*and\\* long",
        "Measured: full: .5 and more.",
        "![By width](made-width.svg)",
    ):
        assert text in section
    assert "Not yet run." in page[page.index("## todo") :]
    assert "Measured:" not in page[page.index("## todo") :]
    assert "--page docs/results/README.md" in page.splitlines()[-1]


def test_only_the_papers_student_is_set_beside_the_public_code(page):
    time = page[page.index("## Device time") : page.index("## made")]
    assert "40 s on NVIDIA H200 and 1 h 0 min on cpu" in time, "two tables of 2 x 2 s + 16 s; one of 2 x 1800 s + 16 s"
    assert " 2 of the runs train the paper's student" in time
    assert "they took 20 s." in time
    assert "10 min 22 s for 2 in a row, 31 times as long" in time, "2 x 311 s"


def test_impossible_runs_are_listed():
    section = PAGE[PAGE.index("\n## scaling_data") : PAGE.index("\n## scaling_depth")]
    assert "left out: 54 runs" in section
    assert "K=2, M=16: 90%, 95%, 98%, 99%; K=2, M=24: 95%, 98%, 99%;" in section
    assert section.count("M=") >= 7


@pytest.mark.parametrize(
    ("value", "told"),
    [(0.99994, "0.9999"), (1 - 1e-7, "1.000"), (1 + 1e-7, "1.000"), (-0.5, "-0.5000"), (1234, "1,234")],
)
def test_numbers(value, told):
    assert record._number(value) == told


def test_the_same_run_in_two_tables_was_trained_twice(page, tmp_path):
    made(tmp_path, "todo", rows())
    assert " 4 of the runs train the paper's student" in record.page(tmp_path)


def test_the_committed_page_is_of_the_committed_tables():
    assert record.page(RESULTS) == PAGE, "write it anew: recombine claims --page docs/results/README.md"


@pytest.mark.parametrize("name", TABLES)
def test_every_verdict_comes_out_again(name):
    table = Table(RESULTS / f"{name}.parquet")
    kept = table.read()
    kept = kept[kept["run"].isin(table.meta()["shown"])]
    cells = re.findall(rf"^\| \[{name}\]\(#{name}\) \|.* \| ([\w ]+) \|$", PAGE, re.MULTILINE)
    assert cells == [claim.verdict for claim in find.experiment(name).claims(kept)]
    assert set(cells) - {"not yet run"}, "the table is of use"


@pytest.mark.parametrize("name", sorted({*find.names("experiments")} - UNTOLD))
def test_our_experiments_say_in_one_way_that_nothing_was_published(name):
    for claim in find.experiment(name).claims(None):
        assert (claim.published == OURS) is claim.ours, f"{claim.name}: say OURS"
        assert not claim.published.startswith("nothing")
        assert claim.ours or claim.source not in ("ours", "control"), f"{claim.name} was published: name where"
        assert claim.control not in ("-", "is one", "the control below"), f"{claim.name}: say it in words"


def test_the_page_has_every_experiment():
    assert re.findall(r"^## (\w+)$", PAGE, re.MULTILINE) == ["Verdicts", *find.names("experiments")]


def test_the_pictures_are_of_the_committed_figures():
    figures = {
        f"{name}-{figure}.svg": text
        for name in TABLES
        for figure, text in Table(RESULTS / f"{name}.parquet").figures().items()
    }
    assert {path.name for path in RESULTS.glob("*.svg")} == set(figures), "draw them: python bench/pictures.py"
    assert set(re.findall(r"\]\(([\w-]+\.svg)\)", PAGE)) == set(figures)
    for name, text in figures.items():
        picture = (RESULTS / name).read_text()
        assert record.mark(text) in picture, f"{name} is of another figure: python bench/pictures.py"
        assert len(picture) < 120_000, f"{name} is too large for a page"


@pytest.mark.parametrize("name", TABLES)
def test_titles_fit_their_pictures(name):
    for text in Table(RESULTS / f"{name}.parquet").figures().values():
        title = json.loads(text)["layout"]["title"]["text"]
        assert len(title) <= 74, title  # 760 pixels wide


def test_a_picture_in_fewer_characters_says_the_same():
    pytest.importorskip("playwright.sync_api", reason="pictures are drawn with playwright")
    from bench.pictures import smaller

    svg = '<g class="a b" style=""><path d="M1.2345,0.5L-10,3e2" data-n="1"/><text x="7.999">0.1234 = "x"</text></g>'
    assert smaller(svg) == '<g><path d="M1.23,0.5L-10,3e2"/><text x="8.00">0.1234 = "x"</text></g>'
