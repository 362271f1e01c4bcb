"""A judge of images: a small network that tells what is in a scene, trained on drawn scenes of all combinations.

It knows nothing of any diffusion model. Its own accuracy, on fresh drawings, is part of every result.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from recombine.experiments.limits._images.scenes import SIDE, Scenes
from recombine.experiments.limits._images.unet import PATCH, Conv, halved, together
from recombine.parts.linear_layer import linear
from recombine.parts.prng import new_key
from recombine.training import device

WIDTH = 32
NOISE = 0.1  # that is added to the drawings, so that faint traces count for nothing


class Judge(eqx.Module):
    """Three convolutions, of places of two by two pixels, and two layers; called with one image."""

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
        """A score for every number of the code."""
        h = together(image)
        for i, conv in enumerate(self.convs):
            h = jax.nn.relu(conv(h))
            h = halved(h) if i == 0 else h
        return self.answer(jax.nn.relu(self.hidden(h.ravel())))


def _parts(scenes: Scenes, scores: Array) -> list[Array]:
    return jnp.split(scores, np.cumsum(scenes.blocks)[:-1].tolist(), axis=-1)


def _loss(judge: Judge, scenes: Scenes, images: Array, codes: Array) -> Array:
    total = jnp.float32(0)
    for score, code in zip(
        _parts(scenes, jax.vmap(judge)(images)), _parts(scenes, codes), strict=True
    ):
        one = optax.sigmoid_binary_cross_entropy(score, code) if score.shape[-1] == 1 else None
        total += jnp.mean(optax.softmax_cross_entropy(score, code) if one is None else one)
    return total / len(scenes.blocks)


def draw(scenes: Scenes, key: PRNGKeyArray, count: int, noise: float = 0.0) -> tuple[Array, Array]:
    """Fresh drawings of all combinations, alike often, with their codes."""
    which, how, hide = jax.random.split(key, 3)
    codes = jnp.array(scenes.codes)[jax.random.randint(which, (count,), 0, len(scenes.codes))]
    keys = jax.random.split(how, count)
    images = jax.vmap(scenes.draw)(keys, jax.vmap(scenes.vary)(keys, codes))
    return images + noise * jax.random.normal(hide, images.shape), codes


def train(scenes: Scenes, num_steps: int = 1500, batch: int = 256, seed: int = 0) -> Judge:
    """A judge of these scenes."""
    key, optimizer = new_key(seed), optax.adam(optax.cosine_decay_schedule(2e-3, num_steps))

    def step(i: Array, state: Any) -> Any:
        params, moments = state
        images, codes = draw(scenes, jax.random.fold_in(key, i + 1), batch, NOISE)
        gradient = jax.grad(_loss)(params, scenes, images, codes)
        update, moments = optimizer.update(gradient, moments)
        return optax.apply_updates(params, update), moments

    def fit() -> Any:
        params: Any = Judge(jax.random.fold_in(key, 0), scenes.codes.shape[1])
        return jax.lax.fori_loop(0, num_steps, step, (params, optimizer.init(params)))[0]

    return jax.tree.map(np.asarray, jax.jit(fit).lower().compile(device.compiler_options())())


def right(judge: Judge, scenes: Scenes, images: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """For each image and factor, whether the judge finds there what the code says."""
    found = []
    for start in range(0, len(images), 2048):
        scores = _scores(judge, jnp.asarray(images[start : start + 2048]))
        told = _parts(scenes, jnp.asarray(codes[start : start + 2048]))
        found.append(
            np.stack(
                [_same(s, c) for s, c in zip(_parts(scenes, scores), told, strict=True)], axis=1
            )
        )
    return np.concatenate(found)


@jax.jit
def _scores(judge: Any, images: Array) -> Array:
    return jax.vmap(judge)(images)


def _same(score: Array, code: Array) -> np.ndarray:
    if score.shape[-1] == 1:
        return np.asarray((score > 0) == (code > 0.5))[:, 0]
    return np.asarray(score.argmax(-1) == code.argmax(-1))


def accuracy(judge: Judge, scenes: Scenes, count: int = 4096, seed: int = 1) -> float:
    """The share of fresh drawings of which the judge gets every factor right."""
    images, codes = draw(scenes, new_key(seed), count)
    return float(right(judge, scenes, np.asarray(images), np.asarray(codes)).all(1).mean())
