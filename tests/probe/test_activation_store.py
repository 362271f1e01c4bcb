"""Rows come back in order, whether they were in reserved memory, in memory or on disk."""

import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.probe.activation_store import ActivationStore


def make_batches(sizes):
    rng = np.random.default_rng(0)
    return [
        {"a": rng.random((n, 3), np.float32), "b/c": rng.random((n, 5), np.float32)} for n in sizes
    ]


@pytest.mark.parametrize("reads_between", [False, True])
@pytest.mark.parametrize("num_batches", [None, 1, 4, 9])
@pytest.mark.parametrize("max_memory", [0, 300, 1 << 20])
@pytest.mark.parametrize("sizes", [(4, 4, 4, 2), (1, 6, 2, 5), (7,)])
def test_rows_come_back_in_order(sizes, max_memory, num_batches, reads_between, tmp_path):
    batches = make_batches(sizes)
    store = ActivationStore(max_memory, tmp_path, num_batches)
    for number, batch in enumerate(batches):
        store.add(batch)
        if reads_between:
            assert len(store.arrays()["a"]) == sum(sizes[: number + 1])
    arrays = store.arrays()
    for name in ("a", "b/c"):
        expected = np.concatenate([batch[name] for batch in batches])
        np.testing.assert_array_equal(arrays[name], expected)
    on_disk = max_memory == 0 or (max_memory == 300 and sum(sizes) * 8 * 4 > 300)
    assert any(isinstance(layer, np.memmap) for layer in arrays.values()) == on_disk
    assert len(list(tmp_path.iterdir())) == (2 if on_disk else 0)


def test_a_batch_with_a_layer_of_another_width_is_refused_as_a_whole():
    store = ActivationStore(1 << 20)
    store.add(make_batches([2])[0])
    with pytest.raises(
        InputError, match="layer 'b/c' has 5 features in one batch and 4 in another"
    ):
        store.add({"a": np.zeros((2, 3), np.float32), "b/c": np.zeros((2, 4), np.float32)})
    assert {name: len(rows) for name, rows in store.arrays().items()} == {"a": 2, "b/c": 2}
