"""Computed experiments: cells are stored, reused, reported and judged like runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from recombine.basics.version import CHECKOUT
from recombine.experiments import catalogue
from recombine.storage.table import Table
from recombine.training import computed

MINE = '''"""Squares.

Command: recombine run mine.py
"""

from pathlib import Path

import plotly.graph_objects as go

from recombine.experiments.claim import Claim

TITLE = "Squares"
SIZES = {"tiny": 3, "small": 5, "full": 7}


def cells(scale):
    return [{"n": n, "kind": kind} for n in range(SIZES[scale]) for kind in ("odd", "even")]


def measure(n, kind):
    with Path("measured").open("a") as file:
        file.write(f"{n}{kind} ")
    if Path("broken").exists() and n == 2:
        raise ArithmeticError("two is broken")
    return {"square": float(n**2)}


def summary(rows):
    return {"most": float(rows["square"].max())}


def figures(rows):
    return {"square": go.Figure(go.Scatter(x=rows["n"], y=rows["square"]))}


def claims(rows):
    most = None if rows is None else float(rows["square"].max())
    return [Claim("most", "It grows", "here", "-", most, None if rows is None else most > 3)]
'''


@pytest.fixture
def command(call):
    """Run a command and return its output. With `fails`, it must fail: returns the error."""

    def command(*args: str, fails: bool = False) -> str:
        code, out, error = call(*args)
        assert code == (2 if fails else 0), error
        return error if fails else out

    return command


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def measured_cells(folder) -> list[str]:
    return (folder / "measured").read_text().split()


def test_cells_are_computed_once_and_stored(command, mine):
    first = json.loads(command("run", "mine.py", "--scale", "tiny", "--out", "out", "--json"))
    assert first["runs"] == first["rows"] == 6
    assert first["programs"] == 0
    assert first["summary"] == {"most": 4.0}
    assert measured_cells(mine) == ["0odd", "0even", "1odd", "1even", "2odd", "2even"]
    again = command("run", "mine.py", "--scale", "tiny", "--out", "out")
    assert "6 cells" in again
    assert len(measured_cells(mine)) == 6, "nothing is computed again"
    command("run", "mine.py", "--scale", "small", "--out", "out")
    assert len(measured_cells(mine)) == 10, "the cells of the smaller scale are reused"
    rows = Table("out").read()
    assert rows["run"].nunique() == 10
    assert set(rows["meta/device"]) == {"cpu"}
    assert (rows["meta/seconds"] > 0).all()
    assert command("report", "out").count("report.html")
    assert "Squares" in (mine / "out" / "report.html").read_text()
    assert list(Table("out").figures()) == ["square"]


def test_after_a_failure_computed_cells_are_kept_and_the_same_command_continues(command, mine):
    (mine / "broken").touch()
    error = command("run", "mine.py", "--scale", "tiny", "--out", "out", fails=True)
    assert "two is broken" in error
    assert "computing failed, finished rows are saved" in error
    assert len(Table("out").finished()) == 4
    finished = json.loads(
        command("run", "mine.py", "--scale", "tiny", "--out", "out", "--no-train", "--json")
    )
    assert finished["runs"] == 4
    (mine / "broken").unlink()
    command("run", "mine.py", "--scale", "tiny", "--out", "out")
    assert measured_cells(mine) == ["0odd", "0even", "1odd", "1even", "2odd", "2odd", "2even"]


def test_progress_is_shown(mine, call):
    assert "0%  n 0, kind odd" in call("run", "mine.py", "--scale", "tiny", "--out", "out")[2]


def test_claims_are_judged(command, mine):
    command("run", "mine.py", "--scale", "tiny", "--out", "results/mine.parquet")
    (line,) = json.loads(command("claims", "mine.py", "--results", "results", "--json"))["claims"]
    assert (line["verdict"], line["measured"], line["runs"]) == ("holds", 4.0, 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seeds", "2"], "computed, not trained"),
        (["--set", "seed=1"], "computed, not trained"),
        (["--executor", "processes:2"], "computed, not trained"),
        (["--scale", "huge"], "no scale 'huge'"),
        (["--no-train"], "leave out --no-train"),
    ],
)
def test_options_that_do_not_apply_are_refused(command, mine, options, message):
    assert message in command("run", "mine.py", "--out", "out", *options, fails=True)
    assert not (mine / "measured").exists()


def test_only_trained_experiments_have_a_cost(command, mine):
    assert "computed, not trained" in command("cost", "mine.py", fails=True)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("[1]", "must return a list of {name: number or text}"),
        ("[{'n': [1]}]", "must return a list of {name: number or text}"),
        ("[]", "returned no cell"),
        ("[{'n': 1}, {'n': 1}]", "returned 1 cell twice"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_invalid_cells_are_refused(command, tmp_path, cells, message):
    (tmp_path / "mine.py").write_text(
        f"def cells(scale):\n    return {cells}\n\ndef measure(n):\n    return 3\n"
    )
    assert message in command("run", "mine.py", fails=True)


def test_a_measure_that_returns_no_row_is_refused(command, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def cells(scale):\n    return [{'n': 1}]\n\ndef measure(n):\n    return 3\n"
    )
    assert "measure must return {name: number or text}, or a list of them, for n 1" in command(
        "run", "mine.py", fails=True
    )


def test_a_cell_may_give_several_rows(command, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def cells(scale):\n    return [{'n': n} for n in (1, 2)]\n\n"
        "def measure(n):\n    return [{'x': 0.5}] * n\n"
    )
    result = json.loads(command("run", "mine.py", "--out", "out", "--json"))
    assert (result["runs"], result["rows"]) == (2, 3)
    rows = Table("out").read()
    assert sorted(zip(rows["n"], rows["step"], strict=True)) == [(1, 0), (2, 0), (2, 1)]


HELPED = """
from helper import FACTOR

def cells(scale):
    return [{"n": n} for n in (1, 2)]


def measure(n):
    return {"x": FACTOR * n}


def claims(rows):
    return []
"""


def test_cells_of_a_user_are_computed_anew_when_their_code_changed(tmp_path):
    def num_computed() -> int:
        command = [sys.executable, "-m", "recombine", "run", "mine.py", "--out", "out", "--json"]
        result = subprocess.run(
            command,
            cwd=tmp_path,
            capture_output=True,
            check=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        )
        assert json.loads(result.stdout)["runs"] == 2
        assert json.loads((tmp_path / "out" / "experiment.json").read_text())["shown"]
        return Table(tmp_path / "out").read()["run"].nunique()

    helper, mine = tmp_path / "helper.py", tmp_path / "mine.py"
    helper.write_text("FACTOR = 2\n")
    mine.write_text(HELPED)
    assert num_computed() == 2
    # The results do not depend on these changes.
    helper.write_text("FACTOR = 2  # a comment\nOTHER = 7\n")
    mine.write_text(HELPED.replace("return []", "return list([])"))
    assert num_computed() == 2
    helper.write_text("FACTOR = 3\n")
    assert num_computed() == 4
    mine.write_text(HELPED.replace("* n", "* n + 1"))
    assert num_computed() == 6


def test_other_code_of_our_own_experiments_is_reported_and_rows_stay(call, tmp_path, monkeypatch):
    run = ("run", "definitions", "--scale", "tiny", "--out", "out", "--json")
    code, out, err = call(*run)
    assert (code, json.loads(out)["other_code"]) == (0, 0)
    assert "other code" not in err
    before = Table("out").read()
    monkeypatch.setattr(computed, "hash_of_files", lambda files: "other")
    code, out, err = call(*run)
    number = before["run"].nunique()
    assert (code, json.loads(out)["other_code"]) == (0, number)
    assert f"{number} reused cells were computed by other code: they are kept." in err
    assert Table("out").read().equals(before)


def test_the_name_of_a_cell_depends_on_its_values_and_not_on_their_order():
    cell = computed.Cell("a", {"x": 1, "y": 2.0})
    assert cell.name == computed.Cell("a", {"y": 2.0, "x": 1}).name
    assert cell.name != computed.Cell("b", {"x": 1, "y": 2.0}).name
    assert cell.name != computed.Cell("a", {"x": 1, "y": 2.5}).name


def test_the_code_hash_ignores_comments_only(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("a = 1\n")
    before = computed.experiment_code_hash(path)
    path.write_text("a = 2\n")
    assert computed.experiment_code_hash(path) != before
    path.write_text("a = 1  # a comment\n")
    assert computed.experiment_code_hash(path) == before


def test_the_code_hash_includes_helpers_that_an_experiment_names(tmp_path, monkeypatch):
    def names_of(files):
        names = []
        for file in files:
            is_theorem = file.stem.startswith("_theorem")
            names.append(file.stem if is_theorem else file.parent.name)
        return " ".join(names)

    monkeypatch.setattr(computed, "hash_of_files", names_of)
    for text, helpers in (
        ("from recombine.experiments.limits._images import unet", {"_images"}),
        (
            "from recombine.experiments.theory import _theorem_41",
            {"_theorem_31", "_theorem_41", "theory"},
        ),
        ("import recombine.images", {"_images"}),
        ("a = 1", set()),
    ):
        path = tmp_path / "mine.py"
        path.write_text(text)
        assert (
            set(computed.experiment_code_hash(path).split())
            >= {"probe", "basics", tmp_path.name} | helpers
        )
    for name, helper in (("diffusion_concepts", "_images"), ("instructions", "_instructions")):
        assert (
            helper
            in computed.experiment_code_hash(Path(catalogue.experiment(name).__file__)).split()
        )


def test_rows_have_the_order_of_the_cells(tmp_path):
    table = Table(tmp_path / "out")
    cells = [computed.Cell("mine", {"n": n}) for n in (3, 1, 2)]
    assert computed.compute_cells(cells[1:], lambda n: {"m": n}, table, {}, False, "")[1] == 2
    rows, num_new = computed.compute_cells(cells, lambda n: {"m": n}, table, {}, False, "")
    assert num_new == 1
    assert rows["n"].tolist() == [3, 1, 2] == rows["m"].tolist()
    assert isinstance(rows, pd.DataFrame)


SET = """def cells(scale, name: str = "a", n: int = 2, part: float = 0.5):
    return [{"name": name, "n": n, "part": part}]


def measure(name, n, part, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("kept")
    return {"folder": folder.name}
"""


def test_arguments_of_cells_are_settings(command, tmp_path):
    (tmp_path / "mine.py").write_text(SET)
    command("run", "mine.py", "--out", "out")
    command("run", "mine.py", "--out", "out", "--set", "name=b", "part=2")
    rows = Table("out").read().set_index("name")
    assert rows["part"].to_dict() == {"a": 0.5, "b": 2.0}
    (kept,) = (tmp_path / "out" / "work").glob("*/b")
    assert kept.read_text() == "kept"
    command("run", "mine.py", "--out", "packed.parquet")
    assert list((tmp_path / "packed" / "work").glob("*/a"))
    for setting, message in (
        ("nam=b", "mine.py has no setting 'nam': did you mean name or n?"),
        ("n=2.5", "mine.py: n must be a whole number, got '2.5'"),
        ("part=x", "mine.py: part must be a number, got 'x'"),
        ("n", "a setting must have the form name=value; got 'n'"),
    ):
        assert message in command("run", "mine.py", "--set", setting, fails=True)


def test_settings_of_an_experiment_without_any_are_refused(command, mine):
    assert "mine.py is computed, not trained, and has no settings" in command(
        "run", "mine.py", "--set", "n=3", fails=True
    )


@pytest.mark.parametrize("name", ["show_progress", "tell"])
def test_a_measure_can_show_its_progress(call, tmp_path, name):
    (tmp_path / "mine.py").write_text(
        "def cells(scale):\n    return [{'n': 1}]\n\n"
        f"def measure(n, {name}):\n    {name}('halfway')\n    return {{'x': n}}\n"
    )
    code, _, error = call("run", "mine.py", "--out", "out")
    assert code == 0, error
    assert Table("out").read()["x"].tolist() == [1]
