"""Runs that start from the trained network of another run (`Run.start`)."""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.planning.estimate import estimate
from recombine.sweeps import overrides
from recombine.sweeps.run import describe, from_json, generation, identity, structure, to_json
from recombine.training import checkpoint, device, scheduler, trainer
from recombine.training.chunk import make_chunks
from recombine.training.executors.local import processes
from recombine.training.verification import verify
from tests.tiny import TINY

PARENTS = rc.sweep(TINY, seed=range(2))


def children() -> list[rc.Run]:
    """Two runs from each of two parents: trained with other supports, and one grandchild."""
    runs = [
        dataclasses.replace(parent, start=parent, support=support, num_steps=10, num_evals=1)
        for parent in PARENTS
        for support in (rc.Random(), rc.Disconnected())
    ]
    return [*runs, dataclasses.replace(runs[0], start=runs[0])]


def numbers(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[[name for name in rows if not name.startswith("meta/")]]


def hashes(runs) -> list[str]:
    return [identity(run) for run in runs]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """The folder and the rows of an uninterrupted sweep."""
    folder = tmp_path_factory.mktemp("starts") / "out"
    return folder, rc.train(children(), folder, max_width=2)


def test_the_hash_covers_the_start_only_if_there_is_one():
    child = children()[0]
    assert identity(dataclasses.replace(child, start=None)) == identity(
        dataclasses.replace(TINY, num_steps=10, num_evals=1)
    )
    others = [dataclasses.replace(child, start=parent) for parent in (None, *PARENTS)]
    assert len(set(hashes(others))) == 3
    parts = {
        type(getattr(child, name)).__name__: type(getattr(child, name)) for name in vars(child)
    }
    assert from_json(to_json(child), parts) == child


def test_columns_describe_the_start_only_if_there_is_one():
    assert not [name for name in describe(TINY) if name.startswith("start")]
    columns = describe(children()[2])
    assert columns["start"] == identity(PARENTS[1])
    assert columns["start.seed"] == 1
    assert columns["start.family.num_modules"] == 6


def test_training_begins_with_the_network_of_the_parent():
    parent = rc.fit(PARENTS[0])
    still = rc.Fast(learning_rate=0.0)
    child = rc.fit(dataclasses.replace(PARENTS[0], start=PARENTS[0], recipe=still))
    fresh = rc.fit(dataclasses.replace(PARENTS[0], recipe=still))
    leaves = [jax.tree.leaves(fitted.net) for fitted in (parent, child, fresh)]
    for of_parent, of_child, of_fresh in zip(*leaves, strict=True):
        np.testing.assert_array_equal(of_child, of_parent)
        if of_parent.ndim == 2:
            assert not np.array_equal(of_fresh, of_parent)
    moved = rc.fit(children()[0])
    first_weights = [fitted.net.layers[0].weight for fitted in (parent, moved)]
    assert not np.array_equal(*first_weights), "the child continues to train"


def test_parents_are_trained_first_and_once(sweep):
    folder, rows = sweep
    assert rows["run"].unique().tolist() == hashes(children())
    chunks = make_chunks(children(), 2)
    assert [generation(chunk.runs[0]) for chunk in chunks] == [0, 1, 1, 2]
    assert [len(chunk.runs) for chunk in chunks] == [2, 2, 2, 1]
    assert len({structure(run) for run in children()}) == 1, "the start is no structure"
    assert rc.Table(folder).finished() == {*hashes(children()), *hashes(PARENTS)}
    saved = {path.name for path in (folder / "starts").iterdir()}
    assert {*hashes(PARENTS), identity(children()[0])} <= saved
    assert estimate(children(), "cpu")["runs"] == 7
    assert verify(folder).problems == []


def test_batched_equals_alone(sweep):
    rows = sweep[1]
    for run in (children()[3], children()[4]):
        alone = numbers(rc.fit(run).rows)
        batched = rows[rows["run"] == identity(run)].reset_index(drop=True)
        # Integers are floats in a column that only some rows have.
        pd.testing.assert_frame_equal(batched[alone.columns], alone, check_dtype=False)


@pytest.mark.parametrize("num_before_kill", [1, 2, 3])
def test_a_killed_sweep_continues_with_equal_bits(sweep, tmp_path, monkeypatch, num_before_kill):
    chunk_rows = scheduler.chunk_rows
    trained = []

    def kill(chunk, *args):
        if len(trained) == num_before_kill:
            raise KeyboardInterrupt
        trained.append(chunk)
        return chunk_rows(chunk, *args)

    monkeypatch.setattr(scheduler, "chunk_rows", kill)
    with pytest.raises(KeyboardInterrupt):
        rc.train(children(), tmp_path / "out", max_width=2)
    monkeypatch.setattr(
        scheduler,
        "chunk_rows",
        lambda chunk, *args: trained.append(chunk) or chunk_rows(chunk, *args),
    )
    rows = rc.train(children(), tmp_path / "out")
    assert len(trained) == len(set(trained)) == 4, "nothing is trained twice"
    pd.testing.assert_frame_equal(numbers(rows), numbers(sweep[1]), check_exact=True)


def test_a_killed_chunk_of_children_continues_from_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOMBINE_CHECKPOINT", "0")
    monkeypatch.setattr(checkpoint, "MAX_TIME_FRACTION", float("inf"))
    parent = dataclasses.replace(TINY, num_steps=4)
    child = dataclasses.replace(TINY, num_steps=200, num_evals=10, start=parent)
    expected = rc.train(child)
    steps = []

    def kill(progress):
        steps.append((progress.phase, progress.step))
        if progress.step >= 100 and len(steps) < 100:
            raise KeyboardInterrupt

    nets = [rc.fit(parent).net]
    with pytest.raises(KeyboardInterrupt):
        trainer.train_chunk([child], None, kill, None, tmp_path, start_nets=nets)
    resumed = trainer.train_chunk(
        [child], None, lambda progress: steps.append((progress.phase, progress.step)), None,
        tmp_path, start_nets=nets,
    )  # fmt: skip
    resumed_at = [step for phase, step in steps if phase == "resuming"]
    assert len(resumed_at) == 1
    assert 0 < resumed_at[0] <= 100
    np.testing.assert_array_equal(
        [row["test/r2"] for row in resumed.rows[0]], expected["test/r2"].to_numpy()
    )


def test_a_finished_sweep_needs_no_network(sweep, tmp_path, monkeypatch):
    out = tmp_path / "rows.parquet"
    rows = rc.train(children(), out, max_width=2)
    starts = tmp_path / ".rows.parquet.starts"
    assert (starts / identity(PARENTS[0]) / "run.json").exists()
    (starts / identity(PARENTS[0]) / "run.json").unlink()
    chunk_rows = scheduler.chunk_rows
    trained = []

    def logged(chunk, *args):
        trained.extend(chunk.runs)
        return chunk_rows(chunk, *args)

    monkeypatch.setattr(scheduler, "chunk_rows", logged)
    pd.testing.assert_frame_equal(numbers(rc.train(children(), out)), numbers(rows))
    assert trained == []
    # A new run from the parent whose network is lost: the parent is trained again, with its old
    # rows, and no other run of the sweep.
    extra = dataclasses.replace(children()[0], num_tasks=4)
    rc.train([*children(), extra], out)
    assert set(trained) == {*PARENTS, extra}
    assert len(pd.read_parquet(out).query("run == @identity(@PARENTS[0])")) == 2


def test_lanes_of_several_runs_get_their_own_networks(monkeypatch):
    """As on a GPU: one call trains three runs, and the chunk is padded to four."""
    runs = children()[1:4]
    parents = {parent: rc.fit(parent).net for parent in PARENTS}
    nets = [parents[run.start] for run in runs]
    alone = [
        trainer.train_chunk([run], start_nets=[net]) for run, net in zip(runs, nets, strict=True)
    ]
    monkeypatch.setattr(device, "lane_width", lambda width: width)
    together = trainer.train_chunk(runs, 4, start_nets=nets)
    for i, trained in enumerate(alone):
        np.testing.assert_allclose(
            together.rows[i][0]["test/loss"], trained.rows[0][0]["test/loss"], rtol=1e-4
        )


def test_worker_processes_train_parents_before_their_children(sweep, tmp_path):
    with processes(1) as executor:
        rows = rc.train(children()[:2], tmp_path / "out", executor=executor, max_width=2)
    expected = sweep[1][sweep[1]["run"].isin(hashes(children()[:2]))]
    pd.testing.assert_frame_equal(numbers(rows), expected[numbers(rows).columns], check_exact=True)


def test_seeds_of_parents_follow_those_of_their_runs():
    child = children()[0]
    reseeded = overrides.reseed([child], 3)
    assert [(run.seed, run.start.seed) for run in reseeded] == [(0, 0), (1, 1), (2, 2)]
    stranger = dataclasses.replace(child, start=PARENTS[1])
    assert [run.start.seed for run in overrides.reseed([stranger], 2)] == [1, 1]


def test_a_start_that_does_not_fit_is_refused_in_one_line(tmp_path):
    family = dataclasses.replace(TINY.family, num_modules=7)
    with pytest.raises(InputError, match="must have the family of the run") as caught:
        dataclasses.replace(TINY, family=family, start=TINY)
    assert "\n" not in str(caught.value)
    wider = dataclasses.replace(TINY, model=rc.MLP(widths=(8, 9)), start=TINY)
    with pytest.raises(
        InputError, match=r"cannot start from the network of a run with MLP"
    ) as caught:
        rc.train(wider, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    gelu = dataclasses.replace(TINY, model=rc.MLP(widths=(8, 8), activation="gelu"), start=TINY)
    with pytest.raises(InputError, match="same layers and shapes"):
        rc.fit(gelu)
    with pytest.raises(InputError, match=r"Run.start must be a Run or None"):
        dataclasses.replace(TINY, start="other")
