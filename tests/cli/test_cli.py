"""The command line: printed text, JSON, and one line with exit code 2 for bad input."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

import recombine
from recombine.experiments import catalogue, ledger
from recombine.experiments.ledger import RESULTS
from recombine.reporting import unit_activity

TINY = """
import recombine as rc

BASE = rc.Run(
    family=rc.Hyperteacher(num_modules=6, num_hot=2, d_input=4, d_hidden=4, num_outputs=3),
    model=rc.MLP(widths=(8, 8)),
    diagnostics=(),
    num_steps=8,
    num_evals=2,
    num_tasks=8,
    num_eval_tasks=16,
)

def runs(scale):
    return rc.sweep(BASE, frac_test=[0.3, 0.5], seed=range(2))

def summary(rows):
    return {"best": float(rows["test/r2"].max())}
"""

OWN_PART = """
from dataclasses import dataclass
import recombine as rc

@dataclass(frozen=True)
class Doubled:
    factor: float = 2.0
    def num_tokens(self, family): return 0
    def init(self, key, family): return ()
    def encode(self, params, key, task, examples): return task * self.factor

FAMILY = rc.Hyperteacher(num_modules=6, num_hot=2, d_input=4, d_hidden=4, num_outputs=3)

def runs(scale):
    run = rc.Run(
        family=FAMILY,
        encoding=Doubled(),
        model=rc.MLP(widths=(8, 8)),
        diagnostics=(),
        num_steps=8,
        num_evals=2,
        num_tasks=8,
    )
    return [run]
"""


@pytest.fixture
def tiny(tmp_path) -> str:
    (tmp_path / "tiny.py").write_text(TINY)
    return "tiny.py"


def check_refused(result: tuple[int, str, str], *words: str) -> None:
    """Check that a call printed one line with these words, and gave exit code 2."""
    code, _, err = result
    assert code == 2, err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1, "one line"
    for word in words:
        assert word in err


def test_a_users_file_runs_resumes_and_reports(call, tiny, tmp_path):
    code, out, _ = call("run", tiny, "--out", "rows", "--json")
    result = json.loads(out)
    assert code == 0
    keys = {
        "experiment",
        "out",
        "runs",
        "programs",
        "seconds",
        "summary",
        "activity",
        "warnings",
        "rows",
        "mixed",
        "other_code",
    }
    assert set(result) == keys
    assert (result["experiment"], result["runs"], result["programs"], result["rows"]) == (
        "tiny",
        4,
        1,
        8,
    )
    assert list(result["summary"]) == ["best"]
    before = sorted((tmp_path / "rows").rglob("*.parquet"))
    code, out, err = call("run", tiny, "--out", "rows")
    assert code == 0
    assert "4 of 4 runs are finished already" in err
    assert "test/r2" in out
    assert sorted((tmp_path / "rows").rglob("*.parquet")) == before
    code, out, _ = call("report", "rows", "--json")
    page = Path(json.loads(out)["report"]).read_text()
    assert "recombine run tiny.py --out rows" in page


def test_unit_activity_is_in_the_output_and_on_the_page(call, tiny, monkeypatch):
    monkeypatch.setattr(unit_activity, "MAX_DEAD", -1.0)  # every layer is above it
    code, out, err = call("run", tiny, "--out", "rows", "--json")
    result = json.loads(out)
    assert code == 0
    assert list(result["activity"]) == ["hidden0", "hidden1"]
    for numbers in result["activity"].values():
        assert set(numbers) == {"dead", "rare", "active", "rank"}
        assert 0 <= numbers["dead"] <= numbers["rare"] <= 1
        assert 0 < numbers["active"] < 1 < numbers["rank"] <= 8
    (warning,) = result["warnings"]
    assert f"recombine: {warning}" in err.splitlines()
    code, out, err = call("run", tiny, "--out", "rows")
    assert code == 0
    assert (
        out.index("best: ")
        < out.index("Dead units: ")
        < out.index(warning)
        < out.index("4 runs in 1 program")
    )
    assert warning not in err, "it is printed once"
    call("report", "rows")
    page = Path("rows/report.html").read_text()
    assert f'<p class="warning">{warning}</p>' in page
    assert "Dead units by hidden layer" in page
    monkeypatch.setattr(unit_activity, "MAX_DEAD", 1.0)
    code, out, err = call("run", tiny, "--out", "rows", "--json")
    assert json.loads(out)["warnings"] == []
    assert "Warning" not in err


def test_a_report_shows_the_runs_of_the_last_command(call, tiny):
    call("run", tiny, "--out", "rows", "--json")
    call("run", tiny, "--out", "rows", "--set", "frac_test=0.4", "--json")
    call("report", "rows", "--json")
    page = Path("rows/report.html").read_text()
    assert "2 runs, each at its last step" in page
    assert "frac_test=0.4" in page


def test_settings_seeds_and_packed_output(call, tiny, tmp_path):
    code, out, _ = call(
        "run",
        tiny,
        "--set",
        "frac_test=0.4",
        "recipe.learning_rate=0.01",
        "--seeds",
        "3",
        "--out",
        "a.parquet",
        "--json",
    )
    assert code == 0
    assert json.loads(out)["runs"] == 3
    code, out, _ = call("report", "a.parquet", "--out", "page.html", "--json")
    assert code == 0
    assert "frac_test=0.4" in (tmp_path / "page.html").read_text()


def test_no_train_summarizes_finished_runs(call, tiny):
    check_refused(
        call("run", tiny, "--out", "part", "--no-train"),
        "none of the 4 runs is finished",
        "leave out --no-train",
    )
    trained = json.loads(call("run", tiny, "--out", "part", "--seeds", "1", "--json")[1])
    files = sorted(Path("part").rglob("*.parquet"))
    code, out, err = call("run", tiny, "--out", "part", "--no-train", "--json")
    result = json.loads(out)
    assert (code, result["runs"], list(result["summary"])) == (0, 2, ["best"])
    assert err == "recombine: 2 of 4 runs are finished; the others are missing\n"
    _, out, err = call("run", tiny, "--out", "part", "--no-train", "--seeds", "1", "--json")
    assert err == "", "all runs are finished"
    assert sorted(Path("part").rglob("*.parquet")) == files, "the other runs are not trained"
    assert result["seconds"] <= trained["seconds"], "both may be rounded to 0"
    Path(tiny).write_text(
        TINY.replace("frac_test=[", "model__widths=[(8, 8), (12, 8)], frac_test=[")
    )
    result = json.loads(call("run", tiny, "--out", "part", "--no-train", "--json")[1])
    assert (result["runs"], result["programs"]) == (2, 1), "programs of the finished runs only"


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        ("run quickstart", "--on moon", "--executor moon"),
        ("run quickstart", "--on=moon", "--executor=moon"),
        ("run quickstart --out part", "--finished", "--no-train"),
        ("plan --modules 24 --device cpu --json", "--hot 3", "--max-active 3"),
    ],
)
def test_old_option_names_still_work_but_are_not_in_help(call, command, old, new):
    result = call(*command.split(), *new.split())
    assert call(*command.split(), *old.split()) == result
    assert "No such option" not in result[2]
    help_words = call(command.split()[0], "--help")[1].split()
    assert re.split("[ =]", new)[0] in help_words
    assert re.split("[ =]", old)[0] not in help_words


def test_help_lists_every_command_in_order_with_an_uncut_sentence(call):
    _, out, _ = call("--help")
    _, experiments, own = re.split(
        r"^(?:Experiments|Your own model, data and sweep):\n", out, flags=re.M
    )
    lines = [line.split(maxsplit=1) for line in (experiments + own).splitlines() if line]
    names = "quickstart list run cost watch serve check verify report claims bench probe coverage"
    assert [name for name, _ in lines] == [*names.split(), "plan"]
    assert all(sentence.endswith(".") and "..." not in sentence for _, sentence in lines)


def test_a_users_own_part_is_checked_and_trained_and_its_fields_are_set(call, tmp_path):
    (tmp_path / "own.py").write_text(OWN_PART)
    code, out, _ = call("check", "own.py", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["broken"] == 0
    assert {r["kind"] for r in result["results"]} == {"encoding"}
    code, out, _ = call("run", "own.py", "--set", "encoding=Doubled(factor=0.5)", "--json")
    assert code == 0
    assert json.loads(out)["out"] == "results/own-small"
    (tmp_path / "own.py").write_text(
        OWN_PART.replace("return task * self.factor", "return task[0]")
    )
    code, out, _ = call("check", "own.py")
    assert code == 1
    assert "BROKEN  Doubled" in out
    assert "a code must be a vector" in out


def test_list_shows_all_parts_and_experiments(call):
    code, out, _ = call("list", "--json")
    listed = json.loads(out)
    assert code == 0
    assert listed["family"]["Hyperteacher"]["num_modules"] == 16
    assert set(listed["encoding"]) >= {
        "Identity",
        "Orthogonal",
        "Language",
        "InvertibleNN",
        "IntervalShuffle",
        "FewShot",
    }
    assert "quickstart" in listed["experiment"]
    code, out, _ = call("list")
    assert "num_pairs=50" in out


def test_claims_come_from_the_committed_tables(call, tmp_path):
    (tmp_path / "one").mkdir()
    shutil.copy(RESULTS / "quickstart.parquet", tmp_path / "one")
    code, out, _ = call("claims", "--json", "--results", "one")
    listed = json.loads(out)["claims"]
    assert code == 0
    assert {claim["experiment"] for claim in listed} == set(catalogue.experiment_names())
    assert {claim["experiment"] for claim in listed if claim["verdict"] != "not yet run"} == {
        "quickstart"
    }
    assert {claim["published"] for claim in listed if claim["ours"]} == {"ours"}
    code, out, _ = call("claims", "quickstart", "--json")
    listed = json.loads(out)["claims"]
    width = next(
        claim for claim in listed if (claim["experiment"], claim["name"]) == ("quickstart", "width")
    )
    assert width["verdict"] == "reproduced"
    assert width["source"] == "arXiv 2507.07207, section 3"
    again = f"--scale {width['scale']} --out docs/results/quickstart.parquet"
    assert width["command"] == f"recombine run quickstart {again}"
    assert width["measured"] > 1
    assert width["seconds"] > 10
    assert width["runs"] > 1
    assert width["ours"] is False
    assert width["date"] >= "2026-11-15"
    code, out, _ = call("claims", "quickstart", "modularity")
    assert code == 0
    assert re.findall(r"^(\w+): ", out, re.MULTILINE) == ["quickstart", "modularity"], "only these"
    total = " ".join(out.split("\n\n")[-1].split())
    counts = (
        r"^2 claims of the paper \(arXiv 2507.07207\): 2 \w+; 2 repetitions of such claims .*; "
        r"1 hypothesis or control of our own: 1 .*; device time: .* on "
    )
    assert re.search(counts, total)


def test_claims_show_progress_on_a_terminal_only(call, monkeypatch):
    _, out, err = call("claims", "modularity", "quickstart")
    assert err == "", "no terminal"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, terminal_out, err = call("claims", "modularity", "quickstart")
    assert code == 0
    assert "judging quickstart, 2 of 2" in err
    assert err.index("judging modularity, 1 of 2") < err.index("judging quickstart, 2 of 2")
    assert terminal_out == out, "stdout has no progress"


WITH_CLAIM = """
from recombine.experiments.claim import Claim

TITLE = "An experiment of my own"

def claims(rows):
    best = None if rows is None else float(rows["test/r2"].max())
    claim = Claim(
        name="best",
        statement="It is perfect",
        source="a friend",
        published="R2 of 1",
        measured=best,
        holds=None if rows is None else best > 0.99,
        interval=(-1.0, best),
    )
    return [claim]
"""


def test_claims_can_train_a_sweep_first(call, tmp_path):
    (tmp_path / "mine.py").write_text(TINY + WITH_CLAIM)
    code, out, err = call("claims", "--run", "mine.py", "--scale", "tiny", "--json")
    (claim,) = json.loads(out)["claims"]
    assert code == 0
    assert (claim["experiment"], claim["runs"], claim["scale"]) == ("mine", 4, "tiny")
    assert claim["verdict"] == "not reproduced"
    assert claim["interval"] == [-1.0, claim["measured"]]
    assert claim["command"] == "recombine run mine.py --scale tiny --out results/mine-tiny"
    code, out, err = call("claims", "--run", "mine.py", "--scale", "tiny")
    assert code == 0
    assert "4 of 4 runs are finished already" in err
    assert out.startswith("mine: An experiment of my own\n  Tiny scale, cpu, ")
    assert "not reproduced  It is perfect\n" in out
    assert out.splitlines()[-1].startswith(
        "1 claim of another source: 1 not reproduced; device time: "
    )


def test_the_page_of_all_claims(call):
    Path("none").mkdir()
    code, out, _ = call("claims", "--page", "page.md", "--results", "none")
    assert (code, out) == (0, "Page: page.md\n")
    assert Path("page.md").read_text().startswith("# The record\n")
    Path("taken").mkdir()
    check_refused(
        call("claims", "--page", "taken", "--results", "none"), "cannot write the page to taken"
    )


def test_a_file_without_claims_is_not_trained(call, tiny, tmp_path):
    check_refused(call("claims", "--run", tiny), "tiny.py makes no claims")
    assert not list(tmp_path.rglob("*.parquet"))


def test_without_arguments_help_is_printed(call):
    _, out, err = call()
    assert "quickstart" in out + err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "quikstart"], ["quikstart", "quickstart"]),
        (["run", "missing.py"], ["no file missing.py"]),
        (["run", "quickstart", "--scale", "huge"], ["huge", "tiny"]),
        (["run", "quickstart", "--set", "model.width=8"], ["width", "widths"]),
        (["run", "quickstart", "--set", "modle.widths=8"], ["modle", "model"]),
        (["run", "quickstart", "--set", "model.widths=abc"], ["MLP.widths"]),
        (["run", "quickstart", "--set", "model.widths=-3"], ["MLP.widths"]),
        (["run", "quickstart", "--set", "num_steps=ten"], ["num_steps", "whole number"]),
        (["run", "quickstart", "--set", "frac_test=0"], ["frac_test"]),
        (["run", "quickstart", "--set", "frac_test=1"], ["frac_test"]),
        (["run", "quickstart", "--set", "frac_test=nan"], ["frac_test"]),
        (["run", "quickstart", "--set", "frac_test"], ["field=value"]),
        (["run", "quickstart", "--set", "family.num_hot=9"], ["num_hot=9", "num_modules=8"]),
        (["run", "quickstart", "--set", "encoding=Fewshot"], ["Fewshot", "FewShot"]),
        (
            ["run", "quickstart", "--set", "family.num_modules=16", "frac_test=0.99"],
            ["cannot connect 16 modules"],
        ),
        (["run", "quickstart", "--seeds", "0"], ["seeds"]),
        (["report", "nowhere"], ["nowhere"]),
        (["claims", "quikstart"], ["quikstart", "quickstart"]),
        (["claims", "--run", "quikstart"], ["quikstart", "quickstart"]),
        (["claims", "--run", "quickstart", "--scale", "huge"], ["huge", "tiny"]),
        (["claims", "--scale", "full"], ["--run"]),
        (["claims", "quickstart", "--run", "quickstart"], ["give only one of them"]),
        (["claims", "--results", "nowhere"], ["nowhere", "--results"]),
        (["check", "missing.py"], ["no file missing.py"]),
        (["claims", "--results", "x" * 300], ["choose a shorter one"]),
        (["probe", "x" * 300, "--factors", "f.csv"], ["choose a shorter one"]),
        (["coverage", "x" * 300, "--factors", "a"], ["choose a shorter one"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None,
)
def test_bad_input_is_one_line_and_exit_code_2(call, args, words, tmp_path):
    check_refused(call(*args), *words)
    assert not list(tmp_path.rglob("*.parquet")), "nothing was written"


def test_usage_errors_exit_with_2(call):
    assert call("run")[0] == 2
    assert call("fly")[0] == 2
    assert call("run", "quickstart", "--seeds", "many")[0] == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\ny = x / 0\n", ["ZeroDivisionError", "line 2"]),
        ("def runs(:\n", ["SyntaxError: invalid syntax (line 1)\n"]),
        ("x = 1\n", ["defines no experiment"]),
        ("def runs(scale):\n    return [1]\n", ["list of Run"]),
        ("def runs(scale):\n    return []\n", ["no run"]),
        ("def runs(scale):\n    return undefined\n", ["NameError", "line 2"]),
    ],
)
def test_an_error_in_a_users_file_is_one_line(call, tmp_path, text, words):
    (tmp_path / "bad.py").write_text(text)
    check_refused(call("run", "bad.py"), *words)


def test_a_failing_summary_loses_no_rows(call, tmp_path):
    (tmp_path / "tiny.py").write_text(
        TINY.replace('rows["test/r2"].max()', 'rows["nothing"].max()')
    )
    code, out, err = call("run", "tiny.py", "--json")
    assert code == 0
    assert json.loads(out)["summary"] == {}
    assert "cannot compute the summary, but the rows are saved: KeyError" in err
    assert json.loads(out)["rows"] == 8


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            "def summary(rows):\n    return [1]\n",
            "summary(rows) must return a dict by name, got list",
        ),
        (
            "def figures(rows):\n    return [1]\n",
            "figures(rows) must return a dict by name, got list",
        ),
        ("def figures(rows):\n    return {'a': 1}\n", "the figures a are not saved"),
    ],
)
def test_results_of_another_type_lose_no_rows(call, tmp_path, function, message):
    (tmp_path / "tiny.py").write_text(f"{TINY}\n\n{function}")
    code, out, err = call("run", "tiny.py", "--json")
    assert code == 0
    assert message in err
    assert json.loads(out)["rows"] == 8


def test_check_of_a_file_without_parts(call, tmp_path):
    (tmp_path / "empty.py").write_text("x = 1\n")
    check_refused(call("check", "empty.py"), "defines no part")


def test_output_that_cannot_be_written_or_read(call, tiny, tmp_path):
    (tmp_path / "taken").write_text("mine")
    check_refused(call("run", tiny, "--out", "taken"), "taken")
    assert (tmp_path / "taken").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    check_refused(call("report", "empty"), "empty")
    code, *_ = call("run", tiny, "--out", "rows", "--json")
    assert code == 0
    check_refused(call("report", "rows", "--out", "x" * 300), "File name too long")
    part = next((tmp_path / "rows").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:100])
    check_refused(call("run", tiny, "--out", "rows"), part.name)
    check_refused(call("report", "rows"), part.name)
    assert part.stat().st_size == 100, "nothing is overwritten"


def test_a_folder_with_other_files_is_refused(call, tiny, tmp_path):
    for name in ("notes", "results/tiny-small"):  # the second is the default folder
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "thesis.md").write_text("mine")
        out = ["--out", name] if name == "notes" else []
        check_refused(
            call("run", tiny, *out), f"{name} is not empty", "give a new folder with --out"
        )
        assert [path.name for path in (tmp_path / name).iterdir()] == ["thesis.md"], (
            "nothing was written"
        )
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / ".gitkeep").touch()
    (tmp_path / "new" / "tensorboard").mkdir()  # a refused run may leave it behind
    assert call("run", tiny, "--out", "new", "--json")[0] == 0
    (tmp_path / "new" / "thesis.md").write_text("mine")
    assert call("run", tiny, "--out", "new", "--json")[0] == 0, (
        "other files may be added to the folder of a sweep"
    )


@pytest.mark.parametrize("name", ["foo.csv", "foo.JSON", "foo.txt", "a/foo.md", "foo.PARQUET"])
def test_a_file_name_does_not_become_a_folder(call, tiny, tmp_path, name):
    check_refused(
        call("run", tiny, "--out", name),
        name,
        "looks like a file",
        f"such as {name.rsplit('.')[0]}\n",
        ".parquet",
    )
    assert not (tmp_path / name).exists()


def test_a_folder_may_have_a_dot_in_its_name(call, tiny, tmp_path):
    assert call("run", tiny, "--out", "run.v2", "--json")[0] == 0
    assert (tmp_path / "run.v2" / "rows").is_dir()


@pytest.mark.parametrize("out_path", ["rows", "rows.parquet"])
def test_a_folder_of_another_experiment_is_reused_with_a_note(call, tiny, tmp_path, out_path):
    assert "has results of" not in call("run", tiny, "--out", out_path)[2]
    (tmp_path / "other.py").write_text(TINY.replace("[0.3, 0.5]", "[0.4]"))
    code, _, err = call("run", "other.py", "--out", out_path, "--json")
    assert code == 0
    assert err.splitlines()[0].startswith(
        f"recombine: {out_path} has results of tiny. Its rows stay, but the report and the figures"
    )
    assert "choose another --out" in err
    assert (
        json.loads(call("run", tiny, "--out", out_path, "--no-train", "--json")[1])["runs"] == 4
    ), "its rows stay"
    assert "has results of" not in call("run", tiny, "--out", out_path)[2], (
        "the folder belongs to the first experiment again"
    )


def test_ctrl_c_keeps_finished_runs(call, tiny, monkeypatch):
    from recombine.training import scheduler

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(scheduler, "chunk_rows", stop)
    code, _, err = call("run", tiny)
    assert code == 130
    assert "0 of 4 runs are saved" in err
    assert "run the same command to continue" in err


def test_a_training_error_is_one_line_and_a_file_with_the_traceback(call, tiny, monkeypatch):
    from recombine.training import scheduler

    def fails(*_):
        raise RuntimeError("boom")

    monkeypatch.setattr(scheduler, "chunk_rows", fails)
    code, _, err = call("run", tiny, "--out", "rows", "--json")
    assert code == 2
    assert err.strip() == (
        "recombine: training failed, finished rows are saved: RuntimeError: boom; "
        "the traceback is in rows/failure.txt"
    )
    assert "in fails" in Path("rows/failure.txt").read_text(), "the traceback"


def test_version_is_printed(call):
    code, out, _ = call("--version")
    assert (code, out) == (0, f"recombine {recombine.__version__}\n")


def test_a_single_run_is_counted_in_the_singular(call, tiny, tmp_path):
    code, out, _ = call(
        "run", tiny, "--set", "frac_test=0.4", "--seeds", "1", "--scale", "tiny", "--out", "one"
    )
    assert code == 0
    assert "\n1 run in 1 program, " in out
    call("report", "one")
    page = (tmp_path / "one" / "report.html").read_text()
    assert "1 run, each at its last step" in page
    assert "Recombine experiment: tiny, tiny scale" in page


def test_a_summary_shows_whole_and_unknown_numbers(call, tmp_path):
    old = '{"best": float(rows["test/r2"].max())}'
    new = '{"needed": 87.0, "best": 0.5, "lost": float("nan")}'
    (tmp_path / "tiny.py").write_text(TINY.replace(old, new))
    code, out, _ = call("run", "tiny.py", "--out", "rows")
    assert code == 0
    assert "  needed: 87\n  best: 0.500\n  lost: unknown\n" in out
    call("report", "rows")
    page = (tmp_path / "rows" / "report.html").read_text()
    for name, value in (("needed", "87"), ("best", "0.500"), ("lost", "unknown")):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in page


def test_an_installed_package_finds_the_tables_of_the_current_checkout(call, monkeypatch, tmp_path):
    monkeypatch.setattr(ledger, "RESULTS", tmp_path / "site-packages" / "docs" / "results")
    check_refused(call("claims", "quickstart"), "site-packages/docs/results", "--results")
    (tmp_path / "docs" / "results").mkdir(parents=True)
    shutil.copy(RESULTS / "quickstart.parquet", tmp_path / "docs" / "results")
    code, out, _ = call("claims", "quickstart")
    assert code == 0
    assert "reproduced" in out
    assert "--out docs/results/quickstart.parquet" in out


def test_too_little_memory_is_one_line(call, monkeypatch, tmp_path):
    from recombine.coverage import page

    def answer(*_, **__):
        raise MemoryError("cannot allocate 1 TB")

    monkeypatch.setattr(page, "answer", answer)
    code, _, err = call("coverage", "t.csv", "--factors", "a,b")
    assert code == 2
    assert err.startswith("recombine: there is not enough memory for this (cannot allocate 1 TB)")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("option", ["TABLE", "--held-out", "--report"])
def test_a_file_name_of_5000_letters_is_one_line(call, tmp_path, option):
    (tmp_path / "t.csv").write_text("a,b\nx,1\ny,2\n")
    name = "x" * 5000 + ".csv"
    table = name if option == "TABLE" else "t.csv"
    more = [] if option == "TABLE" else [option, name]
    code, _, err = call("coverage", table, "--factors", "a,b", *more)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert len(err) < 800


@pytest.mark.parametrize(
    "options",
    [
        ["--modules", "1" + "0" * 400],
        ["--modules", "1" + "0" * 5000],
        ["--max-active", "1" + "0" * 400, "--modules", "1" + "0" * 401],
        ["--seeds", "1" + "0" * 30],
    ],
    ids=["modules", "digits", "active", "seeds"],
)
def test_huge_numbers_of_plan_are_refused(call, options):
    named = dict.fromkeys(options[::2])
    rest = [] if "--modules" in named else ["--modules", "24"]
    rest += [] if "--max-active" in named else ["--max-active", "3"]
    code, _, err = call("plan", *options, *rest, "--device", "cpu")
    assert code == 2
    assert "Traceback" not in err


def test_coverage_takes_constraints_and_costs(call, tmp_path):
    (tmp_path / "t.csv").write_text("shape;action;tags\nfish;swim;a,b\nbird;fly;c\nbird;sit;\n")
    (tmp_path / "costs.csv").write_text("action,cost\nfly,3\nsit,5\n")
    line = "coverage t.csv --factors shape,action,tags --sets tags --separator , --budget 20"
    code, out, err = call(
        *line.split(),
        *("--forbid", "shape=fish,action=fly", "--forbid", "shape=fish,tags=c"),
        *("--values", "action=sleep", "--costs", "costs.csv", "--examples-needed", "1", "--json"),
    )
    assert code == 0, err
    result = json.loads(out)
    combinations = [each["combination"] for each in result["suggestions"]]
    assert any(each["action"] == "sleep" for each in combinations)
    assert not any(each["shape"] == "fish" and each["action"] == "fly" for each in combinations)
    assert not any(each["shape"] == "fish" and "c" in each["tags"] for each in combinations)
    assert result["cost"] <= 20
    assert result["cost"] == pytest.approx(sum(each["cost"] for each in result["suggestions"]))
