"""Networks that draw an image: from the coordinates of a pixel to its value.

The inputs of a pixel are (x, y, 1.4 r, 1) with x and y in [-1, 1]. Hidden units have different
activation functions, as in the networks of arXiv 2505.11581. There are two hidden layers and no
biases; the input 1 takes their place.

A target is a sum of factors, each a ridge that is symmetric in x:

    I(x, y) = sum_f c_f exp(-(a_f |x| + b_f y + e_f)^2)

The factored solution is a network with one unit for each of |x|, y and 1, and one unit for each
factor.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

ACTIVATIONS = (lambda u: u, jnp.abs, lambda u: jnp.exp(-jnp.square(u)), jnp.sin)
IDENTITY, ABS, GAUSSIAN = 0, 1, 2
NUM_INPUTS = 4
LEARNING_RATE = 3e-3  # of the source
Weights = tuple[Array, Array, Array]


class Factors(NamedTuple):
    """The parameters of a target: one number of each kind for every factor."""

    amplitude: Array
    of_x: Array
    of_y: Array
    offset: Array


def pixels(size: int) -> Float[np.ndarray, "size*size 4"]:
    """The inputs of every pixel, row by row."""
    line = np.linspace(-1, 1, size)
    y, x = np.meshgrid(line, line, indexing="ij")
    columns = [x, y, 1.4 * np.sqrt(x**2 + y**2), np.ones_like(x)]
    return np.stack([column.ravel() for column in columns], axis=1)


def draw_factors(key: Any, num: int) -> Factors:
    """Ridges in random directions, which cross the image."""
    keys = jax.random.split(key, 4)
    angles = jax.random.uniform(keys[0], (num,), maxval=2 * jnp.pi)
    sharpness = jax.random.uniform(keys[1], (num,), minval=2.0, maxval=4.0)
    signs = jnp.where(jnp.arange(num) % 2 == 0, 1.0, -1.0)
    amplitude = signs * jax.random.uniform(keys[2], (num,), minval=0.5)
    of_x, of_y = sharpness * jnp.cos(angles), sharpness * jnp.sin(angles)
    # The ridge goes through a random point with |x| and y in [.1, .9] and [-.8, .8].
    point = jax.random.uniform(keys[3], (2, num))
    offset = -(of_x * (0.1 + 0.8 * point[0]) + of_y * (1.6 * point[1] - 0.8))
    return Factors(amplitude, of_x, of_y, offset)


def target(factors: Factors, inputs: Any) -> Float[Array, " pixels"]:
    """The image of the factors."""
    x, y = inputs[:, 0], inputs[:, 1]
    ridges = jnp.outer(jnp.abs(x), factors.of_x) + jnp.outer(y, factors.of_y) + factors.offset
    return jnp.exp(-jnp.square(ridges)) @ factors.amplitude


def image(weights: Weights, inputs: Any) -> Float[Array, " pixels"]:
    """The image that a network draws."""
    h = inputs
    for weight in weights[:-1]:
        h = _activate(h @ weight.T)
    return (h @ weights[-1].T)[:, 0]


def _activate(u: Array) -> Array:
    """Unit i has activation function i mod 4."""
    kinds = jnp.arange(u.shape[1]) % len(ACTIVATIONS)
    values = jnp.stack([function(u) for function in ACTIVATIONS])
    return jnp.take_along_axis(values, kinds[None, None], axis=0)[0]


def random_weights(key: Any, width: int) -> Weights:
    """Normal weights with variance 1 / inputs."""
    shapes = [(width, NUM_INPUTS), (width, width), (1, width)]
    keys = jax.random.split(key, len(shapes))
    first, second, last = (
        jax.random.normal(k, shape) / shape[1] ** 0.5 for k, shape in zip(keys, shapes, strict=True)
    )
    return first, second, last


def factored_weights(factors: Factors, width: int) -> Weights:
    """The factored solution. It needs a width of at least 4 per factor."""
    step = len(ACTIVATIONS)
    absolute, vertical, constant = ABS, IDENTITY, IDENTITY + step
    first = jnp.zeros((width, NUM_INPUTS))
    first = first.at[absolute, 0].set(1).at[vertical, 1].set(1).at[constant, 3].set(1)
    second, last = jnp.zeros((width, width)), jnp.zeros((1, width))
    units = GAUSSIAN + step * jnp.arange(len(factors.amplitude))
    second = second.at[units, absolute].set(factors.of_x).at[units, vertical].set(factors.of_y)
    second = second.at[units, constant].set(factors.offset)
    return first, second, last.at[0, units].set(factors.amplitude)


def train(start: Weights, mask: Weights, wanted: Any, inputs: Any, num_steps: int) -> Weights:
    """Adam with gradients of length 1 on all pixels, as in the source. Masked weights stay 0."""
    adam = optax.adam(LEARNING_RATE)
    weights: Any = jax.tree.map(jnp.multiply, start, mask)

    def loss(weights):
        return jnp.square(image(weights, inputs) - wanted).mean()

    def step(carry, _):
        weights, state = carry
        gradient = jax.tree.map(jnp.multiply, jax.grad(loss)(weights), mask)
        length = jnp.linalg.norm(ravel_pytree(gradient)[0])
        unit = jax.tree.map(lambda leaf: leaf / jnp.maximum(length, 1e-12), gradient)
        updates, state = adam.update(unit, state)
        return (optax.apply_updates(weights, updates), state), None

    (weights, _), _ = jax.lax.scan(step, (weights, adam.init(weights)), length=num_steps)
    return weights


def largest(weights: Weights, num: Any) -> Weights:
    """A mask that keeps the `num` weights with the largest absolute values."""
    flat, unravel = ravel_pytree(weights)
    ranks = jnp.argsort(jnp.argsort(-jnp.abs(flat)))
    return unravel((ranks < num).astype(flat.dtype))


def r2(weights: Weights, wanted: Any, inputs: Any) -> Array:
    """R2 of the image."""
    error = jnp.square(image(weights, inputs) - wanted).sum()
    return 1 - error / jnp.square(wanted - wanted.mean()).sum()


def changes(weights: Weights, directions: Any, inputs: Any) -> Float[Array, "n pixels"]:
    """The change of the image for every direction (n, weights) of the flat weights."""
    flat, unravel = ravel_pytree(weights)
    before = image(weights, inputs)
    return jax.vmap(lambda move: image(unravel(flat + move), inputs) - before)(directions)


def asymmetry(moves: Float[Array, "n pixels"], size: int) -> Float[Array, " n"]:
    """The symmetry violation |D - flip(D)|^2 / |D|^2 of changes D of an image: 0 to 4.

    For a symmetric image it equals that of the changed image, |J - flip(J)|^2 / |D|^2.
    """
    shaped = moves.reshape(-1, size, size)
    broken = jnp.square(shaped - shaped[:, :, ::-1]).sum(axis=(1, 2))
    return broken / jnp.maximum(jnp.square(moves).sum(axis=1), 1e-20)


def share_of_one_factor(
    moves: Float[Array, "n pixels"], factors: Factors, inputs: Any
) -> Float[Array, " n"]:
    """The largest share of a change that small changes of one factor's parameters explain."""
    jacobian = jax.jacobian(target)(factors, inputs)
    tangents = jnp.stack(jacobian, axis=2).transpose(1, 0, 2)  # factors, pixels, parameters
    bases = jnp.linalg.qr(tangents)[0]
    explained = jnp.square(jnp.einsum("fpk,np->fnk", bases, moves)).sum(axis=2).max(axis=0)
    return explained / jnp.maximum(jnp.square(moves).sum(axis=1), 1e-20)
