"""Checkpoints inside a chunk: training that stops anywhere and goes on is training that never stopped, bit for bit."""

import dataclasses
import itertools
from importlib.metadata import version

import jax
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.sweeps.run import identity
from recombine.training import checkpoint, program, trainer
from recombine.training.checkpoint import Checkpoint
from tests.tiny import TINY
from tests.training.test_trainer import same

# 40 steps in 4 blocks of 2 strides: a kill may come in the middle of a block and at its end.
LONG = dataclasses.replace(TINY, num_steps=40, num_evals=4, recipe=rc.Fast(ema=0.9))


def runs() -> list[rc.Run]:
    return rc.sweep(LONG, recipe__learning_rate=[0.01, 1e30, 0.03])


@pytest.fixture(scope="module")
def often():
    """A checkpoint after every stride, of which there are two in a block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECOMBINE_CHECKPOINT", "0")
        patch.setattr(checkpoint, "PRICE", float("inf"))
        patch.setattr(program, "MAX_STRIDE", 5)
        program.compiled.cache_clear()
        yield
    program.compiled.cache_clear()


@pytest.fixture(scope="module")
def whole(often):
    return trainer.train_chunk(runs())


class Killed(BaseException):
    """Like a signal: nobody catches it."""


def train(folder, stop_at: int | None = None, **changes) -> trainer.Trained:
    """Train the chunk, killed when so many steps are done and saved; gives also where it began."""
    begun = []

    def watch(progress):
        if progress.phase == "training":
            begun.append(progress.step)
        if stop_at is not None and progress.step >= stop_at:
            raise Killed

    found = trainer.train_chunk(runs(), 3, watch, None, folder, **changes)
    return found, begun


@pytest.mark.parametrize("stops", [(5,), (10,), (15, 20), (5, 10, 15, 20, 25, 30, 35)])
def test_training_that_was_killed_equals_training_that_was_not(whole, tmp_path, stops):
    for stop in stops:
        with pytest.raises(Killed):
            train(tmp_path, stop)
        assert len(list(tmp_path.iterdir())) == 1
    found, steps = train(tmp_path)
    assert steps[0] == stops[-1] + 5, "it went on from the last checkpoint"
    same(found, whole)
    assert list(found.rows[0][0]) == list(whole.rows[0][0]), "the columns are in one order too"
    assert found.seconds > 0


def test_how_steps_are_cut_into_calls_changes_no_bit(whole, monkeypatch):
    def clock():  # a call seems to take so long that every call is one stride
        return next(ticks)

    ticks = itertools.count(0, 100.0)
    seen = []
    monkeypatch.setattr(trainer.time, "perf_counter", clock)
    same(trainer.train_chunk(runs(), 3, lambda progress: seen.append(progress.step)), whole)
    assert seen == [0, 5, 10, 15, 20, 25, 30, 35, 40], "every call really was one stride"


@pytest.mark.parametrize("change", ["code", "jax", "settings", "width", "runs", "numerics"])
def test_a_checkpoint_of_anything_else_is_not_taken(often, tmp_path, monkeypatch, change):
    place = Checkpoint(tmp_path, runs(), 3).path
    assert Checkpoint(tmp_path, runs(), 3).path == place
    if change == "code":
        monkeypatch.setattr(checkpoint, "of_package", lambda: "other")
    if change == "jax":
        monkeypatch.setattr(
            checkpoint, "version", lambda name: "0.0.1" if name == "jax" else version(name)
        )
    if change == "settings":
        jax.config.update("jax_default_matmul_precision", "highest")
    if change == "numerics":
        monkeypatch.setattr(checkpoint, "NUMERICS", -1)
    given = runs()[:2] if change == "runs" else runs()
    try:
        assert Checkpoint(tmp_path, given, 4 if change == "width" else 3).path != place
    finally:
        jax.config.update("jax_default_matmul_precision", None)


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign", "flipped", "head"])
def test_a_damaged_checkpoint_is_as_good_as_none(whole, tmp_path, damage):
    with pytest.raises(Killed):
        train(tmp_path, 20)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(
        {
            "truncated": data[:middle],
            "empty": b"",
            "foreign": b"not\nours",
            "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
            "head": data.replace(b'"at": 4', b'"at": 6', 1),
        }[damage]
    )
    found, steps = train(tmp_path)
    assert steps[0] == 5, "from the beginning"
    same(found, whole)


def test_the_end_is_kept_only_when_asked(whole, tmp_path):
    train(tmp_path / "a")
    (path,) = (tmp_path / "a").iterdir()
    assert train(tmp_path / "a")[1] == [40], "the last checkpoint is of step 35"
    train(tmp_path / "b", leave=True)
    found, steps = train(tmp_path / "b")
    assert steps == [], "nothing is left to train"
    same(found, whole)
    names = [identity(run) for run in runs()]
    checkpoint.forget(tmp_path / "a", names[1:])
    assert path.exists(), "a checkpoint is called by its first run"
    checkpoint.forget(tmp_path / "a", names)
    assert not path.parent.exists()
    checkpoint.forget(tmp_path / "nowhere", names)
    checkpoint.forget(None, names)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), TypeError("a key cannot be written")]
)
def test_what_cannot_be_saved_stops_no_training_and_spoils_no_older_one(
    whole, tmp_path, monkeypatch, error
):
    with pytest.raises(Killed):
        train(tmp_path, 10)
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()

    def fails(*_):
        raise error

    monkeypatch.setattr(checkpoint, "replace", fails)
    found, _ = train(tmp_path)
    same(found, whole)
    assert path.read_bytes() == before


def test_a_chunk_says_where_it_goes_on(whole, tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, 10)
    seen = []
    trainer.train_chunk(runs(), 3, seen.append, None, tmp_path)
    assert [(one.phase, one.step) for one in seen[:3]] == [
        ("compiling", 0),
        ("resuming", 10),
        ("training", 15),
    ]


def test_checkpoints_cost_a_tenth_of_the_time_at_most(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOMBINE_CHECKPOINT", "30")
    monkeypatch.setattr(checkpoint, "PRICE", 0.1)
    one = Checkpoint(tmp_path, runs(), 3)
    now = iter([100.0, 108.0, 110.0, 187.9, 188.1])
    monkeypatch.setattr(checkpoint.time, "perf_counter", lambda: next(now))
    one.save(1, 0.0, [], [])
    assert one.every == 80, "it took eight seconds to write"
    assert not one.due()
    assert not one.due()
    assert one.due()


def test_the_time_between_checkpoints_is_a_number(monkeypatch, tmp_path):
    monkeypatch.setenv("RECOMBINE_CHECKPOINT", "often")
    with pytest.raises(InputError, match="RECOMBINE_CHECKPOINT=often must be a number"):
        Checkpoint(tmp_path, runs(), 3)


def test_a_killed_sweep_goes_on_inside_its_chunk_and_cleans_up(often, tmp_path, monkeypatch):
    expected = rc.train(runs())
    save, saved = Checkpoint.save, []

    def killed(self, at, *args):
        save(self, at, *args)
        saved.append(at)
        if len(saved) == 3:
            raise Killed

    monkeypatch.setattr(Checkpoint, "save", killed)
    with pytest.raises(Killed):
        rc.train(runs(), tmp_path / "out")
    assert [path.name.split("-")[0] for path in (tmp_path / "out" / "checkpoints").iterdir()] == [
        identity(runs()[0])
    ]
    rows = rc.train(runs(), tmp_path / "out")
    assert saved[3] == 4, "three strides were not trained again"
    numbers = [name for name in rows if not name.startswith("meta/")]
    assert rows[numbers].equals(expected[numbers])
    assert not (tmp_path / "out" / "checkpoints").exists()
