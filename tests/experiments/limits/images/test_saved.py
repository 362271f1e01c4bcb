"""Networks in files: what is read is what was written, and another network is refused in one line."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from recombine.basics.errors import InputError
from recombine.experiments.limits._images import judge, saved, study
from recombine.parts.prng import new_key
from recombine.probe.files import read_activations


def like(d_code=4):
    return jax.eval_shape(lambda: judge.Judge(new_key(0), d_code))


@pytest.mark.parametrize(("kind", "off"), [("float32", 0), ("float16", 1e-3)])
def test_what_is_read_is_what_was_written(tmp_path, kind, off):
    net = judge.Judge(new_key(3), 4)
    found = saved.load(saved.save(tmp_path / "a.safetensors", net, {"seed": "3"}, kind), like())
    for one, other in zip(jax.tree.leaves(net), jax.tree.leaves(found), strict=True):
        assert other.dtype == np.float32
        np.testing.assert_allclose(one, other, atol=off)


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_values_do_not_depend_on_the_order_in_memory(tmp_path, kind):
    rows = np.arange(24, dtype=np.float32).reshape(4, 6)
    net = {
        "whole": rows,
        "transposed": rows.T,
        "steps": rows[:, ::2],
        "reversed": rows[::-1],
        "wide": np.float64(rows.T),
    }
    found = load_file(saved.save(tmp_path / "a.safetensors", net, kind=kind))
    for name, array in net.items():
        np.testing.assert_array_equal(found[f"['{name}']"], array)


def test_single_numbers_keep_their_shape(tmp_path):
    found = load_file(saved.save(tmp_path / "a.safetensors", {"x": np.float32(3)}))
    assert found["['x']"].shape == ()


@pytest.mark.parametrize(
    "path", sorted(study.COMMITTED.glob("*.safetensors")), ids=lambda path: path.stem
)
def test_committed_weights_are_read_bit_for_bit(path):
    found, expected = read_activations(path), load_file(path)
    assert set(found) == set(expected)
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_another_network_is_refused(tmp_path):
    file = saved.save(tmp_path / "a.safetensors", judge.Judge(new_key(3), 5))
    with pytest.raises(InputError, match=r"another size: 'answer\.weight' differs"):
        saved.load(file, like())
    with pytest.raises(InputError, match=r"another network: it lacks 'answer\.bias'"):
        saved.load(saved.save(tmp_path / "b.safetensors", {"x": np.ones(3)}), like())
    with pytest.raises(InputError, match="there is no file"):
        saved.load(tmp_path / "c.safetensors", like())
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(InputError, match="cut off"):
        saved.load(file, like())
