"""A small U-Net that denoises an image, conditioned on the noise level and the code of the scene.

Patches of 2 x 2 pixels are the positions. There are two resolutions with two residual blocks each,
on the way down and on the way up, and attention at the lower one. The conditioning enters every
block as a scale and a shift of its channels. It is one embedding of all factors
(`JointConditioning`), or a sum of one embedding per factor (`SummedConditioning`, as in Okawa et
al. 2310.09336). Probes use the activations of every level, averaged over the image.

Convolutions are matrix products of patches. Many networks of one shape then train side by side as
batched products; grouped convolutions would be slow. On a GPU the products are in bfloat16 and
everything else is in float32. The names of the modules' fields are keys of saved networks.
"""

import itertools
from collections.abc import Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from recombine.parts.linear_layer import linear

GROUPS = 8
WAVES = 32  # frequencies that encode the noise level
PATCH = 2  # pixels of a patch, each way
HEADS = 4


def product(
    x: Float[Array, "*positions a"], weight: Float[Array, "a b"]
) -> Float[Array, "*positions b"]:
    """The matrix product, in bfloat16 on a GPU."""
    dtype = jnp.bfloat16 if jax.default_backend() == "gpu" else jnp.float32
    return jnp.dot(x.astype(dtype), weight.astype(dtype)).astype(jnp.float32)


class Conv(eqx.Module):
    """A convolution with an odd kernel size: a matrix product of every neighborhood."""

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
        """Apply the convolution, with zero padding."""
        margin = self.side // 2
        height, width, _ = x.shape
        if jax.default_backend() == "gpu":
            x = x.astype(jnp.bfloat16)  # the patches take most of the memory
        padded = jnp.pad(x, ((margin, margin), (margin, margin), (0, 0)))
        offsets = [(i, j) for i in range(self.side) for j in range(self.side)]
        neighbors = [padded[i : i + height, j : j + width] for i, j in offsets]
        return product(jnp.concatenate(neighbors, axis=-1), self.weight) + self.bias


class Norm(eqx.Module):
    """Group normalization over the image, with a learned scale and shift."""

    weight: Array
    bias: Array

    def __init__(self, width: int) -> None:
        self.weight = jnp.ones(width)
        self.bias = jnp.zeros(width)

    def __call__(self, x: Float[Array, "h w c"]) -> Float[Array, "h w c"]:
        """Normalize the channels."""
        parts = x.reshape(-1, GROUPS, x.shape[-1] // GROUPS)
        parts = parts - parts.mean((0, 2), keepdims=True)
        parts = parts * jax.lax.rsqrt(jnp.square(parts).mean((0, 2), keepdims=True) + 1e-5)
        return parts.reshape(x.shape) * self.weight + self.bias


class Block(eqx.Module):
    """Two convolutions on a residual path, with the conditioning between them."""

    norms: tuple[Norm, Norm]
    first: Conv
    second: Conv
    told: eqx.nn.Linear
    around: Conv | None

    def __init__(self, key: PRNGKeyArray, d_in: int, d_out: int, d_condition: int) -> None:
        keys = jax.random.split(key, 4)
        self.norms = Norm(d_in), Norm(d_out)
        self.first = Conv(keys[0], d_in, d_out)
        self.second = Conv(keys[1], d_out, d_out, scale=0.1)  # start near the identity
        self.told = linear(keys[2], d_condition, 2 * d_out)
        self.around = None if d_in == d_out else Conv(keys[3], d_in, d_out, side=1)

    def __call__(
        self, x: Float[Array, "h w c"], condition: Float[Array, " condition"]
    ) -> Float[Array, "h w d"]:
        """Apply the block."""
        scale, shift = jnp.split(self.told(condition), 2)
        h = self.first(jax.nn.silu(self.norms[0](x)))
        h = self.second(jax.nn.silu(self.norms[1](h) * (1 + scale) + shift))
        return h + (x if self.around is None else self.around(x))


class Attention(eqx.Module):
    """Self-attention over all positions, on a residual path."""

    norm: Norm
    look: Array
    out: Array

    def __init__(self, key: PRNGKeyArray, width: int) -> None:
        initialize = jax.nn.initializers.lecun_normal()
        keys = jax.random.split(key)
        self.norm = Norm(width)
        self.look = initialize(keys[0], (width, 3 * width))  # queries, keys and values
        self.out = initialize(keys[1], (width, width))

    def __call__(self, x: Float[Array, "h w c"]) -> Float[Array, "h w c"]:
        """Apply the attention."""
        parts = product(self.norm(x).reshape(-1, x.shape[-1]), self.look)
        query, key, value = (
            part.reshape(len(part), HEADS, -1) for part in jnp.split(parts, 3, axis=-1)
        )
        attended = jax.nn.dot_product_attention(query[None], key[None], value[None])[0]
        return x + product(attended.reshape(x.shape), self.out)


class JointConditioning(eqx.Module):
    """One embedding of the noise level and the code: factors may interact."""

    noise: eqx.nn.Linear
    code: eqx.nn.Linear
    both: eqx.nn.Linear

    def __init__(self, keys: Iterator[PRNGKeyArray], blocks: Sequence[int], d_out: int) -> None:
        self.noise = linear(next(keys), 2 * WAVES, d_out)
        self.code = linear(next(keys), sum(blocks), d_out)
        self.both = linear(next(keys), d_out, d_out)

    def __call__(
        self, waves: Float[Array, " waves"], code: Float[Array, " code"]
    ) -> Float[Array, " condition"]:
        """The conditioning of the blocks."""
        return jax.nn.silu(self.both(jax.nn.silu(self.noise(waves) + self.code(code))))


class SummedConditioning(eqx.Module):
    """The sum of one embedding of the noise level and one of each factor: they do not interact."""

    first: tuple[eqx.nn.Linear, ...]
    then: tuple[eqx.nn.Linear, ...]
    ends: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, keys: Iterator[PRNGKeyArray], blocks: Sequence[int], d_out: int) -> None:
        sizes = (2 * WAVES, *blocks)
        layer_keys = jax.random.split(next(keys), (len(sizes), 2))
        self.ends = tuple(itertools.accumulate(sizes))[:-1]
        self.first = tuple(linear(layer_keys[i, 0], size, d_out) for i, size in enumerate(sizes))
        self.then = tuple(linear(layer_keys[i, 1], d_out, d_out) for i in range(len(sizes)))

    def __call__(
        self, waves: Float[Array, " waves"], code: Float[Array, " code"]
    ) -> Float[Array, " condition"]:
        """The conditioning of the blocks."""
        parts = jnp.split(jnp.concatenate([waves, code]), self.ends)
        embeddings = [
            then(jax.nn.silu(first(part)))
            for first, then, part in zip(self.first, self.then, parts, strict=True)
        ]
        return jnp.stack(embeddings).sum(0)


CONDITIONINGS = {"joint": JointConditioning, "summed": SummedConditioning}


class UNet(eqx.Module):
    """The network; called with one image, its noise level from 0 to 1 and the code.

    `blocks` has the number of entries of each factor in the code.
    """

    inlet: Conv
    down: tuple[tuple[Block, Block], ...]
    middle: Block
    attention: Attention
    up: tuple[tuple[Block, Block], ...]
    outlet: tuple[Norm, Conv]
    tell: JointConditioning | SummedConditioning

    def __init__(
        self, key: PRNGKeyArray, width: int, blocks: Sequence[int], conditioning: str = "joint"
    ) -> None:
        keys = iter(jax.random.split(key, 16))
        d_condition = 4 * width
        d_patch = 3 * PATCH * PATCH
        low = 2 * width  # channels of the lower resolution
        self.tell = CONDITIONINGS[conditioning](keys, blocks, d_condition)

        def block(d_in: int, d_out: int) -> Block:
            return Block(next(keys), d_in, d_out, d_condition)

        def two_blocks(d_in: int, d_out: int) -> tuple[Block, Block]:
            return block(d_in, d_out), block(d_out, d_out)

        self.inlet = Conv(next(keys), d_patch, width)
        self.down = two_blocks(width, width), two_blocks(width, low)
        self.middle = block(low, low)
        self.attention = Attention(next(keys), low)
        self.up = two_blocks(low + width, width), two_blocks(low + low, low)
        self.outlet = Norm(width), Conv(next(keys), width, d_patch, scale=0.0)  # the output is 0

    def __call__(
        self,
        image: Float[Array, "side side 3"],
        noise: Float[Array, ""],
        code: Float[Array, " code"],
    ) -> tuple[Float[Array, "side side 3"], dict[str, Array]]:
        """The image without its noise, and the activations of every level, averaged over it."""
        angle = noise * 1000 * jnp.exp(-jnp.log(1e4) * jnp.arange(WAVES) / WAVES)
        waves = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)])
        condition = self.tell(waves, code)
        h = self.inlet(pixels_to_channels(image))
        skips = []
        activations = {}
        for i, blocks in enumerate(self.down):
            h = downsample(h) if i else h
            for block in blocks:
                h = block(h, condition)
            skips.append(h)
            activations[f"down{i}"] = h.mean((0, 1))
        h = self.attention(self.middle(h, condition))
        activations["middle"] = h.mean((0, 1))
        for i in reversed(range(len(self.up))):
            if h.shape[:2] != skips[i].shape[:2]:
                h = upsample(h)
            h = jnp.concatenate([h, skips[i]], axis=-1)
            for block in self.up[i]:
                h = block(h, condition)
            activations[f"up{i}"] = h.mean((0, 1))
        norm, conv = self.outlet
        return channels_to_pixels(conv(jax.nn.silu(norm(h)))), activations


def pixels_to_channels(image: Float[Array, "h w c"]) -> Array:
    """The pixels of each patch as the channels of one position."""
    height, width, c = image.shape
    parts = image.reshape(height // PATCH, PATCH, width // PATCH, PATCH, c).transpose(0, 2, 1, 3, 4)
    return parts.reshape(height // PATCH, width // PATCH, PATCH * PATCH * c)


def channels_to_pixels(h: Float[Array, "h w c"]) -> Array:
    """The channels of each position as the pixels of a patch: undoes `pixels_to_channels`."""
    height, width, c = h.shape
    parts = h.reshape(height, width, PATCH, PATCH, c // PATCH**2).transpose(0, 2, 1, 3, 4)
    return parts.reshape(height * PATCH, width * PATCH, c // PATCH**2)


def downsample(h: Float[Array, "h w c"]) -> Array:
    """The mean of every 2 x 2 positions."""
    height, width, c = h.shape
    return h.reshape(height // 2, 2, width // 2, 2, c).mean((1, 3))


def upsample(h: Float[Array, "h w c"]) -> Array:
    """Every position repeated 2 x 2 times."""
    return h.repeat(2, axis=0).repeat(2, axis=1)
