"""Search for a network's largest error: dense sampling, then gradient ascent from the worst points.

The result is a lower bound on the largest error. All computations are in float64.
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

# The z that are searched. compact: at most K nonzero entries, each in [0, 1] (the set of Theorem
# 3.1). cube: all of [0, 1]^M. corners: entries of 0 or 1, at most K of them 1.
Where = Literal["compact", "cube", "corners"]
MAX_ACTIVATIONS = 4_000_000  # of the widest layer at a time during sampling: 32 MB
# Step sizes of the ascent. A step that does not increase the error is undone, and the next one is
# shorter.
FIRST_STEP = 0.1
GROWTH = 1.5
SHRINKAGE = 0.5


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
    """The largest error of any output, relative to the teacher, that the search finds."""
    with jax.enable_x64(True):
        net, world = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), (net, world))
        points, is_free = _draw(family, key, where, num_samples)
        return float(_search(net, world, points, is_free, family, num_starts, num_steps))


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _draw(family: Hyperteacher, key: PRNGKeyArray, where: Where, num: int) -> tuple[Array, Array]:
    """Uniform points (z, x) of the set, and 1 for each coordinate that the ascent may change."""
    order = jax.random.uniform(stream(key, "modules"), (num, family.num_modules)).argsort(axis=1)
    max_active = family.num_modules if where == "cube" else family.num_hot
    if where == "corners":
        num_active = jax.random.randint(stream(key, "hot"), (num, 1), 1, max_active + 1)
    else:
        num_active = jnp.full((num, 1), max_active)
    is_active = (order < num_active).astype(float)
    if where == "corners":
        z = is_active
        is_free_z = jnp.zeros_like(is_active)
    else:
        z = is_active * jax.random.uniform(stream(key, "weights"), is_active.shape)
        is_free_z = is_active
    x = jax.random.uniform(stream(key, "x"), (num, family.d_input), minval=-1.0)
    is_free = jnp.concatenate([is_free_z, jnp.ones_like(x)], axis=1)
    return jnp.concatenate([z, x], axis=1), is_free


@eqx.filter_jit
def _search(
    net: Perceptron,
    world: Teacher,
    points: Float[Array, "n M+I"],
    is_free: Float[Array, "n M+I"],
    family: Hyperteacher,
    num_starts: int,
    num_steps: int,
) -> Array:
    def errors(points: Float[Array, "n M+I"]) -> Float[Array, " n"]:
        z = points[:, : family.num_modules]
        x = points[:, family.num_modules :]
        target = jax.vmap(lambda z, x: family.teach(world, z, x[None])[0])(z, x)
        return jnp.abs(net.many(x[:, None], z)[0][:, 0] - target).max(axis=1)

    batches = points.reshape(-1, _batch_size(net, len(points)), points.shape[1])
    sampled = jax.lax.map(errors, batches).reshape(-1)
    worst = jax.lax.top_k(sampled, num_starts)[1]
    points = points[worst]
    is_free = is_free[worst]
    low = jnp.where(jnp.arange(points.shape[1]) < family.num_modules, 0.0, -1.0)

    def with_gradient(points: Float[Array, "n M+I"]) -> tuple[Array, Array]:
        values, pull_back = jax.vjp(errors, points)
        return values, pull_back(jnp.ones_like(values))[0]

    def ascend(state: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
        points, values, gradients, step = state
        moved = points + step[:, None] * jnp.sign(gradients) * is_free
        new_points = jnp.clip(moved, low, 1.0)
        new_values, new_gradients = with_gradient(new_points)
        is_higher = new_values > values
        points = jnp.where(is_higher[:, None], new_points, points)
        gradients = jnp.where(is_higher[:, None], new_gradients, gradients)
        values = jnp.where(is_higher, new_values, values)
        step = step * jnp.where(is_higher, GROWTH, SHRINKAGE)
        return (points, values, gradients, step), None

    start = (points, *with_gradient(points), jnp.full(num_starts, FIRST_STEP))
    (_, values, *_), _ = jax.lax.scan(ascend, start, length=num_steps)
    return values.max()


def _batch_size(net: Perceptron, num_points: int) -> int:
    """The points per batch: a power of two that divides their number.

    A smaller last batch would be compiled separately.
    """
    widest = max(layer.weight.shape[0] for layer in net.layers)
    max_points = max(1, MAX_ACTIVATIONS // widest)
    return math.gcd(1 << max_points.bit_length() - 1, num_points)
