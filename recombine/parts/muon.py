"""Muon: momentum made orthogonal by Newton-Schulz, for the matrices of a network (Jordan 2024).

    X <- X / |X|,   then five times   G = X X^T,  X <- (a I + G (b I + c G)) X

As `optax.contrib.scale_by_muon`, which has no place for the two things that make it fast on a GPU: the iteration runs
in a type of choice, and all matrices of one shape are one batch.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # Jordan 2024: singular values end between 0.7 and 1.2
NUM_ITERATIONS = 5


def scale_by_muon(dtype: Any = jnp.float32, momentum: float = 0.95) -> optax.GradientTransformation:
    """Turn gradients of (out, in) matrices into orthogonal steps, longer by sqrt(out / in) for tall ones.

    A leaf with more axes is a stack of matrices.
    """

    def init(params):
        return jax.tree.map(jnp.zeros_like, params)

    def update(updates, state, params=None):
        del params
        state = jax.tree.map(lambda m, g: momentum * m + (1 - momentum) * g, state, updates)
        ahead = jax.tree.map(
            lambda m, g: momentum * m + (1 - momentum) * g, state, updates
        )  # Nesterov's
        leaves, tree = jax.tree.flatten(ahead)
        steps = list(leaves)
        for shape in {leaf.shape: None for leaf in leaves}:
            places = [i for i, leaf in enumerate(leaves) if leaf.shape == shape]
            stacked = jnp.stack([leaves[i] for i in places])
            orthogonal = orthogonalise(stacked.reshape(-1, *shape[-2:]), dtype).reshape(
                stacked.shape
            )
            for i, step in zip(
                places, orthogonal * max(1, shape[-2] / shape[-1]) ** 0.5, strict=True
            ):
                steps[i] = step
        return jax.tree.unflatten(tree, steps), state

    return optax.GradientTransformation(init, update)


def orthogonalise(
    x: Float[Array, "batch m n"], dtype: Any = jnp.float32
) -> Float[Array, "batch m n"]:
    """The same matrices with all singular values near 1."""
    if x.shape[1] > x.shape[2]:
        return orthogonalise(x.mT, dtype).mT
    a, b, c = COEFFICIENTS
    size = jnp.sqrt(jnp.square(x).sum(axis=(1, 2), keepdims=True))
    eye = jnp.eye(x.shape[1], dtype=dtype)
    y = (x / (size + 1e-8)).astype(dtype)
    for _ in range(
        NUM_ITERATIONS
    ):  # unrolled: a loop inside the vmapped step would keep XLA from fusing
        gram = y @ y.mT
        y = (a * eye + gram @ (b * eye + c * gram)) @ y
    return y.astype(x.dtype)
