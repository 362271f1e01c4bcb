"""Networks as .safetensors files, an array for each leaf."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from recombine.basics import atomic_io
from recombine.basics.errors import require
from recombine.probe.files import read_activations


def save(
    path: Path,
    net: Any,
    about: Mapping[str, str] | None = None,
    kind: Literal["float32", "float16"] = "float32",
) -> Path:
    """Write the leaves of a network, float16 for half the size; the file is there whole or not at all."""
    from safetensors.numpy import save as to_bytes

    # order="C": safetensors 0.8.0 silently stores wrong values of any other array, a transposed one for example
    # (safetensors issue 825). `np.ascontiguousarray` would give a single number the shape (1,).
    leaves = {name: np.asarray(leaf, kind, order="C") for name, leaf in _named(net).items()}
    return atomic_io.replace(path, to_bytes(leaves, dict(about or {})))


def load(path: Path, like: Any) -> Any:
    """The network that is in a file, laid out as `like` (arrays, or their shapes); another layout is refused."""
    found, wanted = read_activations(path), _named(like)
    lacks = sorted(set(wanted) - set(found))
    require(
        not lacks,
        f"{path} holds another network: it lacks {(*lacks, '')[0]!r}; write it anew (--scale full)",
    )
    other = [name for name, leaf in wanted.items() if found[name].shape != leaf.shape]
    told = f"{path} holds a network of another size: {(*other, '')[0]!r} differs"
    require(not other, f"{told}; write it anew (--scale full)")
    leaves = [np.asarray(found[name], np.float32) for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _named(net: Any) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path).lstrip("."): leaf
        for path, leaf in jax.tree.leaves_with_path(net)
    }
