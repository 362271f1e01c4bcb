"""The type in which matrices are multiplied during training.

Weights, their updates and all evaluations are float32.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from recombine.basics.errors import require

Precision = Literal["float32", "bfloat16", "auto"]


def matmul_dtype(precision: Precision) -> Any:
    """The type in which matrices are multiplied; `auto` is bfloat16 on a GPU or TPU."""
    known = ("float32", "bfloat16", "auto")
    require(
        precision in known, f"unknown precision {precision!r}: choose one of {', '.join(known)}"
    )
    if precision == "auto":
        is_low = jax.default_backend() != "cpu"
    else:
        is_low = precision == "bfloat16"
    return jnp.bfloat16 if is_low else jnp.float32


multiplied_in = matmul_dtype  # the earlier name, which works until the next release
