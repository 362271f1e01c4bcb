"""Activations and factors from files: .npz without pickles, .safetensors, and .csv or .parquet tables."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd

from recombine.basics.errors import InputError, require

# The format's names; BF16, which NumPy lacks, is the upper half of a float32.
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1"}
TYPES |= {"BF16": "<u2", "BOOL": "?"}
MOST_HEADER = 100_000_000  # bytes, by the format


def read_activations(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, by layer."""
    require(path.is_file(), f"there is no file {path}")
    readers = {".npz": _npz, ".safetensors": _safetensors}
    told = f"{path} must end in .npz (numpy.savez) or .safetensors"
    require(path.suffix in readers, f"{told}: save the activations so, an array per layer")
    found = readers[path.suffix](path)
    require(len(found) > 0, f"{path} holds no array: save an array per layer in it")
    single = [name for name, array in found.items() if array.ndim == 0]
    require(not single, f"the array {(*single, '')[0]!r} in {path} is a single number: save samples x features")
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
        raise InputError(f"{path} cannot be read as .npz: save it with numpy.savez (no pickles)") from error


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every array, mapped and not read: only what is looked at comes into memory."""
    broken = f"{path} cannot be read as .safetensors"
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            require(length <= min(size - 8, MOST_HEADER), f"{broken}: it is cut off, save it again")
            header = json.loads(file.read(length))
        found = {}
        for name, about in header.items():
            if name == "__metadata__":
                continue
            known = about["dtype"] in TYPES
            require(known, f"the array {name!r} in {path} is {about['dtype']}: save it as one of {', '.join(TYPES)}")
            kind, shape = np.dtype(TYPES[about["dtype"]]), tuple(about["shape"])
            first, last = (8 + length + place for place in about["data_offsets"])
            whole = last - first == kind.itemsize * int(np.prod(shape)) and 8 + length <= first <= last <= size
            require(whole, f"{broken}: the array {name!r} is cut off, save it again")
            array = np.memmap(path, kind, "r", first, shape) if last > first else np.zeros(shape, kind)
            if about["dtype"] == "BF16":
                array = (array.astype("<u4") << 16).view("<f4")
            found[name] = array
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{broken}: save it again") from error


def read_factors(path: Path) -> pd.DataFrame:
    """The table of a .csv or .parquet file; empty cells are refused later, text such as NA stays text."""
    require(path.is_file(), f"there is no file {path}")
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        return pd.read_csv(path, keep_default_na=False, na_values=[""])
    except Exception as error:
        told = f"{path} cannot be read as a table ({' '.join(str(error).split())})"
        raise InputError(f"{told}: the first line names the factors, each further line is one sample") from error
