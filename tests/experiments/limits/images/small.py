"""A network with the U-Net's face that compiles at once."""

import equinox as eqx
import jax
import jax.numpy as jnp


class Small(eqx.Module):
    """The noise is a share of the image, by its level, less a colour for each code."""

    share: jax.Array
    colour: jax.Array

    def __init__(self, key, width, blocks, told="together"):
        self.share = 0.1 * jax.random.normal(key, (width,))
        self.colour = jnp.zeros((sum(blocks), 3))

    def __call__(self, image, noise, code):
        near = jnp.exp(-((8 * (noise - jnp.linspace(0, 1, len(self.share)))) ** 2))
        told = code @ self.colour
        mean = jnp.concatenate([image.mean((0, 1)), told, code])
        return (near @ self.share) * (image - told), {"down0": mean, "up0": 2 * mean + noise}
