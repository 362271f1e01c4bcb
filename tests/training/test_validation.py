"""Parts that do not go together are refused in one line, before anything is compiled."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.training import device, program, scheduler
from recombine.training.task_sampler import split_key
from tests.tiny import TINY


@pytest.fixture(autouse=True)
def nothing_compiles(monkeypatch):
    def compiled(*_):
        raise AssertionError("compiled before it was checked")

    monkeypatch.setattr(program, "compiled", compiled)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"encoding": rc.FewShot(num_pairs=4, sequence=True)},
            "MLP reads points .* and a flat code",
        ),
        (
            {"model": rc.ModularOracle(), "encoding": rc.FewShot(num_pairs=4)},
            "ModularOracle reads .* Identity or Orthogonal",
        ),
        (
            {"model": rc.ModularOracle(), "encoding": rc.Language()},
            "ModularOracle reads .* Identity or Orthogonal",
        ),
        (
            {"model": rc.Hypernetwork(), "encoding": rc.FewShot(num_pairs=4, sequence=True)},
            "Hypernetwork reads",
        ),
    ],
)
def test_a_code_that_the_model_cannot_read(changes, told):
    with pytest.raises(InputError, match=told):
        rc.train([TINY, dataclasses.replace(TINY, **changes)])


def test_a_model_for_another_family():
    family = rc.PreferenceGrid(num_modules=4, num_hot=2, num_features=4)
    run = dataclasses.replace(
        TINY, family=family, model=rc.ModularOracle(), num_points=8, num_eval_points=8
    )
    with pytest.raises(InputError, match="ModularOracle is the hyperteacher's structure"):
        rc.train([run])


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({"model": rc.MLP(widths=(4096, 4096))}, "the network and its optimiser"),
        ({"num_tasks": 10**6}, "a batch of tasks"),
        ({"num_eval_tasks": 10**6}, "the tasks of an evaluation"),
        ({"encoding": rc.FewShot(num_pairs=300_000)}, "the tasks of an evaluation"),
    ],
)
def test_arrays_beyond_the_memory(monkeypatch, changes, most):
    monkeypatch.setattr(device, "total_bytes", lambda: 5 * 10**7)
    with pytest.raises(
        InputError,
        match=f"one run needs at least .* GB, most of it for {most}, and there are only 0.05 GB",
    ):
        rc.train([dataclasses.replace(TINY, **changes)])


def test_what_is_needed_is_counted_from_shapes():
    wide = dataclasses.replace(TINY, model=rc.MLP(widths=(32,)), recipe=rc.Paper())
    needs = program.least_bytes(wide)
    weights = (6 + 4) * 32 + 32 + 32 * 3 + 3
    # The network, and Adam's two moments (in float32), a step counter and what else is a few numbers.
    assert 12 * weights <= needs["the network and its optimiser"] < 12 * weights + 100
    # Per task: 4 points of 4 + 3 numbers, a code and a row of 6.
    assert needs["a batch of tasks"] == 8 * 4 * (4 * 7 + 6 + 6)


def test_the_memory_of_this_machine_is_known(monkeypatch, tmp_path):
    assert device.total_bytes() > 10**8
    monkeypatch.setattr(device, "CONTAINER_LIMIT", tmp_path / "memory.max")
    host = device.total_bytes()
    for text, expected in (("max", host), ("123456", 123456), (str(10 * host), host)):
        device.CONTAINER_LIMIT.write_text(text)
        assert device.total_bytes() == expected


def test_a_sweep_that_just_fits_passes_and_one_byte_less_does_not(monkeypatch):
    needed = sum(program.least_bytes(TINY).values())
    monkeypatch.setattr(device, "total_bytes", lambda: needed)
    assert list(scheduler.check_runs([TINY])) == [split_key(TINY)]
    monkeypatch.setattr(device, "total_bytes", lambda: needed - 1)
    with pytest.raises(InputError, match="one run needs at least"):
        scheduler.check_runs([TINY])


@dataclasses.dataclass(frozen=True)
class Bare:
    """A model whose network gives no activations."""

    def init(self, key, example, num_outputs, num_tokens=0, world=None):
        return Silent(jnp.zeros((num_outputs, example.x.shape[1])))


class Silent(eqx.Module):
    weight: jax.Array

    def __call__(self, x, code):
        return x @ self.weight.T


def test_a_part_that_breaks_a_promise_is_told_in_one_line():
    with pytest.raises(
        InputError,
        match=r"Hyperteacher, Identity, Bare do not work together .*`recombine check FILE`",
    ):
        rc.train([dataclasses.replace(TINY, model=Bare())])
