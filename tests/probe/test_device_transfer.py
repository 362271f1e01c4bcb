"""Rows arrive from a device one batch late, none is lost, and rows on the CPU arrive at once."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="copies of PyTorch's rows need the extra torch")

from recombine.basics.errors import InputError  # noqa: E402
from recombine.probe import Recorder, device_transfer  # noqa: E402
from recombine.probe.activation_store import ActivationStore  # noqa: E402


def make_batch(number):
    return {"a": torch.full((2, 3), float(number)), "b": torch.arange(8.0).reshape(2, 4) + number}


def assert_is_batch(rows, number):
    assert list(rows) == ["a", "b"]
    for name, expected in make_batch(number).items():
        np.testing.assert_array_equal(rows[name], expected)


class FakeGpu:
    """A device that is not the CPU."""

    type = "cuda"


@pytest.fixture
def events(monkeypatch):
    """Copies from a fake GPU; the fixture is the list of their events, in order."""
    events = []
    start_copy = device_transfer._start_copy

    class Done:
        def synchronize(self):
            events.append("waited")

    def start_fake_copy(device, rows):
        if not isinstance(device, FakeGpu):
            return start_copy(device, rows)
        flat = torch.cat([row.flatten() for row in rows.values()])
        events.append("started")
        return lambda: device_transfer._unpack(flat, rows, Done())

    monkeypatch.setattr(device_transfer, "_start_copy", start_fake_copy)
    return events


@pytest.fixture
def all_on_gpu(events, monkeypatch):
    """As if all rows were on a GPU."""
    gpu = FakeGpu()
    monkeypatch.setattr(device_transfer, "_by_device", lambda rows: {gpu: rows})
    return events


def test_rows_on_the_cpu_arrive_at_once_and_are_not_copied():
    transfer, rows = device_transfer.HostTransfer(), make_batch(1)
    batches = list(transfer.send(rows))
    assert len(batches) == 1
    assert_is_batch(batches[0], 1)
    assert batches[0]["a"].ctypes.data == rows["a"].data_ptr()
    assert not list(transfer.finish())


def test_the_next_batch_is_started_before_the_last_is_waited_for(all_on_gpu):
    transfer = device_transfer.HostTransfer()
    assert not list(transfer.send(make_batch(1)))
    assert transfer.is_pending
    batches = list(transfer.send(make_batch(2)))
    assert all_on_gpu == ["started", "started", "waited"]
    assert len(batches) == 1
    assert_is_batch(batches[0], 1)
    last = list(transfer.finish())
    assert len(last) == 1
    assert_is_batch(last[0], 2)
    assert not list(transfer.finish())
    assert not transfer.is_pending


def test_a_single_batch_is_waited_for(all_on_gpu):
    assert_is_batch(device_transfer.to_cpu(make_batch(3)), 3)
    assert all_on_gpu == ["started", "waited"]


@pytest.mark.parametrize("known_length", [True, False])
def test_layers_on_the_cpu_beside_layers_on_a_gpu(events, monkeypatch, known_length):
    """Rows on the CPU are not stored before a batch that is still being copied."""
    gpu = FakeGpu()

    def by_device(rows):
        return {gpu: {"1": rows["1"]}, torch.device("cpu"): {"0": rows["0"]}}

    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    batches = list(torch.randn(6, 5, 4))
    expected = Recorder(model, "*", progress=False).record(batches)
    monkeypatch.setattr(device_transfer, "_by_device", by_device)
    recorder = Recorder(model, "*", progress=False)
    recorded = recorder.record(batches if known_length else (batch for batch in batches))
    assert events.count("started") == events.count("waited") == 6
    for name, rows in expected.items():
        np.testing.assert_array_equal(recorded[name], rows)


def test_a_batch_of_another_width_is_refused_at_once(all_on_gpu):
    model = torch.nn.Sequential(torch.nn.Identity())
    with Recorder(model, "0", progress=False, pool="flat") as recorder:
        model(torch.ones(2, 3))
        with pytest.raises(InputError, match="3 features in one batch and 4 in another"):
            model(torch.ones(2, 4))
        model(torch.zeros(1, 3))
    assert recorder.activations["0"].tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]


def test_blocks_have_the_type_of_their_rows_whatever_torchs_defaults():
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            rows = torch.ones(3, dtype=torch.float32, device="cpu")
            block = device_transfer._empty_pinned(rows)
    finally:
        torch.set_default_dtype(default)
    assert (block.dtype, block.device.type, block.shape) == (torch.float32, "cpu", (3,))


def test_the_store_copies_views_of_a_block():
    """The block is pinned memory: it must not stay in use for one of its layers."""
    block = np.arange(10, dtype=np.float32)
    store = ActivationStore(1 << 20)
    store.add({"a": block[:4].reshape(2, 2), "b": block[4:].reshape(2, 3)})
    block[:] = 0
    assert store.arrays()["a"].tolist() == [[0, 1], [2, 3]]
    assert store.arrays()["b"].tolist() == [[4, 5, 6], [7, 8, 9]]
