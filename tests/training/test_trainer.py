"""The trainer: lanes, halves if memory is short, and the type of matrix products."""

import concurrent.futures
import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.sweeps.run import identity, structure
from recombine.training import device, program, scheduler, trainer
from tests.tiny import TINY

OUT_OF_MEMORY = RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 99 GiB")


def six() -> list[rc.Run]:
    return rc.sweep(TINY, recipe__learning_rate=[0.01, 0.03], seed=range(3))


@pytest.fixture(scope="module")
def whole() -> trainer.TrainedChunk:
    """Six runs of one program, trained with enough memory."""
    return trainer.train_chunk(six())


@pytest.fixture
def limit_width(monkeypatch):
    """Make training fail above a width. Returns the list of the widths that are tried."""

    def limit_width(max_width: int, error: Exception = OUT_OF_MEMORY) -> list[int]:
        train_prepared = trainer.train_prepared
        tried = []

        def limited(chunk, *args):
            tried.append(chunk.width)
            if chunk.width > max_width:
                raise error
            return train_prepared(chunk, *args)

        monkeypatch.setattr(trainer, "train_prepared", limited)
        return tried

    return limit_width


def assert_same(trained: trainer.TrainedChunk, expected: trainer.TrainedChunk) -> None:
    """Check that rows, networks and teachers are equal to the last bit."""
    assert len(trained.rows) == len(expected.rows)
    for rows, expected_rows in zip(trained.rows, expected.rows, strict=True):
        assert [row.keys() for row in rows] == [row.keys() for row in expected_rows]
        for row, expected_row in zip(rows, expected_rows, strict=True):
            for name in row:
                np.testing.assert_array_equal(row[name], expected_row[name], err_msg=name)
    leaves = jax.tree.leaves((trained.net, trained.setting))
    expected_leaves = jax.tree.leaves((expected.net, expected.setting))
    for leaf, expected_leaf in zip(leaves, expected_leaves, strict=True):
        np.testing.assert_array_equal(leaf, expected_leaf)


def select(trained: trainer.TrainedChunk, runs: slice) -> trainer.TrainedChunk:
    """Some runs of a trained chunk."""
    net, setting = jax.tree.map(lambda leaf: leaf[runs], (trained.net, trained.setting))
    return trained._replace(rows=trained.rows[runs], net=net, setting=setting)


def test_runs_of_a_chunk_differ_and_are_in_order(whole):
    assert whole.widths == [6] * 6
    losses = [rows[-1]["test/loss"] for rows in whole.rows]
    assert len(set(map(float, losses))) == 6, "otherwise equal rows would prove nothing below"
    assert [[row["step"] for row in rows] for rows in whole.rows] == [[10, 20]] * 6


def test_on_a_cpu_a_chunk_equals_its_runs_alone_bit_for_bit(whole):
    assert device.on_cpu()
    for i, run in enumerate(six()):
        alone = trainer.train_chunk([run])
        assert_same(alone, select(whole, slice(i, i + 1)))


def test_a_padded_chunk_gives_the_same_rows(whole):
    trained = trainer.train_chunk(six()[:4], width=6)
    assert trained.widths == [6] * 4
    assert len(trained.rows) == 4
    assert_same(trained, select(whole, slice(4)))


@pytest.mark.parametrize(
    ("width", "expected_widths"), [(3, [6, 3, 3]), (2, [6, 3, 2, 2, 3, 2, 2]), (1, None)]
)
def test_a_chunk_that_does_not_fit_is_trained_in_halves(whole, limit_width, width, expected_widths):
    tried = limit_width(width)
    reports = []
    trained = trainer.train_chunk(six(), on_progress=reports.append)
    assert expected_widths is None or tried == expected_widths
    assert trained.widths == [width] * 6
    assert trained.note == f"out of memory with 6 runs at once: trained {width} at a time"
    assert_same(trained, whole)
    fractions = [progress.fraction for progress in reports]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0, 1)
    assert len(set(fractions)) > 2
    num_trained_chunks = sum(tried_width <= width for tried_width in tried)
    num_training_reports = sum(progress.phase == "training" for progress in reports)
    assert num_training_reports == 2 * num_trained_chunks


@pytest.fixture
def prepared_widths(monkeypatch):
    """A device on which two runs fit. Gives the list of the widths that are prepared."""
    prepare = trainer.prepare
    widths = []

    def logged_prepare(*args):
        widths.append(args[1])
        return prepare(*args)

    monkeypatch.setattr(trainer, "prepare", logged_prepare)
    monkeypatch.setattr(device, "fits", lambda *_: widths[-1] <= 2)
    return widths


def test_a_program_that_does_not_fit_is_not_started(whole, prepared_widths, monkeypatch):
    train_prepared = trainer.train_prepared
    trained_widths = []

    def logged_train(chunk, *args):
        trained_widths.append(chunk.width)
        return train_prepared(chunk, *args)

    monkeypatch.setattr(trainer, "train_prepared", logged_train)
    assert_same(trainer.train_chunk(six()), whole)
    assert prepared_widths == [6, 3, 2, 2, 3, 2, 2]
    assert trained_widths == [2, 2, 2, 2]


def test_rows_have_the_width_that_they_were_trained_with(whole, limit_width):
    limit_width(2)
    rows = rc.train(six(), max_width=6)
    assert rows["meta/width"].unique().tolist() == [2]
    assert rows["meta/note"].unique().tolist() == [
        "out of memory with 6 runs at once: trained 2 at a time"
    ]
    assert rows["run"].tolist() == [identity(run) for run in six() for _ in range(2)]
    expected = [float(row["test/loss"]) for rows in whole.rows for row in rows]
    np.testing.assert_array_equal(rows["test/loss"], np.float32(expected))


@pytest.mark.parametrize("num_runs", [5, 6])
def test_networks_stay_with_their_runs_if_lanes_are_padded(
    whole, prepared_widths, monkeypatch, num_runs
):
    # As on a GPU, one call trains all runs of a program. Three runs become two lanes of two runs,
    # one of them padded.
    monkeypatch.setattr(device, "lane_width", lambda width: width)
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


def test_other_errors_are_raised_at_once(limit_width):
    tried = limit_width(1, ValueError("INVALID_ARGUMENT: shapes"))
    with pytest.raises(ValueError, match="INVALID_ARGUMENT"):
        trainer.train_chunk(six())
    assert tried == [6]


def test_a_single_run_that_does_not_fit_is_an_error(limit_width):
    tried = limit_width(0)
    with pytest.raises(InputError, match="one run does not fit in the device's memory: lower"):
        trainer.train_chunk(six())
    assert tried == [6, 3, 2, 1]


def test_a_single_run_is_tried_even_if_it_seems_too_large(monkeypatch):
    monkeypatch.setattr(device, "fits", lambda *_: False)
    trained = trainer.train_chunk([TINY])
    assert trained.widths == [1]
    assert np.isfinite(trained.rows[0][-1]["test/loss"])


def test_a_chunk_that_runs_out_of_memory_while_compiled_ahead_is_halved(whole):
    compiling = concurrent.futures.Future()
    compiling.set_exception(OUT_OF_MEMORY)
    trained = trainer.train_chunk(six(), compiling=compiling)
    assert trained.widths == [3] * 6
    assert_same(trained, whole)


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
    # The weights really have more digits than bfloat16.
    weight = jnp.asarray(low.net.layers[1].weight)
    assert (weight != weight.astype(jnp.bfloat16).astype(jnp.float32)).mean() > 0.9


def products(run: rc.Run) -> tuple[list[str], str]:
    """The type of every matrix product in the jaxpr of `advance`, and the text of the jaxpr."""
    chunk = trainer.prepare([run])
    advance = functools.partial(program._advance, structure(run))
    inputs = (chunk.shared, chunk.lanes[0])
    states = chunk.program.start(*inputs)
    mapped = jax.vmap(advance, in_axes=(None, 0, 0, 0, None, None))
    text = str(jax.make_jaxpr(mapped)(*inputs, *states, jnp.int32(0), jnp.int32(1)))
    return re.findall(r"(\w+)\[[\d,]*\] = dot_general\[", text), text


def test_training_multiplies_in_the_recipes_type():
    exact, text = products(dataclasses.replace(TINY, recipe=rc.Paper()))
    assert set(exact) == {"f32"}
    assert "bf16" not in text
    low, _ = products(dataclasses.replace(TINY, recipe=rc.Paper(precision="bfloat16")))
    assert len(low) == len(exact)
    # Three layers forward, three gradients of weights and two of activations. The other products
    # are the teacher's.
    assert low.count("bf16") == 8
    assert low.count("f32") >= 3
    # Muon: three products in each of five iterations for each of three shapes.
    fast, _ = products(dataclasses.replace(TINY, recipe=rc.Fast(precision="bfloat16")))
    assert fast.count("bf16") == 8 + 5 * 3 * 3
    assert "bf16" not in products(dataclasses.replace(TINY, recipe=rc.Fast()))[1], (
        "on a CPU auto is float32"
    )
