"""Networks in files: they keep their values, and another network is refused."""

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from recombine.basics.errors import InputError
from recombine.experiments.limits._images import judge, network_io, study
from recombine.parts.prng import new_key
from recombine.probe.file_readers import read_activations


def like(d_code=4):
    return jax.eval_shape(lambda: judge.Judge(new_key(0), d_code))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0), ("float16", 1e-3)])
def test_a_saved_network_keeps_its_values(tmp_path, dtype, tolerance):
    network = judge.Judge(new_key(3), 4)
    path = network_io.save(tmp_path / "a.safetensors", network, {"seed": "3"}, dtype)
    loaded = network_io.load(path, like())
    for before, after in zip(jax.tree.leaves(network), jax.tree.leaves(loaded), strict=True):
        assert after.dtype == np.float32
        np.testing.assert_allclose(before, after, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_values_do_not_depend_on_the_order_in_memory(tmp_path, dtype):
    rows = np.arange(24, dtype=np.float32).reshape(4, 6)
    network = {
        "whole": rows,
        "transposed": rows.T,
        "steps": rows[:, ::2],
        "reversed": rows[::-1],
        "wide": np.float64(rows.T),
    }
    loaded = load_file(network_io.save(tmp_path / "a.safetensors", network, dtype=dtype))
    for name, array in network.items():
        np.testing.assert_array_equal(loaded[f"['{name}']"], array)


def test_scalars_keep_their_shape(tmp_path):
    arrays = load_file(network_io.save(tmp_path / "a.safetensors", {"x": np.float32(3)}))
    assert arrays["['x']"].shape == ()


@pytest.mark.parametrize(
    "path", sorted(study.PACKAGED.glob("*.safetensors")), ids=lambda path: path.stem
)
def test_weights_of_the_package_are_loaded_bit_for_bit(path):
    arrays, expected = read_activations(path), load_file(path)
    assert set(arrays) == set(expected)
    for name, array in expected.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].shape == array.shape
        assert arrays[name].tobytes() == array.tobytes()


def test_another_network_is_refused(tmp_path):
    file = network_io.save(tmp_path / "a.safetensors", judge.Judge(new_key(3), 5))
    with pytest.raises(InputError, match=r"another size: 'answer\.weight' differs"):
        network_io.load(file, like())
    with pytest.raises(InputError, match=r"another network: it lacks 'answer\.bias'"):
        network_io.load(network_io.save(tmp_path / "b.safetensors", {"x": np.ones(3)}), like())
    with pytest.raises(InputError, match="there is no file"):
        network_io.load(tmp_path / "c.safetensors", like())
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(InputError, match="truncated"):
        network_io.load(file, like())
