"""Activations and factors from files: .npz, .safetensors, .csv and .parquet, never pickles."""

from __future__ import annotations

import math
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pandas as pd

from recombine.basics import user_files
from recombine.basics.errors import InputError, require
from recombine.basics.parquet_reader import LimitedFile
from recombine.basics.size_limits import check_npz

# The accepted types of .safetensors arrays, and the NumPy types that their bytes are mapped as.
NUMPY_TYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BF16": "<u2",  # NumPy has no bfloat16: these are its bits, the upper half of a float32
    "BOOL": "?",
}


def _require_file(path: Path) -> None:
    """Refuse a path that is not a file, or that the system does not accept."""
    require(user_files.is_file(path), f"there is no file {path}")


def read_activations(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, by layer."""
    _require_file(path)
    readers = {".npz": _read_npz, ".safetensors": _read_safetensors}
    require(
        path.suffix in readers,
        f"{path} must end in .npz (numpy.savez) or .safetensors: save the activations in one of "
        "these formats, with one array per layer",
    )
    arrays = readers[path.suffix](path)
    require(len(arrays) > 0, f"{path} holds no array: save one array per layer")
    for name, array in arrays.items():
        require(
            array.ndim > 0,
            f"the array {name!r} in {path} is a single number: save samples x features",
        )
    return arrays


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    name = ""
    arrays = {}
    try:
        check_npz(path)
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                arrays[name] = file[name]
    except InputError:
        raise
    except (ValueError, OSError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        if "allow_pickle" in str(error) and name:
            raise InputError(
                f"the array {name!r} in {path} holds Python objects, which are never unpickled: "
                "save it as numbers, samples x features"
            ) from error
        raise InputError(
            f"{path} cannot be read as .npz: save it with numpy.savez (no pickles)"
        ) from error
    return arrays


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every array, memory-mapped, except that bfloat16 is converted to float32 in memory.

    The safetensors library parses and checks the file. The mapping is ours: the library's NumPy
    arrays are copies of the whole data, and it has no bfloat16 for NumPy (version 0.8.0). Once it
    does both, use it alone.
    """
    layout = _safetensors_layout(path)
    sizes = {}
    for name, (kind, shape) in layout.items():
        require(
            kind in NUMPY_TYPES,
            f"the array {name!r} in {path} is {kind}: save it as one of {', '.join(NUMPY_TYPES)}",
        )
        sizes[name] = np.dtype(NUMPY_TYPES[kind]).itemsize * math.prod(shape)
    arrays = {}
    try:
        # The library has checked that the arrays fill the file to its end, in order, without gaps.
        offset = path.stat().st_size - sum(sizes.values())
        for name, (kind, shape) in layout.items():
            numpy_type = np.dtype(NUMPY_TYPES[kind])
            if sizes[name] == 0:  # an empty array cannot be mapped
                array = np.zeros(shape, numpy_type)
            else:
                array = np.memmap(path, numpy_type, "r", offset, shape)
            arrays[name] = _bfloat16_to_float32(array) if kind == "BF16" else array
            offset += sizes[name]
    except (OSError, ValueError, OverflowError) as error:  # e.g. more dimensions than NumPy allows
        raise InputError(
            f"{path} cannot be read as .safetensors ({error}): save it again"
        ) from error
    return arrays


def _safetensors_layout(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The type and shape of every array in a .safetensors file, in the order of their bytes."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            return {
                name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()
            }
    except SafetensorError as error:
        reason = repr(str(error))  # it may quote control characters from the file
        raise InputError(
            f"{path} cannot be read as .safetensors: the file is truncated or damaged ({reason}); "
            "save it again"
        ) from error
    except OSError as error:
        raise InputError(
            f"{path} cannot be read as .safetensors ({error}): save it again"
        ) from error


def _bfloat16_to_float32(bits: np.ndarray) -> np.ndarray:
    """Float32 numbers from bfloat16 bits."""
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)


def read_factors(path: Path) -> pd.DataFrame:
    """The table of a .csv or .parquet file.

    Text such as NA stays text. Empty cells become NaN; the probe refuses them later.
    """
    _require_file(path)
    try:
        if path.suffix == ".parquet":
            with LimitedFile(path) as file:
                return file.read().to_pandas()
        table = pd.read_csv(path, keep_default_na=False, na_values=[""])
    except InputError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path} cannot be read as a table ({reason}): the first line must name the factors, "
            "and each further line is one sample"
        ) from error
    only = str(table.columns[0]) if table.shape[1] == 1 else ""
    for separator, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        require(
            separator not in only,
            f"{path} has one column, {only!r}: its columns are separated by {name}. Save it with "
            "commas, or as .parquet",
        )
    return table
