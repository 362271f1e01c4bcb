"""Files keep their values and types, are mapped where possible, and are never unpickled."""

import json
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from recombine.basics.errors import InputError
from recombine.probe.file_readers import read_activations, read_factors


def write_safetensors(path, arrays, cut=0):
    """Write the format by hand: eight bytes of length, a header in JSON, the bytes of all arrays.

    The last `cut` bytes are left out.
    """
    header, data = {"__metadata__": {"made": "by hand"}}, b""
    for name, (kind, array) in arrays.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes((len(text).to_bytes(8, "little") + text + data)[: -cut or None])
    return path


def test_safetensors_of_every_type(tmp_path):
    x = np.arange(12.0).reshape(4, 3)
    # These numbers are exact in bfloat16, the upper half of a float32.
    bfloat16 = (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    arrays = {
        "F64": x,
        "F32": x.astype("f4"),
        "F16": x.astype("f2"),
        "BF16": bfloat16,
        "I32": x.astype("i4"),
    }
    by_type = {kind: (kind, array) for kind, array in arrays.items()}
    layers = read_activations(write_safetensors(tmp_path / "a.safetensors", by_type))
    assert list(layers) == list(arrays)
    assert all((layer == x).all() for layer in layers.values())
    assert layers.pop("BF16").dtype == np.float32
    assert all(isinstance(layer, np.memmap) for layer in layers.values())


def test_bfloat16_is_converted_exactly(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    bits = np.arange(1 << 16, dtype="<u2").reshape(-1, 4)  # every bfloat16, with NaN and infinities
    layers = read_activations(write_safetensors(tmp_path / "a.safetensors", {"a": ("BF16", bits)}))
    np.testing.assert_array_equal(layers["a"], bits.view(ml_dtypes.bfloat16).astype(np.float32))


def test_arrays_equal_those_of_the_library(tmp_path):
    rng = np.random.default_rng(0)
    kinds = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u1", "?")
    arrays = {
        f"{i % 4}/{kind}": rng.integers(0, 2, (i + 1, 3)).astype(kind)
        for i, kind in enumerate(kinds)
    }
    arrays |= {
        "none": np.zeros((0, 3), "f4"),
        "nothing": np.zeros((2, 0), "i1"),
        "cube": rng.normal(size=(2, 3, 5)),
    }
    save_file(arrays, tmp_path / "a.safetensors", {"made": "by the library"})
    layers = read_activations(tmp_path / "a.safetensors")
    assert set(layers) == set(arrays)
    for name, expected in load_file(tmp_path / "a.safetensors").items():
        assert layers[name].dtype == expected.dtype
        np.testing.assert_array_equal(layers[name], expected)


def test_large_safetensors_are_not_read_into_memory(tmp_path):
    save_file({"a": np.ones((1 << 22, 4), "f4")}, tmp_path / "a.safetensors")
    read_activations(tmp_path / "a.safetensors")  # imports are not measured
    tracemalloc.start()
    try:
        layers = read_activations(tmp_path / "a.safetensors")
        assert layers["a"][1 << 21].sum() == 4
        assert tracemalloc.get_traced_memory()[1] < layers["a"].nbytes / 100
    finally:
        tracemalloc.stop()


def test_npz_keeps_layers_and_their_order(tmp_path):
    np.savez(tmp_path / "a.npz", late=np.ones((3, 2)), early=np.zeros((3, 4), np.float16))
    layers = read_activations(tmp_path / "a.npz")
    assert list(layers) == ["late", "early"]
    assert [layer.shape for layer in layers.values()] == [(3, 2), (3, 4)]


class Trap:
    """Fails the test when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


def test_objects_are_refused_and_never_unpickled(tmp_path):
    np.savez(tmp_path / "a.npz", fine=np.ones((2, 2)), bad=np.array([Trap(), Trap()], object))
    with pytest.raises(
        InputError, match=r"'bad' in .* holds Python objects, which are never unpickled"
    ):
        read_activations(tmp_path / "a.npz")


def test_broken_files_are_refused(tmp_path):
    truncated = write_safetensors(
        tmp_path / "truncated.safetensors", {"a": ("F32", np.ones((4, 3), "f4"))}, cut=7
    )
    with pytest.raises(
        InputError, match=r"truncated\.safetensors cannot be read .* is truncated or damaged"
    ):
        read_activations(truncated)
    unsupported = write_safetensors(
        tmp_path / "unsupported.safetensors", {"a": ("F8_E4M3", np.ones((4, 3), "u1"))}
    )
    with pytest.raises(InputError, match=r"'a' in .* is F8_E4M3: save it as one of F64, F32"):
        read_activations(unsupported)
    for name, content in {
        "a.safetensors": b"\xff" * 40,
        "b.safetensors": b"1",
        "c.npz": b"not a zip",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="cannot be read as"):
            read_activations(tmp_path / name)
    with pytest.raises(InputError, match=r"must end in \.npz"):
        read_activations((tmp_path / "c.npz").rename(tmp_path / "c.pt"))
    with pytest.raises(InputError, match="there is no file"):
        read_activations(tmp_path / "gone.npz")


FOUR = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
HOSTILE = {
    "bytes after the arrays": (
        {"a": FOUR | {"shape": [3], "data_offsets": [0, 12]}},
        "is truncated or damaged",
    ),
    "a gap": ({"a": FOUR | {"shape": [3], "data_offsets": [4, 16]}}, "is truncated or damaged"),
    "overlapping arrays": ({"a": FOUR, "b": FOUR}, "is truncated or damaged"),
    "offsets beyond the end": (
        {"a": FOUR | {"data_offsets": [0, 1 << 62]}},
        "is truncated or damaged",
    ),
    "offsets before the start": (
        {"a": FOUR | {"data_offsets": [-16, 0]}},
        "is truncated or damaged",
    ),
    "reversed offsets": ({"a": FOUR | {"data_offsets": [16, 0]}}, "is truncated or damaged"),
    "a size that overflows": ({"a": FOUR | {"shape": [1 << 62, 16]}}, "is truncated or damaged"),
    "a negative size": ({"a": FOUR | {"shape": [-4]}}, "is truncated or damaged"),
    "no shape": ({"a": {"dtype": "F32", "data_offsets": [0, 16]}}, "is truncated or damaged"),
    "an unknown type": ({"a": FOUR | {"dtype": "F7\x1b[31m"}}, r"F7\\x1b\[31m"),
    "a name with control characters": (
        {"a\x1b\n": FOUR | {"dtype": "U32"}},
        r"'a\\x1b\\n' in .* is U32",
    ),
    "too many dimensions": ({"a": FOUR | {"shape": [4] + [1] * 99}}, "cannot be read as"),
    "an empty array beyond all sizes": (
        {"a": FOUR, "b": FOUR | {"shape": [0, 1 << 63], "data_offsets": [16, 16]}},
        "cannot be read as",
    ),
    "a single number": (
        {"a": FOUR, "b": FOUR | {"shape": [], "data_offsets": [16, 20]}},
        "'b' in .* is a single",
    ),
    "a list": ([], "is truncated or damaged"),
    "no array": ({}, "holds no array"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_safetensors_are_refused_in_one_line(tmp_path, case):
    header, message = HOSTILE[case]
    text = json.dumps(header).encode()
    num_bytes = {"a single number": 20, "no array": 0}.get(case, 16)
    (tmp_path / "a.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + bytes(num_bytes)
    )
    with pytest.raises(InputError, match=message) as error:
        read_activations(tmp_path / "a.safetensors")
    assert str(error.value).isprintable()


@pytest.mark.parametrize("text", [b'{"a":' * 10_000 + b"1" + b"}" * 10_000, b'{"a"', b"\xff\xfe"])
def test_headers_that_are_not_json_are_refused(tmp_path, text):
    for length in (len(text), 1 << 20, 1 << 40, (1 << 64) - 1):
        (tmp_path / "a.safetensors").write_bytes(length.to_bytes(8, "little") + text)
        with pytest.raises(InputError, match="is truncated or damaged"):
            read_activations(tmp_path / "a.safetensors")


def test_text_stays_text_in_tables(tmp_path):
    (tmp_path / "f.csv").write_text("animal,legs\nNA,4\nnull,2\n")
    assert read_factors(tmp_path / "f.csv").to_dict("list") == {
        "animal": ["NA", "null"],
        "legs": [4, 2],
    }
    read_factors(tmp_path / "f.csv").to_parquet(tmp_path / "f.parquet")
    assert read_factors(tmp_path / "f.parquet")["animal"].tolist() == ["NA", "null"]
    (tmp_path / "f.csv").write_text("")
    with pytest.raises(InputError, match="cannot be read as a table"):
        read_factors(tmp_path / "f.csv")


@pytest.mark.parametrize(
    ("separator", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")]
)
def test_a_table_with_another_separator_is_explained(separator, name, tmp_path):
    (tmp_path / "f.csv").write_text(f"shape{separator}size\na{separator}1\n")
    with pytest.raises(
        InputError, match=f"has one column, .* separated by {name}. Save it with com"
    ):
        read_factors(tmp_path / "f.csv")
    (tmp_path / "one.csv").write_text("shape\na;b\n")
    assert read_factors(tmp_path / "one.csv")["shape"].tolist() == ["a;b"]


@pytest.mark.parametrize("read", [read_factors, read_activations])
def test_names_that_no_file_can_have_are_refused(read, tmp_path):
    with pytest.raises(InputError, match="choose a shorter one"):
        read(tmp_path / ("x" * 5000 + ".npz"))
