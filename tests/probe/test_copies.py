"""Rows come from a device one batch late, none is lost, and those of the CPU come at once."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="copies of PyTorch's rows need the extra torch")

from recombine.basics.errors import InputError  # noqa: E402
from recombine.probe import Recorder, copies  # noqa: E402
from recombine.probe.store import Store  # noqa: E402


def batch(number):
    return {"a": torch.full((2, 3), float(number)), "b": torch.arange(8.0).reshape(2, 4) + number}


def equal(found, number):
    assert list(found) == ["a", "b"]
    for name, rows in batch(number).items():
        np.testing.assert_array_equal(found[name], rows)


class Far:
    """A device that is not the CPU."""

    type = "cuda"


@pytest.fixture
def elsewhere(monkeypatch):
    """As if rows were on a GPU: one block, read only once it is waited for."""
    told, begin = [], copies._begin

    def begun(device, rows):
        if not isinstance(device, Far):
            return begin(device, rows)
        flat = torch.cat([row.flatten() for row in rows.values()])
        told.append("begun")

        class Done:
            def synchronize(self):
                told.append("waited")

        return lambda: copies._cut(flat, rows, Done())

    monkeypatch.setattr(copies, "_begin", begun)
    return told


def test_what_is_on_the_cpu_comes_at_once_and_uncopied():
    sender, rows = copies.Copies(), batch(1)
    found = list(sender.send(rows))
    assert len(found) == 1
    equal(found[0], 1)
    assert found[0]["a"].ctypes.data == rows["a"].data_ptr()
    assert not list(sender.rest())


def test_the_next_batch_is_begun_before_one_is_waited_for(elsewhere, monkeypatch):
    sender, far = copies.Copies(), Far()
    monkeypatch.setattr(copies, "_places", lambda rows: {far: rows})
    assert not list(sender.send(batch(1)))
    assert sender.under_way
    found = list(sender.send(batch(2)))
    assert elsewhere == ["begun", "begun", "waited"]
    assert len(found) == 1
    equal(found[0], 1)
    last = list(sender.rest())
    assert len(last) == 1
    equal(last[0], 2)
    assert not list(sender.rest())
    assert not sender.under_way


def test_one_batch_alone_is_waited_for(elsewhere, monkeypatch):
    far = Far()
    monkeypatch.setattr(copies, "_places", lambda rows: {far: rows})
    equal(copies.to_cpu(batch(3)), 3)
    assert elsewhere == ["begun", "waited"]


@pytest.mark.parametrize("known", [True, False])
def test_layers_of_a_cpu_beside_layers_elsewhere(elsewhere, monkeypatch, known):
    """Rows that are on the CPU do not take the place of a batch that is still on its way."""
    far = Far()

    def places(rows):
        return {far: {"1": rows["1"]}, torch.device("cpu"): {"0": rows["0"]}}

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    batches = list(torch.randn(6, 5, 4))
    wanted = Recorder(model, "*", progress=False).record(batches)
    monkeypatch.setattr(copies, "_places", places)
    found = Recorder(model, "*", progress=False).record(
        batches if known else (batch for batch in batches)
    )
    assert elsewhere.count("begun") == elsewhere.count("waited") == 6
    for name, rows in wanted.items():
        np.testing.assert_array_equal(found[name], rows)


def test_a_batch_of_another_width_is_refused_when_it_comes(elsewhere, monkeypatch):
    far = Far()
    monkeypatch.setattr(copies, "_places", lambda rows: {far: rows})
    model = torch.nn.Sequential(torch.nn.Identity())
    with Recorder(model, "0", progress=False, pool="flat") as recorder:
        model(torch.ones(2, 3))
        with pytest.raises(InputError, match="3 features in one batch and 4 in another"):
            model(torch.ones(2, 4))
        model(torch.zeros(1, 3))
    assert recorder.activations["0"].tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]


def test_blocks_have_the_type_of_their_rows_whatever_the_default_is():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            block = copies._locked(torch.ones(3, dtype=torch.float32, device="cpu"))
    finally:
        torch.set_default_dtype(before)
    assert (block.dtype, block.device.type, block.shape) == (torch.float32, "cpu", (3,))


def test_a_block_is_not_kept_for_one_of_its_layers():
    """Rows that are cut from a block are copied where they are kept as they come: the block is locked memory."""
    block = np.arange(10, dtype=np.float32)
    store = Store(1 << 20)
    store.add({"a": block[:4].reshape(2, 2), "b": block[4:].reshape(2, 3)})
    block[:] = 0
    assert store.arrays()["a"].tolist() == [[0, 1], [2, 3]]
    assert store.arrays()["b"].tolist() == [[4, 5, 6], [7, 8, 9]]
