"""`recombine bench`: the competitor, the rows and their page, the command, and the committed tables."""

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
from recombine.planning.bench import fidelity, plain, sampling, speed, suite
from recombine.planning.bench.suite import Suite, markdown, shown, summary
from recombine.training import device
from tests import tiny

RESULTS = Path(__file__).parents[2] / "docs" / "results"
TINY = dataclasses.replace(tiny.TINY, num_steps=100, num_evals=1, num_eval_points=16)


def test_the_plain_loop_trains(monkeypatch):
    losses, predict = [], plain.predict

    def watched(net, batch):
        prediction, activations = predict(net, batch)
        jax.debug.callback(
            lambda x: losses.append(float(x)), jnp.square(prediction - batch.y).mean(), ordered=True
        )
        return prediction, activations

    monkeypatch.setattr(plain, "predict", watched)
    assert plain.loop(TINY)(0.0) > 0
    jax.effects_barrier()
    assert len(losses) == 100, "fifty to warm up and fifty that count"
    assert len(set(losses)) == 100, "a fresh batch for every step"
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])


@pytest.mark.parametrize(("seconds", "expected"), [(1.0, 50 / 2), (3.0, 100 / 5)])
def test_the_plain_loop_counts_what_it_times(monkeypatch, seconds, expected):
    # The clock after the warm-up, after fifty steps more, and so on.
    times = iter([10.0, 12.0] if seconds < 2 else [10.0, 12.0, 15.0])
    monkeypatch.setattr(plain, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    assert plain.loop(dataclasses.replace(TINY, num_tasks=2))(seconds) == expected
    assert next(times, None) is None


def rows(date="2030-01-02", machine="Abacus") -> pd.DataFrame:
    """A table as the bench makes it, of two sections and four numbers."""
    one = [
        speed.row("beads", 1234.5, "beads/s"),
        speed.row("… against fingers", 12.345, "x", ">= 10", True, "a note"),
    ]
    two = [
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
    frame = pd.DataFrame(one + two).assign(section=["Beads", "Beads", "Scores", "Scores"], **about)
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


def test_rows_for_people():
    found = [shown(row) for row in rows().itertuples()]
    assert found == [
        ("beads", "1,234 beads/s", "", ""),
        ("… against fingers", "12.3 x", ">= 10 reached", "a note"),
        ("score", "0.9877 R2", ">= .99 NOT reached", ""),
        ("share", "0.5 %", "< 2 reached", ""),
    ]


def test_a_summary_is_json_with_what_was_missed():
    found = json.loads(json.dumps(summary(rows())))
    assert {k: found[k] for k in ("device", "cores", "jax", "python", "recombine", "date")} == {
        "device": "Abacus",
        "cores": "2",
        "jax": "1.0",
        "python": "3.99",
        "recombine": "0.0",
        "date": "2030-01-02",
    }
    assert found["missed"] == ["score"]
    assert [row["reached"] for row in found["rows"]] == [None, True, False, True]
    assert found["rows"][1] == {"section": "Beads", "reached": True} | {
        "name": "… against fingers",
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
    assert [len(table) for table in tables] == [4] * 4, "a head, a rule and two rows"
    assert {line.count("|") for table in tables for line in table} == {5}


@pytest.mark.parametrize("cpu", [True, False])
def test_a_quick_bench_is_two_sections(monkeypatch, cpu):
    monkeypatch.setattr(device, "on_cpu", lambda: cpu)
    assert list(Suite(quick=True).sections()) == ["Ceiling", "Against a plain loop"]
    whole = list(Suite().sections())
    assert whole[0] == "Ceiling"
    assert {
        "Growth",
        "Decodability",
        "Compilation",
        "Against a plain loop",
        "Sweeps",
        "Memory",
    } < set(whole)
    assert ("The paper's recipe" in whole) != cpu


def test_rows_come_section_by_section(monkeypatch):
    made = {
        "First": lambda: [speed.row("a", 1, "s")],
        "Second": lambda: [speed.row("b", 2, "s", "< 1", False)],
    }
    monkeypatch.setattr(Suite, "sections", lambda self: made)
    measuring, one = [], Suite(quick=True)
    frames = one.measure(measuring.append)
    assert next(frames)["name"].tolist() == ["a"]
    assert measuring == ["First"]
    assert len(one.rows) == 1, "to be written before the next section begins"
    assert next(frames)["section"].tolist() == ["Second"]
    assert next(frames, None) is None
    assert one.rows["name"].tolist() == ["a", "b"]
    assert one.rows["reached"].isna().tolist() == [True, False]
    assert {name: one.rows[name].iloc[-1] for name in suite.stamp()} == suite.stamp()


def test_the_ceiling_is_the_best_product(monkeypatch):
    monkeypatch.setattr(
        speed, "ceiling", lambda: [speed.row("f32", 3, "TFLOP/s"), speed.row("bf16", 5, "TFLOP/s")]
    )
    one = Suite()
    assert len(one.sections()["Ceiling"]()) == 2
    assert one.best == 5


@pytest.fixture
def call(call, monkeypatch):
    """The command line, with a section that takes no time."""
    made = {
        "Beads": lambda: [
            speed.row("a", 1234.5, "s"),
            speed.row("b", float("nan"), "s", "< 1", False, "why"),
        ]
    }
    monkeypatch.setattr(
        Suite, "sections", lambda self: made if self.quick else pytest.fail("not quick")
    )
    return call


def test_the_command_prints_json(call):
    code, out, err = call("bench", "--quick", "--json")
    assert code == 0
    found = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert set(found) >= {
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
    assert found["device"] == jax.devices()[0].device_kind
    assert found["jax"] == jax.__version__
    assert [row["name"] for row in found["rows"]] == ["a", "b"]
    assert [row["value"] for row in found["rows"]] == [1234.5, None]
    assert found["missed"] == ["b"]
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
def test_rows_that_cannot_be_written_are_told_in_one_line(call, tmp_path, out):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    code, _, err = call("bench", "--quick", "--json", "--out", out)
    assert code == 2
    assert "Traceback" not in err
    told = [line for line in err.splitlines() if line.startswith("recombine:")]
    assert told == err.strip().splitlines()[-1:], "one line, and the last"
    assert out in told[0]
    assert "--out" in told[0]
    assert "None" not in told[0], "a reason is given"


def committed(name: str) -> pd.DataFrame:
    return pd.read_parquet(RESULTS / f"bench-{name}.parquet")


@pytest.mark.skipif(
    not (RESULTS / "bench.md").exists(), reason="docs/results/bench.md is not written yet"
)
def test_the_committed_page_is_of_the_committed_tables():
    assert (RESULTS / "bench.md").read_text() == markdown(committed("h200"), committed("cpu"))


def test_the_committed_table_reaches_the_targets():
    table = committed("h200")
    assert table["device"].unique().tolist() == ["NVIDIA H200"]

    def value(section: str, name: str) -> float:
        found = table[(table["section"] == section) & table["name"].str.contains(name, regex=False)]
        assert len(found) == 1, name
        return found["value"].iloc[0]

    recipe, quality, few_shot = (
        "The paper's recipe",
        "Time to the published quality",
        "Few-shot encoding",
    )
    assert value(recipe, "the best of these") >= 9300
    rates = table[
        (table["section"] == recipe) & table["name"].str.match(r"Paper, bfloat16, \d+ runs")
    ]["value"]
    assert value(recipe, "the best of these") == rates.max()
    assert value(recipe, "bfloat16 differs by") <= 0.002
    assert value(quality, "mean test R2") >= 0.9967
    assert value(quality, "seconds a run") <= 3.1
    known = fidelity.reference()[fidelity.LARGE]
    for layer in ("hidden0", "hidden1", "hidden2", "hidden3"):
        assert value(quality, f"dead units, {layer}") <= 100 * (known["dead"][layer] + 0.04)
        assert value(quality, f"effective rank, {layer}") >= 0.75 * known["rank"][layer]
    for layer in ("hidden1", "hidden2", "hidden3"):
        assert abs(value(quality, f"decodability, {layer}") - known["decodability"][layer]) <= 0.05
    assert value(few_shot, "mean test R2") >= 0.965
    assert value(few_shot, "seconds a run") <= 30
    assert value("Decodability", "probe of all layers") < 2
    assert not table["reached"].eq(False).any(), "and no other target is missed"
    assert table[table["target"] != ""]["reached"].notna().all()


def test_a_familys_stand_in_has_its_shapes_and_costs_nothing():
    family = rc.PreferenceGrid(num_modules=4, num_hot=2, num_features=4)
    free = sampling.Free(family)
    task, world = jnp.ones(4), family.init(new_key(0))
    for real, cheap in zip(
        family.sample(world, new_key(1), task, 8),
        free.sample(world, new_key(1), task, 8),
        strict=True,
    ):
        assert (real.shape, real.dtype) == (cheap.shape, cheap.dtype)
    drawn = [free.sample(world, new_key(seed), task, 8)[0] for seed in range(8)]
    assert len({float(x[0, 0]) for x in drawn}) > 1, "a constant could be simplified away"
    assert dataclasses.replace(TINY, family=free, num_points=8, num_eval_points=8).family is free


def test_drawing_alone_is_measured():
    assert sampling.draws(TINY, num_runs=2, num_steps=3) > 0


def test_what_bounds_training_is_told(monkeypatch):
    rates = iter([100.0, 150.0])
    monkeypatch.setattr(sampling, "_rate", lambda run, num_runs: next(rates))
    monkeypatch.setattr(sampling, "draws", lambda *_: 120.0)
    trained, learned, drawn = sampling.preference(10, 2)
    assert (trained["value"], learned["value"], drawn["value"]) == (100, 150, 120)
    assert trained["note"].startswith("drawing bounds it")


def test_the_reference_is_of_the_committed_table():
    assert fidelity.reference() == reference.measured()
    large = fidelity.reference()[fidelity.LARGE]
    assert (
        large["recipe"] == "Paper(learning_rate=0.0003, weight_decay=0.003), 300,000 steps, float32"
    )
    assert large["runs"] == 3


def faithful_rows(dead=0.0, rank=100.0, decodability=0.97, test=0.998):
    """The last rows of twelve runs of the large student."""
    row = {"test/r2": test, "seen/r2": 0.999, "num_steps": 8000}
    for i in range(4):
        row |= {f"activity/hidden{i}/dead": dead, f"activity/hidden{i}/rank": rank}
        row[f"LinearDecodability-paper/pre{i}/test/r2"] = decodability
    return pd.DataFrame([row] * 12)


def missed(rows):
    return {row["name"] for row in rows if row["reached"] is False}


def test_speed_cannot_be_bought_with_dead_units():
    good = fidelity.quality_rows(faithful_rows(), 2.0)
    assert missed(good) == set()
    assert len(good) == 3 + 4 + 4 + 3, "the first layer's decodability says nothing"
    assert all(row["note"].startswith("paper's recipe") for row in good[3:])
    dead = fidelity.quality_rows(faithful_rows(dead=0.6), 1.5)
    assert missed(dead) == {f"… dead units, hidden{i}" for i in range(4)}
    assert missed(fidelity.quality_rows(faithful_rows(rank=5.0), 2.0)) == {
        f"… effective rank, hidden{i}" for i in range(4)
    }
    collapsed = missed(fidelity.quality_rows(faithful_rows(decodability=0.4), 2.0))
    assert collapsed == {f"… decodability, hidden{i}" for i in (1, 2, 3)}
    slow = missed(fidelity.quality_rows(faithful_rows(), 4.0))
    assert slow == {"… seconds a run", "… against the public code"}
    poor = missed(fidelity.quality_rows(faithful_rows(test=0.99), 2.0))
    assert {"Fast, 8,000 steps, 12 runs: mean test R2", "… seconds a run"} <= poor


def test_layers_that_were_not_measured_miss_their_targets():
    rows = faithful_rows()
    bare = rows[[name for name in rows if not name.startswith("activity/hidden3")]]
    assert missed(fidelity.quality_rows(bare, 2.0)) == {
        "… dead units, hidden3",
        "… effective rank, hidden3",
        "… decodability, hidden3",
    }


def test_a_student_without_reference_is_shown_without_targets():
    rows = fidelity.compare(faithful_rows(dead=0.9), "nobody")
    assert {row["reached"] for row in rows} == {None}
    assert {row["note"] for row in rows} == {"no reference"}
