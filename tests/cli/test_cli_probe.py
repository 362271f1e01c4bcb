"""`recombine probe`: what it answers, its page, and a tour of wrong inputs, each told in one line."""

import json
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from recombine.basics.errors import InputError
from recombine.cli.main import app
from recombine.probe.command import probe
from tests.probe.planted import parts, samples, wholes


@pytest.fixture(scope="module")
def brought(tmp_path_factory):
    """What a user brings: two layers, and a table with a column that says what is held out."""
    folder, factors = tmp_path_factory.mktemp("brought"), samples(800)
    np.savez(folder / "a.npz", early=parts(factors).astype("f4"), late=wholes(factors).astype("f4"))
    held = (factors["shape"] == "cube") & (factors["colour"] == "red")
    factors.assign(new=held).to_csv(folder / "f.csv", index=False)
    return folder, factors, held


def test_json_has_every_layer_factor_and_split(brought):
    folder, factors, held = brought
    told, lines = probe(folder / "a.npz", folder / "f.csv", "new")
    told = json.loads(json.dumps(told))
    assert (told["samples"], told["combinations"], told["layer"]) == (800, 48, "early")
    places = {(row["layer"], row["factor"], row["split"]): row for row in told["scores"]}
    assert len(places) == len(told["scores"]) == 2 * 3 * 2
    assert places["early", "size", "held out"]["measure"] == "r2"
    assert places["early", "size", "held out"]["score"] > 0.9
    assert places["early", "shape", "held out"]["measure"] == "accuracy"
    assert places["late", "size", "held out"]["score"] < 0.5
    assert len(told["ranking"]) == held.groupby([factors[name] for name in factors]).any().sum()
    assert any("early" in line and "held out" in line and "r2" in line for line in lines)


def test_without_a_column_all_combinations_are_held_out_in_turn(brought):
    folder, _, _ = brought
    table = pd.read_csv(folder / "f.csv").drop(columns="new")
    table.to_csv(folder / "plain.csv", index=False)
    told, _ = probe(folder / "a.npz", folder / "plain.csv")
    scores = {(row["layer"], row["factor"], row["split"]): row["score"] for row in told["scores"]}
    assert scores["early", "shape", "held out"] > 0.95
    assert scores["late", "shape", "seen"] > 0.9
    assert scores["late", "shape", "held out"] < 0.5
    assert told["ranking"] == []


def test_the_page_has_figures_tables_and_the_command(brought, tmp_path):
    folder, _, _ = brought
    told, lines = probe(folder / "a.npz", folder / "f.csv", "new", report=tmp_path / "p.html")
    page = (tmp_path / "p.html").read_text()
    assert told["report"] == str(tmp_path / "p.html")
    assert lines[-1] == f"Report: {tmp_path / 'p.html'}"
    assert page.count("<figure>") == 5  # layers and factors of R2 and of accuracy, and the ranking
    assert "--held-out new" in page
    assert "shape=cube, colour=red, size=3" in page
    assert "$" not in page.split("<script")[0]
    with pytest.raises(InputError, match="cannot write the report"):
        probe(folder / "a.npz", folder / "f.csv", "new", report=tmp_path / "p.html" / "q.html")


def test_features_that_never_vary_are_counted(brought, tmp_path):
    folder, _, _ = brought
    layers = dict(np.load(folder / "a.npz"))
    layers["late"][:, :3] = [0.0, 1.5, -2.0]
    layers["late"][-1, 3] += 1e-6  # almost constant is not constant
    layers["<late>"] = np.concatenate([layers["early"], np.ones((800, 1), "f4")], axis=1)
    np.savez(tmp_path / "a.npz", **layers)
    result, lines = probe(tmp_path / "a.npz", folder / "f.csv", "new", report=tmp_path / "p.html")
    assert result["constant_features"] == {"early": 0, "late": 3, "<late>": 1}
    width = layers["early"].shape[1]
    assert f"Layer late: 3 of {layers['late'].shape[1]} features never vary." in lines
    assert f"Layer <late>: 1 of {width + 1} features never varies." in lines
    assert not [line for line in lines if line.startswith("Layer early")]
    page = (tmp_path / "p.html").read_text()
    assert "features never vary.</p>" in page
    assert f"Layer &lt;late&gt;: 1 of {width + 1} features never varies.</p>" in page
    result, lines = probe(folder / "a.npz", folder / "f.csv", "new")
    assert result["constant_features"] == {"early": 0, "late": 0}
    assert not [line for line in lines if "never var" in line]


def test_all_layers_are_read_together_where_that_is_asked_for(brought, tmp_path):
    folder, _, _ = brought
    files = [str(folder / "a.npz"), "--factors", str(folder / "f.csv"), "--held-out", "new"]
    report = tmp_path / "p.html"
    asked = CliRunner().invoke(
        app, ["probe", *files, "--layers", "all", "--report", str(report), "--json"]
    )
    told, page = json.loads(asked.stdout), report.read_text()
    assert (told["layers"], told["layer"]) == ("all", "all layers")
    assert {row["layer"] for row in told["scores"]} == {"early", "late", "all layers"}
    assert {row["basis"] for row in told["ranking"]} == {"all layers"}
    best, lines = probe(folder / "a.npz", folder / "f.csv", "new")
    assert [row for row in told["scores"] if row["layer"] != "all layers"] == best["scores"]
    assert best["layers"] == "best"
    assert "Read best, combinations being left out in turn: early" in lines
    _, lines = probe(folder / "a.npz", folder / "f.csv", "new", layers="all")
    assert "Read from: all layers" in lines
    assert not [line for line in lines if line.startswith("Read best")]
    assert "--layers all" in page
    assert "<dt>read from</dt><dd>all layers</dd>" in page
    assert "by factor, read from all layers" in page
    assert "layer that is read best" not in page
    wrong = CliRunner().invoke(app, ["probe", *files, "--layers", "most"])
    assert wrong.exit_code == 2
    assert "'most' is not one of 'best', 'all'" in " ".join(wrong.output.replace("│", " ").split())


NUMBERS = np.random.default_rng(0).normal(size=(24, 3))
TABLE = pd.DataFrame({"shape": ["a", "b", "c"] * 8, "size": [1, 2] * 12})
TOUR = {
    "NaN activations": (
        np.where(np.eye(24, 3) > 0, np.nan, NUMBERS),
        TABLE,
        None,
        "NaN, infinite or huge activations in 3 of 24",
    ),
    "one sample per combination": (
        NUMBERS,
        TABLE.assign(size=np.arange(24)),
        None,
        "one sample only",
    ),
    "too few combinations": (
        NUMBERS,
        TABLE[["size"]],
        None,
        "2 combinations to fit on are too few for 5 folds",
    ),
    "a constant factor": (
        NUMBERS,
        TABLE.assign(place="here"),
        None,
        "factor 'place' is 'here' in all samples",
    ),
    "different lengths": (
        NUMBERS[:20],
        TABLE,
        None,
        "24 rows of factors and 20 samples of activations",
    ),
    "an unseen value": (
        np.tile(NUMBERS, (2, 1)),
        pd.concat([TABLE, TABLE.assign(shape="d")]).assign(new=[False] * 24 + [True] * 24),
        "new",
        "factor 'shape' is 'd' only in combinations that are held out or new",
    ),
    "a column that does not exist": (
        NUMBERS,
        TABLE,
        "newest",
        "no column 'newest' .*: there are shape, size",
    ),
    "a column of neither": (
        NUMBERS,
        TABLE,
        "size",
        "the column 'size' must be true or false, got \\['2'\\]",
    ),
    "nothing held out": (
        NUMBERS,
        TABLE.assign(new=False),
        "new",
        "held_out must be true for some combinations",
    ),
    "a cut combination": (
        NUMBERS,
        TABLE.assign(new=np.arange(24) < 5),
        "new",
        "held out in some samples and not in",
    ),
    "an empty cell": (
        NUMBERS,
        TABLE.assign(size=[1, None] * 12),
        None,
        "factor 'size' has no value in row 1",
    ),
    "numbers without an axis": (
        NUMBERS[:, 0],
        TABLE,
        None,
        r"must be samples x features, got the shape \(24\)",
    ),
    "an object array": (
        NUMBERS.astype(object),
        TABLE,
        None,
        "Python objects, which are never unpickled",
    ),
    "a single number": (NUMBERS[0, 0], TABLE, None, "the array 'layer' in .* is a single number"),
    "overflow": (NUMBERS * 1e200, TABLE, None, "huge activations in 24 of 24"),
    "a constant number": (
        NUMBERS,
        TABLE.assign(place=3),
        None,
        "factor 'place' is '3' in all samples",
    ),
    "text": (NUMBERS.astype(str), TABLE, None, "must hold real numbers, got <U"),
    "a million rows too many": (
        NUMBERS,
        None,
        None,
        "1000000 rows of factors and 24 samples of activations",
    ),
}


@pytest.mark.parametrize("name", TOUR)
def test_wrong_inputs_are_told_in_one_line(name, tmp_path):
    activations, table, held_out, told = TOUR[name]
    if table is None:
        (tmp_path / "f.csv").write_text("shape\n" + "a\nb\n" * 500_000)
    else:
        table.to_csv(tmp_path / "f.csv", index=False)
    np.savez(tmp_path / "a.npz", layer=activations)
    clock = time.perf_counter()
    with pytest.raises(InputError, match=told) as refused:
        probe(tmp_path / "a.npz", tmp_path / "f.csv", held_out)
    assert len(str(refused.value).splitlines()) == 1
    assert time.perf_counter() - clock < 5


def test_a_factor_without_end_needs_named_combinations(tmp_path):
    rng = np.random.default_rng(0)
    parts = rng.integers(3, size=(300, 2))
    table = pd.DataFrame(
        {"shape": np.array(list("abc"))[parts[:, 0]], "weight": parts[:, 1] + rng.random(300)}
    )
    np.savez(tmp_path / "a.npz", layer=np.column_stack([np.eye(3)[parts[:, 0]], table["weight"]]))
    table.assign(task=3 * parts[:, 0] + parts[:, 1], new=parts.sum(axis=1) == 4).to_csv(
        tmp_path / "f.csv", index=False
    )
    table.to_csv(tmp_path / "g.csv", index=False)
    with pytest.raises(
        InputError, match="name combinations where a factor differs in every sample"
    ):
        probe(tmp_path / "a.npz", tmp_path / "g.csv")
    told, _ = probe(
        tmp_path / "a.npz",
        tmp_path / "f.csv",
        "new",
        combinations="task",
        report=tmp_path / "page.html",
    )
    assert told["combinations"] == 9
    assert [line["combination"] for line in told["ranking"]] == ["8"]
    assert {line["factor"] for line in told["scores"]} == {"shape", "weight"}
    assert min(line["score"] for line in told["scores"]) > 0.9
    assert {line["low"] for line in told["scores"] if line["split"] == "held out"} == {None}, (
        "of one combination"
    )
    assert "--combinations task" in (tmp_path / "page.html").read_text()
    for wrong, words in (
        ("tusk", "no column 'tusk' .*did you mean task?"),
        ("new", "cannot be both"),
    ):
        with pytest.raises(InputError, match=words):
            probe(tmp_path / "a.npz", tmp_path / "f.csv", "new", combinations=wrong)


def test_a_million_samples_are_read_in_blocks(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"a": rng.integers(3, size=1_000_000), "b": rng.integers(3, size=1_000_000)}
    )
    np.savez(tmp_path / "a.npz", layer=(table.to_numpy() @ rng.normal(size=(2, 4))).astype("f4"))
    table.to_parquet(tmp_path / "f.parquet")
    told, _ = probe(tmp_path / "a.npz", tmp_path / "f.parquet")
    assert min(row["score"] for row in told["scores"]) > 0.99
