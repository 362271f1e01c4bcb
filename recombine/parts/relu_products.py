"""Products from sums of ReLUs: how the network of Theorem 3.1 computes a hyperteacher (`theory/theorem_31.py`).

    w x = R (t+^2 - t-^2),   t+ = (w/R + x)/2,  t- = (w/R - x)/2,   |w| <= R,  |x| <= 1

The effective weights w are linear in the module weights z, and so are both t; a square is drawn with equal pieces.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from recombine.basics.errors import require
from recombine.parts.perceptron import Perceptron
from recombine.parts.prng import new_key


class Terms(NamedTuple):
    """The t of every square, as rows on (z, x); how the squares are mixed into the teacher's hidden units; the biases,
    as rows too; and how far these can go below 0."""

    squares: Float[Array, "2*I*H M+I"]
    mix: Float[Array, "H 2*I*H"]
    biases: Float[Array, "H M+I"]
    low: Float[Array, " H"]


def network(world: Any, num_hot: int, num_active: int, pieces: int) -> Perceptron:
    """The network of two hidden layers, with so many pieces for each square, for a teacher whose z is divided by
    sqrt(num_hot) and has at most `num_active` weights in [0, 1] that are not 0."""
    require(pieces >= 1, f"a square has at least 1 piece, got {pieces}")
    squares, mix, biases, low = terms(world, num_hot, num_active)
    # Knots on the right of 0; those on the left are their mirror images. A slope grows by 4/n, at 0 by 2/n a side.
    knots = np.arange(pieces % 2, pieces - 1, 2) / pieces
    bends = np.where(knots == 0, 2, 4) / pieces
    sides, num = jnp.concatenate([squares, -squares]), 2 * len(squares)
    into = jnp.repeat(jnp.concatenate([mix, mix], axis=1), len(knots), axis=1) * np.tile(bends, num)
    return stacked(
        (
            jnp.concatenate([jnp.repeat(sides, len(knots), axis=0), biases]),
            join(-np.tile(knots, num), low),
        ),
        (jnp.concatenate([into, jnp.eye(len(low))], axis=1), -low),
        (world.readout.T, jnp.zeros(world.readout.shape[1])),
    )


def widths(d_input: int, d_hidden: int, pieces: int) -> tuple[int, int]:
    """The hidden layers of that network: 2 I H squares of n - 1 ReLUs for an odd n and of n for an even one, then the
    teacher's biases; and the teacher's own hidden units."""
    return 2 * d_input * d_hidden * (pieces - pieces % 2) + d_hidden, d_hidden


def terms(world: Any, num_hot: int, num_active: int) -> Terms:
    """What the networks of squares stand on."""
    weights, biases = effective(world, num_hot)
    d_input, d_hidden, num_modules = weights.shape
    most = jnp.maximum(reach(weights, num_active), reach(-weights, num_active))
    of_z = weights / jnp.where(most > 0, most, 1.0)[:, :, None]
    of_x = jnp.broadcast_to(jnp.eye(d_input)[:, None, :], (*most.shape, d_input))
    pair = [jnp.concatenate([of_z, sign * of_x], axis=2) / 2 for sign in (1, -1)]
    of_hidden = (most[:, :, None] * jnp.eye(d_hidden)).reshape(-1, d_hidden).T
    squares = jnp.stack(pair).reshape(-1, num_modules + d_input)
    mix = jnp.concatenate([of_hidden, -of_hidden], axis=1)
    return Terms(squares, mix, on_code(biases, d_input), reach(-biases, num_active))


def effective(world: Any, num_hot: int) -> tuple[Float[Array, "I H M"], Float[Array, "H M"]]:
    """The modules' weights and biases as the teacher adds them up, the sum over modules last."""
    layers = len(getattr(world, "modules", ()))
    told = f"the construction is for a hyperteacher of one hidden layer, got {layers or 'another family'}"
    require(layers == 1, f"{told}: set family=Hyperteacher(num_layers=1)")
    share = math.sqrt(num_hot)
    return world.modules[0].transpose(1, 2, 0) / share, world.biases[0].T / share


def reach(values: Float[Array, "... M"], num: int) -> Float[Array, "..."]:
    """The most that a sum of z_m values_m can be with at most so many z_m in [0, 1] that are not 0."""
    return jax.lax.top_k(jax.nn.relu(values), min(num, values.shape[-1]))[0].sum(axis=-1)


def on_code(rows: Float[Array, "n M"], d_input: int) -> Float[Array, "n M+I"]:
    """Rows on z as rows on (z, x)."""
    return jnp.concatenate([rows, jnp.zeros((len(rows), d_input))], axis=1)


def join(*parts: Array | np.ndarray) -> Array:
    """One vector of several."""
    return jnp.concatenate([jnp.asarray(part) for part in parts])


def stacked(*layers: tuple[Array, Array]) -> Perceptron:
    """An ordinary network of these weights and biases."""
    made = []
    for weight, bias in layers:
        blank = eqx.filter_eval_shape(
            eqx.nn.Linear, weight.shape[1], weight.shape[0], key=new_key(0)
        )
        made.append(eqx.tree_at(lambda layer: (layer.weight, layer.bias), blank, (weight, bias)))
    return Perceptron(tuple(made), None)
