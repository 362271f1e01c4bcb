"""Checkpoints: training that is killed and resumed equals uninterrupted training, bit for bit."""

import dataclasses
import itertools

import jax
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.sweeps.run import identity
from recombine.training import checkpoint, machine, program, trainer
from recombine.training.checkpoint import Checkpoint
from tests.tiny import TINY
from tests.training.test_trainer import assert_same

# 40 steps with 4 evaluations. Two strides lie between evaluations, so that a kill may come in the
# middle or right after an evaluation.
LONG = dataclasses.replace(TINY, num_steps=40, num_evals=4, recipe=rc.Fast(ema=0.9))


def runs() -> list[rc.Run]:
    return rc.sweep(LONG, recipe__learning_rate=[0.01, 1e30, 0.03])


@pytest.fixture(scope="module")
def checkpoint_every_stride():
    """A checkpoint after every stride of 5 steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECOMBINE_CHECKPOINT", "0")
        patch.setattr(checkpoint, "MAX_TIME_FRACTION", float("inf"))
        patch.setattr(program, "MAX_STEPS_PER_STRIDE", 5)
        program.compile_program.cache_clear()
        yield
    program.compile_program.cache_clear()


@pytest.fixture(scope="module")
def uninterrupted(checkpoint_every_stride):
    return trainer.train_chunk(runs())


class Killed(BaseException):
    """Like a signal: no code catches it."""


def train(folder, kill_at: int | None = None, **changes) -> tuple[trainer.TrainedChunk, list[int]]:
    """Train the chunk, and kill it after `kill_at` steps. Also returns the reported steps."""
    steps = []

    def kill_in_time(progress):
        if progress.phase == "training":
            steps.append(progress.step)
        if kill_at is not None and progress.step >= kill_at:
            raise Killed

    trained = trainer.train_chunk(runs(), 3, kill_in_time, None, folder, **changes)
    return trained, steps


@pytest.mark.parametrize("kills", [(5,), (10,), (15, 20), (5, 10, 15, 20, 25, 30, 35)])
def test_killed_and_resumed_training_equals_uninterrupted_training(uninterrupted, tmp_path, kills):
    for kill_at in kills:
        with pytest.raises(Killed):
            train(tmp_path, kill_at)
        assert len(list(tmp_path.iterdir())) == 1
    trained, steps = train(tmp_path)
    assert steps[0] == kills[-1] + 5, "it continued from the last checkpoint"
    assert_same(trained, uninterrupted)
    assert list(trained.rows[0][0]) == list(uninterrupted.rows[0][0]), "the columns have one order"
    assert trained.seconds > 0


def test_how_steps_are_divided_into_calls_changes_no_bit(uninterrupted, monkeypatch):
    # Calls seem to take so long that every call is one stride.
    ticks = itertools.count(0, 100.0)
    monkeypatch.setattr(trainer.time, "perf_counter", lambda: next(ticks))
    steps = []
    trained = trainer.train_chunk(runs(), 3, lambda progress: steps.append(progress.step))
    assert_same(trained, uninterrupted)
    assert steps == [0, 5, 10, 15, 20, 25, 30, 35, 40], "every call was one stride"


@pytest.mark.parametrize("change", ["code", "jax", "settings", "width", "runs", "numerics"])
def test_a_checkpoint_of_anything_else_is_not_used(
    checkpoint_every_stride, tmp_path, monkeypatch, change
):
    path = Checkpoint(tmp_path, runs(), 3).path
    assert Checkpoint(tmp_path, runs(), 3).path == path
    if change == "code":
        monkeypatch.setattr(checkpoint, "hash_of_package", lambda: "other")
    if change == "jax":
        monkeypatch.setattr(machine.jax, "__version__", "0.0.1")
    if change == "settings":
        jax.config.update("jax_default_matmul_precision", "highest")
    if change == "numerics":
        monkeypatch.setattr(checkpoint, "NUMERICS", -1)
    changed_runs = runs()[:2] if change == "runs" else runs()
    width = 4 if change == "width" else 3
    try:
        assert Checkpoint(tmp_path, changed_runs, width).path != path
    finally:
        jax.config.update("jax_default_matmul_precision", None)


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign", "flipped", "head"])
def test_a_damaged_checkpoint_is_ignored(uninterrupted, tmp_path, damage):
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
    trained, steps = train(tmp_path)
    assert steps[0] == 5, "from the beginning"
    assert_same(trained, uninterrupted)


def test_the_end_is_a_checkpoint_only_on_request(uninterrupted, tmp_path):
    train(tmp_path / "a")
    (path,) = (tmp_path / "a").iterdir()
    assert train(tmp_path / "a")[1] == [40], "the last checkpoint is of step 35"
    train(tmp_path / "b", keep_last_checkpoint=True)
    trained, steps = train(tmp_path / "b")
    assert steps == [], "nothing is left to train"
    assert_same(trained, uninterrupted)
    names = [identity(run) for run in runs()]
    checkpoint.remove_checkpoints(tmp_path / "a", names[1:])
    assert path.exists(), "a checkpoint is named after its first run"
    checkpoint.remove_checkpoints(tmp_path / "a", names)
    assert not path.parent.exists()
    checkpoint.remove_checkpoints(tmp_path / "nowhere", names)
    checkpoint.remove_checkpoints(None, names)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), TypeError("a key cannot be written")]
)
def test_an_error_in_saving_stops_no_training_and_spoils_no_older_checkpoint(
    uninterrupted, tmp_path, monkeypatch, error
):
    with pytest.raises(Killed):
        train(tmp_path, 10)
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()

    def fail(*_):
        raise error

    monkeypatch.setattr(checkpoint, "write_atomically", fail)
    trained, _ = train(tmp_path)
    assert_same(trained, uninterrupted)
    assert path.read_bytes() == before


def test_a_resumed_chunk_reports_where_it_continues(uninterrupted, tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, 10)
    reports = []
    trainer.train_chunk(runs(), 3, reports.append, None, tmp_path)
    assert [(progress.phase, progress.step) for progress in reports[:3]] == [
        ("compiling", 0),
        ("resuming", 10),
        ("training", 15),
    ]


def test_checkpoints_take_at_most_a_tenth_of_the_time(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOMBINE_CHECKPOINT", "30")
    monkeypatch.setattr(checkpoint, "MAX_TIME_FRACTION", 0.1)
    large = Checkpoint(tmp_path, runs(), 3)
    now = iter([100.0, 108.0, 110.0, 187.9, 188.1])
    monkeypatch.setattr(checkpoint.time, "perf_counter", lambda: next(now))
    large.save(1, 0.0, [], [])
    assert large.interval == 80, "it took eight seconds to write"
    assert not large.is_due()
    assert not large.is_due()
    assert large.is_due()


def test_the_time_between_checkpoints_is_a_number(monkeypatch, tmp_path):
    monkeypatch.setenv("RECOMBINE_CHECKPOINT", "often")
    with pytest.raises(InputError, match="RECOMBINE_CHECKPOINT=often must be a number"):
        Checkpoint(tmp_path, runs(), 3)


def test_a_killed_sweep_continues_inside_its_chunk_and_removes_checkpoints(
    checkpoint_every_stride, tmp_path, monkeypatch
):
    expected = rc.train(runs())
    save = Checkpoint.save
    saved = []

    def kill_after_third(self, num_strides, *args):
        save(self, num_strides, *args)
        saved.append(num_strides)
        if len(saved) == 3:
            raise Killed

    monkeypatch.setattr(Checkpoint, "save", kill_after_third)
    with pytest.raises(Killed):
        rc.train(runs(), tmp_path / "out")
    (path,) = (tmp_path / "out" / "checkpoints").iterdir()
    assert path.name.split("-")[0] == identity(runs()[0])
    rows = rc.train(runs(), tmp_path / "out")
    assert saved[3] == 4, "three strides were not trained again"
    numbers = [name for name in rows if not name.startswith("meta/")]
    assert rows[numbers].equals(expected[numbers])
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_a_checkpoint_knows_whose_it_is(uninterrupted, tmp_path):
    with pytest.raises(Killed):
        train(tmp_path, 20)
    (path,) = tmp_path.iterdir()
    assert checkpoint.problem_of(path) is None
    header = checkpoint.read_header(path.read_bytes())
    assert header["runs"] == [identity(run) for run in runs()]
    # As if the file of another chunk of the same shape was renamed.
    other = [dataclasses.replace(run, seed=5) for run in runs()]
    wrong = Checkpoint(tmp_path, other, 3)
    path.rename(wrong.path)
    assert "is the checkpoint of another chunk" in checkpoint.problem_of(wrong.path)
    steps = []
    trained = trainer.train_chunk(
        other, 3, lambda progress: steps.append((progress.phase, progress.step)), None, tmp_path
    )
    assert ("training", 5) in steps, "from the beginning"
    assert "resuming" not in dict(steps)
    assert trained.rows[0][-1]["test/loss"] != uninterrupted.rows[0][-1]["test/loss"]
