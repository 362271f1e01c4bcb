"""`recombine verify` finds every kind of damage and mixture, and nothing in sound results."""

import dataclasses
import json
import shutil

import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.storage import parquet
from recombine.storage.table import Table
from recombine.sweeps import discovery
from recombine.sweeps.code_hash import hash_of_package
from recombine.sweeps.run import describe, identity
from recombine.training import split_verification, task_sampler
from recombine.training.checkpoint import Checkpoint
from recombine.training.split_verification import coverage, prove
from recombine.training.verification import verify
from tests.tiny import TINY

RUNS = rc.sweep(TINY, frac_test=[0.25, 0.5], seed=range(2))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound") / "out"
    rc.train(RUNS, folder, keep=folder / "networks")
    Table(folder).note(shown=[identity(run) for run in RUNS])
    checkpoint = Checkpoint(folder / "checkpoints", RUNS, 4)
    checkpoint.save(1, 0.5, [], [np.zeros(3)])
    return folder


@pytest.fixture
def out(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "out")


def problems(folder) -> list[str]:
    listed = verify(folder, hash_of_package()).problems
    assert not any("\n" in problem for problem in listed)
    return listed


def test_sound_results_have_no_problem(out, call):
    checked = {"parts": 1, "rows": 8, "runs": 4, "checkpoints": 1, "networks": 4}
    assert verify(out, hash_of_package()) == (checked, [])
    code, printed, _ = call("verify", str(out), "--split", "--json")
    result = json.loads(printed)
    assert (code, result["problems"], result["checked"]) == (0, [], checked)
    assert result["split"]["disjoint"]
    assert (result["split"]["num_splits"], result["split"]["num_hashed"]) == (4, 4)
    code, printed, _ = call("verify", str(out), "--split")
    assert "no problem found" in printed
    assert "no test combination was trained: 4 splits of 4 runs" in printed
    assert "coverage at 2: 0.0% of the 2-combinations of test tasks occur in train tasks" in printed


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_one_flipped_bit_of_any_file_is_one_line(out, call):
    files = [path for path in out.rglob("*") if path.suffix in (".parquet", ".eqx")]
    files += list(out.glob("networks/*/run.json"))
    assert len(files) == 2 + 4 * 3
    for path in files:
        before = path.read_bytes()
        flip(path)
        lines = [line for line in problems(out) if "of the last command have no rows" not in line]
        assert len(lines) == 1, path
        assert path.name in lines[0]
        path.write_bytes(before)
    flip(files[0])
    code, printed, _ = call("verify", str(out), "--json")
    assert code == 1
    assert json.loads(printed)["problems"]


def rewritten(out, change) -> list[str]:
    """The problems if the rows were others."""
    (part,) = (out / "rows").iterdir()
    rows = change(pd.read_parquet(part))
    part.unlink()
    Table(out).append(rows)
    return problems(out)


@pytest.mark.parametrize(
    ("column", "word"),
    [
        ("meta/jax", "JAX"),
        ("meta/recombine", "version of Recombine"),
        ("meta/cpu", "CPU"),
        ("meta/xla_flags", "set of XLA flags"),
        ("meta/libraries", "set of library versions"),
    ],
)
def test_mixtures_are_found(out, column, word):
    first = identity(RUNS[0])
    lines = rewritten(
        out, lambda rows: rows.assign(**{column: rows[column].where(rows["run"] != first, "x")})
    )
    assert len(lines) == 1
    assert f"more than one {word} (" in lines[0]
    assert "x: 1 run" in lines[0]


def test_stale_code_is_found(out):
    assert rewritten(out, lambda rows: rows.assign(**{"meta/code": "old"}))[0].startswith(
        "4 runs were made by other code than the present"
    )


def test_runs_that_are_not_whole_are_found(out):
    first = identity(RUNS[0])
    lines = rewritten(out, lambda rows: rows[(rows["run"] != first) | (rows["step"] != 10)])
    assert lines == [
        f"evaluations of 1 run are missing ({first}): move the part with these rows away and run "
        "the command again"
    ]


def test_rows_that_contradict_each_other_are_found(out):
    rows = Table(out).read()
    Table(out).append(rows)  # the same once more
    assert problems(out) == []
    Table(out).append(rows.assign(**{"test/loss": rows["test/loss"] + (rows["seed"] == 0)}))
    (line,) = problems(out)
    assert line.startswith("2 runs with two different rows of one step")


def test_a_folder_without_results_is_refused(call, tmp_path):
    code, _, err = call("verify", str(tmp_path))
    assert code == 2
    assert "holds no results" in err


def test_another_split_than_the_recorded_one_is_found(out, monkeypatch):
    rows = Table(out).read()
    changed = rows.assign(**{"meta/split": "0" * 16})
    assert prove(changed).problems[0].startswith("1 run such as")
    older = rows.drop(columns="meta/split")
    assert (prove(older).problems, prove(older).num_hashed) == ([], 0)
    assert prove(older.assign(**{"support/num_train": 1})).problems


def test_a_test_combination_that_was_trained_is_found(monkeypatch):
    def leaking(run, modules):
        split, facts = task_sampler.make_split(run, modules)
        order = split.order.copy()
        order[split.num_train] = order[0]  # the first test task is a train task
        return split._replace(order=order), facts

    rows = rc.train(RUNS[:1])
    monkeypatch.setattr(split_verification, "make_split", leaking)
    lines = prove(rows.drop(columns="meta/split")).problems
    assert len(lines) == 1
    assert "1 of " in lines[0]
    assert lines[0].endswith("are train tasks, too")


def test_coverage_counts_combinations():
    train = np.array([[1, 1, 0, 0], [0, 1, 1, 0]])
    test = np.array([[1, 0, 1, 0], [1, 1, 1, 0], [0, 0, 0, 1]])
    # Singles 0, 1, 2 of 4; pairs 01 and 12 of 01, 02, 12; no triple.
    assert coverage(train, test) == {1: 3 / 4, 2: 2 / 3, 3: 0.0}


def split_rows(run: rc.Run) -> pd.DataFrame:
    """A row as training writes it, as far as the split matters, through a Parquet file."""
    modules = run.family.modules(run.family.tasks())
    split, facts = task_sampler.make_split(run, modules)
    columns = {"run": identity(run), "step": 1} | describe(run) | facts
    columns["meta/split"] = task_sampler.split_digest(split)
    return pd.DataFrame([columns])


def test_the_splits_of_all_families_and_supports_can_be_computed_again(tmp_path):
    parts = discovery.parts()
    frames = []
    for cls in parts["support"].values():
        try:
            frames.append(split_rows(dataclasses.replace(TINY, support=cls())))
        except rc.InputError:  # it needs another family
            continue
    assert len(frames) > len(parts["support"]) / 2
    for cls in parts["family"].values():
        horizon = getattr(cls(), "horizon", 1)
        points = {"num_points": 16 * horizon, "num_eval_points": 16 * horizon}
        frames.append(split_rows(rc.Run(family=cls(), **points)))
    rows = parquet.sort(parquet.concat(frames))
    Table(tmp_path / "out").append(rows)
    proof = prove(Table(tmp_path / "out").read())
    assert proof.problems == []
    assert proof.num_hashed == proof.num_splits == len(frames)
