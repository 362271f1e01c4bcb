"""A model's memory: what it keeps from one training step to the next."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.parts.models.mlp import MLP
from recombine.parts.protocols import has_memory
from recombine.training import checkpoint, program, trainer
from recombine.training.checkpoint import Checkpoint
from tests.tiny import TINY
from tests.training.test_trainer import assert_same


@dataclass(frozen=True)
class Keeper:
    """An MLP that trains on every sample for some steps. It notes what it saw."""

    fault: str = ""
    num_steps: int = 3  # on each sample

    def init(self, key, example, num_outputs, num_tokens=0, world=None):
        return MLP(widths=(8,)).init(key, example, num_outputs, num_tokens, world)

    def memory(self, batch):
        memory = {
            "sample": batch,
            "age": jnp.int32(self.num_steps),
            "steps": jnp.int32(0),
            "noise": jnp.float32(0),
            "weight": jnp.float32(0),
        }
        return memory | ({"key": jax.random.key(0)} if self.fault == "key" else {})

    def loss(self, net, batch, score, key, memory):
        is_finished = memory["age"] >= self.num_steps
        sample = jax.tree.map(
            lambda new, old: jnp.where(is_finished, new, old), batch, memory["sample"]
        )
        prediction, _ = net(sample.x, sample.code)
        memory = {
            "sample": sample,
            "age": jnp.where(is_finished, 0, memory["age"]) + 1,
            "steps": memory["steps"] + 1,
            "noise": jax.random.uniform(key),
            # Depends on the weights: no gradient may pass through it.
            "weight": memory["weight"] + jnp.square(net.layers[0].weight).sum(),
        }
        if self.fault == "shape":
            memory["noise"] = jnp.zeros(2)
        return score(prediction, sample.y)["loss"], memory


RUN = dataclasses.replace(TINY, model=Keeper(), recipe=rc.Fast(ema=0.9))


def carry_after(num_steps: int, run: rc.Run = RUN) -> program.Carry:
    """The carry of the run after some steps, each of them a stride of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "MAX_STEPS_PER_STRIDE", 1)
        program.compile_program.cache_clear()
        chunk = trainer.prepare([run])
        (setting,), (carry,) = trainer._start_lanes(chunk)
        inputs = (chunk.shared, chunk.lanes[0], setting)
        carry = chunk.program.advance(*inputs, carry, jnp.int32(0), jnp.int32(num_steps))
    program.compile_program.cache_clear()
    return jax.tree.map(lambda leaf: np.asarray(leaf[0]), carry)


@pytest.fixture(scope="module")
def carries():
    return {num_steps: carry_after(num_steps) for num_steps in (1, 3, 4)}


def test_a_sample_is_kept_until_it_is_finished(carries):
    samples = {num_steps: carry.memory["sample"] for num_steps, carry in carries.items()}
    np.testing.assert_array_equal(samples[1].x, samples[3].x)
    np.testing.assert_array_equal(samples[1].task, samples[3].task)
    assert (samples[4].x != samples[3].x).any(), "a new sample after three steps"
    for num_steps, age in ((1, 1), (3, 3), (4, 1)):
        assert carries[num_steps].memory["age"].tolist() == [age] * RUN.num_tasks
        assert carries[num_steps].memory["steps"].tolist() == [num_steps] * RUN.num_tasks


def test_every_task_and_step_has_its_own_key(carries):
    noise = np.concatenate([carry.memory["noise"] for carry in carries.values()])
    assert len(set(noise.tolist())) == len(carries) * RUN.num_tasks


def test_a_field_named_memory_is_no_memory():
    @dataclass(frozen=True)
    class Wide(MLP):
        memory: int = 16

    assert not has_memory(Wide())
    assert has_memory(Keeper())


def test_a_model_without_memory_has_none():
    assert carry_after(1, TINY).memory == ()


def test_samples_of_one_step_are_trained_as_without_memory():
    """The note about the weights in the memory gets no gradient."""
    kept = carry_after(4, dataclasses.replace(RUN, model=Keeper(num_steps=1)))
    plain = carry_after(4, dataclasses.replace(RUN, model=MLP(widths=(8,))))
    for a, b in zip(jax.tree.leaves(kept.net), jax.tree.leaves(plain.net), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_memory_is_counted():
    needs = program.min_memory_bytes(RUN)
    # Per task: 4 points of 4 + 3 numbers, a code and a row of 6, and four numbers.
    assert needs["the model's memory between steps"] == 8 * 4 * (4 * 7 + 6 + 6 + 4)
    plain = program.min_memory_bytes(dataclasses.replace(RUN, model=MLP(widths=(8,))))
    assert "the model's memory between steps" not in plain
    name = "the network and its optimizer"
    assert needs[name] == plain[name]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("key", "Keeper.memory has a random key, which cannot be saved"),
        ("shape", "Keeper.loss must return a memory of the shapes and types"),
    ],
)
def test_a_memory_that_cannot_be_kept_is_refused(fault, message):
    with pytest.raises(InputError, match=message) as error:
        rc.train([dataclasses.replace(RUN, model=Keeper(fault))], progress=False)
    assert "\n" not in str(error.value)


class Killed(BaseException):
    """Like a signal: no code catches it."""


def train(folder: Any, kill_at: int | None = None) -> trainer.TrainedChunk:
    def kill_in_time(progress):
        if kill_at is not None and progress.step >= kill_at:
            raise Killed

    runs = rc.sweep(RUN, recipe__learning_rate=[0.01, 0.03])
    return trainer.train_chunk(runs, 2, kill_in_time, None, folder)


@pytest.mark.parametrize("kill_at", [4, 8])
def test_killed_and_resumed_training_keeps_the_memory(tmp_path, monkeypatch, kill_at):
    """Kills in the middle of a sample: without its memory, training would start another one."""
    monkeypatch.setenv("RECOMBINE_CHECKPOINT", "0")
    monkeypatch.setattr(checkpoint, "MAX_TIME_FRACTION", float("inf"))
    monkeypatch.setattr(program, "MAX_STEPS_PER_STRIDE", 2)
    program.compile_program.cache_clear()
    uninterrupted = train(None)
    with pytest.raises(Killed):
        train(tmp_path, kill_at)
    assert len(list(tmp_path.iterdir())) == 1
    assert_same(train(tmp_path), uninterrupted)

    # The test notices a lost memory: one from before the first step gives other numbers.
    with pytest.raises(Killed):
        train(tmp_path / "lost", kill_at)
    load = Checkpoint.load

    def load_without_memory(self, carries):
        saved = load(self, carries)
        if saved is None:
            return None
        forgotten = [
            carry._replace(
                memory=jax.tree.map(np.zeros_like, carry.memory)
                | {"age": np.full_like(carry.memory["age"], RUN.model.num_steps)}
            )
            for carry in saved[3]
        ]
        return (*saved[:3], forgotten)

    monkeypatch.setattr(Checkpoint, "load", load_without_memory)
    lost = train(tmp_path / "lost")
    assert lost.rows[0][-1]["train/loss"] != uninterrupted.rows[0][-1]["train/loss"]
    program.compile_program.cache_clear()
