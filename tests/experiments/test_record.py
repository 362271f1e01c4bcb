"""The record: what is told of made-up tables, and that the committed page and pictures are of the committed tables."""

import functools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from recombine.experiments import catalogue, device_time, record
from recombine.experiments.claim import OURS, RESULTS, Claim, ledger
from recombine.storage.table import Table
from recombine.sweeps.run import Run, identity
from recombine.training.computed import Cell
from tests import pins

PAGE = (RESULTS / "README.md").read_text()
TABLES = [name for name in catalogue.experiment_names() if (RESULTS / f"{name}.parquet").exists()]
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
        Claim(
            "first",
            "Wide *and* long " * 8,
            measured=best,
            holds=holds[0],
            interval=(0.5, 1e6),
            **PUBLISHED,
        ),
        Claim(
            "second",
            "It is | odd",
            measured=float("inf"),
            holds=holds[1],
            control="none",
            **PUBLISHED,
        ),
    ]


MADE = SimpleNamespace(claims=claims, TITLE="How wide?", __doc__=DOCSTRING)
STUDENT = {"family": "Hyperteacher", "model": "MLP", "model.widths": "1024x1024x1024x1024"}


def rows(**changes) -> pd.DataFrame:
    """Two runs side by side, with two evaluations each."""
    about = (
        STUDENT
        | {"meta/seconds": 2.0, "meta/compile_seconds": 16.0, "meta/device": "NVIDIA H200"}
        | changes
    )
    return pd.DataFrame(
        [
            {"run": run, "step": step, "test/r2": 0.97 - step} | about
            for run in "ab"
            for step in (0, 1)
        ]
    )


def made(folder: Path, name: str, frame: pd.DataFrame) -> None:
    table = Table(folder / f"{name}.parquet")
    table.append(frame)
    table.note(scale="full", device=frame["meta/device"][0], date="2030-01-02")
    table.save_figures(
        {"width": json.dumps({"data": [], "layout": {"title": {"text": "By width"}}})}
    )


def test_lines_for_a_terminal(tmp_path):
    made(tmp_path, "made", rows())
    told = record.lines(ledger({"made": MADE, "todo": MADE}, tmp_path).to_dict("records"), 80)
    text = "\n".join(told)
    lines = [line for line in text.splitlines() if "recombine run" not in line]
    assert max(map(len, lines)) <= 80
    assert text.startswith(
        "made: How wide?\n  Full scale, NVIDIA H200, 2030-01-02: 2 runs, 20 s of device time\n"
    )
    assert "\n  reproduced      Wide *and* long Wide" in text
    assert (
        f"\n{' ' * 18}measured 0.9700 [0.5000, 1,000,000]; published: R2 > 0.9\n{' ' * 18}source: Fig. 2\n"
        in text
    )
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

    found = ledger({"made": SimpleNamespace(claims=asked, __doc__=DOCSTRING)}, tmp_path).to_dict(
        "records"
    )
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
    monkeypatch.setattr(
        record, "_experiments", lambda: dict.fromkeys(["made", "other", "small", "todo"], MADE)
    )
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
    assert "40 s on NVIDIA H200 and 1 h 0 min on cpu" in time, (
        "two tables of 2 x 2 s + 16 s; one of 2 x 1800 s + 16 s"
    )
    assert "\n2 of the runs train an MLP of 4 layers of 1024" in time
    assert "they took 20 s." in time
    assert "10 min 22 s for 2 in a row, 31 times as long" in time, "2 x 311 s"


def test_runs_that_a_table_holds_beside_the_sweep_are_told_apart(page, tmp_path):
    assert "Further runs" not in page
    Table(tmp_path / "small.parquet").note(shown=["a"])
    time = record.page(tmp_path).split("\n## ")[2]
    assert "40 s on NVIDIA H200 and 30 min 16 s on cpu" in time, "1800 s + 16 s"
    assert (
        "Further runs in the tables, which are no part of what is judged: 1, 30 min 16 s." in time
    )


def test_the_public_codes_first_sweeps(monkeypatch, tmp_path):
    monkeypatch.setattr(
        record, "_experiments", lambda: dict.fromkeys(["other", *device_time.FIRST], MADE)
    )
    for name in ("other", *device_time.FIRST[1:]):
        made(tmp_path, name, rows())
    assert "first three sweeps" not in record.page(tmp_path), "one is missing"
    made(tmp_path, device_time.FIRST[0], rows())
    time = record.page(tmp_path).split("\n## ")[2]
    told = "`scaling_width`, `scaling_data` and `support_conditions`: 6 runs at full scale, 1 min 0 s on NVIDIA H200;"
    assert told in time
    assert "at that rate 774 take 2 h 9 min" in time, "10 s a run"
    assert "31 min 6 s for 6 in a row" in time, "6 x 311 s"
    Table(tmp_path / f"{device_time.FIRST[0]}.parquet").note(scale="small")
    assert "first three sweeps" not in record.page(tmp_path)


def test_commands_that_would_make_other_runs_are_told(tmp_path):
    made(tmp_path, "made", rows())

    def told(runs) -> str:
        module = SimpleNamespace(claims=claims, cells=lambda scale: runs)
        return " ".join(
            "\n".join(
                record.lines(ledger({"made": module}, tmp_path).to_dict("records"), 60)
            ).split()
        )

    note = "made with other settings than today's; the command makes new cells beside these"
    assert f"2 cells, 20 s of device time; {note} recombine run made" in told([{"width": 1}])
    frame = rows()
    made(
        tmp_path,
        "made",
        frame.assign(run=frame["run"].map({"a": Cell("made", {"width": 1}).name, "b": "b"})),
    )
    Table(tmp_path / "made.parquet").note(shown=[Cell("made", {"width": 1}).name, "b"])
    assert f"2 cells, 20 s of device time; 1 of them {note} recombine run made" in told(
        [{"width": 1}]
    )
    Table(tmp_path / "made.parquet").note(shown=[Cell("made", {"width": 1}).name])
    assert "1 cell, 18 s of device time recombine run made" in told([{"width": 1}])


def test_a_reader_knows_what_the_commands_do():
    assert "In a clone the commands train nothing: they find every run in its table" in PAGE
    about = re.findall(r"^(?:Full|Small) scale, .*$", PAGE, re.MULTILINE)
    assert len(about) == len(TABLES)
    assert sum("the command makes new" in line for line in about) == 2, "quickstart and six_modules"


def test_runs_that_tell_nothing_more_are_counted(tmp_path):
    def spared(scale):
        """Every | run that tells nothing more.

        Not this.
        """
        return [Run(), Run(seed=1)]

    table, module = Table(tmp_path / "made.parquet"), SimpleNamespace(spared=spared)
    told = "Spared: 2 runs. Every \\| run that tells nothing more."
    assert record._left_out(module, table, "full") == [told]
    table.append(rows().assign(run=identity(Run(seed=1))).iloc[:1])
    told = told.replace("2 runs.", "2 runs, of which the table has 1 all the same.")
    assert record._left_out(module, table, "full") == [told]
    assert (
        record._left_out(
            SimpleNamespace(spared=lambda _: [], impossible=lambda _: []), table, "full"
        )
        == []
    )
    assert re.search(
        r"^Spared: 813 runs.* not needed to tell where a curve crosses\.$", PAGE, re.MULTILINE
    )


def test_impossible_runs_are_listed_and_folded():
    section = PAGE[PAGE.index("\n## scaling_data") : PAGE.index("\n## scaling_depth")]
    (section,) = re.findall(r"^<details>.*^</details>$", section, re.MULTILINE | re.DOTALL)
    assert re.search(
        r"<summary>.*left out: 54 runs, .* connect the modules</summary>\n\nShare held out: K=",
        section,
    )
    assert "K=2, M=16: 90%, 95%, 98%, 99%; K=2, M=24: 95%, 98%, 99%;" in section
    assert section.count("M=") >= 7


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.99994, "0.9999"),
        (1 - 1e-7, "1.000"),
        (1 + 1e-7, "1.000"),
        (-0.5, "-0.5000"),
        (1234, "1,234"),
    ],
)
def test_numbers(value, told):
    assert record._number(value) == told


def test_the_same_run_in_two_tables_was_trained_twice(page, tmp_path):
    made(tmp_path, "todo", rows())
    assert "\n4 of the runs train an MLP of 4 layers of 1024" in record.page(tmp_path)


@functools.cache
def committed() -> pd.DataFrame:
    """The ledger of the committed tables, which takes half a minute: computed once for all tests of this file."""
    return ledger(pins.experiments(), RESULTS)


def test_the_committed_page_is_of_the_committed_tables(monkeypatch):
    monkeypatch.setattr(record, "ledger", lambda *_: committed())
    assert record.page(RESULTS) == PAGE, (
        "write it anew: recombine claims --page docs/results/README.md"
    )


def test_measured_values_intervals_and_verdicts_stay():
    found, held = pins.verdicts(committed()), pins.held()["verdicts"]
    assert list(found) == list(held)
    for name, (measured, interval, verdict) in held.items():
        assert found[name][2] == verdict, name
        numbers, before = ([one[0], *(one[1] or [])] for one in (found[name], (measured, interval)))
        assert [value is None for value in numbers] == [value is None for value in before], name
        known = [
            (value, old) for value, old in zip(numbers, before, strict=True) if old is not None
        ]
        assert all(value == pytest.approx(old, rel=1e-9, abs=1e-9) for value, old in known), name


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_of_use(name):
    found = committed()
    assert set(found.loc[found["experiment"] == name, "verdict"]) - {"not yet run"}


@pytest.mark.parametrize("name", TABLES)
def test_tables_tell_what_their_experiments_do(name):
    told = Table(RESULTS / f"{name}.parquet").meta()["description"]
    assert told == (catalogue.experiment(name).__doc__ or "").strip(), (
        "run it with --finished: pages are made of this"
    )


@pytest.mark.parametrize("name", catalogue.experiment_names())
def test_our_experiments_say_in_one_way_that_nothing_was_published(name):
    for claim in catalogue.experiment(name).claims(None):
        assert (claim.published == OURS) is claim.ours, f"{claim.name}: say OURS"
        assert not claim.published.startswith("nothing")
        assert claim.ours or claim.source not in ("ours", "control"), (
            f"{claim.name} was published: name where"
        )
        assert claim.control not in ("-", "is one", "the control below"), (
            f"{claim.name}: say it in words"
        )
        assert not re.match(r"It grows|It falls|So does", claim.statement), (
            f"{claim.name}: a line stands alone"
        )


def test_the_page_has_every_experiment():
    assert re.findall(r"^## (\w+)$", PAGE, re.MULTILINE) == [
        "Verdicts",
        *catalogue.experiment_names(),
    ]


def test_the_pictures_are_of_the_committed_figures():
    figures = {
        f"{name}-{figure}.svg": text
        for name in TABLES
        for figure, text in Table(RESULTS / f"{name}.parquet").figures().items()
    }
    assert {path.name for path in RESULTS.glob("*.svg")} == set(figures), (
        "draw them: python benchmarks/pictures.py"
    )
    assert set(re.findall(r"\]\(([\w-]+\.svg)\)", PAGE)) == set(figures)
    for name, text in figures.items():
        picture = (RESULTS / name).read_text()
        assert record.mark(text) in picture, (
            f"{name} is of another figure: python benchmarks/pictures.py"
        )
        assert len(picture) < 120_000, f"{name} is too large for a page"


@pytest.mark.parametrize("name", TABLES)
def test_titles_fit_their_pictures(name):
    for text in Table(RESULTS / f"{name}.parquet").figures().values():
        title = json.loads(text)["layout"]["title"]["text"]
        assert len(title) <= 74, title  # 760 pixels wide


def test_a_picture_in_fewer_characters_says_the_same():
    pytest.importorskip("playwright.sync_api", reason="pictures are drawn with playwright")
    from benchmarks.pictures import smaller

    svg = '<g class="a b" style=""><path d="M1.2345,0.5L-10,3e2" data-n="1"/><text x="7.999">0.1234 = "x"</text></g>'
    assert smaller(svg) == '<g><path d="M1.23,0.5L-10,3e2"/><text x="8.00">0.1234 = "x"</text></g>'
