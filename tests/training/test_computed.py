"""Computed experiments: cells are kept, reused, shown and judged as runs are."""

import json
from pathlib import Path

import pandas as pd
import pytest

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
    with Path("asked").open("a") as file:
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
def told(call):
    """What a command says: its output, or, where it is to fail, its error."""

    def told(*args: str, fails: bool = False) -> str:
        code, out, error = call(*args)
        assert code == 2 * fails, error
        return error if fails else out

    return told


@pytest.fixture
def mine(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def asked(folder) -> list[str]:
    return (folder / "asked").read_text().split()


def test_cells_are_computed_once_and_kept(told, mine):
    first = json.loads(told("run", "mine.py", "--scale", "tiny", "--out", "out", "--json"))
    assert (first["runs"], first["programs"], first["rows"], first["summary"]) == (
        6,
        0,
        6,
        {"most": 4.0},
    )
    assert asked(mine) == ["0odd", "0even", "1odd", "1even", "2odd", "2even"]
    again = told("run", "mine.py", "--scale", "tiny", "--out", "out")
    assert "6 cells" in again
    assert len(asked(mine)) == 6, "nothing is computed again"
    told("run", "mine.py", "--scale", "small", "--out", "out")
    assert len(asked(mine)) == 10, "what the smaller scale has is reused"
    rows = Table("out").read()
    assert rows["run"].nunique() == 10
    assert set(rows["meta/device"]) == {"cpu"}
    assert (rows["meta/seconds"] > 0).all()
    assert told("report", "out").count("report.html")
    assert "Squares" in (mine / "out" / "report.html").read_text()
    assert list(Table("out").figures()) == ["square"]


def test_a_failure_keeps_what_is_computed_and_the_same_command_goes_on(told, mine):
    (mine / "broken").touch()
    error = told("run", "mine.py", "--scale", "tiny", "--out", "out", fails=True)
    assert "two is broken" in error
    assert "computing failed, what is finished is kept" in error
    assert len(Table("out").finished()) == 4
    kept = json.loads(
        told("run", "mine.py", "--scale", "tiny", "--out", "out", "--finished", "--json")
    )
    assert kept["runs"] == 4
    (mine / "broken").unlink()
    told("run", "mine.py", "--scale", "tiny", "--out", "out")
    assert asked(mine) == ["0odd", "0even", "1odd", "1even", "2odd", "2odd", "2even"]


def test_progress_is_told(mine, call):
    assert "0%  n 0, kind odd" in call("run", "mine.py", "--scale", "tiny", "--out", "out")[2]


def test_claims_are_judged(told, mine):
    told("run", "mine.py", "--scale", "tiny", "--out", "results/mine.parquet")
    (line,) = json.loads(told("claims", "mine.py", "--results", "results", "--json"))["claims"]
    assert (line["verdict"], line["measured"], line["runs"]) == ("reproduced", 4.0, 6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--seeds", "2"], "computed, not trained"),
        (["--set", "seed=1"], "computed, not trained"),
        (["--on", "processes:2"], "computed, not trained"),
        (["--scale", "huge"], "no scale 'huge'"),
        (["--finished"], "leave out --finished"),
    ],
)
def test_what_does_not_apply_is_refused(told, mine, options, says):
    assert says in told("run", "mine.py", "--out", "out", *options, fails=True)
    assert not (mine / "asked").exists()


def test_cost_is_of_training(told, mine):
    assert "computed, not trained" in told("cost", "mine.py", fails=True)


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ("[1]", "must give a list of {name: number or text}"),
        ("[{'n': [1]}]", "must give a list of {name: number or text}"),
        ("[]", "gave no cell"),
        ("[{'n': 1}, {'n': 1}]", "gave 1 cells twice"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_cells_that_are_none_are_refused(told, tmp_path, cells, says):
    (tmp_path / "mine.py").write_text(
        f"def cells(scale):\n    return {cells}\n\ndef measure(n):\n    return 3\n"
    )
    assert says in told("run", "mine.py", fails=True)


def test_a_measure_that_gives_no_row_is_refused(told, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def cells(scale):\n    return [{'n': 1}]\n\ndef measure(n):\n    return 3\n"
    )
    assert "measure must give {name: number or text}, or a list of them, for n 1" in told(
        "run", "mine.py", fails=True
    )


def test_a_cell_may_make_several_rows(told, tmp_path):
    text = "def cells(scale):\n    return [{'n': n} for n in (1, 2)]\n\ndef measure(n):\n    return [{'x': 0.5}] * n\n"
    (tmp_path / "mine.py").write_text(text)
    found = json.loads(told("run", "mine.py", "--out", "out", "--json"))
    assert (found["runs"], found["rows"]) == (2, 3)
    assert sorted(zip(*Table("out").read()[["n", "step"]].to_numpy().T, strict=True)) == [
        (1, 0),
        (2, 0),
        (2, 1),
    ]


def test_cells_of_other_code_are_kept_but_never_silently(call, mine):
    run = ("run", "mine.py", "--scale", "tiny", "--out", "out")
    call(*run)
    assert "other code" not in call(*run)[2]
    (mine / "mine.py").write_text(MINE.replace("n**2", "n**3"))
    assert "6 reused cells were computed by other code: they are kept" in call(*run)[2]
    assert Table("out").read()["square"].max() == 4


def test_a_cell_is_its_values_in_any_order():
    one, other = computed.Cell("a", {"x": 1, "y": 2.0}), computed.Cell("a", {"y": 2.0, "x": 1})
    assert one.name == other.name
    assert one.name != computed.Cell("b", {"x": 1, "y": 2.0}).name
    assert one.name != computed.Cell("a", {"x": 1, "y": 2.5}).name


def test_the_code_of_a_computed_experiment_counts(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("a = 1\n")
    before = computed.code_of(path)
    path.write_text("a = 2\n")
    assert computed.code_of(path) != before
    path.write_text("a = 1  # told\n")
    assert computed.code_of(path) == before


def test_helpers_that_an_experiment_names_belong_to_its_code(tmp_path, monkeypatch):
    def named(files):
        return " ".join(
            file.stem if file.stem.startswith("_theorem") else file.parent.name for file in files
        )

    monkeypatch.setattr(computed, "of_files", named)
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
        assert set(computed.code_of(path).split()) == {"probe", "basics", tmp_path.name} | helpers
    for name, helper in (("diffusion_concepts", "_images"), ("instructions", "_instructions")):
        assert helper in computed.code_of(Path(catalogue.experiment(name).__file__)).split()


def test_rows_come_in_the_order_of_the_cells(tmp_path):
    table = Table(tmp_path / "out")
    cells = [computed.Cell("mine", {"n": n}) for n in (3, 1, 2)]
    assert computed.take(cells[1:], lambda n: {"m": n}, table, {}, False, "")[1] == 2
    rows, num_new = computed.take(cells, lambda n: {"m": n}, table, {}, False, "")
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


def test_arguments_of_cells_are_settings(told, tmp_path):
    (tmp_path / "mine.py").write_text(SET)
    told("run", "mine.py", "--out", "out")
    told("run", "mine.py", "--out", "out", "--set", "name=b", "part=2")
    rows = Table("out").read().set_index("name")
    assert rows["part"].to_dict() == {"a": 0.5, "b": 2.0}
    assert (tmp_path / "out" / "work" / "b").read_text() == "kept"
    told("run", "mine.py", "--out", "packed.parquet")
    assert (tmp_path / "packed" / "work" / "a").exists()
    for setting, says in (
        ("nam=b", "mine.py has no setting 'nam': did you mean name or n?"),
        ("n=2.5", "mine.py: n must be a whole number, got '2.5'"),
        ("part=x", "mine.py: part must be a number, got 'x'"),
        ("n", "a setting reads name=value; got 'n'"),
    ):
        assert says in told("run", "mine.py", "--set", setting, fails=True)


def test_an_experiment_without_settings_says_so(told, mine):
    assert "mine.py is computed, not trained: it has no settings" in told(
        "run", "mine.py", "--set", "n=3", fails=True
    )
