"""Train a network to remove noise from scenes, and let it make images of codes.

    noisy = cos(t pi/2) image + sin(t pi/2) noise,   t from 0 to 1;     loss = |noise - predicted|^2

Every image of training is drawn anew, of codes that are in training alike often. Images are made with DDIM, without
noise on the way and without guidance, by the mean of the weights over the last steps of training.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from recombine.images.scenes import SIDE, Scenes
from recombine.images.unet import UNet
from recombine.random import new_key

KEEP = 0.998  # of the mean of the weights, at each step
RATE = 2e-3
MOST = 512  # images that are made at once
LAST = 0.995  # the noise level that making an image begins with


def level(t: Array) -> tuple[Array, Array]:
    """How much image and how much noise there is at a level."""
    return jnp.cos(t * jnp.pi / 2), jnp.sin(t * jnp.pi / 2)


def loss(net: UNet, key: PRNGKeyArray, scenes: Scenes, codes: Array, num_codes: Array, batch: int) -> Array:
    """The mean squared error of the predicted noise, on fresh images of the first `num_codes` codes."""
    which, draw, hide, when = jax.random.split(key, 4)
    code = codes[jax.random.randint(which, (batch,), 0, num_codes)]
    image = jax.vmap(scenes.draw)(jax.random.split(draw, batch), code)
    noise = jax.random.normal(hide, image.shape)
    t = (jnp.arange(batch) + jax.random.uniform(when, (batch,))) / batch  # one level in each of `batch` equal parts
    share, much = (part[:, None, None, None] for part in level(t))
    predicted, _ = jax.vmap(net)(share * image + much * noise, t, code)
    return jnp.mean((predicted - noise) ** 2)


def train(
    scenes: Scenes, trained: np.ndarray, width: int, seed: int, num_steps: int, batch: int, stops: Sequence[int] = ()
) -> dict[int, UNet]:
    """The network at each of the stops and at the end, trained on these combinations: the mean of its weights."""
    total, key = len(scenes.codes), new_key(seed)
    # Filled up to the number of all: students of any number of combinations share a program.
    codes = jnp.array(scenes.codes[np.resize(trained, total)])
    params, static = eqx.partition(UNet(jax.random.fold_in(key, 0), width, scenes.codes.shape[1]), eqx.is_inexact_array)
    state = params, jax.tree.map(jnp.copy, params), _optimizer(num_steps).init(params), jnp.int32(0)
    found: dict[int, UNet] = {}
    for stop in sorted({*stops, num_steps}):
        while (left := stop - int(state[3])) > 0:
            state = _advance(
                state, static, key, codes, jnp.int32(len(trained)), scenes, num_steps, batch, min(left, 500)
            )
        found[stop] = eqx.combine(jax.tree.map(jnp.copy, state[1]), static)
    return found


def _optimizer(num_steps: int) -> optax.GradientTransformation:
    rate = optax.warmup_cosine_decay_schedule(0, RATE, min(200, num_steps // 5 + 1), num_steps + 1, RATE / 50)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))


@eqx.filter_jit
def _advance(
    state: Any, static: Any, key: Any, codes: Any, num_codes: Any, scenes: Any, num_steps: int, batch: int, count: int
) -> Any:
    optimizer = _optimizer(num_steps)

    def step(state: Any, _: None) -> Any:
        params, mean, moments, i = state
        gradient = jax.grad(
            lambda p: loss(eqx.combine(p, static), jax.random.fold_in(key, i + 1), scenes, codes, num_codes, batch)
        )
        update, moments = optimizer.update(gradient(params), moments, params)
        params = optax.apply_updates(params, update)
        keep = jnp.minimum(KEEP, (i + 1) / (i + 10))
        mean = jax.tree.map(lambda m, p: keep * m + (1 - keep) * p, mean, params)
        return (params, mean, moments, i + 1), None

    return jax.lax.scan(step, state, None, count)[0]


def sample(
    net: UNet, codes: np.ndarray, seed: int, num_steps: int = 50, kept: Sequence[float] = (0.5,)
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Images of the codes, and the activations on the way, by layer and fraction of the steps that were done."""
    images, parts = [], []
    for start in range(0, len(codes), MOST):
        some = jnp.asarray(codes[start : start + MOST])
        short = MOST - len(some) if len(codes) > MOST else 0
        key = jax.random.fold_in(new_key(seed), start)
        image, seen = _sampled(net, jnp.pad(some, ((0, short), (0, 0))), key, num_steps, tuple(kept))
        images.append(np.asarray(image)[: len(some)])
        parts.append({name: np.asarray(value)[: len(some)] for name, value in seen.items()})
    return np.concatenate(images), {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@eqx.filter_jit
def _sampled(net: UNet, codes: Array, key: PRNGKeyArray, num_steps: int, kept: tuple[float, ...]) -> Any:
    image = jax.random.normal(key, (len(codes), SIDE, SIDE, 3))
    levels = jnp.linspace(LAST, 0.0, num_steps + 1)

    def step(image: Array, ends: tuple[Array, Array]) -> tuple[Array, dict[str, Array]]:
        now, then = ends
        noise, seen = jax.vmap(net, (0, None, 0))(image, now, codes)
        share, much = level(now)
        clean = jnp.clip((image - much * noise) / share, -1, 1)
        noise = (image - share * clean) / much
        share, much = level(then)
        return share * clean + much * noise, seen

    image, seen = jax.lax.scan(step, image, (levels[:-1], levels[1:]))
    places = [min(round(fraction * num_steps), num_steps - 1) for fraction in kept]
    return image, {f"{name}@{f:g}": value[i] for name, value in seen.items() for f, i in zip(kept, places, strict=True)}
