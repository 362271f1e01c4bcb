"""Runs that cannot be trained are refused in one line, before anything is compiled."""

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
    def fail(*_):
        raise AssertionError("compiled before it was checked")

    monkeypatch.setattr(program, "compile_program", fail)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"encoding": rc.FewShot(num_pairs=4, sequence=True)},
            "MLP needs points .* and a flat code",
        ),
        (
            {"model": rc.ModularOracle(), "encoding": rc.FewShot(num_pairs=4)},
            "ModularOracle needs .* Identity or Orthogonal",
        ),
        (
            {"model": rc.ModularOracle(), "encoding": rc.Language()},
            "ModularOracle needs .* Identity or Orthogonal",
        ),
        (
            {"model": rc.Hypernetwork(), "encoding": rc.FewShot(num_pairs=4, sequence=True)},
            "Hypernetwork needs",
        ),
    ],
)
def test_a_code_that_the_model_cannot_use_is_refused(changes, message):
    with pytest.raises(InputError, match=message):
        rc.train([TINY, dataclasses.replace(TINY, **changes)])


def test_a_model_for_another_family_is_refused():
    family = rc.PreferenceGrid(num_modules=4, num_hot=2, num_features=4)
    run = dataclasses.replace(
        TINY, family=family, model=rc.ModularOracle(), num_points=8, num_eval_points=8
    )
    with pytest.raises(InputError, match="ModularOracle has the structure of a hyperteacher"):
        rc.train([run])


@pytest.mark.parametrize(
    ("changes", "purpose"),
    [
        ({"model": rc.MLP(widths=(4096, 4096))}, "the network and its optimizer"),
        ({"num_tasks": 10**6}, "a batch of tasks"),
        ({"num_eval_tasks": 10**6}, "the tasks of an evaluation"),
        ({"encoding": rc.FewShot(num_pairs=300_000)}, "the tasks of an evaluation"),
    ],
)
def test_arrays_that_do_not_fit_in_memory_are_refused(monkeypatch, changes, purpose):
    monkeypatch.setattr(device, "total_bytes", lambda: 5 * 10**7)
    with pytest.raises(
        InputError,
        match=f"one run needs at least .* GB, most of it for {purpose}, but only 0.05 GB are",
    ):
        rc.train([dataclasses.replace(TINY, **changes)])


def test_the_needed_memory_is_counted_from_shapes():
    wide = dataclasses.replace(TINY, model=rc.MLP(widths=(32,)), recipe=rc.Paper())
    needs = program.min_memory_bytes(wide)
    weights = (6 + 4) * 32 + 32 + 32 * 3 + 3
    # The network and Adam's two moments (in float32), a step counter and a few numbers.
    assert 12 * weights <= needs["the network and its optimizer"] < 12 * weights + 100
    # Per task: 4 points of 4 + 3 numbers, a code and a row of 6.
    assert needs["a batch of tasks"] == 8 * 4 * (4 * 7 + 6 + 6)


def test_the_memory_is_that_of_the_host_or_its_container(monkeypatch, tmp_path):
    assert device.total_bytes() > 10**8
    monkeypatch.setattr(device, "MEMORY_LIMIT_FILE", tmp_path / "memory.max")
    host = device.total_bytes()
    for text, expected in (("max", host), ("123456", 123456), (str(10 * host), host)):
        device.MEMORY_LIMIT_FILE.write_text(text)
        assert device.total_bytes() == expected


def test_a_sweep_that_just_fits_passes_and_one_byte_less_does_not(monkeypatch):
    needed = sum(program.min_memory_bytes(TINY).values())
    monkeypatch.setattr(device, "total_bytes", lambda: needed)
    assert list(scheduler.check_runs([TINY])) == [split_key(TINY)]
    monkeypatch.setattr(device, "total_bytes", lambda: needed - 1)
    with pytest.raises(InputError, match="one run needs at least"):
        scheduler.check_runs([TINY])


@dataclasses.dataclass(frozen=True)
class Bare:
    """A model whose network returns no activations."""

    def init(self, key, example, num_outputs, num_tokens=0, world=None):
        return Silent(jnp.zeros((num_outputs, example.x.shape[1])))


class Silent(eqx.Module):
    weight: jax.Array

    def __call__(self, x, code):
        return x @ self.weight.T


def test_a_part_that_breaks_a_contract_is_refused_in_one_line():
    with pytest.raises(
        InputError,
        match=r"Hyperteacher, Identity, Bare do not work together .*`recombine check FILE`",
    ):
        rc.train([dataclasses.replace(TINY, model=Bare())])
