"""Networks in files: what is read is what was written, and another network is refused in one line."""

import jax
import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.experiments.limits._images import judge, saved
from recombine.parts.prng import new_key


def like(d_code=4):
    return jax.eval_shape(lambda: judge.Judge(new_key(0), d_code))


@pytest.mark.parametrize(("kind", "off"), [("float32", 0), ("float16", 1e-3)])
def test_what_is_read_is_what_was_written(tmp_path, kind, off):
    net = judge.Judge(new_key(3), 4)
    found = saved.load(saved.save(tmp_path / "a.safetensors", net, {"seed": "3"}, kind), like())
    for one, other in zip(jax.tree.leaves(net), jax.tree.leaves(found), strict=True):
        assert other.dtype == np.float32
        np.testing.assert_allclose(one, other, atol=off)


def test_safetensors_reads_it_too(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy")
    net = judge.Judge(new_key(3), 4)
    found = numpy.load_file(saved.save(tmp_path / "a.safetensors", net, {"seed": "3"}))
    np.testing.assert_array_equal(found["answer.weight"], net.answer.weight)


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
