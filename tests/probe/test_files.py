"""Files are read as they are: arrays of every type, mapped where they can be, and nothing is ever unpickled."""

import json

import numpy as np
import pytest

from recombine.basics.errors import InputError
from recombine.probe.files import read_activations, read_factors


def tensors(path, arrays, cut=0):
    """Write the format by hand: eight bytes of length, a header in JSON, the bytes of all arrays."""
    header, data = {"__metadata__": {"made": "by hand"}}, b""
    for name, (kind, array) in arrays.items():
        place = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": place}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes((len(text).to_bytes(8, "little") + text + data)[: -cut or None])
    return path


def test_safetensors_of_every_type(tmp_path):
    x = np.arange(12.0).reshape(4, 3)
    half = (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)  # bfloat16: these numbers fit into it
    kinds = {"F64": x, "F32": x.astype("f4"), "F16": x.astype("f2"), "BF16": half, "I32": x.astype("i4")}
    found = read_activations(tensors(tmp_path / "a.safetensors", {kind: (kind, one) for kind, one in kinds.items()}))
    assert list(found) == list(kinds)
    assert all((found[kind] == x).all() for kind in kinds)
    assert isinstance(found["F32"], np.memmap)  # not read before it is looked at


def test_npz_keeps_layers_and_their_order(tmp_path):
    np.savez(tmp_path / "a.npz", late=np.ones((3, 2)), early=np.zeros((3, 4), np.float16))
    found = read_activations(tmp_path / "a.npz")
    assert {name: layer.shape for name, layer in found.items()} == {"late": (3, 2), "early": (3, 4)}


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


def test_objects_are_refused_and_never_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", fine=np.ones((2, 2)), bad=np.array([Trap(), Trap()], object))
    with pytest.raises(InputError, match=r"'bad' in .* holds Python objects, which are never unpickled"):
        read_activations(tmp_path / "a.npz")


def test_broken_files_are_told_in_one_line(tmp_path):
    cut = tensors(tmp_path / "cut.safetensors", {"a": ("F32", np.ones((4, 3), "f4"))}, cut=7)
    with pytest.raises(InputError, match="'a' is cut off"):
        read_activations(cut)
    strange = tensors(tmp_path / "strange.safetensors", {"a": ("F8_E4M3", np.ones((4, 3), "u1"))})
    with pytest.raises(InputError, match=r"'a' in .* is F8_E4M3: save it as one of F64, F32"):
        read_activations(strange)
    for name, content in {"a.safetensors": b"\xff" * 40, "b.safetensors": b"1", "c.npz": b"not a zip"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="cannot be read as"):
            read_activations(tmp_path / name)
    with pytest.raises(InputError, match=r"must end in \.npz"):
        read_activations((tmp_path / "c.npz").rename(tmp_path / "c.pt"))
    with pytest.raises(InputError, match="there is no file"):
        read_activations(tmp_path / "gone.npz")


def test_text_stays_text_in_tables(tmp_path):
    (tmp_path / "f.csv").write_text("animal,legs\nNA,4\nnull,2\n")
    assert read_factors(tmp_path / "f.csv").to_dict("list") == {"animal": ["NA", "null"], "legs": [4, 2]}
    read_factors(tmp_path / "f.csv").to_parquet(tmp_path / "f.parquet")
    assert read_factors(tmp_path / "f.parquet")["animal"].tolist() == ["NA", "null"]
    (tmp_path / "f.csv").write_text("")
    with pytest.raises(InputError, match="cannot be read as a table"):
        read_factors(tmp_path / "f.csv")
