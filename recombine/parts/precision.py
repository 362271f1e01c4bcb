"""The type in which matrices are multiplied while training. Weights, their updates and every evaluation are float32."""

from typing import Any, Literal

import jax
import jax.numpy as jnp

from recombine.basics.errors import require

Precision = Literal["float32", "bfloat16", "auto"]


def multiplied_in(precision: Precision) -> Any:
    """The type in which matrices are multiplied; `auto` is bfloat16 where that is fast, on a GPU or TPU."""
    known = ("float32", "bfloat16", "auto")
    require(
        precision in known, f"there is no precision {precision!r}: choose one of {', '.join(known)}"
    )
    low = jax.default_backend() != "cpu" if precision == "auto" else precision == "bfloat16"
    return jnp.bfloat16 if low else jnp.float32
