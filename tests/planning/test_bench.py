"""`recombine bench`: the plain loop, the rows and their page, the command, the committed tables."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import recombine as rc
from benchmarks import reference
from recombine.parts.prng import new_key
from recombine.planning.bench import fidelity, plain_loop, sampling, speed, suite
from recombine.planning.bench.suite import Suite, format_row, markdown, summary
from recombine.training import device
from tests import tiny

RESULTS = Path(__file__).parents[2] / "docs" / "results"
TINY = dataclasses.replace(tiny.TINY, num_steps=100, num_evals=1, num_eval_points=16)


def test_the_plain_loop_trains(monkeypatch):
    losses = []
    predict = plain_loop.predict

    def predict_and_record(net, batch):
        prediction, activations = predict(net, batch)
        loss = jnp.square(prediction - batch.y).mean()
        jax.debug.callback(lambda x: losses.append(float(x)), loss, ordered=True)
        return prediction, activations

    monkeypatch.setattr(plain_loop, "predict", predict_and_record)
    assert plain_loop.compile_loop(TINY)(0.0) > 0
    jax.effects_barrier()
    assert len(losses) == 100, "fifty for the compilation and fifty that are timed"
    assert len(set(losses)) == 100, "a fresh batch for every step"
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])


@pytest.mark.parametrize(("seconds", "expected"), [(1.0, 50 / 2), (3.0, 100 / 5)])
def test_the_plain_loop_counts_the_timed_steps(monkeypatch, seconds, expected):
    # The clock at the start, after fifty steps, and so on.
    times = iter([10.0, 12.0] if seconds < 2 else [10.0, 12.0, 15.0])
    monkeypatch.setattr(plain_loop, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    run = dataclasses.replace(TINY, num_tasks=2)
    assert plain_loop.compile_loop(run)(seconds) == expected
    assert next(times, None) is None


def rows(date="2030-01-02", machine="Abacus") -> pd.DataFrame:
    """A table of the benchmark, with two sections and four numbers."""
    beads = [
        speed.row("beads", 1234.5, "beads/s"),
        speed.row("… compared with fingers", 12.345, "x", ">= 10", True, "a note"),
    ]
    scores = [
        speed.row("score", 0.98765, "R2", ">= .99", False),
        speed.row("share", np.float32(0.5), "%", "< 2", True),
    ]
    about = {
        "device": machine,
        "cores": "2",
        "jax": "1.0",
        "python": "3.99",
        "recombine": "0.0",
        "date": date,
    }
    frame = pd.DataFrame(beads + scores).assign(
        section=["Beads", "Beads", "Scores", "Scores"], **about
    )
    return frame.astype({"reached": "boolean"})


def test_a_row_is_plain_values():
    assert speed.row("a", np.float32(0.5), "s") == {
        "name": "a",
        "value": 0.5,
        "unit": "s",
        "target": "",
        "reached": None,
        "note": "",
    }
    assert type(speed.row("a", np.float32(0.5), "s")["value"]) is float
    assert speed.row("a", 1, "s", "< 2", True, "why")["note"] == "why"


def test_rows_as_text():
    assert [format_row(row) for row in rows().itertuples()] == [
        ("beads", "1,234 beads/s", "", ""),
        ("… compared with fingers", "12.3 x", ">= 10 reached", "a note"),
        ("score", "0.9877 R2", ">= .99 NOT reached", ""),
        ("share", "0.5 %", "< 2 reached", ""),
    ]


def test_a_summary_is_json_with_the_missed_targets():
    result = json.loads(json.dumps(summary(rows())))
    assert {k: result[k] for k in ("device", "cores", "jax", "python", "recombine", "date")} == {
        "device": "Abacus",
        "cores": "2",
        "jax": "1.0",
        "python": "3.99",
        "recombine": "0.0",
        "date": "2030-01-02",
    }
    assert result["missed"] == ["score"]
    assert [row["reached"] for row in result["rows"]] == [None, True, False, True]
    assert result["rows"][1] == {"section": "Beads", "reached": True} | {
        "name": "… compared with fingers",
        "value": 12.345,
        "unit": "x",
        "target": ">= 10",
        "note": "a note",
    }


def test_a_page_of_two_machines():
    page = markdown(rows(), rows("2030-01-03", "Slide rule"))
    assert page.startswith("# Benchmark\n")
    assert [line for line in page.splitlines() if line.startswith("#")] == [
        "# Benchmark",
        "## Abacus (2 host cores)",
        "### Beads",
        "### Scores",
        "## Slide rule (2 host cores)",
        "### Beads",
        "### Scores",
    ]
    assert page.count("| score | 0.9877 R2 | >= .99 NOT reached |  |\n") == 2
    assert "Recombine 0.0, jax 1.0, Python 3.99, 2030-01-03" in page
    tables = [block.splitlines() for block in page.split("\n\n") if block.startswith("|")]
    assert [len(table) for table in tables] == [4] * 4, "a header, a rule and two rows"
    assert {line.count("|") for table in tables for line in table} == {5}


@pytest.mark.parametrize("cpu", [True, False])
def test_a_quick_benchmark_has_two_sections(monkeypatch, cpu):
    monkeypatch.setattr(device, "on_cpu", lambda: cpu)
    assert list(Suite(quick=True).sections()) == ["Upper bound", "Compared with a plain loop"]
    titles = list(Suite().sections())
    assert titles[0] == "Upper bound"
    assert {
        "Cost by size",
        "Cost of the probe",
        "Compilation",
        "Compared with a plain loop",
        "Cost by number of runs",
        "Memory",
    } < set(titles)
    assert ("The paper's recipe" in titles) != cpu


def test_rows_are_available_after_each_section(monkeypatch):
    sections = {
        "First": lambda: [speed.row("a", 1, "s")],
        "Second": lambda: [speed.row("b", 2, "s", "< 1", False)],
    }
    monkeypatch.setattr(Suite, "sections", lambda self: sections)
    titles = []
    quick = Suite(quick=True)
    frames = quick.measure(titles.append)
    assert next(frames)["name"].tolist() == ["a"]
    assert titles == ["First"]
    assert len(quick.rows) == 1, "to be written before the next section begins"
    assert next(frames)["section"].tolist() == ["Second"]
    assert next(frames, None) is None
    assert quick.rows["name"].tolist() == ["a", "b"]
    assert quick.rows["reached"].isna().tolist() == [True, False]
    assert {name: quick.rows[name].iloc[-1] for name in suite.stamp()} == suite.stamp()


def test_the_peak_is_the_fastest_product(monkeypatch):
    products = [speed.row("f32", 3, "TFLOP/s"), speed.row("bf16", 5, "TFLOP/s")]
    monkeypatch.setattr(speed, "matrix_product", lambda: products)
    whole = Suite()
    assert len(whole.sections()["Upper bound"]()) == 2
    assert whole.peak == 5


def test_compilation_is_timed_in_another_process(monkeypatch):
    run = dataclasses.replace(TINY, num_steps=2)
    (seconds,) = speed._compile_seconds(run, num_processes=1)
    assert seconds > 0
    monkeypatch.setattr(speed, "_compile_seconds", lambda run, num_processes: [10.0, 8.0])
    first, second = speed.compilation(run)
    assert (first["value"], second["value"]) == (10, 8)
    assert (second["target"], second["reached"]) == ("< 7", False)


@pytest.fixture
def call(call, monkeypatch):
    """The command line, with a section that takes no time."""
    beads = [
        speed.row("a", 1234.5, "s"),
        speed.row("b", float("nan"), "s", "< 1", False, "a note"),
    ]

    def sections(self):
        return {"Beads": lambda: beads} if self.quick else pytest.fail("not quick")

    monkeypatch.setattr(Suite, "sections", sections)
    return call


def test_the_command_prints_json(call):
    code, out, err = call("bench", "--quick", "--json")
    assert code == 0
    result = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert set(result) >= {
        "device",
        "cores",
        "jax",
        "python",
        "recombine",
        "date",
        "rows",
        "missed",
        "cost",
    }
    assert result["device"] == jax.devices()[0].device_kind
    assert result["jax"] == jax.__version__
    assert [row["name"] for row in result["rows"]] == ["a", "b"]
    assert [row["value"] for row in result["rows"]] == [1234.5, None]
    assert result["missed"] == ["b"]
    assert "measuring: Beads" in err


def test_the_command_shows_a_table_and_writes_its_rows(call, tmp_path):
    code, out, _ = call("bench", "--quick", "--out", "rows.parquet")
    assert code == 0
    assert "1,234 s" in out
    assert "NOT reached" in out
    assert "1 targets missed" in out
    written = pd.read_parquet(tmp_path / "rows.parquet")
    assert written["name"].tolist() == ["a", "b"]
    assert written["reached"].dtype == "boolean"
    assert markdown(written).count("### Beads") == 1


@pytest.mark.parametrize("out", ["folder", "nowhere/rows.parquet", "file/rows.parquet"])
def test_an_unwritable_file_raises_one_line(call, tmp_path, out):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    code, _, err = call("bench", "--quick", "--json", "--out", out)
    assert code == 2
    assert "Traceback" not in err
    messages = [line for line in err.splitlines() if line.startswith("recombine:")]
    assert messages == err.strip().splitlines()[-1:], "one line, and the last"
    assert out in messages[0]
    assert "--out" in messages[0]
    assert "None" not in messages[0], "there is a reason"


def committed(name: str) -> pd.DataFrame:
    return pd.read_parquet(RESULTS / f"bench-{name}.parquet")


def only_value(table: pd.DataFrame, section: str, name: str) -> float:
    """The value of the only row of a section whose name contains a text."""
    in_section = table["section"] == section
    rows = table[in_section & table["name"].str.contains(name, regex=False)]
    assert len(rows) == 1, name
    return rows["value"].iloc[0]


@pytest.mark.skipif(
    not (RESULTS / "bench.md").exists(), reason="docs/results/bench.md is not written yet"
)
def test_the_committed_page_has_the_committed_tables():
    assert (RESULTS / "bench.md").read_text() == markdown(committed("h200"), committed("cpu"))


def test_the_committed_table_reaches_the_targets():
    table = committed("h200")
    assert table["device"].unique().tolist() == ["NVIDIA H200"]

    def value(section: str, name: str) -> float:
        return only_value(table, section, name)

    recipe = "The paper's recipe"
    assert value(recipe, "best of these") >= 9300
    in_recipe = table["section"] == recipe
    rates = table[in_recipe & table["name"].str.match(r"Paper, bfloat16, \d+ runs")]["value"]
    assert value(recipe, "best of these") == rates.max()
    assert value(recipe, "difference with bfloat16") <= 0.002
    score = "Time to the published score"
    assert value(score, "mean test R2") >= 0.9967
    assert value(score, "seconds per run") <= 3.1
    known = fidelity.reference()[fidelity.LARGE]
    for layer in ("hidden0", "hidden1", "hidden2", "hidden3"):
        assert value(score, f"dead units, {layer}") <= 100 * (known["dead"][layer] + 0.04)
        assert value(score, f"effective rank, {layer}") >= 0.75 * known["rank"][layer]
    for layer in ("hidden1", "hidden2", "hidden3"):
        assert abs(value(score, f"decodability, {layer}") - known["decodability"][layer]) <= 0.05
    assert value("Few-shot encoding", "mean test R2") >= 0.965
    assert value("Few-shot encoding", "seconds per run") <= 30
    assert value("Cost of the probe", "probe of all layers") < 2
    assert not table["reached"].eq(False).any(), "and no other target is missed"
    assert table[table["target"] != ""]["reached"].notna().all()


def test_the_committed_table_of_a_cpu_reaches_the_targets(monkeypatch):
    table = committed("cpu")
    assert table["device"].unique().tolist() == ["cpu"]
    monkeypatch.setattr(device, "on_cpu", lambda: True)
    missing = set(Suite().sections()) - set(table["section"])
    assert missing <= {"Preference grid"}, "its rates need a machine without other programs"
    student = "Quickstart student compared with the paper's recipe"
    known = fidelity.reference()[fidelity.QUICKSTART]
    assert only_value(table, student, "mean seen R2") >= known["seen"]
    assert only_value(table, student, "seconds per run") < known["seconds"]
    for layer in ("hidden0", "hidden1", "hidden2"):
        dead = only_value(table, student, f"dead units, {layer}")
        assert dead <= 100 * (known["dead"][layer] + 0.04)
        rank = only_value(table, student, f"effective rank, {layer}")
        assert rank >= 0.75 * known["rank"][layer]
    for layer in ("hidden1", "hidden2"):
        decodability = only_value(table, student, f"decodability, {layer}")
        assert abs(decodability - known["decodability"][layer]) <= 0.05
    assert not table["reached"].eq(False).any(), "and no other target is missed"
    assert table[table["target"] != ""]["reached"].notna().all()


def test_a_free_family_has_the_shapes_of_the_other_one():
    family = rc.PreferenceGrid(num_modules=4, num_hot=2, num_features=4)
    free = sampling.Free(family)
    task, world = jnp.ones(4), family.init(new_key(0))
    points = family.sample(world, new_key(1), task, 8)
    free_points = free.sample(world, new_key(1), task, 8)
    for leaf, free_leaf in zip(points, free_points, strict=True):
        assert (leaf.shape, leaf.dtype) == (free_leaf.shape, free_leaf.dtype)
    drawn = [free.sample(world, new_key(seed), task, 8)[0] for seed in range(8)]
    assert len({float(x[0, 0]) for x in drawn}) > 1, "the compiler could simplify a constant"
    assert dataclasses.replace(TINY, family=free, num_points=8, num_eval_points=8).family is free


def test_drawing_batches_is_measured():
    assert sampling.batches_per_second(TINY, num_runs=2, num_steps=3) > 0


def test_the_bottleneck_is_named(monkeypatch):
    rates = iter([100.0, 150.0])
    monkeypatch.setattr(sampling, "_run_steps_per_second", lambda run, num_runs: next(rates))
    monkeypatch.setattr(sampling, "batches_per_second", lambda *_: 120.0)
    training, learning, drawing = sampling.preference(10, 2)
    assert (training["value"], learning["value"], drawing["value"]) == (100, 150, 120)
    assert training["note"].startswith("bottleneck: drawing batches;")


def test_the_reference_has_the_means_of_the_committed_table():
    assert fidelity.reference() == reference.measured()
    large = fidelity.reference()[fidelity.LARGE]
    assert (
        large["recipe"] == "Paper(learning_rate=0.0003, weight_decay=0.003), 300,000 steps, float32"
    )
    assert large["runs"] == 3


def last_rows(dead=0.0, rank=100.0, decodability=0.97, test=0.998):
    """The last rows of twelve runs of the large student."""
    row = {"test/r2": test, "seen/r2": 0.999, "num_steps": 8000}
    for i in range(4):
        row |= {f"activity/hidden{i}/dead": dead, f"activity/hidden{i}/rank": rank}
        row[f"LinearDecodability-paper/pre{i}/test/r2"] = decodability
    return pd.DataFrame([row] * 12)


def missed(rows):
    """The names of the rows that miss their targets."""
    return {row["name"] for row in rows if row["reached"] is False}


def test_a_fast_recipe_with_dead_units_misses_targets():
    good = fidelity.quality_rows(last_rows(), 2.0)
    assert missed(good) == set()
    assert len(good) == 3 + 4 + 4 + 3, "the first layer has no decodability"
    assert all(row["note"].startswith("paper's recipe") for row in good[3:])
    dead = fidelity.quality_rows(last_rows(dead=0.6), 1.5)
    assert missed(dead) == {f"… dead units, hidden{i}" for i in range(4)}
    assert missed(fidelity.quality_rows(last_rows(rank=5.0), 2.0)) == {
        f"… effective rank, hidden{i}" for i in range(4)
    }
    collapsed = missed(fidelity.quality_rows(last_rows(decodability=0.4), 2.0))
    assert collapsed == {f"… decodability, hidden{i}" for i in (1, 2, 3)}
    slow = missed(fidelity.quality_rows(last_rows(), 4.0))
    assert slow == {"… seconds per run", "… compared with the public code"}
    poor = missed(fidelity.quality_rows(last_rows(test=0.99), 2.0))
    assert {"Fast, 8,000 steps, 12 runs: mean test R2", "… seconds per run"} <= poor


def test_every_student_is_shown_with_the_scores_and_seconds_of_its_reference():
    for rows_of, student in (
        (fidelity.quality_rows, fidelity.LARGE),
        (fidelity.few_shot_rows, fidelity.FEW_SHOT),
        (fidelity.quickstart_rows, fidelity.QUICKSTART),
    ):
        known = fidelity.reference()[student]
        score, seconds = rows_of(last_rows(), 2.0)[:2]
        assert f"paper's recipe: test {known['test']:.4f}" in score["note"]
        assert seconds["name"] == "… seconds per run"
        assert seconds["note"] == f"paper's recipe: {known['seconds']:.1f} s on {known['device']}"
    assert fidelity.reference()[fidelity.LARGE]["seconds"] == pytest.approx(96.4, abs=0.1)


def test_unmeasured_layers_miss_their_targets():
    rows = last_rows()
    bare = rows[[name for name in rows if not name.startswith("activity/hidden3")]]
    assert missed(fidelity.quality_rows(bare, 2.0)) == {
        "… dead units, hidden3",
        "… effective rank, hidden3",
        "… decodability, hidden3",
    }


def test_a_student_without_reference_has_no_targets():
    rows = fidelity.compare(last_rows(dead=0.9), "nobody")
    assert {row["reached"] for row in rows} == {None}
    assert {row["note"] for row in rows} == {"no reference"}
