"""Unit activity: how much of a network is in use, measured on seen tasks in every evaluation.

For the units of each hidden layer:

    dead     fraction of units that never respond
    rare     fraction of units that respond on fewer than 0.1% of the samples (dead ones included)
    active   mean fraction of units that respond to a sample
    rank     effective rank (tr C)^2 / |C|_F^2 of the units' covariance C

A ReLU responds when its output is above 0. A unit with another nonlinearity responds when its
output differs from the unit's own mean by more than 0.001 of the layer's root mean square. It is
dead if its standard deviation is below that.

The output of the nonlinearity itself is measured. A residual stream also carries the signals of
other layers, which would hide a dead unit.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from recombine.parts.perceptron import ACTIVATION_FUNCTIONS

MAX_SAMPLES = 4096
MIN_RESPONSE_RATE = 1e-3  # fraction of samples
MIN_DEVIATION = 1e-3  # fraction of a layer's root mean square


def measure(net: Any, activations: dict[str, Array]) -> dict[str, Array]:
    """The activity of every hidden layer: `hidden2/dead`, …

    `activations` have shape (tasks, points, units). A network without hidden layers gives {}.
    """
    is_relu = getattr(net, "activation", None) == "relu"
    measured = {}
    for layer, units in hidden_units(net, activations).items():
        samples = units.reshape(-1, units.shape[-1])[:MAX_SAMPLES].astype(jnp.float32)
        numbers = layer_activity(samples, is_relu and layer.startswith("hidden"))
        measured |= {f"{layer}/{name}": value for name, value in numbers.items()}
    return measured


def hidden_units(net: Any, activations: dict[str, Array]) -> dict[str, Array]:
    """The output of every nonlinearity, by layer (`hidden0`, …, or `feedforward0`, …).

    If a network names its `activation`, that function is applied to `pre0`, …, because with
    residual connections `hidden1` is a sum over layers. Other networks' `hidden0`, … are used as
    they are.
    """
    activation = getattr(net, "activation", None)  # a name, or a learned function
    function = ACTIVATION_FUNCTIONS.get(activation) if isinstance(activation, str) else None
    units = {}
    for name, value in activations.items():
        match = re.fullmatch(r"(pre|hidden|feedforward)(\d+)", name)
        if match is None:
            continue
        kind, number = match.groups()
        if kind == "feedforward":
            units[name] = value
        elif kind == "pre" and function is not None:
            units[f"hidden{number}"] = function(value)
        elif kind == "hidden" and (function is None or f"pre{number}" not in activations):
            units[name] = value
    return units


def layer_activity(h: Float[Array, "samples units"], is_relu: bool) -> dict[str, Array]:
    """The dead, rare and active fractions and the effective rank of one layer."""
    centered = h - h.mean(axis=0)
    if is_relu:
        responds = h > 0
        dead = ~responds.any(axis=0)
    else:
        min_deviation = MIN_DEVIATION * jnp.sqrt(jnp.square(h).mean())
        responds = jnp.abs(centered) > min_deviation
        dead = jnp.sqrt(jnp.square(centered).mean(axis=0)) <= min_deviation
    response_rate = responds.mean(axis=0)
    return {
        "dead": dead.mean(),
        "rare": ((response_rate < MIN_RESPONSE_RATE) | dead).mean(),
        "active": response_rate.mean(),
        "rank": effective_rank(centered),
    }


def effective_rank(centered: Float[Array, "samples units"]) -> Float[Array, ""]:
    """The number of directions that carry the variance, (tr C)^2 / |C|_F^2. 0 if nothing varies."""
    num_samples, num_units = centered.shape
    # X^T X and X X^T have the same trace and norm: the smaller one is computed.
    x = centered if num_samples >= num_units else centered.T
    gram = jnp.matmul(x.T, x, precision=jax.lax.Precision.HIGHEST)
    squared_norm = jnp.square(gram).sum()
    varies = squared_norm > 0
    rank = jnp.square(jnp.trace(gram)) / jnp.where(varies, squared_norm, 1)
    return jnp.where(varies, rank, 0)
