"""The host's side of a program: lanes, halves where memory is short, and the type of the products."""

import dataclasses
import functools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.sweeps.run import identity, structure
from recombine.training import device, program, scheduler, trainer
from tests.tiny import TINY

FULL = RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99 GiB")


def six() -> list[rc.Run]:
    return rc.sweep(TINY, recipe__learning_rate=[0.01, 0.03], seed=range(3))


@pytest.fixture(scope="module")
def whole() -> trainer.Trained:
    """Six runs of one program, trained where nothing is short."""
    return trainer.train_chunk(six())


@pytest.fixture
def room(monkeypatch):
    """A device on which training fails for lack of memory beyond some width; gives the widths that were tried."""

    def room(width: int, error: Exception = FULL) -> list[int]:
        train, tried = trainer.advance, []

        def limited(ready, *args):
            tried.append(ready.width)
            if ready.width > width:
                raise error
            return train(ready, *args)

        monkeypatch.setattr(trainer, "advance", limited)
        return tried

    return room


def same(found: trainer.Trained, expected: trainer.Trained) -> None:
    """Rows, networks and teachers are equal to the last bit."""
    assert len(found.rows) == len(expected.rows)
    for rows, others in zip(found.rows, expected.rows, strict=True):
        assert [row.keys() for row in rows] == [row.keys() for row in others]
        for row, other in zip(rows, others, strict=True):
            for name in row:
                np.testing.assert_array_equal(row[name], other[name], err_msg=name)
    for leaf, other in zip(
        *(jax.tree.leaves((t.net, t.setting)) for t in (found, expected)), strict=True
    ):
        np.testing.assert_array_equal(leaf, other)


def test_runs_of_a_chunk_differ_and_are_in_order(whole):
    assert whole.widths == [6] * 6
    losses = [rows[-1]["test/loss"] for rows in whole.rows]
    assert len(set(map(float, losses))) == 6, "or equal rows would prove nothing below"
    assert [[row["step"] for row in rows] for rows in whole.rows] == [[10, 20]] * 6


def test_on_a_cpu_a_chunk_equals_its_runs_alone_bit_for_bit(whole):
    assert device.on_cpu()
    for i, run in enumerate(six()):
        alone = trainer.train_chunk([run])
        picked = jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], (whole.net, whole.setting))
        same(alone, whole._replace(rows=[whole.rows[i]], net=picked[0], setting=picked[1]))


def test_a_padded_chunk_gives_the_same_rows(whole):
    found = trainer.train_chunk(six()[:4], width=6)
    assert found.widths == [6] * 4
    assert len(found.rows) == 4
    picked = jax.tree.map(lambda leaf: leaf[:4], (whole.net, whole.setting))
    same(found, whole._replace(rows=whole.rows[:4], net=picked[0], setting=picked[1]))


@pytest.mark.parametrize(
    ("width", "tried"), [(3, [6, 3, 3]), (2, [6, 3, 2, 2, 3, 2, 2]), (1, None)]
)
def test_what_does_not_fit_is_trained_in_halves(whole, room, width, tried):
    seen, widths = [], room(width)
    found = trainer.train_chunk(six(), watch=seen.append)
    assert tried is None or widths == tried
    assert found.widths == [width] * 6
    assert found.note == f"out of memory with 6 runs at once: trained {width} at a time"
    same(found, whole)
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0, 1)
    assert len(set(fractions)) > 2
    assert sum(p.phase == "training" for p in seen) == 2 * sum(tried <= width for tried in widths)


def test_a_program_that_would_not_fit_is_not_even_started(whole, monkeypatch):
    prepare, train, widths, trained = trainer.prepare, trainer.advance, [], []

    def prepared(*args):
        widths.append(args[1])
        return prepare(*args)

    def noted(ready, *args):
        trained.append(ready.width)
        return train(ready, *args)

    monkeypatch.setattr(trainer, "prepare", prepared)
    monkeypatch.setattr(trainer, "advance", noted)
    monkeypatch.setattr(device, "fits", lambda *_: widths[-1] <= 2)
    same(trainer.train_chunk(six()), whole)
    assert widths == [6, 3, 2, 2, 3, 2, 2]
    assert trained == [2, 2, 2, 2]


def test_rows_tell_the_width_that_they_were_trained_with(whole, room):
    room(2)
    rows = rc.train(six(), max_width=6)
    assert rows["meta/width"].unique().tolist() == [2]
    assert rows["meta/note"].unique().tolist() == [
        "out of memory with 6 runs at once: trained 2 at a time"
    ]
    assert rows["run"].tolist() == [identity(run) for run in six() for _ in range(2)]
    expected = [float(row["test/loss"]) for rows in whole.rows for row in rows]
    np.testing.assert_array_equal(rows["test/loss"], np.float32(expected))


@pytest.mark.parametrize("num_runs", [5, 6])
def test_networks_stay_with_their_runs_where_lanes_are_padded(whole, monkeypatch, num_runs):
    # As on a GPU: all runs of a program in one call. Three runs are two programs of two here, with one place empty.
    monkeypatch.setattr(device, "lane", lambda width: width)
    prepare, widths = trainer.prepare, []

    def prepared(*args):
        widths.append(args[1])
        return prepare(*args)

    monkeypatch.setattr(trainer, "prepare", prepared)
    monkeypatch.setattr(device, "fits", lambda *_: widths[-1] <= 2)
    chunk = scheduler.Chunk(tuple(six()[:num_runs]), 6)
    for i, fitted in enumerate(scheduler.fit_chunk(chunk)):
        losses = [row["test/loss"] for row in whole.rows[i]]
        np.testing.assert_allclose(
            fitted.rows["test/loss"], losses, rtol=1e-4, err_msg=f"rows of run {i}"
        )
        for leaf, expected in zip(
            jax.tree.leaves(fitted.world), jax.tree.leaves(whole.setting.world), strict=True
        ):
            np.testing.assert_allclose(leaf, expected[i], atol=1e-5, err_msg=f"teacher of run {i}")
        for leaf, expected in zip(
            jax.tree.leaves(fitted.net), jax.tree.leaves(whole.net), strict=True
        ):
            np.testing.assert_allclose(leaf, expected[i], atol=1e-3, err_msg=f"network of run {i}")


def test_another_error_is_raised_at_once(room):
    tried = room(1, ValueError("INVALID_ARGUMENT: shapes"))
    with pytest.raises(ValueError, match="INVALID_ARGUMENT"):
        trainer.train_chunk(six())
    assert tried == [6]


def test_one_run_without_room_is_an_error(room):
    tried = room(0)
    with pytest.raises(InputError, match="one run does not fit in the device's memory: lower"):
        trainer.train_chunk(six())
    assert tried == [6, 3, 2, 1]


def test_a_lone_run_is_tried_however_much_it_seems_to_need(monkeypatch):
    monkeypatch.setattr(device, "fits", lambda *_: False)
    found = trainer.train_chunk([TINY])
    assert found.widths == [1]
    assert np.isfinite(found.rows[0][-1]["test/loss"])


def test_a_chunk_compiled_elsewhere_that_runs_out_of_memory_is_halved_too(whole):
    ready = SimpleNamespace(result=lambda: (_ for _ in ()).throw(FULL))
    found = trainer.train_chunk(six(), ready=ready)
    assert found.widths == [3] * 6
    same(found, whole)


def test_runs_of_two_structures_are_refused():
    with pytest.raises(InputError, match="share their structure"):
        trainer.prepare([TINY, dataclasses.replace(TINY, num_tasks=4)])


@pytest.mark.parametrize(
    "recipe", [rc.Fast(), rc.Paper(learning_rate=0.01)], ids=lambda r: type(r).__name__
)
def test_bfloat16_rows_are_near_float32_rows_and_the_network_is_float32(recipe):
    exact, low = (
        trainer.train_chunk(
            [dataclasses.replace(TINY, recipe=dataclasses.replace(recipe, precision=precision))]
        )
        for precision in ("float32", "bfloat16")
    )
    for row, other in zip(exact.rows[0], low.rows[0], strict=True):
        for name in ("train/loss", "test/loss", "seen/loss"):
            assert row[name] == pytest.approx(other[name], rel=0.05), name
            assert row[name] != other[name], f"{name}: the type must make a difference"
    assert {leaf.dtype for leaf in jax.tree.leaves(low.net)} == {np.dtype("float32")}
    # The weights are not merely float32 in name: they have more digits than bfloat16.
    weight = jnp.asarray(low.net.layers[1].weight)
    assert (weight != weight.astype(jnp.bfloat16).astype(jnp.float32)).mean() > 0.9


def products(run: rc.Run) -> tuple[list[str], str]:
    """The type of every matrix product in a run's training, as JAX was told it, and the whole text."""
    ready = trainer.prepare([run])
    advance = functools.partial(program._advance, structure(run))
    states = ready.program.start(ready.shared, ready.lanes[0])
    mapped = jax.vmap(advance, in_axes=(None, 0, 0, 0, None, None))
    text = str(
        jax.make_jaxpr(mapped)(ready.shared, ready.lanes[0], *states, jnp.int32(0), jnp.int32(1))
    )
    return re.findall(r"(\w+)\[[\d,]*\] = dot_general\[", text), text


def test_training_multiplies_in_the_recipes_type():
    exact, text = products(dataclasses.replace(TINY, recipe=rc.Paper()))
    assert set(exact) == {"f32"}
    assert "bf16" not in text
    low, _ = products(dataclasses.replace(TINY, recipe=rc.Paper(precision="bfloat16")))
    assert len(low) == len(exact)
    # Three layers forward, three gradients of weights and two of activations; the rest is the teacher.
    assert low.count("bf16") == 8
    assert low.count("f32") >= 3
    # Muon: three products in each of five iterations for each of three shapes.
    fast, _ = products(dataclasses.replace(TINY, recipe=rc.Fast(precision="bfloat16")))
    assert fast.count("bf16") == 8 + 5 * 3 * 3
    assert "bf16" not in products(dataclasses.replace(TINY, recipe=rc.Fast()))[1], (
        "on a CPU auto is float32"
    )
