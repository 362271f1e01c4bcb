"""A small U-Net that predicts the noise in an image, told how noisy it is and what the scene's code is.

Three resolutions, two residual blocks at each, attention at the lowest. What it is told enters every block as a scale
and a shift of its channels. Every block's activations, averaged over the image, are what a probe reads.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

GROUPS = 8
WAVES = 32  # frequencies that tell the noise level


class Block(eqx.Module):
    """Two convolutions on a residual path, with what is told between them."""

    norms: tuple[eqx.nn.GroupNorm, eqx.nn.GroupNorm]
    first: eqx.nn.Conv2d
    second: eqx.nn.Conv2d
    told: eqx.nn.Linear
    around: eqx.nn.Conv2d | None

    def __init__(self, key: PRNGKeyArray, d_in: int, d_out: int, d_told: int) -> None:
        keys = jax.random.split(key, 4)
        self.norms = eqx.nn.GroupNorm(GROUPS, d_in), eqx.nn.GroupNorm(GROUPS, d_out)
        self.first = eqx.nn.Conv2d(d_in, d_out, 3, padding=1, key=keys[0])
        second = eqx.nn.Conv2d(d_out, d_out, 3, padding=1, key=keys[1])
        self.second = eqx.tree_at(lambda conv: conv.weight, second, 0.1 * second.weight)  # begin near the identity
        self.told = eqx.nn.Linear(d_told, 2 * d_out, key=keys[2])
        self.around = None if d_in == d_out else eqx.nn.Conv2d(d_in, d_out, 1, key=keys[3])

    def __call__(self, x: Float[Array, "c h w"], told: Float[Array, " told"]) -> Float[Array, "d h w"]:
        """What the block makes of the channels."""
        scale, shift = jnp.split(self.told(told)[:, None, None], 2)
        h = self.first(jax.nn.silu(self.norms[0](x)))
        h = self.second(jax.nn.silu(self.norms[1](h) * (1 + scale) + shift))
        return h + (x if self.around is None else self.around(x))


class UNet(eqx.Module):
    """The network; called with one image, its noise level from 0 to 1 and the code."""

    inlet: eqx.nn.Conv2d
    down: tuple[tuple[Block, Block], ...]
    middle: Block
    attention: eqx.nn.MultiheadAttention
    up: tuple[tuple[Block, Block], ...]
    outlet: tuple[eqx.nn.GroupNorm, eqx.nn.Conv2d]
    tell: tuple[eqx.nn.Linear, eqx.nn.Linear, eqx.nn.Linear]

    def __init__(self, key: PRNGKeyArray, width: int, d_code: int) -> None:
        keys = iter(jax.random.split(key, 32))
        widths, d_told = (width, 2 * width, 2 * width), 4 * width
        self.tell = (
            eqx.nn.Linear(2 * WAVES, d_told, key=next(keys)),
            eqx.nn.Linear(d_code, d_told, key=next(keys)),
            eqx.nn.Linear(d_told, d_told, key=next(keys)),
        )
        self.inlet = eqx.nn.Conv2d(3, width, 3, padding=1, key=next(keys))
        before = (width, *widths[:-1])
        self.down = tuple(
            (Block(next(keys), a, b, d_told), Block(next(keys), b, b, d_told))
            for a, b in zip(before, widths, strict=True)
        )
        self.middle = Block(next(keys), widths[-1], widths[-1], d_told)
        self.attention = eqx.nn.MultiheadAttention(4, widths[-1], key=next(keys))
        below = (*widths[1:], widths[-1])
        self.up = tuple(
            (Block(next(keys), a + b, b, d_told), Block(next(keys), b, b, d_told))
            for a, b in zip(below, widths, strict=True)
        )
        last = eqx.nn.Conv2d(width, 3, 3, padding=1, key=next(keys))
        self.outlet = eqx.nn.GroupNorm(GROUPS, width), eqx.tree_at(lambda conv: conv.weight, last, 0 * last.weight)

    def __call__(
        self, image: Float[Array, "side side 3"], noise: Float[Array, ""], code: Float[Array, " code"]
    ) -> tuple[Float[Array, "side side 3"], dict[str, Array]]:
        """The noise that is in the image, and every block's activations in the mean over the image."""
        angle = noise * 1000 * jnp.exp(-jnp.log(1e4) * jnp.arange(WAVES) / WAVES)
        waves = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)])
        told = jax.nn.silu(self.tell[0](waves) + self.tell[1](code))
        told = jax.nn.silu(self.tell[2](told))
        h, kept, seen = self.inlet(image.transpose(2, 0, 1)), [], {}
        for i, blocks in enumerate(self.down):
            h = _halved(h) if i else h
            for block in blocks:
                h = block(h, told)
            kept.append(h)
            seen[f"down{i}"] = h.mean((1, 2))
        h = self.middle(h, told)
        tokens = h.reshape(h.shape[0], -1).T
        h = (tokens + self.attention(tokens, tokens, tokens)).T.reshape(h.shape)
        seen["middle"] = h.mean((1, 2))
        for i in reversed(range(len(self.up))):
            h = jnp.concatenate([h if h.shape[1:] == kept[i].shape[1:] else _doubled(h), kept[i]])
            for block in self.up[i]:
                h = block(h, told)
            seen[f"up{i}"] = h.mean((1, 2))
        norm, conv = self.outlet
        return conv(jax.nn.silu(norm(h))).transpose(1, 2, 0), seen


def _halved(h: Float[Array, "c h w"]) -> Array:
    c, height, width = h.shape
    return h.reshape(c, height // 2, 2, width // 2, 2).mean((2, 4))


def _doubled(h: Float[Array, "c h w"]) -> Array:
    return h.repeat(2, axis=1).repeat(2, axis=2)
