"""A small U-Net that tells what a noisy image shows, told how noisy it is and what the scene's code is.

Two by two pixels are one place. There are two resolutions with two residual blocks each, on the way down and on the way
up, and attention at the lower one. What it is told enters every block as a scale and a shift of its channels, either
as one (`Together`) or each factor by itself, summed (`Apart`: as Okawa et al. 2310.09336 tell theirs). Every level's
activations, averaged over the image, are what a probe reads.

Convolutions are matrix products of patches: many networks of one shape then train side by side as batched products,
where convolutions would be grouped ones, which are slow. On a GPU the products are of bfloat16, all else is float32.
"""

import itertools
from collections.abc import Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from recombine.parts.linear_layer import linear

GROUPS = 8
WAVES = 32  # frequencies that tell the noise level
PATCH = 2  # pixels of a place, each way
HEADS = 4


def product(x: Float[Array, "*places a"], weight: Float[Array, "a b"]) -> Float[Array, "*places b"]:
    """The matrix product, of bfloat16 on a GPU."""
    kind = jnp.bfloat16 if jax.default_backend() == "gpu" else jnp.float32
    return jnp.dot(x.astype(kind), weight.astype(kind)).astype(jnp.float32)


class Conv(eqx.Module):
    """A convolution of odd side: the product of every place's neighbourhood with a matrix."""

    weight: Array
    bias: Array
    side: int = eqx.field(static=True)

    def __init__(
        self, key: PRNGKeyArray, d_in: int, d_out: int, side: int = 3, scale: float = 1.0
    ) -> None:
        self.side = side
        self.weight = scale * jax.nn.initializers.lecun_normal()(key, (side * side * d_in, d_out))
        self.bias = jnp.zeros(d_out)

    def __call__(self, x: Float[Array, "h w a"]) -> Float[Array, "h w b"]:
        """What the layer makes of the channels."""
        reach, (height, width, _) = self.side // 2, x.shape
        x = (
            x.astype(jnp.bfloat16) if jax.default_backend() == "gpu" else x
        )  # patches are most of the memory
        padded = jnp.pad(x, ((reach, reach), (reach, reach), (0, 0)))
        places = [(i, j) for i in range(self.side) for j in range(self.side)]
        near = [padded[i : i + height, j : j + width] for i, j in places]
        return product(jnp.concatenate(near, axis=-1), self.weight) + self.bias


class Norm(eqx.Module):
    """Channels in groups, each of mean 0 and variance 1 over the image, then scaled and shifted."""

    weight: Array
    bias: Array

    def __init__(self, width: int) -> None:
        self.weight, self.bias = jnp.ones(width), jnp.zeros(width)

    def __call__(self, x: Float[Array, "h w c"]) -> Float[Array, "h w c"]:
        """The same image, normed."""
        parts = x.reshape(-1, GROUPS, x.shape[-1] // GROUPS)
        parts = parts - parts.mean((0, 2), keepdims=True)
        parts = parts * jax.lax.rsqrt(jnp.square(parts).mean((0, 2), keepdims=True) + 1e-5)
        return parts.reshape(x.shape) * self.weight + self.bias


class Block(eqx.Module):
    """Two convolutions on a residual path, with what is told between them."""

    norms: tuple[Norm, Norm]
    first: Conv
    second: Conv
    told: eqx.nn.Linear
    around: Conv | None

    def __init__(self, key: PRNGKeyArray, d_in: int, d_out: int, d_told: int) -> None:
        keys = jax.random.split(key, 4)
        self.norms = Norm(d_in), Norm(d_out)
        self.first = Conv(keys[0], d_in, d_out)
        self.second = Conv(keys[1], d_out, d_out, scale=0.1)  # begin near the identity
        self.told = linear(keys[2], d_told, 2 * d_out)
        self.around = None if d_in == d_out else Conv(keys[3], d_in, d_out, side=1)

    def __call__(
        self, x: Float[Array, "h w c"], told: Float[Array, " told"]
    ) -> Float[Array, "h w d"]:
        """What the block makes of the channels."""
        scale, shift = jnp.split(self.told(told), 2)
        h = self.first(jax.nn.silu(self.norms[0](x)))
        h = self.second(jax.nn.silu(self.norms[1](h) * (1 + scale) + shift))
        return h + (x if self.around is None else self.around(x))


class Attention(eqx.Module):
    """Every place looks at every other, on a residual path."""

    norm: Norm
    look: Array
    out: Array

    def __init__(self, key: PRNGKeyArray, width: int) -> None:
        draw, keys = jax.nn.initializers.lecun_normal(), jax.random.split(key)
        self.norm, self.look, self.out = (
            Norm(width),
            draw(keys[0], (width, 3 * width)),
            draw(keys[1], (width, width)),
        )

    def __call__(self, x: Float[Array, "h w c"]) -> Float[Array, "h w c"]:
        """What a look around makes of the channels."""
        parts = product(self.norm(x).reshape(-1, x.shape[-1]), self.look)
        query, key, value = (
            part.reshape(len(part), HEADS, -1) for part in jnp.split(parts, 3, axis=-1)
        )
        seen = jax.nn.dot_product_attention(query[None], key[None], value[None])[0]
        return x + product(seen.reshape(x.shape), self.out)


class Together(eqx.Module):
    """The noise level and the whole code as one vector: what a factor does may depend on all others."""

    noise: eqx.nn.Linear
    code: eqx.nn.Linear
    both: eqx.nn.Linear

    def __init__(self, keys: Iterator[PRNGKeyArray], blocks: Sequence[int], d_told: int) -> None:
        self.noise = linear(next(keys), 2 * WAVES, d_told)
        self.code = linear(next(keys), sum(blocks), d_told)
        self.both = linear(next(keys), d_told, d_told)

    def __call__(
        self, waves: Float[Array, " waves"], code: Float[Array, " code"]
    ) -> Float[Array, " told"]:
        """What blocks are told."""
        return jax.nn.silu(self.both(jax.nn.silu(self.noise(waves) + self.code(code))))


class Apart(eqx.Module):
    """The sum of a vector of the noise level and one of each factor: no factor changes what another one adds."""

    first: tuple[eqx.nn.Linear, ...]
    then: tuple[eqx.nn.Linear, ...]
    ends: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, keys: Iterator[PRNGKeyArray], blocks: Sequence[int], d_told: int) -> None:
        sizes = (2 * WAVES, *blocks)
        own = jax.random.split(next(keys), (len(sizes), 2))
        self.ends = tuple(itertools.accumulate(sizes))[:-1]
        self.first = tuple(linear(own[i, 0], size, d_told) for i, size in enumerate(sizes))
        self.then = tuple(linear(own[i, 1], d_told, d_told) for i in range(len(sizes)))

    def __call__(
        self, waves: Float[Array, " waves"], code: Float[Array, " code"]
    ) -> Float[Array, " told"]:
        """What blocks are told."""
        parts = jnp.split(jnp.concatenate([waves, code]), self.ends)
        told = [
            then(jax.nn.silu(first(part)))
            for first, then, part in zip(self.first, self.then, parts, strict=True)
        ]
        return jnp.stack(told).sum(0)


TELL = {"together": Together, "apart": Apart}


class UNet(eqx.Module):
    """The network; called with one image, its noise level from 0 to 1 and the code, whose factors have `blocks` numbers
    each."""

    inlet: Conv
    down: tuple[tuple[Block, Block], ...]
    middle: Block
    attention: Attention
    up: tuple[tuple[Block, Block], ...]
    outlet: tuple[Norm, Conv]
    tell: Together | Apart

    def __init__(
        self, key: PRNGKeyArray, width: int, blocks: Sequence[int], told: str = "together"
    ) -> None:
        keys = iter(jax.random.split(key, 16))
        d_told, colours, low = 4 * width, 3 * PATCH * PATCH, 2 * width
        self.tell = TELL[told](keys, blocks, d_told)

        def two(d_in: int, d_out: int) -> tuple[Block, Block]:
            return Block(next(keys), d_in, d_out, d_told), Block(next(keys), d_out, d_out, d_told)

        self.inlet = Conv(next(keys), colours, width)
        self.down = two(width, width), two(width, low)
        self.middle = Block(next(keys), low, low, d_told)
        self.attention = Attention(next(keys), low)
        self.up = two(low + width, width), two(low + low, low)
        self.outlet = Norm(width), Conv(next(keys), width, colours, scale=0.0)  # begin with 0

    def __call__(
        self,
        image: Float[Array, "side side 3"],
        noise: Float[Array, ""],
        code: Float[Array, " code"],
    ) -> tuple[Float[Array, "side side 3"], dict[str, Array]]:
        """The image without its noise, and every level's activations in the mean over the image."""
        angle = noise * 1000 * jnp.exp(-jnp.log(1e4) * jnp.arange(WAVES) / WAVES)
        waves = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)])
        told = self.tell(waves, code)
        h, kept, seen = self.inlet(together(image)), [], {}
        for i, blocks in enumerate(self.down):
            h = halved(h) if i else h
            for block in blocks:
                h = block(h, told)
            kept.append(h)
            seen[f"down{i}"] = h.mean((0, 1))
        h = self.attention(self.middle(h, told))
        seen["middle"] = h.mean((0, 1))
        for i in reversed(range(len(self.up))):
            h = jnp.concatenate(
                [h if h.shape[:2] == kept[i].shape[:2] else _doubled(h), kept[i]], axis=-1
            )
            for block in self.up[i]:
                h = block(h, told)
            seen[f"up{i}"] = h.mean((0, 1))
        norm, conv = self.outlet
        return _apart(conv(jax.nn.silu(norm(h)))), seen


def together(image: Float[Array, "h w c"]) -> Array:
    """Pixels of a place as its channels."""
    height, width, c = image.shape
    parts = image.reshape(height // PATCH, PATCH, width // PATCH, PATCH, c).transpose(0, 2, 1, 3, 4)
    return parts.reshape(height // PATCH, width // PATCH, PATCH * PATCH * c)


def _apart(h: Float[Array, "h w c"]) -> Array:
    """A place's channels as its pixels."""
    height, width, c = h.shape
    parts = h.reshape(height, width, PATCH, PATCH, c // PATCH**2).transpose(0, 2, 1, 3, 4)
    return parts.reshape(height * PATCH, width * PATCH, c // PATCH**2)


def halved(h: Float[Array, "h w c"]) -> Array:
    """The mean of two by two places."""
    height, width, c = h.shape
    return h.reshape(height // 2, 2, width // 2, 2, c).mean((1, 3))


def _doubled(h: Float[Array, "h w c"]) -> Array:
    return h.repeat(2, axis=0).repeat(2, axis=1)
