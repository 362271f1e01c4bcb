"""Unit activity: how much of a network is in use. Measured in every evaluation, on samples of seen tasks.

For the units of each hidden layer:

    dead     fraction of units that never respond
    rare     fraction of units that respond on fewer than 0.1% of the samples (dead ones included)
    active   mean fraction of units that respond to a sample
    rank     effective rank (tr C)^2 / |C|_F^2 of the units' covariance C

A ReLU responds where it is above 0. Any other nonlinearity responds where its output differs from the unit's own mean
by more than 0.001 of the layer's root mean square, and is dead where its standard deviation is below that. The
nonlinearity's own output is measured: a residual stream with the signals of other layers does not hide a dead unit.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from recombine.parts.perceptron import FUNCTIONS

MAX_SAMPLES = 4096
MIN_RESPONSE_RATE = 1e-3  # fraction of samples
MIN_DEVIATION = 1e-3  # fraction of a layer's root mean square


def measure(net: Any, activations: dict[str, Array]) -> dict[str, Array]:
    """The numbers of every hidden layer, `hidden2/dead`, …; none for a network without hidden layers.

    `activations` are (tasks, points, units), as networks return them.
    """
    is_relu = getattr(net, "activation", None) == "relu"
    found = {}
    for layer, units in hidden_units(net, activations).items():
        samples = units.reshape(-1, units.shape[-1])[:MAX_SAMPLES].astype(jnp.float32)
        numbers = layer_activity(samples, is_relu and layer.startswith("hidden"))
        found |= {f"{layer}/{name}": value for name, value in numbers.items()}
    return found


def hidden_units(net: Any, activations: dict[str, Array]) -> dict[str, Array]:
    """The output of every nonlinearity, by layer: `hidden0`, … and a transformer's `feedforward0`, …

    Where a network names its `activation`, it is applied to `pre0`, …, since with residual connections `hidden1` is a
    sum over layers. For other networks `hidden0`, … are used as they are.
    """
    name = getattr(net, "activation", None)
    function = (
        FUNCTIONS.get(name) if isinstance(name, str) else None
    )  # it may be a learned function
    found = {}
    for name, value in activations.items():
        match = re.fullmatch(r"(pre|hidden|feedforward)(\d+)", name)
        if match is None:
            continue
        kind, number = match.groups()
        if kind == "feedforward":
            found[name] = value
        elif kind == "pre" and function is not None:
            found[f"hidden{number}"] = function(value)
        elif kind == "hidden" and (function is None or f"pre{number}" not in activations):
            found[name] = value
    return found


def layer_activity(h: Float[Array, "samples units"], is_relu: bool) -> dict[str, Array]:
    """Dead, rare and active fractions and the effective rank of one layer."""
    centered = h - h.mean(axis=0)
    if is_relu:
        responds = h > 0
        dead = ~responds.any(axis=0)
    else:
        smallest = MIN_DEVIATION * jnp.sqrt(jnp.square(h).mean())
        responds = jnp.abs(centered) > smallest
        dead = jnp.sqrt(jnp.square(centered).mean(axis=0)) <= smallest
    response_rate = responds.mean(axis=0)
    return {
        "dead": dead.mean(),
        "rare": ((response_rate < MIN_RESPONSE_RATE) | dead).mean(),
        "active": response_rate.mean(),
        "rank": effective_rank(centered),
    }


def effective_rank(centered: Float[Array, "samples units"]) -> Float[Array, ""]:
    """(tr C)^2 / |C|_F^2: how many directions carry the variance. 0 where nothing varies."""
    x = (
        centered if centered.shape[0] >= centered.shape[1] else centered.T
    )  # both products have the same norm
    gram = jnp.matmul(x.T, x, precision=jax.lax.Precision.HIGHEST)
    size = jnp.square(gram).sum()
    return jnp.where(size > 0, jnp.square(jnp.trace(gram)) / jnp.where(size > 0, size, 1), 0)
