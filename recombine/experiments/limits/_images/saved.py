"""Networks as .safetensors files, an array for each leaf: read and written with NumPy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from recombine.basics import atomic_io
from recombine.basics.errors import require
from recombine.probe.files import read_activations

KINDS = {"float32": "F32", "float16": "F16"}


def save(path: Path, net: Any, about: Mapping[str, str] | None = None, kind: str = "float32") -> Path:
    """Write the leaves of a network, float16 for half the size; the file is there whole or not at all."""
    header: dict[str, Any] = {"__metadata__": dict(about or {})}
    place, data = 0, b""
    for name, leaf in _named(net).items():
        array = np.asarray(leaf, f"<f{np.dtype(kind).itemsize}")
        header[name] = {"dtype": KINDS[kind], "shape": array.shape, "data_offsets": [place, place + array.nbytes]}
        place, data = place + array.nbytes, data + array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # arrays begin at a multiple of eight bytes
    return atomic_io.replace(path, len(text).to_bytes(8, "little") + text + data)


def load(path: Path, like: Any) -> Any:
    """The network that is in a file, laid out as `like` (arrays, or their shapes); another layout is refused."""
    found, wanted = read_activations(path), _named(like)
    lacks = sorted(set(wanted) - set(found))
    require(not lacks, f"{path} holds another network: it lacks {(*lacks, '')[0]!r}; write it anew (--scale full)")
    other = [name for name, leaf in wanted.items() if found[name].shape != leaf.shape]
    told = f"{path} holds a network of another size: {(*other, '')[0]!r} differs"
    require(not other, f"{told}; write it anew (--scale full)")
    leaves = [np.asarray(found[name], np.float32) for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _named(net: Any) -> dict[str, Any]:
    return {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in jax.tree.leaves_with_path(net)}
