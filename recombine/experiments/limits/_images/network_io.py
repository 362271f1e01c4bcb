"""Networks as .safetensors files, with one array per leaf."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from recombine.basics import atomic_io
from recombine.basics.errors import InputError
from recombine.probe.file_readers import read_activations

ADVICE = "Run the experiment with --scale full to write it again"


def save(
    path: Path,
    network: Any,
    metadata: Mapping[str, str] | None = None,
    dtype: Literal["float32", "float16"] = "float32",
) -> Path:
    """Write the leaves of a network in one atomic step; float16 takes half the space."""
    from safetensors.numpy import save as to_bytes

    # order="C": safetensors 0.8.0 silently stores wrong values of arrays in any other order, for
    # example of transposed ones (safetensors issue 825). `np.ascontiguousarray` would give a scalar
    # the shape (1,).
    leaves = {name: np.asarray(leaf, dtype, order="C") for name, leaf in _leaves(network).items()}
    return atomic_io.write_atomically(path, to_bytes(leaves, dict(metadata or {})))


def load(path: Path, like: Any) -> Any:
    """The network in a file. Its leaves must have the names and shapes of `like`."""
    arrays = read_activations(path)
    expected = _leaves(like)
    missing = sorted(set(expected) - set(arrays))
    if missing:
        raise InputError(f"{path} holds another network: it lacks {missing[0]!r}. {ADVICE}")
    different = [name for name, leaf in expected.items() if arrays[name].shape != leaf.shape]
    if different:
        raise InputError(
            f"{path} holds a network of another size: {different[0]!r} differs. {ADVICE}"
        )
    leaves = [np.asarray(arrays[name], np.float32) for name in expected]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def _leaves(network: Any) -> dict[str, Any]:
    """The leaves of a network by their paths, for example `answer.weight`."""
    return {
        jax.tree_util.keystr(path).lstrip("."): leaf
        for path, leaf in jax.tree.leaves_with_path(network)
    }
