"""Rows come from a device one batch late, none is lost, and those of the CPU come at once."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="copies of PyTorch's rows need the extra torch")

from recombine.probe import copies  # noqa: E402


def batch(number):
    return {"a": torch.full((2, 3), float(number)), "b": torch.arange(8.0).reshape(2, 4) + number}


def equal(found, number):
    assert list(found) == ["a", "b"]
    for name, rows in batch(number).items():
        np.testing.assert_array_equal(found[name], rows)


@pytest.fixture
def elsewhere(monkeypatch):
    """As if rows were on a GPU: one block, read only once it is waited for."""
    told, plain = [], copies._cut

    def begin(device, rows):
        shapes, flat = {name: row.shape for name, row in rows.items()}, torch.cat([r.flatten() for r in rows.values()])
        told.append("begun")

        class Done:
            def synchronize(self):
                told.append("waited")

        return lambda: plain(flat, shapes, Done())

    monkeypatch.setattr(copies, "_begin", begin)
    return told


def test_what_is_on_the_cpu_comes_at_once_and_uncopied():
    sender, rows = copies.Copies(), batch(1)
    found = list(sender.send(rows))
    assert len(found) == 1
    equal(found[0], 1)
    assert found[0]["a"].ctypes.data == rows["a"].data_ptr()
    assert not list(sender.rest())


def test_the_next_batch_is_begun_before_one_is_waited_for(elsewhere, monkeypatch):
    class Far:
        type = "cuda"

    sender = copies.Copies()
    far = Far()
    monkeypatch.setattr(copies, "_places", lambda rows: {far: rows})
    assert not list(sender.send(batch(1)))
    found = list(sender.send(batch(2)))
    assert elsewhere == ["begun", "begun", "waited"]
    assert len(found) == 1
    equal(found[0], 1)
    last = list(sender.rest())
    assert len(last) == 1
    equal(last[0], 2)
    assert not list(sender.rest())


def test_one_batch_alone_is_waited_for():
    equal(copies.to_cpu(batch(3)), 3)
