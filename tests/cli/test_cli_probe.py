"""`recombine probe`: its answer, its page, and wrong inputs, each refused in one line."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from recombine.basics.errors import InputError
from recombine.cli.main import app
from recombine.probe import Decodability
from recombine.probe.command import probe
from tests.probe.planted import parts, samples, wholes
from tests.timing import cpu_seconds


@pytest.fixture(scope="module")
def user_files(tmp_path_factory):
    """A user's files: two layers, and a table whose column `new` marks held-out rows."""
    folder = tmp_path_factory.mktemp("user")
    factors = samples(800)
    np.savez(folder / "a.npz", early=parts(factors).astype("f4"), late=wholes(factors).astype("f4"))
    held = (factors["shape"] == "cube") & (factors["colour"] == "red")
    factors.assign(new=held).to_csv(folder / "f.csv", index=False)
    return folder, factors, held


def test_json_has_every_layer_factor_and_split(user_files):
    folder, factors, held = user_files
    result, lines = probe(folder / "a.npz", folder / "f.csv", "new")
    result = json.loads(json.dumps(result))
    assert (result["samples"], result["combinations"], result["layer"]) == (800, 48, "early")
    scores = {(row["layer"], row["factor"], row["split"]): row for row in result["scores"]}
    assert len(scores) == len(result["scores"]) == 2 * 3 * 2
    assert scores["early", "size", "held out"]["measure"] == "r2"
    assert scores["early", "size", "held out"]["score"] > 0.9
    assert scores["early", "shape", "held out"]["measure"] == "accuracy"
    assert scores["late", "size", "held out"]["score"] < 0.5
    num_held_out = held.groupby([factors[name] for name in factors]).any().sum()
    assert len(result["ranking"]) == num_held_out
    assert any("early" in line and "held out" in line and "r2" in line for line in lines)


def test_without_held_out_all_combinations_are_held_out_in_turn(user_files):
    folder, _, _ = user_files
    table = pd.read_csv(folder / "f.csv").drop(columns="new")
    table.to_csv(folder / "plain.csv", index=False)
    result, _ = probe(folder / "a.npz", folder / "plain.csv")
    scores = {(row["layer"], row["factor"], row["split"]): row["score"] for row in result["scores"]}
    assert scores["early", "shape", "held out"] > 0.95
    assert scores["late", "shape", "seen"] > 0.9
    assert scores["late", "shape", "held out"] < 0.5
    assert result["ranking"] == []


def test_the_page_has_figures_tables_and_the_command(user_files, tmp_path):
    folder, _, _ = user_files
    result, lines = probe(folder / "a.npz", folder / "f.csv", "new", report=tmp_path / "p.html")
    page = (tmp_path / "p.html").read_text()
    assert result["report"] == str(tmp_path / "p.html")
    assert lines[-1] == f"Report: {tmp_path / 'p.html'}"
    assert page.count("<figure>") == 5  # layers and factors of R2 and of accuracy, and the ranking
    assert "--held-out new" in page
    assert "shape=cube, colour=red, size=3" in page
    assert "$" not in page.split("<script")[0]
    with pytest.raises(InputError, match="cannot write the report"):
        probe(folder / "a.npz", folder / "f.csv", "new", report=tmp_path / "p.html" / "q.html")


def test_constant_features_are_counted(user_files, tmp_path):
    folder, _, _ = user_files
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


def test_layers_all_joins_the_layers(user_files, tmp_path):
    folder, _, _ = user_files
    files = [str(folder / "a.npz"), "--factors", str(folder / "f.csv"), "--held-out", "new"]
    report = tmp_path / "p.html"
    answer = CliRunner().invoke(
        app, ["probe", *files, "--layers", "all", "--report", str(report), "--json"]
    )
    result, page = json.loads(answer.stdout), report.read_text()
    assert (result["layers"], result["layer"]) == ("all", "all layers")
    assert {row["layer"] for row in result["scores"]} == {"early", "late", "all layers"}
    assert {row["basis"] for row in result["ranking"]} == {"all layers"}
    best, lines = probe(folder / "a.npz", folder / "f.csv", "new")
    corrected = ("p_corrected", "verdict")  # a further layer is a further test
    single = [
        {key: value for key, value in row.items() if key not in corrected}
        for row in result["scores"] + best["scores"]
        if row["layer"] != "all layers"
    ]
    assert single[: len(best["scores"])] == single[len(best["scores"]) :]
    assert best["layers"] == "best"
    assert "Best layer by cross-validation over combinations: early" in lines
    _, lines = probe(folder / "a.npz", folder / "f.csv", "new", layers="all")
    assert "Decoded from: all layers" in lines
    assert not [line for line in lines if line.startswith("Best layer")]
    assert "--layers all" in page
    assert "<dt>decoded from</dt><dd>all layers</dd>" in page
    assert "by factor, decoded from all layers" in page
    assert "best layer" not in page
    wrong = CliRunner().invoke(app, ["probe", *files, "--layers", "most"])
    assert wrong.exit_code == 2
    assert "'most' is not one of 'best', 'all'" in " ".join(wrong.output.replace("│", " ").split())


NUMBERS = np.random.default_rng(0).normal(size=(24, 3))
TABLE = pd.DataFrame({"shape": ["a", "b", "c"] * 8, "size": [1, 2] * 12})
WRONG_INPUTS = {  # name: (activations, factors, column of held-out rows, message)
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
        "only one sample",
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
        "factor 'shape' is 'd' only in held-out or new combinations",
    ),
    "a column that does not exist": (
        NUMBERS,
        TABLE,
        "newest",
        "no column 'newest' .*: choose from shape, size",
    ),
    "a held-out column that is not true or false": (
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
    "a combination that is held out in part": (
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
    "activations of one axis": (
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


@pytest.fixture(scope="module")
def seconds_of_a_probe(tmp_path_factory) -> float:
    folder = tmp_path_factory.mktemp("valid")
    TABLE.to_csv(folder / "f.csv", index=False)
    np.savez(folder / "a.npz", layer=NUMBERS)
    return cpu_seconds(lambda: probe(folder / "a.npz", folder / "f.csv"))


@pytest.mark.parametrize("name", WRONG_INPUTS)
def test_wrong_inputs_are_refused_in_one_line(name, tmp_path, seconds_of_a_probe):
    activations, table, held_out, message = WRONG_INPUTS[name]
    if table is None:
        (tmp_path / "f.csv").write_text("shape\n" + "a\nb\n" * 500_000)
    else:
        table.to_csv(tmp_path / "f.csv", index=False)
    np.savez(tmp_path / "a.npz", layer=activations)

    def refuse() -> None:
        with pytest.raises(InputError, match=message) as refused:
            probe(tmp_path / "a.npz", tmp_path / "f.csv", held_out)
        assert len(str(refused.value).splitlines()) == 1

    seconds_to_read = cpu_seconds(lambda: pd.read_csv(tmp_path / "f.csv", dtype=str))
    assert cpu_seconds(refuse) < seconds_of_a_probe + seconds_to_read


def test_a_continuous_factor_needs_named_combinations(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.integers(3, size=(300, 2))
    shape = np.array(list("abc"))[values[:, 0]]
    table = pd.DataFrame({"shape": shape, "weight": values[:, 1] + rng.random(300)})
    layer = np.column_stack([np.eye(3)[values[:, 0]], table["weight"]])
    np.savez(tmp_path / "a.npz", layer=layer)
    task = 3 * values[:, 0] + values[:, 1]
    named = table.assign(task=task, new=values.sum(axis=1) == 4)
    named.to_csv(tmp_path / "named.csv", index=False)
    table.to_csv(tmp_path / "unnamed.csv", index=False)
    with pytest.raises(
        InputError, match="name the combinations if a factor differs in every sample"
    ):
        probe(tmp_path / "a.npz", tmp_path / "unnamed.csv")
    result, _ = probe(
        tmp_path / "a.npz",
        tmp_path / "named.csv",
        "new",
        combinations="task",
        report=tmp_path / "page.html",
    )
    assert result["combinations"] == 9
    assert [row["combination"] for row in result["ranking"]] == ["8"]
    assert {row["factor"] for row in result["scores"]} == {"shape", "weight"}
    assert min(row["score"] for row in result["scores"]) > 0.9
    held_out_low = {row["low"] for row in result["scores"] if row["split"] == "held out"}
    assert held_out_low == {None}, "there is no interval over one combination"
    assert "--combinations task" in (tmp_path / "page.html").read_text()
    for wrong, message in (
        ("tusk", "no column 'tusk' .*did you mean task?"),
        ("new", "--held-out and --combinations both name the column 'new'"),
    ):
        with pytest.raises(InputError, match=message):
            probe(tmp_path / "a.npz", tmp_path / "named.csv", "new", combinations=wrong)


def test_a_million_samples_are_read_in_blocks(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"a": rng.integers(3, size=1_000_000), "b": rng.integers(3, size=1_000_000)}
    )
    np.savez(tmp_path / "a.npz", layer=(table.to_numpy() @ rng.normal(size=(2, 4))).astype("f4"))
    table.to_parquet(tmp_path / "f.parquet")
    result, _ = probe(tmp_path / "a.npz", tmp_path / "f.parquet")
    assert min(row["score"] for row in result["scores"]) > 0.99


def test_the_verdict_is_in_the_terminal_json_and_page(user_files, tmp_path):
    folder, *_ = user_files
    table = pd.read_csv(folder / "f.csv").drop(columns="new")
    table.to_csv(tmp_path / "f.csv", index=False)
    np.savez(tmp_path / "input.npz", pixels=parts(table).astype("f4")[:, :5])
    result, lines = probe(
        folder / "a.npz",
        tmp_path / "f.csv",
        report=tmp_path / "p.html",
        columns="shape, colour",
        baseline=tmp_path / "input.npz",
        save=tmp_path / "probe.safetensors",
    )
    result = json.loads(json.dumps(result))
    assert lines[0] == result["sentence"]
    assert "in layer early" in result["sentence"]
    verdicts = {row["factor"]: row["verdict"] for row in result["verdicts"]}
    assert list(verdicts) == ["shape", "colour"]
    assert verdicts["shape"] == "composed"
    by_layer = {(row["layer"], row["factor"]): row["verdict"] for row in result["scores"]}
    assert by_layer["late", "shape"] == "memorized"
    assert {layer for layer, _ in by_layer} == {"early", "late", "baseline"}
    page = (tmp_path / "p.html").read_text()
    assert result["sentence"].split(";")[0] in page
    assert "Permuted" not in page
    assert "memorized" in page
    assert "--columns 'shape, colour'" in page.replace("&#39;", "'").replace("&#x27;", "'")
    assert len(Decodability.load(tmp_path / "probe.safetensors").classes_) == 2
    with pytest.raises(InputError, match="there is no column 'shap' for --columns: did you mean"):
        probe(folder / "a.npz", tmp_path / "f.csv", columns="shap")


def test_names_are_columns_of_class_ids(user_files, tmp_path):
    folder, *_ = user_files
    table = pd.read_csv(folder / "f.csv").drop(columns="new")
    table["size"] = table["size"].astype(int)
    table.to_csv(tmp_path / "f.csv", index=False)
    command = ["probe", str(folder / "a.npz"), "--factors", str(tmp_path / "f.csv"), "--json"]
    result = json.loads(CliRunner().invoke(app, command).stdout)
    assert any("size: whole numbers are probed as numbers" in note for note in result["notes"])
    result = json.loads(CliRunner().invoke(app, [*command, "--names", "size"]).stdout)
    assert {row["measure"] for row in result["scores"]} == {"accuracy"}


def test_too_little_memory_is_explained(user_files, monkeypatch):
    folder, *_ = user_files

    def refuse(*args, **kwargs):
        raise MemoryError

    monkeypatch.setattr(Decodability, "fit", refuse)
    with pytest.raises(InputError, match="there is not enough memory for these probes"):
        probe(folder / "a.npz", folder / "f.csv")


def test_a_layer_that_never_varies_is_reported_and_has_no_factor(tmp_path):
    factors = samples(300)
    np.savez(tmp_path / "a.npz", first_token=np.ones((300, 3)), late=parts(factors))
    factors.to_csv(tmp_path / "f.csv", index=False)
    result, lines = probe(tmp_path / "a.npz", tmp_path / "f.csv")
    kinds = {row["verdict"] for row in result["scores"] if row["layer"] == "first_token"}
    assert kinds == {"absent"}
    assert "Layer first_token: 3 of 3 features never vary." in lines
