"""The record: pages of made-up tables, and the committed page and pictures."""

import functools
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from recombine.experiments import catalogue, device_time, record
from recombine.experiments.claim import OURS, PAPER, Claim, claims_of
from recombine.experiments.ledger import RESULTS, ledger
from recombine.storage.table import Table
from recombine.sweeps.run import Run, identity
from recombine.training.computed import Cell
from tests import pins
from tests.experiments.test_committed_rows import OTHER_SETTINGS

PAGE = (RESULTS / "README.md").read_text()
TABLES = [name for name in catalogue.experiment_names() if (RESULTS / f"{name}.parquet").exists()]
DOCSTRING = """A title line.

Claim: one | two (a source
of it).

Command:  recombine run made
"""
PUBLISHED = {"source": f"{PAPER}, Fig. 2", "published": "R2 > 0.9"}


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
            measured=best and float("inf"),
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
    printed = record.lines(ledger({"made": MADE, "todo": MADE}, tmp_path).to_dict("records"), 80)
    text = "\n".join(printed)
    lines = [line for line in text.splitlines() if "recombine run" not in line]
    assert max(map(len, lines)) <= 80
    assert text.startswith(
        "made: How wide?\n  Full scale, NVIDIA H200, 2030-01-02: 2 runs, 20 s of device time\n"
    )
    assert "\n  reproduced      Wide *and* long Wide" in text
    assert (
        f"\n{' ' * 18}measured 0.9700 [0.5000, 1,000,000]; published: R2 > 0.9"
        f"\n{' ' * 18}source: arXiv 2507.07207, Fig. 2\n" in text
    )
    assert "\n  not reproduced  It is | odd\n" in text
    assert "measured ∞; published" in text
    assert "control: none" in text
    assert "\ntodo: How wide?\n  Not yet run\n  recombine run todo --scale full --out " in text
    counts, time = " ".join(printed[-1].split()).split("; ")
    assert counts == (
        "4 claims of the paper (arXiv 2507.07207): 1 reproduced, 1 not reproduced, 2 not yet run"
    )
    assert " ".join(time.split()) == "device time: 20 s on NVIDIA H200"


def test_our_own_questions_are_counted_separately(tmp_path):
    def asked(rows):
        return [*claims(rows), Claim("third", "Our question", "ours", OURS, 0.5, holds=False)]

    ledger_rows = ledger(
        {"made": SimpleNamespace(claims=asked, __doc__=DOCSTRING)}, tmp_path
    ).to_dict("records")
    text = "\n".join(record.lines(ledger_rows, 200))
    assert "measured 0.5000; ours\n" in text
    counts_text = (
        "2 claims of the paper (arXiv 2507.07207): 2 not yet run; "
        "1 hypothesis or control of our own: 1 does not hold"
    )
    assert text.splitlines()[-1] == f"{counts_text}; device time: none"
    table = record._verdicts(ledger_rows)
    assert f"\n{counts_text}.\n" in table
    assert "| Our question | ours | 0.5000 | does not hold |" in table
    assert record._item(ledger_rows[2]) == "- **does not hold**: Our question: 0.5000; ours"


def test_each_group_of_claims_is_counted_apart_and_marked(tmp_path):
    def listed(rows):
        common = {"statement": "S", "measured": 0.5, "holds": True} | PUBLISHED
        return [
            Claim("headline", **common),
            Claim("again", **common, repeats="made: headline"),
            Claim("later", **common, after_rows="the layer", threshold="above 0.4"),
            Claim("elsewhere", **common | {"source": "Okawa et al."}, threshold="below 1"),
            Claim("few", **common | {"holds": None}, seeds=2, interval=(0.4, 0.6)),
            Claim(
                "range", **common, seeds=3, interval=(0.4, 0.6), interval_kind="range over seeds"
            ),
            Claim(
                "pooled",
                **common | {"source": "Okawa et al.", "measured": 0.7},
                seeds=3,
                interval=(0.4, 0.6),
                interval_kind="range over seeds",
            ),
            Claim("number", **common, threshold="at least 0.9", threshold_published=True),
        ]

    module = SimpleNamespace(claims=listed, __doc__=DOCSTRING)
    ledger_rows = ledger({"made": module}, tmp_path).to_dict("records")
    counts = record._tally(ledger_rows).split("; ")
    assert counts == [
        "4 claims of the paper (arXiv 2507.07207): 3 reproduced, 1 not judged",
        "1 of its claims with a rule fixed after rows were seen (†): 1 reproduced",
        "1 repetition of such a claim in another experiment or setting: 1 reproduced",
        "2 claims of other sources: 2 reproduced",
    ]
    items = {line["name"]: record._item(line) for line in ledger_rows}
    assert items["again"].endswith("; repeats made: headline")
    assert "S †: 0.5000" in items["later"]
    assert items["later"].endswith(
        "; threshold (ours): above 0.4; fixed after rows were seen: the layer"
    )
    assert items["number"].endswith("; published threshold: at least 0.9")
    assert items["few"].startswith("- **not judged (2 seeds)**: S: 0.5000 [0.4000, 0.6000]")
    assert "S: 0.5000 [single seeds: 0.4000 to 0.6000]" in items["range"]
    assert "0.7000 for all seeds together [single seeds: 0.4000 to 0.6000]" in items["pooled"]
    assert "| S † | R2 > 0.9 | 0.5000 | reproduced |" in record._verdicts(ledger_rows)
    assert "| 0.5000 [0.4000, 0.6000] | not judged (2 seeds) |" in record._verdicts(ledger_rows)
    assert [line["seeds"] for line in ledger_rows][4:6] == [2, 3]


def made_page(results, names=("made", "other", "small", "todo")) -> str:
    return record.page(results, experiments=dict.fromkeys(names, MADE))


@pytest.fixture
def page(tmp_path) -> str:
    made(tmp_path, "made", rows())
    made(tmp_path, "other", rows(model="Transformer"))
    made(tmp_path, "small", rows(**{"meta/device": "cpu", "meta/seconds": 1800.0}))
    return made_page(tmp_path)


def test_a_page_has_verdicts_commands_and_figures(page):
    line = "| [made](#made) | It is \\| odd | R2 > 0.9 | ∞ | not reproduced |"
    assert line in page
    section = page[page.index("## made") : page.index("## other")]
    for text in (
        "Claim: one \\| two (a source of it).\n",
        "**How wide?**",
        "Full scale, NVIDIA H200, 2030-01-02: 2 runs, 20 s of device time.",
        "--scale full --out ",
        "- **reproduced**: Wide \\*and\\* long",
        "![By width](made-width.svg)",
    ):
        assert text in section
    assert "Not yet run." in page[page.index("## todo") :]
    assert "Measured:" not in page[page.index("## todo") :]
    assert "--page docs/results/README.md" in page.splitlines()[-1]


def test_only_the_papers_model_is_compared_with_the_public_code(page):
    time = page[page.index("## Device time") : page.index("## made")]
    assert "40 s on NVIDIA H200 and 1 h 0 min on cpu" in time, (
        "two tables of 2 x 2 s + 16 s; one of 2 x 1800 s + 16 s"
    )
    assert "\n2 of the runs train the paper's MLP (4 layers of 1024)" in time
    assert "They took 20 s." in time
    assert "10 min 22 s for 2 runs one after the other, 31 times as long" in time, "2 x 311 s"


def test_runs_without_a_verdict_are_counted_separately(page, tmp_path):
    assert "more runs" not in page
    Table(tmp_path / "small.parquet").note(shown=["a"])
    time = made_page(tmp_path).split("\n## ")[2]
    assert "40 s on NVIDIA H200 and 30 min 16 s on cpu" in time, "1800 s + 16 s"
    assert (
        "The tables hold 1 more run that no verdict uses, with a device time of 30 min 16 s."
        in time
    )


def test_the_public_codes_first_sweeps(tmp_path):
    names = ["other", *device_time.PUBLIC_SWEEPS]
    for name in ("other", *device_time.PUBLIC_SWEEPS[1:]):
        made(tmp_path, name, rows())
    assert "first three sweeps" not in made_page(tmp_path, names), "one is missing"
    made(tmp_path, device_time.PUBLIC_SWEEPS[0], rows())
    time = made_page(tmp_path, names).split("\n## ")[2]
    assert "`scaling_width`, `scaling_data` and `support_conditions` have 6 runs at full" in time
    assert "took 1 min 0 s on NVIDIA H200; at this rate 774 runs take 2 h 9 min" in time
    assert "31 min 6 s for 6 runs one after the other" in time, "6 x 311 s"
    Table(tmp_path / f"{device_time.PUBLIC_SWEEPS[0]}.parquet").note(scale="small")
    assert "first three sweeps" not in made_page(tmp_path, names)


def test_commands_that_would_make_other_runs_are_noted(tmp_path):
    made(tmp_path, "made", rows())

    def printed(runs) -> str:
        module = SimpleNamespace(claims=claims, cells=lambda scale: runs)
        return " ".join(
            "\n".join(
                record.lines(ledger({"made": module}, tmp_path).to_dict("records"), 60)
            ).split()
        )

    note = "made with earlier settings; the command adds new cells"
    assert f"2 cells, 20 s of device time; {note} recombine run made" in printed([{"width": 1}])
    frame = rows()
    made(
        tmp_path,
        "made",
        frame.assign(run=frame["run"].map({"a": Cell("made", {"width": 1}).name, "b": "b"})),
    )
    Table(tmp_path / "made.parquet").note(shown=[Cell("made", {"width": 1}).name, "b"])
    assert f"2 cells, 20 s of device time; 1 of them {note} recombine run made" in printed(
        [{"width": 1}]
    )
    Table(tmp_path / "made.parquet").note(shown=[Cell("made", {"width": 1}).name])
    assert "1 cell, 18 s of device time recombine run made" in printed([{"width": 1}])


def test_a_reader_knows_what_the_commands_do():
    assert "In a clone, the commands train nothing: they find the finished runs" in PAGE
    about = re.findall(r"^(?:Full|Small) scale, .*$", PAGE, re.MULTILINE)
    assert len(about) == len(TABLES)
    num_earlier = sum("the command adds new" in line for line in about)
    assert num_earlier == len(OTHER_SETTINGS), "tables of an earlier recipe"


def test_runs_left_out_to_save_time_are_counted(tmp_path):
    def spared(scale):
        """Every | run that adds no information.

        Not this.
        """
        return [Run(), Run(seed=1)]

    table, module = Table(tmp_path / "made.parquet"), SimpleNamespace(spared=spared)
    expected = "Left out to save time: 2 runs. Every \\| run that adds no information."
    assert record._left_out(module, table, "full") == [expected]
    table.append(rows().assign(run=identity(Run(seed=1))).iloc[:1])
    expected = expected.replace("2 runs.", "2 runs (1 of them are in the table all the same).")
    assert record._left_out(module, table, "full") == [expected]
    assert (
        record._left_out(
            SimpleNamespace(spared=lambda _: [], impossible=lambda _: []), table, "full"
        )
        == []
    )
    assert re.search(
        r"^Left out to save time: 813 runs.* not needed to find where a curve crosses\.$",
        PAGE,
        re.MULTILINE,
    )


def test_impossible_runs_are_listed_and_folded():
    section = PAGE[PAGE.index("\n## scaling_data") : PAGE.index("\n## scaling_depth")]
    (section,) = re.findall(r"^<details>.*^</details>$", section, re.MULTILINE | re.DOTALL)
    assert re.search(
        r"<summary>Impossible: 54 runs .* connect the modules</summary>\n\nFraction held out: K=",
        section,
    )
    assert "K=2, M=16: 90%, 95%, 98%, 99%; K=2, M=24: 95%, 98%, 99%;" in section
    assert section.count("M=") >= 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.99994, "0.9999"),
        (1 - 1e-7, "1.000"),
        (1 + 1e-7, "1.000"),
        (-0.5, "-0.5000"),
        (1234, "1,234"),
    ],
)
def test_numbers(value, text):
    assert record._number(value) == text


def test_the_same_run_in_two_tables_was_trained_twice(page, tmp_path):
    made(tmp_path, "todo", rows())
    assert "\n4 of the runs train the paper's MLP (4 layers of 1024)" in made_page(tmp_path)


@functools.cache
def committed() -> pd.DataFrame:
    """The ledger of the committed tables, which takes half a minute: computed once for all tests of
    this file.
    """
    return ledger(pins.experiments(), RESULTS)


def test_the_committed_page_is_of_the_committed_tables(monkeypatch):
    monkeypatch.setattr(record, "ledger", lambda *_: committed())
    assert record.page(RESULTS) == PAGE, (
        "write it anew: recombine claims --page docs/results/README.md"
    )


def test_the_page_of_changes_is_of_the_committed_tables():
    from benchmarks import what_changed

    claims = committed().to_dict("records")
    text = what_changed.page(what_changed.load(RESULTS), claims, what_changed.sets_of(RESULTS))
    assert text == (RESULTS / what_changed.PAGE).read_text(), (
        "write it anew: python benchmarks/what_changed.py"
    )


def test_numbers_are_the_same_if_they_are_computed_without_the_package():
    from benchmarks import recompute

    source = Path(recompute.__file__).read_text()
    assert not re.search(r"^\s*(from|import) recombine", source, re.MULTILINE)
    lines = recompute.compare(committed().to_dict("records"), RESULTS)
    assert lines["agrees"].all(), lines[~lines["agrees"]]
    assert len(lines) >= 40
    assert lines["experiment"].nunique() >= 12


def test_measured_values_intervals_and_verdicts_stay():
    measured_now, held = pins.verdicts(committed()), pins.held()["verdicts"]
    assert list(measured_now) == list(held)
    for name, (measured, interval, verdict) in held.items():
        assert measured_now[name][2] == verdict, name
        numbers, before = (
            [pair[0], *(pair[1] or [])] for pair in (measured_now[name], (measured, interval))
        )
        assert [value is None for value in numbers] == [value is None for value in before], name
        known = [
            (value, old) for value, old in zip(numbers, before, strict=True) if old is not None
        ]
        assert all(value == pytest.approx(old, rel=1e-9, abs=1e-9) for value, old in known), name


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_of_use(name):
    committed_verdicts = committed()
    assert set(committed_verdicts.loc[committed_verdicts["experiment"] == name, "verdict"]) - {
        "not yet run"
    }


def test_what_a_claim_repeats_is_a_claim_of_the_paper():
    claims = committed().to_dict("records")
    by_name = {f"{claim['experiment']}: {claim['name']}": claim for claim in claims}
    for name, claim in by_name.items():
        if claim["repeats"]:
            repeated = by_name[claim["repeats"]]
            assert repeated["source"].startswith(PAPER), name
            assert not repeated["repeats"], f"{name}: name the first claim, not a repetition"


def test_thresholds_are_named():
    for claim in committed().to_dict("records"):
        name = f"{claim['experiment']}: {claim['name']}"
        assert claim["threshold"], f"{name}: give its rule a text (claim.on_value)"
        assert not (claim["threshold_published"] and claim["ours"]), name
        assert "0.9967" not in claim["published"], "measured with the public code, not published"


@pytest.mark.parametrize("name", TABLES)
def test_tables_tell_what_their_experiments_do(name):
    description = Table(RESULTS / f"{name}.parquet").meta()["description"]
    assert description == (catalogue.experiment(name).__doc__ or "").strip(), (
        "run it with --no-train: pages are made of this"
    )


@pytest.mark.parametrize("name", catalogue.experiment_names())
def test_our_experiments_say_in_one_way_that_nothing_was_published(name):
    for claim in claims_of(catalogue.experiment(name), None):
        assert (claim.published == OURS) is claim.ours, f"{claim.name}: say OURS"
        assert not claim.published.startswith("nothing")
        assert claim.ours or claim.source not in ("ours", "control"), (
            f"{claim.name} was published: name where"
        )
        assert claim.control not in ("-", "is one", "the control below"), (
            f"{claim.name}: say it in words"
        )
        assert not re.match(r"It grows|It falls|So does", claim.statement), (
            f"{claim.name}: a statement must be understandable without the one before it"
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

    svg = '<g class="a b" style=""><path d="M1.2345,0.5L-10,3e2" data-n="1"/>'
    svg += '<text x="7.999">0.1234 = "x"</text></g>'
    assert smaller(svg) == '<g><path d="M1.23,0.5L-10,3e2"/><text x="8.00">0.1234 = "x"</text></g>'
