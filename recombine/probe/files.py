"""Activations and factors from files: .npz without pickles, .safetensors, and .csv or .parquet tables."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require

# The types of .safetensors arrays that are accepted, and the NumPy types that their bytes are mapped as.
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


def read_activations(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, by layer."""
    require(path.is_file(), f"there is no file {path}")
    readers = {".npz": _npz, ".safetensors": _safetensors}
    told = f"{path} must end in .npz (numpy.savez) or .safetensors"
    require(path.suffix in readers, f"{told}: save the activations so, an array per layer")
    found = readers[path.suffix](path)
    require(len(found) > 0, f"{path} holds no array: save an array per layer in it")
    single = [name for name, array in found.items() if array.ndim == 0]
    require(
        not single,
        f"the array {(*single, '')[0]!r} in {path} is a single number: save samples x features",
    )
    return found


def _npz(path: Path) -> dict[str, np.ndarray]:
    name = ""
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {}
            for name in file.files:
                found[name] = file[name]
            return found
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        if "allow_pickle" in str(error) and name:
            told = f"the array {name!r} in {path} holds Python objects, which are never unpickled"
            raise InputError(f"{told}: save it as numbers, samples x features") from error
        raise InputError(
            f"{path} cannot be read as .npz: save it with numpy.savez (no pickles)"
        ) from error


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every array, memory-mapped: only the rows that are used are read. bfloat16 is converted to float32 in memory.

    The safetensors library parses and checks the file, but the mapping is ours: its NumPy arrays are copies of the
    whole data, and it cannot give bfloat16 to NumPy at all (version 0.8.0). Once it does both, use it alone.
    """
    layout = _safetensors_layout(path)
    for name, (kind, _) in layout.items():
        known = kind in NUMPY_TYPES
        require(
            known,
            f"the array {name!r} in {path} is {kind}: save it as one of {', '.join(NUMPY_TYPES)}",
        )
    sizes = {
        name: np.dtype(NUMPY_TYPES[kind]).itemsize * math.prod(shape)
        for name, (kind, shape) in layout.items()
    }
    found = {}
    try:
        # The library has checked that the arrays fill the file up to its end, one after the other without gaps.
        start = path.stat().st_size - sum(sizes.values())
        for name, (kind, shape) in layout.items():
            numpy_type = np.dtype(NUMPY_TYPES[kind])
            if sizes[name] == 0:  # nothing to map
                array = np.zeros(shape, numpy_type)
            else:
                array = np.memmap(path, numpy_type, "r", start, shape)
            found[name] = _bfloat16_to_float32(array) if kind == "BF16" else array
            start += sizes[name]
    except (OSError, ValueError, OverflowError) as error:  # more dimensions than NumPy has, say
        raise InputError(
            f"{path} cannot be read as .safetensors ({error}): save it again"
        ) from error
    return found


def _safetensors_layout(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The type and the shape of every array in a .safetensors file, in the order of their bytes."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            slices = {name: file.get_slice(name) for name in file.offset_keys()}
            return {
                name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()
            }
    except SafetensorError as error:
        reason = repr(str(error))  # it may quote control characters from the file
        message = f"{path} cannot be read as .safetensors: it is cut off or damaged ({reason}), save it again"
        raise InputError(message) from error
    except OSError as error:
        raise InputError(
            f"{path} cannot be read as .safetensors ({error}): save it again"
        ) from error


def _bfloat16_to_float32(bits: np.ndarray) -> np.ndarray:
    """The numbers whose bfloat16 bits these are."""
    return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)


def read_factors(path: Path) -> pd.DataFrame:
    """The table of a .csv or .parquet file; empty cells are refused later, text such as NA stays text."""
    require(path.is_file(), f"there is no file {path}")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        return pd.read_csv(path, keep_default_na=False, na_values=[""])
    except Exception as error:
        told = f"{path} cannot be read as a table ({' '.join(str(error).split())})"
        raise InputError(
            f"{told}: the first line names the factors, each further line is one sample"
        ) from error
