"""A judge of images: a small classifier of scenes, trained on drawings of all combinations.

It is independent of the diffusion models. Its accuracy on new drawings is reported with every
result.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from recombine.experiments.limits._images.scenes import SIDE, Scenes
from recombine.experiments.limits._images.unet import PATCH, Conv, downsample, pixels_to_channels
from recombine.parts.linear_layer import linear
from recombine.parts.prng import new_key
from recombine.training import device

WIDTH = 32
BATCH = 2048  # images in one call
NOISE = 0.1  # added to the drawings, so that the judge ignores faint traces


class Judge(eqx.Module):
    """Three convolutions of patches of 2 x 2 pixels, and two layers; called with one image.

    The names of the fields are keys of saved networks.
    """

    convs: tuple[Conv, ...]
    hidden: eqx.nn.Linear
    answer: eqx.nn.Linear

    def __init__(self, key: PRNGKeyArray, d_code: int) -> None:
        keys = jax.random.split(key, 5)
        widths = (3 * PATCH * PATCH, WIDTH, 2 * WIDTH, 2 * WIDTH)
        self.convs = tuple(Conv(k, a, b) for a, b, k in zip(widths, widths[1:], keys, strict=False))
        self.hidden = linear(keys[3], widths[-1] * (SIDE // 4) ** 2, 128)
        self.answer = linear(keys[4], 128, d_code)

    def __call__(self, image: Float[Array, "side side 3"]) -> Float[Array, " code"]:
        """The logits of the code."""
        h = pixels_to_channels(image)
        for i, conv in enumerate(self.convs):
            h = jax.nn.relu(conv(h))
            h = downsample(h) if i == 0 else h
        return self.answer(jax.nn.relu(self.hidden(h.ravel())))


def _by_factor(scenes: Scenes, logits: Array) -> list[Array]:
    return jnp.split(logits, np.cumsum(scenes.blocks)[:-1].tolist(), axis=-1)


def _loss(judge: Judge, scenes: Scenes, images: Array, codes: Array) -> Array:
    total = jnp.float32(0)
    logits = _by_factor(scenes, jax.vmap(judge)(images))
    for logit, code in zip(logits, _by_factor(scenes, codes), strict=True):
        is_binary = logit.shape[-1] == 1
        entropy = optax.sigmoid_binary_cross_entropy if is_binary else optax.softmax_cross_entropy
        total += jnp.mean(entropy(logit, code))
    return total / len(scenes.blocks)


def draw(scenes: Scenes, key: PRNGKeyArray, count: int, noise: float = 0.0) -> tuple[Array, Array]:
    """New drawings of random combinations, with their codes."""
    code_key, draw_key, noise_key = jax.random.split(key, 3)
    numbers = jax.random.randint(code_key, (count,), 0, len(scenes.codes))
    codes = jnp.array(scenes.codes)[numbers]
    keys = jax.random.split(draw_key, count)
    images = jax.vmap(scenes.draw)(keys, jax.vmap(scenes.vary)(keys, codes))
    return images + noise * jax.random.normal(noise_key, images.shape), codes


def train(scenes: Scenes, num_steps: int = 1500, batch: int = 256, seed: int = 0) -> Judge:
    """Train a judge of these scenes."""
    key = new_key(seed)
    optimizer = optax.adam(optax.cosine_decay_schedule(2e-3, num_steps))

    def step(i: Array, state: Any) -> Any:
        params, moments = state
        images, codes = draw(scenes, jax.random.fold_in(key, i + 1), batch, NOISE)
        gradient = jax.grad(_loss)(params, scenes, images, codes)
        update, moments = optimizer.update(gradient, moments)
        return optax.apply_updates(params, update), moments

    def fit() -> Any:
        params: Any = Judge(jax.random.fold_in(key, 0), scenes.codes.shape[1])
        return jax.lax.fori_loop(0, num_steps, step, (params, optimizer.init(params)))[0]

    program = jax.jit(fit).lower().compile(device.compiler_options())
    return jax.tree.map(np.asarray, program())


def is_correct(judge: Judge, scenes: Scenes, images: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Whether the judge finds each factor of the code in each image: images x factors."""
    parts = []
    for start in range(0, len(images), BATCH):
        logits = _logits(judge, jnp.asarray(images[start : start + BATCH]))
        batch_codes = jnp.asarray(codes[start : start + BATCH])
        factors = zip(_by_factor(scenes, logits), _by_factor(scenes, batch_codes), strict=True)
        parts.append(np.stack([_is_same(logit, code) for logit, code in factors], axis=1))
    return np.concatenate(parts)


@jax.jit
def _logits(judge: Any, images: Array) -> Array:
    return jax.vmap(judge)(images)


def _is_same(logit: Array, code: Array) -> np.ndarray:
    if logit.shape[-1] == 1:
        return np.asarray((logit > 0) == (code > 0.5))[:, 0]
    return np.asarray(logit.argmax(-1) == code.argmax(-1))


def accuracy(judge: Judge, scenes: Scenes, count: int = 4096, seed: int = 1) -> float:
    """The share of new drawings in which the judge gets every factor right."""
    images, codes = draw(scenes, new_key(seed), count)
    return float(is_correct(judge, scenes, np.asarray(images), np.asarray(codes)).all(1).mean())
