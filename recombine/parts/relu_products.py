"""Products as sums of ReLUs: the network that Theorem 3.1 of arXiv 2507.07207 constructs.

    w x = R (t+^2 - t-^2),   t+ = (w/R + x)/2,  t- = (w/R - x)/2,   |w| <= R,  |x| <= 1

A hyperteacher with one hidden layer multiplies effective weights w with inputs x. Each product is a
difference of two squares. The effective weights are linear in the module weights z, so t+ and t-
are linear in (z, x). A square is approximated by a piecewise linear function with equal pieces,
which is a sum of ReLUs. The proof is in `recombine/experiments/theory/_theorem_31.py`.

In shapes, I is the input size, H the hidden size and M the number of modules of the teacher.
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


class SquareTerms(NamedTuple):
    """The linear maps around the squares.

    `squares` computes every t from (z, x). `mix` sums the squares into the teacher's hidden units.
    `biases` computes the hidden units' biases from (z, x), and `low` is the largest absolute value
    that a negative bias can have.
    """

    squares: Float[Array, "2*I*H M+I"]
    mix: Float[Array, "H 2*I*H"]
    biases: Float[Array, "H M+I"]
    low: Float[Array, " H"]


def network(world: Any, num_hot: int, num_active: int, pieces: int) -> Perceptron:
    """Build the network with two hidden layers, using `pieces` linear pieces for each square.

    The teacher divides z by sqrt(`num_hot`). At most `num_active` entries of z are nonzero, all of
    them in [0, 1].
    """
    require(pieces >= 1, f"a square needs at least 1 piece, got {pieces}")
    squares, mix, biases, low = square_terms(world, num_hot, num_active)
    # Knots of the approximation on the right of 0; those on the left are their mirror images.
    # The slope grows by 4/n at a knot, and by 2/n on each side at 0.
    knots = np.arange(pieces % 2, pieces - 1, 2) / pieces
    slope_changes = np.where(knots == 0, 2, 4) / pieces
    both_sides = jnp.concatenate([squares, -squares])
    num_sides = 2 * len(squares)

    first_weight = jnp.concatenate([jnp.repeat(both_sides, len(knots), axis=0), biases])
    first_bias = jnp.concatenate([-np.tile(knots, num_sides), low])
    mix_both_sides = jnp.repeat(jnp.concatenate([mix, mix], axis=1), len(knots), axis=1)
    mix_relus = mix_both_sides * np.tile(slope_changes, num_sides)
    second_weight = jnp.concatenate([mix_relus, jnp.eye(len(low))], axis=1)
    return perceptron_from_layers(
        (first_weight, first_bias),
        (second_weight, -low),
        (world.readout.T, jnp.zeros(world.readout.shape[1])),
    )


def widths(d_input: int, d_hidden: int, pieces: int) -> tuple[int, int]:
    """The widths of the two hidden layers of `network`.

    The first has 2 I H squares, each of n ReLUs for an even number n of pieces and of n - 1 for an
    odd one, and then the teacher's biases. The second has the teacher's hidden units.
    """
    num_relus = pieces - pieces % 2
    return 2 * d_input * d_hidden * num_relus + d_hidden, d_hidden


def square_terms(world: Any, num_hot: int, num_active: int) -> SquareTerms:
    """Compute the linear maps around the squares for a teacher."""
    weights, biases = effective_weights(world, num_hot)
    d_input, d_hidden, num_modules = weights.shape
    bound = jnp.maximum(largest_sum(weights, num_active), largest_sum(-weights, num_active))  # R
    of_z = weights / jnp.where(bound > 0, bound, 1.0)[:, :, None]
    of_x = jnp.broadcast_to(jnp.eye(d_input)[:, None, :], (*bound.shape, d_input))
    plus_and_minus = [jnp.concatenate([of_z, sign * of_x], axis=2) / 2 for sign in (1, -1)]
    squares = jnp.stack(plus_and_minus).reshape(-1, num_modules + d_input)
    to_hidden = (bound[:, :, None] * jnp.eye(d_hidden)).reshape(-1, d_hidden).T
    mix = jnp.concatenate([to_hidden, -to_hidden], axis=1)
    low = largest_sum(-biases, num_active)
    return SquareTerms(squares, mix, pad_with_zero_inputs(biases, d_input), low)


def effective_weights(
    world: Any, num_hot: int
) -> tuple[Float[Array, "I H M"], Float[Array, "H M"]]:
    """The modules' weights and biases divided by sqrt(`num_hot`), with the module axis last."""
    num_layers = len(getattr(world, "modules", ()))
    require(
        num_layers == 1,
        "the construction needs a hyperteacher with one hidden layer, got "
        f"{num_layers or 'another family'}: set family=Hyperteacher(num_layers=1)",
    )
    divisor = math.sqrt(num_hot)
    return world.modules[0].transpose(1, 2, 0) / divisor, world.biases[0].T / divisor


def largest_sum(values: Float[Array, "... M"], num: int) -> Float[Array, "..."]:
    """The largest value of sum_m z_m values_m if at most `num` z_m are nonzero, all in [0, 1]."""
    return jax.lax.top_k(jax.nn.relu(values), min(num, values.shape[-1]))[0].sum(axis=-1)


def pad_with_zero_inputs(rows: Float[Array, "n M"], d_input: int) -> Float[Array, "n M+I"]:
    """Extend rows that act on the code z by zeros, so that they act on (z, x)."""
    return jnp.concatenate([rows, jnp.zeros((len(rows), d_input))], axis=1)


def perceptron_from_layers(*layers: tuple[Array, Array]) -> Perceptron:
    """A ReLU network with the given pairs of weights (out, in) and biases."""
    linear_layers = []
    for weight, bias in layers:
        d_out, d_in = weight.shape
        blank = eqx.filter_eval_shape(eqx.nn.Linear, d_in, d_out, key=new_key(0))
        linear_layers.append(
            eqx.tree_at(lambda layer: (layer.weight, layer.bias), blank, (weight, bias))
        )
    return Perceptron(tuple(linear_layers), None)
