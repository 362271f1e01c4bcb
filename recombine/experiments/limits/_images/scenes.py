"""Synthetic scenes with known factors, drawn in JAX.

The code of a scene has its factors and nothing else: positions, brightness and the shade of the
background differ between drawings. Diffusion models are conditioned on codes, and a judge must
recover them from images.

    Things(shapes, colors, sizes)   one object; the code has one one-hot block for each factor
    Crowd(kinds, most)              up to `most` objects of different kinds; the code is multi-hot
    Cube(spread)                    a disc or an ellipse; flatness, blueness and size are numbers
"""

import functools
import itertools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jaxtyping import Array, Float, PRNGKeyArray

from recombine.basics.errors import require

SIDE = 28  # pixels
SHAPES = ("disc", "square", "triangle", "ring", "cross", "diamond")
COLOURS = {
    "red": (0.95, 0.15, 0.15),
    "blue": (0.15, 0.35, 0.95),
    "green": (0.1, 0.75, 0.25),
    "yellow": (0.95, 0.85, 0.1),
    "violet": (0.7, 0.2, 0.85),
    "white": (0.97, 0.97, 0.97),
}
SIZES = {"small": 4.4, "large": 9.2, "medium": 6.5}  # radius in pixels; the extremes come first
FLAT = 0.55  # an ellipse is lower than a disc by this fraction
CORNERS = np.array([(x, y) for y in (-1, 1) for x in (-1, 1)], np.float32) * SIDE / 4


def distance(shape: int, x: Array, y: Array, radius: Array) -> Array:
    """The signed distance of points to a shape around the origin (negative inside)."""
    u, v = jnp.abs(x), jnp.abs(y)
    return {
        "disc": lambda: jnp.hypot(x, y) - radius,
        "square": lambda: jnp.maximum(u, v) - 0.86 * radius,
        "triangle": lambda: jnp.maximum(0.89 * u - 0.45 * y, y) - 0.62 * radius,
        "ring": lambda: jnp.abs(jnp.hypot(x, y) - 0.72 * radius) - 0.28 * radius,
        "cross": lambda: jnp.maximum(jnp.minimum(u, v) - 0.3 * radius, jnp.maximum(u, v) - radius),
        "diamond": lambda: (u + v - 1.15 * radius) / 2**0.5,
    }[SHAPES[shape]]()


def _coverage(shape: Array, radius: Array, center: Float[Array, "2"]) -> Float[Array, "side side"]:
    """The share of every pixel that an object covers."""
    x, y = _relative_to(center)
    distances = [distance(i, x, y, radius) for i in range(len(SHAPES))]
    stacked = jnp.stack([jnp.broadcast_to(each, (SIDE, SIDE)) for each in distances])
    return jnp.clip(0.5 - stacked[shape], 0, 1)


def _relative_to(center: Float[Array, "2"]) -> tuple[Array, Array]:
    """The coordinates of all pixels relative to a point: a row of x and a column of y."""
    axis = jnp.arange(SIDE) - (SIDE - 1) / 2
    return axis[None, :] - center[0], axis[:, None] - center[1]


def _background(key: PRNGKeyArray) -> Array:
    """A dark gray background of a random shade."""
    return jnp.full((SIDE, SIDE, 3), jax.random.uniform(key, (), minval=0.0, maxval=0.12))


def _paint(background: Array, coverage: Array, color: Array) -> Array:
    return background * (1 - coverage[..., None]) + coverage[..., None] * color


@dataclass(frozen=True)
class Things:
    """One object: its shape, its color and its size."""

    num_shapes: int = 6
    num_colours: int = 6
    num_sizes: int = 3

    def __post_init__(self) -> None:
        for count, values in zip(self.blocks, (SHAPES, COLOURS, SIZES), strict=True):
            most = len(values)
            require(2 <= count <= most, f"a factor has 2 to {most} values, got {count}")

    @property
    def blocks(self) -> tuple[int, ...]:
        """The number of values of each factor; each is a one-hot block of the code."""
        return self.num_shapes, self.num_colours, self.num_sizes

    @functools.cached_property
    def values(self) -> np.ndarray:
        """All combinations, as the indices of the factors' values."""
        return np.array(list(itertools.product(*map(range, self.blocks))))

    @functools.cached_property
    def codes(self) -> np.ndarray:
        """The codes of all combinations."""
        factors = zip(self.blocks, self.values.T, strict=True)
        one_hot = [np.eye(size, dtype=np.float32)[indices] for size, indices in factors]
        return np.concatenate(one_hot, axis=1)

    @property
    def factors(self) -> pd.DataFrame:
        """The names of the values of all combinations, one row each."""
        shapes, colors, sizes = self.values.T
        return pd.DataFrame(
            {
                "shape": np.array(SHAPES)[shapes],
                "colour": np.array(list(COLOURS))[colors],
                "size": np.array(list(SIZES))[sizes],
            }
        )

    def vary(self, key: PRNGKeyArray, code: Float[Array, " code"]) -> Float[Array, " code"]:
        """The code of one drawing: here that of its combination."""
        return code

    def draw(self, key: PRNGKeyArray, code: Float[Array, " code"]) -> Float[Array, "side side 3"]:
        """One image of a code, from -1 to 1."""
        position_key, shade_key, light_key = jax.random.split(key, 3)
        first, second = np.cumsum(self.blocks)[:2]
        blocks = jnp.split(code, [int(first), int(second)])
        shape, color_index, size = (jnp.argmax(block) for block in blocks)
        radius = jnp.array(list(SIZES.values()))[size]
        max_offset = jnp.minimum(SIDE / 2 - radius - 1.5, 5)
        center = jax.random.uniform(position_key, (2,), minval=-1, maxval=1) * max_offset
        light = jax.random.uniform(light_key, (), minval=0.85)
        color = jnp.array(list(COLOURS.values()))[color_index] * light
        background = _background(shade_key)
        return 2 * _paint(background, _coverage(shape, radius, center), color) - 1


@dataclass(frozen=True)
class Crowd:
    """Up to `most` objects of different kinds, each in its own quarter of the image.

    A kind is a shape in a fixed color.
    """

    num_kinds: int = 12
    most: int = 3

    def __post_init__(self) -> None:
        require(
            2 <= self.num_kinds <= 36, f"there are 2 to 36 kinds of objects, got {self.num_kinds}"
        )
        require(
            1 <= self.most <= min(4, self.num_kinds),
            f"1 to 4 objects fit into an image, got {self.most}",
        )

    @property
    def blocks(self) -> tuple[int, ...]:
        """One binary entry per kind."""
        return (1,) * self.num_kinds

    @functools.cached_property
    def codes(self) -> np.ndarray:
        """The codes of all combinations."""
        kinds = np.arange(self.num_kinds)
        rows = []
        for count in range(1, self.most + 1):
            for chosen in itertools.combinations(range(self.num_kinds), count):
                rows.append(np.isin(kinds, chosen))
        return np.array(rows, np.float32)

    @property
    def factors(self) -> pd.DataFrame:
        """All combinations: one boolean column per kind."""
        names = [_kind(number) for number in range(self.num_kinds)]
        return pd.DataFrame(self.codes.astype(bool), columns=names)

    def vary(self, key: PRNGKeyArray, code: Float[Array, " code"]) -> Float[Array, " code"]:
        """The code of one drawing: here that of its combination."""
        return code

    def draw(self, key: PRNGKeyArray, code: Float[Array, " code"]) -> Float[Array, "side side 3"]:
        """One image of a code, from -1 to 1."""
        order_key, position_key, shade_key, light_key = jax.random.split(key, 4)
        kinds = jnp.argsort(-code, stable=True)[: self.most]  # present kinds come first
        is_present = code[kinds] > 0
        centers = jax.random.permutation(order_key, jnp.array(CORNERS))[: self.most]
        centers += jax.random.uniform(position_key, centers.shape, minval=-1, maxval=1)
        lights = jax.random.uniform(light_key, (self.most,), minval=0.85)
        image = _background(shade_key)
        for i in range(self.most):
            coverage = _coverage(kinds[i] % 6, jnp.float32(5.0), centers[i]) * is_present[i]
            color = jnp.array(list(COLOURS.values()))[(kinds[i] + kinds[i] // 6) % 6]
            image = _paint(image, coverage, color * lights[i])
        return 2 * image - 1


def _kind(number: int) -> str:
    """The name of a kind: its color and its shape."""
    return f"{list(COLOURS)[(number + number // 6) % 6]} {SHAPES[number % 6]}"


@dataclass(frozen=True)
class Cube:
    """A disc or a flat ellipse, red or blue, small or large (after Okawa et al. 2310.09336).

    Each attribute is a number: 0 or 1 for a combination, and within `spread` of that for a drawing.
    From values that vary a little a network can learn what a number means; 0 and 1 alone would only
    be names.
    """

    spread: float = 0.2
    blocks: ClassVar[tuple[int, ...]] = (1, 1, 1)
    values: ClassVar[np.ndarray] = np.array(list(itertools.product((0, 1), repeat=3)))
    factors: ClassVar[pd.DataFrame] = pd.DataFrame(
        [(("disc", "ellipse")[a], ("red", "blue")[b], ("small", "large")[c]) for a, b, c in values],
        columns=["shape", "colour", "size"],
    )
    codes: ClassVar[np.ndarray] = values.astype(np.float32)

    def __post_init__(self) -> None:
        require(
            0 <= self.spread < 0.5, f"spread must be at least 0 and below .5, got {self.spread}"
        )

    def vary(self, key: PRNGKeyArray, code: Float[Array, " code"]) -> Float[Array, " code"]:
        """The code of one drawing: flatness, blueness and size, near those of its combination."""
        own_key = jax.random.fold_in(key, 1)
        return code + jax.random.uniform(own_key, (3,), minval=-self.spread, maxval=self.spread)

    def draw(self, key: PRNGKeyArray, code: Float[Array, " code"]) -> Float[Array, "side side 3"]:
        """One image of a code, from -1 to 1."""
        position_key, shade_key = jax.random.split(key)
        flatness, blueness, size = code
        radius = SIZES["small"] + (SIZES["large"] - SIZES["small"]) * size
        height = radius * (1 - FLAT * flatness)
        red = jnp.array(COLOURS["red"])
        blue = jnp.array(COLOURS["blue"])
        color = jnp.clip(red + (blue - red) * blueness, 0, 1)
        max_offset = jnp.clip(SIDE / 2 - radius - 1.5, 0, 5)
        center = jax.random.uniform(position_key, (2,), minval=-1, maxval=1) * max_offset
        x, y = _relative_to(center)
        # The implicit function of the ellipse over its gradient: about the distance in pixels.
        level = jnp.hypot(x / radius, y / height)
        gradient = jnp.maximum(jnp.hypot(x / radius**2, y / height**2), 1e-6)
        edge_distance = level * (level - 1) / gradient
        return 2 * _paint(_background(shade_key), jnp.clip(0.5 - edge_distance, 0, 1), color) - 1


Scenes = Things | Crowd | Cube
