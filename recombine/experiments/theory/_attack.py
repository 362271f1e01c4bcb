"""The search for a network's largest error: dense sampling, then gradient ascent from the worst points found.

What it finds is a lower bound of the largest error, whatever a proof says about an upper one. All is in float64.
"""

import functools
import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from recombine.parts.families.hyperteacher import Hyperteacher, Teacher
from recombine.parts.perceptron import Perceptron
from recombine.parts.prng import stream

# Which z are searched: those with at most K weights in [0, 1] (the compact set of Theorem 3.1), all of [0, 1]^M, or
# only zeros and ones, at most K of them.
Where = Literal["compact", "cube", "corners"]
BUDGET = 4_000_000  # activations of the widest layer at a time while sampling: 32 MB
# Of the ascent: a step that does not lead higher is taken back and made shorter.
FIRST_STEP, GROW, SHRINK = 0.1, 1.5, 0.5


def sup_error(
    net: Perceptron,
    family: Hyperteacher,
    world: Teacher,
    key: PRNGKeyArray,
    where: Where = "compact",
    num_samples: int = 4096,
    num_starts: int = 64,
    num_steps: int = 100,
) -> float:
    """The largest error of any output against the teacher that the search finds."""
    with jax.enable_x64(True):
        net, world = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), (net, world))
        points, moves = _draw(family, key, where, num_samples)
        return float(_search(net, world, points, moves, family, num_starts, num_steps))


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _draw(family: Hyperteacher, key: PRNGKeyArray, where: Where, num: int) -> tuple[Array, Array]:
    """Points (z, x) of the set, uniform, and which of their numbers may move: the others are held."""
    order = jax.random.uniform(stream(key, "modules"), (num, family.num_modules)).argsort(axis=1)
    most = family.num_modules if where == "cube" else family.num_hot
    hot = jnp.full((num, 1), most)
    if where == "corners":
        hot = jax.random.randint(stream(key, "hot"), (num, 1), 1, most + 1)
    active = (order < hot).astype(float)
    z = (
        active
        if where == "corners"
        else active * jax.random.uniform(stream(key, "weights"), active.shape)
    )
    x = jax.random.uniform(stream(key, "x"), (num, family.d_input), minval=-1.0)
    moves = jnp.concatenate([active * (where != "corners"), jnp.ones_like(x)], axis=1)
    return jnp.concatenate([z, x], axis=1), moves


@eqx.filter_jit
def _search(
    net: Perceptron,
    world: Teacher,
    points: Float[Array, "n M+I"],
    moves: Float[Array, "n M+I"],
    family: Hyperteacher,
    num_starts: int,
    num_steps: int,
) -> Array:
    def errors(points: Float[Array, "n M+I"]) -> Float[Array, " n"]:
        z, x = points[:, : family.num_modules], points[:, family.num_modules :]
        target = jax.vmap(lambda z, x: family.teach(world, z, x[None])[0])(z, x)
        return jnp.abs(net.many(x[:, None], z)[0][:, 0] - target).max(axis=1)

    at_once = max(1, BUDGET // max(layer.weight.shape[0] for layer in net.layers))
    at_once = math.gcd(
        1 << at_once.bit_length() - 1, len(points)
    )  # none is left over: the rest would be compiled too
    found = jax.lax.map(errors, points.reshape(-1, at_once, points.shape[1])).reshape(-1)
    worst = jax.lax.top_k(found, num_starts)[1]
    points, moves = points[worst], moves[worst]
    low = jnp.where(jnp.arange(points.shape[1]) < family.num_modules, 0.0, -1.0)

    def climb(points: Float[Array, "n M+I"]) -> tuple[Float[Array, " n"], Float[Array, "n M+I"]]:
        heights, back = jax.vjp(errors, points)
        return heights, back(jnp.ones_like(heights))[0]

    def ascend(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
        points, heights, slope, step = state
        tried = jnp.clip(points + step[:, None] * jnp.sign(slope) * moves, low, 1.0)
        reached, steeper = climb(tried)
        higher = reached > heights
        points, slope = (
            jnp.where(higher[:, None], *pair) for pair in ((tried, points), (steeper, slope))
        )
        return (
            points,
            jnp.where(higher, reached, heights),
            slope,
            step * jnp.where(higher, GROW, SHRINK),
        ), None

    start = points, *climb(points), jnp.full(num_starts, FIRST_STEP)
    (_, heights, *_), _ = jax.lax.scan(ascend, start, length=num_steps)
    return heights.max()
