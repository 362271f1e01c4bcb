"""Scenes of known parts, drawn in JAX: one object of a shape, a colour and a size, or several kinds of objects at once.

A scene's code says what is in it, and nothing else: where the objects are, how bright they are and the ground's shade
differ from drawing to drawing. Codes are what a diffusion model is told, and what a judge has to find in its images.

    Things(shapes, colours, sizes)    one object; the code is one one-hot block for each of three factors
    Crowd(kinds, most)                up to `most` objects of different kinds; the code marks the kinds that are there
    Cube(spread)                      a disc or an ellipse; how flat, how blue and how large it is are numbers
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
SIZES = {
    "small": 4.4,
    "large": 9.2,
    "medium": 6.5,
}  # half the side, in pixels; two of them: the extremes
FLAT = 0.55  # of its height that a flat ellipse lacks
CORNERS = np.array([(x, y) for y in (-1, 1) for x in (-1, 1)], np.float32) * SIDE / 4


def distance(shape: int, x: Array, y: Array, radius: Array) -> Array:
    """How far points are outside a shape around the origin (inside: below 0)."""
    u, v = jnp.abs(x), jnp.abs(y)
    return {
        "disc": lambda: jnp.hypot(x, y) - radius,
        "square": lambda: jnp.maximum(u, v) - 0.86 * radius,
        "triangle": lambda: jnp.maximum(0.89 * u - 0.45 * y, y) - 0.62 * radius,
        "ring": lambda: jnp.abs(jnp.hypot(x, y) - 0.72 * radius) - 0.28 * radius,
        "cross": lambda: jnp.maximum(jnp.minimum(u, v) - 0.3 * radius, jnp.maximum(u, v) - radius),
        "diamond": lambda: (u + v - 1.15 * radius) / 2**0.5,
    }[SHAPES[shape]]()


def _drawn(shape: Array, radius: Array, place: Float[Array, "2"]) -> Float[Array, "side side"]:
    """How much of every pixel an object covers, from 0 to 1."""
    axis = jnp.arange(SIDE) - (SIDE - 1) / 2
    x, y = axis[None, :] - place[0], axis[:, None] - place[1]
    every = jnp.stack(
        [jnp.broadcast_to(distance(i, x, y, radius), (SIDE, SIDE)) for i in range(len(SHAPES))]
    )
    return jnp.clip(0.5 - every[shape], 0, 1)


def _painted(ground: Array, cover: Array, colour: Array) -> Array:
    return ground * (1 - cover[..., None]) + cover[..., None] * colour


@dataclass(frozen=True)
class Things:
    """One object: its shape, its colour and its size."""

    num_shapes: int = 6
    num_colours: int = 6
    num_sizes: int = 3

    def __post_init__(self) -> None:
        for count, all_there in (
            (self.num_shapes, SHAPES),
            (self.num_colours, COLOURS),
            (self.num_sizes, SIZES),
        ):
            require(
                2 <= count <= len(all_there),
                f"a factor has 2 to {len(all_there)} values, got {count}",
            )

    @property
    def blocks(self) -> tuple[int, ...]:
        """How many values each factor has; in the code each is a one-hot block."""
        return self.num_shapes, self.num_colours, self.num_sizes

    @functools.cached_property
    def values(self) -> np.ndarray:
        """All combinations: the place of every factor's value."""
        return np.array(list(itertools.product(*map(range, self.blocks))))

    @functools.cached_property
    def codes(self) -> np.ndarray:
        """All combinations, as a model is told them."""
        return np.concatenate(
            [
                np.eye(n, dtype=np.float32)[v]
                for n, v in zip(self.blocks, self.values.T, strict=True)
            ],
            1,
        )

    @property
    def factors(self) -> pd.DataFrame:
        """All combinations by name, a line each."""
        names = [np.array(SHAPES), np.array(list(COLOURS)), np.array(list(SIZES))]
        columns = ("shape", "colour", "size")
        return pd.DataFrame(
            {c: n[v] for c, n, v in zip(columns, names, self.values.T, strict=True)}
        )

    def vary(self, key: PRNGKeyArray, code: Float[Array, " code"]) -> Float[Array, " code"]:
        """What is told of one drawing: here the code of its combination."""
        return code

    def draw(self, key: PRNGKeyArray, code: Float[Array, " code"]) -> Float[Array, "side side 3"]:
        """One image of a code, from -1 to 1."""
        place, shade, light = jax.random.split(key, 3)
        first, second = np.cumsum(self.blocks)[:2]
        shape, colour, size = (
            jnp.argmax(part) for part in jnp.split(code, [int(first), int(second)])
        )
        radius = jnp.array(list(SIZES.values()))[size]
        room = SIDE / 2 - radius - 1.5
        centre = jax.random.uniform(place, (2,), minval=-1, maxval=1) * jnp.minimum(room, 5)
        paint = jnp.array(list(COLOURS.values()))[colour] * jax.random.uniform(
            light, (), minval=0.85
        )
        ground = jnp.full((SIDE, SIDE, 3), jax.random.uniform(shade, (), minval=0.0, maxval=0.12))
        return 2 * _painted(ground, _drawn(shape, radius, centre), paint) - 1


@dataclass(frozen=True)
class Crowd:
    """Up to `most` objects, each of another kind (a shape in a colour of its own), each in a quarter of the image."""

    num_kinds: int = 12
    most: int = 3

    def __post_init__(self) -> None:
        require(
            2 <= self.num_kinds <= 36, f"there are 2 to 36 kinds of objects, got {self.num_kinds}"
        )
        require(
            1 <= self.most <= min(4, self.num_kinds), f"1 to 4 objects have room, got {self.most}"
        )

    @property
    def blocks(self) -> tuple[int, ...]:
        """Every kind is there or not: a code of ones and zeros."""
        return (1,) * self.num_kinds

    @functools.cached_property
    def codes(self) -> np.ndarray:
        """All combinations, as a model is told them."""
        sets = [
            s
            for n in range(1, self.most + 1)
            for s in itertools.combinations(range(self.num_kinds), n)
        ]
        return np.array([np.isin(np.arange(self.num_kinds), s) for s in sets], np.float32)

    @property
    def factors(self) -> pd.DataFrame:
        """All combinations by name: a column of booleans for each kind."""
        return pd.DataFrame(
            self.codes.astype(bool), columns=[_kind(i) for i in range(self.num_kinds)]
        )

    def vary(self, key: PRNGKeyArray, code: Float[Array, " code"]) -> Float[Array, " code"]:
        """What is told of one drawing: here the code of its combination."""
        return code

    def draw(self, key: PRNGKeyArray, code: Float[Array, " code"]) -> Float[Array, "side side 3"]:
        """One image of a code, from -1 to 1."""
        order, jitter, shade, light = jax.random.split(key, 4)
        kinds = jnp.argsort(-code, stable=True)[: self.most]
        there = code[kinds] > 0
        corners = jax.random.permutation(order, jnp.array(CORNERS))[: self.most]
        corners += jax.random.uniform(jitter, corners.shape, minval=-1, maxval=1)
        lights = jax.random.uniform(light, (self.most,), minval=0.85)
        image = jnp.full((SIDE, SIDE, 3), jax.random.uniform(shade, (), minval=0.0, maxval=0.12))
        for i in range(self.most):
            cover = _drawn(kinds[i] % 6, jnp.float32(5.0), corners[i]) * there[i]
            paint = jnp.array(list(COLOURS.values()))[(kinds[i] + kinds[i] // 6) % 6]
            image = _painted(image, cover, paint * lights[i])
        return 2 * image - 1


def _kind(place: int) -> str:
    return f"{list(COLOURS)[(place + place // 6) % 6]} {SHAPES[place % 6]}"


@dataclass(frozen=True)
class Cube:
    """A disc or a flat ellipse, red or blue, small or large: eight combinations (after Okawa et al. 2310.09336).

    Each is a number, 0 or 1 for a combination and within `spread` of that for a drawing: what a number stands for can
    be learnt of values that differ a little, where of 0 and 1 alone only names are learnt.
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
        """What is told of one drawing: how flat, blue and large it is, near to what its combination has."""
        return code + jax.random.uniform(
            jax.random.fold_in(key, 1), (3,), minval=-self.spread, maxval=self.spread
        )

    def draw(self, key: PRNGKeyArray, code: Float[Array, " code"]) -> Float[Array, "side side 3"]:
        """One image of a code, from -1 to 1."""
        place, shade = jax.random.split(key)
        flat, blueness, size = code
        radius = SIZES["small"] + (SIZES["large"] - SIZES["small"]) * size
        red, blue = (jnp.array(COLOURS[name]) for name in ("red", "blue"))
        paint = jnp.clip(red + (blue - red) * blueness, 0, 1)
        centre = jax.random.uniform(place, (2,), minval=-1, maxval=1) * jnp.clip(
            SIDE / 2 - radius - 1.5, 0, 5
        )
        ground = jnp.full((SIDE, SIDE, 3), jax.random.uniform(shade, (), maxval=0.12))
        axis = jnp.arange(SIDE) - (SIDE - 1) / 2
        x, y, height = axis[None] - centre[0], axis[:, None] - centre[1], radius * (1 - FLAT * flat)
        # How far out a point is, over how fast that grows there: about its distance from the edge, in pixels.
        out = jnp.hypot(x / radius, y / height)
        off = out * (out - 1) / jnp.maximum(jnp.hypot(x / radius**2, y / height**2), 1e-6)
        return 2 * _painted(ground, jnp.clip(0.5 - off, 0, 1), paint) - 1


Scenes = Things | Crowd | Cube
