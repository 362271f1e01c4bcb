"""Train networks to denoise scenes, many at a time, and generate images of codes with them.

    noisy = cos(t pi/2) image + sin(t pi/2) noise,    t from 0 to 1
    loss  = |image - network(noisy)|^2 / sin^2(t pi/2)

The network predicts the clean image, not the noise: scenes have few dimensions and noise has many,
so a narrow network can do the former but not the latter (Li and He 2511.13720). The weight of the
loss is that of a velocity loss, with an upper bound. Every training image is drawn anew, from the
train codes with equal probability. Images are generated with DDIM, without noise between steps and
without guidance, with the moving average of the weights.

Networks of one shape train side by side in one program: their train codes and seeds are data. Each
gets the random numbers that it would get alone, so the results differ only by rounding. The noise
of a generated image depends on its number, not on the size of a batch.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from recombine.experiments.limits._images import compilation
from recombine.experiments.limits._images.scenes import SIDE, Scenes
from recombine.experiments.limits._images.unet import UNet
from recombine.parts.prng import new_key
from recombine.training import device

AVERAGE_DECAY = 0.998  # of the moving average of the weights, per step
LEARNING_RATE = 2e-3
MIN_NOISE = 0.3  # the loss is weighted as if there were at least this much noise
STEPS_PER_CALL = 250  # between two reports of progress


def image_and_noise(t: Array) -> tuple[Array, Array]:
    """The coefficients of the image and of the noise at time t."""
    return jnp.cos(t * jnp.pi / 2), jnp.sin(t * jnp.pi / 2)


def loss(
    network: Any, key: PRNGKeyArray, scenes: Scenes, codes: Array, num_codes: Array, batch: int
) -> Array:
    """The weighted squared error of predicted images, on new images of the first `num_codes`."""
    code_key, draw_key, noise_key, time_key = jax.random.split(key, 4)
    code = codes[jax.random.randint(code_key, (batch,), 0, num_codes)]
    keys = jax.random.split(draw_key, batch)
    code = jax.vmap(scenes.vary)(keys, code)
    image = jax.vmap(scenes.draw)(keys, code)
    noise = jax.random.normal(noise_key, image.shape)
    # Stratified: one time in each of `batch` equal parts.
    t = (jnp.arange(batch) + jax.random.uniform(time_key, (batch,))) / batch
    image_part, noise_part = (part[:, None, None, None] for part in image_and_noise(t))
    predicted, _ = jax.vmap(network)(image_part * image + noise_part * noise, t, code)
    return jnp.mean(((predicted - image) / jnp.maximum(noise_part, MIN_NOISE)) ** 2)


class Shape(NamedTuple):
    """What networks that train side by side have in common, and how many they are."""

    scenes: Scenes
    width: int
    num_steps: int
    batch: int
    num_networks: int
    conditioning: str = "joint"  # or "summed"

    def programs(self) -> tuple[Any, Any]:
        """The program that starts training, and the one that continues it for some steps."""
        return compilation.compiled(self, self._compile)

    def compile_ahead(self) -> None:
        """Compile both in the background if there are cores."""
        compilation.compile_ahead(self, self._compile)

    def _compile(self) -> tuple[Any, Any]:
        optimizer = _optimizer(self.num_steps)

        def initialize(key: Array) -> Any:
            first_key = jax.random.fold_in(key, 0)
            return UNet(first_key, self.width, self.scenes.blocks, self.conditioning)

        def start(keys: Array) -> Any:
            params: Any = jax.vmap(initialize)(keys)
            return params, params, jax.vmap(optimizer.init)(params)

        step: Any = jax.vmap(self._step(optimizer), (0, 0, 0, None, 0, 0, 0))

        def advance(state: Any, first: Array, count: Array, *data: Array) -> Any:
            return jax.lax.fori_loop(
                first, first + count, lambda i, now: step(*now, i, *data), state
            )

        keys = jnp.stack([new_key(0)] * self.num_networks)
        integer = jax.ShapeDtypeStruct((), jnp.int32)
        codes_shape = (self.num_networks, *self.scenes.codes.shape)
        codes = jax.ShapeDtypeStruct(codes_shape, jnp.float32)
        counts = jax.ShapeDtypeStruct((self.num_networks,), jnp.int32)
        state = jax.eval_shape(start, keys)
        jitted = jax.jit(advance, donate_argnums=0)
        options = device.compiler_options()
        return (
            jax.jit(start).lower(keys).compile(options),
            jitted.lower(state, integer, integer, keys, codes, counts).compile(options),
        )

    def _step(self, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
        """One step of one network."""

        def step(
            params: Any,
            average: Any,
            moments: Any,
            i: Array,
            key: Array,
            codes: Array,
            num_codes: Array,
        ) -> Any:
            step_key = jax.random.fold_in(key, i + 1)
            gradient = jax.grad(loss)(params, step_key, self.scenes, codes, num_codes, self.batch)
            update, moments = optimizer.update(gradient, moments, params)
            params = optax.apply_updates(params, update)
            decay = jnp.minimum(AVERAGE_DECAY, (i + 1) / (i + 10))
            average = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, average, params)
            return params, average, moments

        return step


def train(
    shape: Shape,
    train_rows: Sequence[np.ndarray],
    seeds: Sequence[int],
    eval_steps: Sequence[int] = (),
    show_step: Callable[[int], None] = lambda step: None,
) -> Iterator[tuple[int, Any]]:
    """Train one network per set of train combinations and seed.

    Gives the networks (averaged weights, leaves stacked) at each of the steps and at the end.
    `show_step` receives the number of finished steps.
    """
    start, advance = shape.programs()
    codes = shape.scenes.codes
    keys = jnp.stack([new_key(seed) for seed in seeds])
    # All are padded to the number of all codes: any number of train combinations shares a program.
    padded = jnp.array(np.stack([codes[np.resize(rows, len(codes))] for rows in train_rows]))
    counts = jnp.array([len(rows) for rows in train_rows], jnp.int32)
    state = start(keys)
    done = 0
    for step in sorted({*eval_steps, shape.num_steps}):
        while done < step:
            count = min(step - done, STEPS_PER_CALL)
            state = advance(state, jnp.int32(done), jnp.int32(count), keys, padded, counts)
            jax.block_until_ready(state)
            done += count
            show_step(done)
        yield step, jax.tree.map(np.asarray, state[1])


def _optimizer(num_steps: int) -> optax.GradientTransformation:
    num_warmup = min(200, num_steps // 5 + 1)
    rate = optax.warmup_cosine_decay_schedule(
        0, LEARNING_RATE, num_warmup, num_steps + 1, LEARNING_RATE / 50
    )
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))


class Sampler(NamedTuple):
    """How images are generated: denoising steps, where activations are recorded, batch size."""

    num_steps: int
    recorded_at: tuple[float, ...]  # fractions of the steps
    batch: int

    def program(self, network: Any, d_code: int) -> Any:
        """The program that generates a batch of images and records activations."""
        key = (self, _leaf_shapes(network), d_code)
        return compilation.compiled(key, lambda: self._compile(network, d_code))

    def compile_ahead(self, network: Any, d_code: int) -> None:
        """Compile it in the background if there are cores."""
        key = (self, _leaf_shapes(network), d_code)
        compilation.compile_ahead(key, lambda: self._compile(network, d_code))

    def _compile(self, network: Any, d_code: int) -> Any:
        times = jnp.linspace(1.0, 0.0, self.num_steps + 1)
        last = self.num_steps - 1
        recorded_steps = {
            fraction: min(round(fraction * self.num_steps), last) for fraction in self.recorded_at
        }

        def generate(
            network: Any, codes: Array, key: Array, first: Array
        ) -> tuple[Array, dict[str, Array]]:
            numbers = first + jnp.arange(self.batch)
            keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)
            image = jax.vmap(lambda key: jax.random.normal(key, (SIDE, SIDE, 3)))(keys)

            def step(image: Array, ends: tuple[Array, Array]) -> tuple[Array, dict[str, Array]]:
                now, later = ends
                clean, activations = jax.vmap(network, (0, None, 0))(image, now, codes)
                clean = jnp.clip(clean, -1, 1)
                image_part, noise_part = image_and_noise(now)
                noise = (image - image_part * clean) / noise_part
                image_part, noise_part = image_and_noise(later)
                return image_part * clean + noise_part * noise, activations

            image, activations = jax.lax.scan(step, image, (times[:-1], times[1:]))
            recorded = {}
            for name, by_step in activations.items():
                for fraction, number in recorded_steps.items():
                    recorded[f"{name}@{fraction:g}"] = by_step[number]
            return image, recorded

        network = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), network)
        codes = jax.ShapeDtypeStruct((self.batch, d_code), jnp.float32)
        integer = jax.ShapeDtypeStruct((), jnp.int32)
        lowered = jax.jit(generate).lower(network, codes, new_key(0), integer)
        return lowered.compile(device.compiler_options())


def _leaf_shapes(network: Any) -> Any:
    leaves, structure = jax.tree.flatten(network)
    return structure, tuple(leaf.shape for leaf in leaves)


def batch_size(num_images: int) -> int:
    """How many images to generate in one call: enough for the device, but no more than needed."""
    if device.on_cpu():
        return min(64, num_images)
    return 512 if num_images <= 512 else 1792


def sample(
    network: Any,
    codes: np.ndarray,
    seed: int,
    num_steps: int = 50,
    recorded_at: Sequence[float] = (0.5,),
    batch: int = 0,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Images of the codes, and activations by layer and fraction of the denoising steps.

    `batch` is the number of images in one call; 0 chooses it.
    """
    sampler = Sampler(num_steps, tuple(recorded_at), batch or batch_size(len(codes)))
    d_code = codes.shape[1]
    program = sampler.program(network, d_code)
    images = []
    activations = []
    for start in range(0, len(codes), sampler.batch):
        padded = np.resize(codes[start : start + sampler.batch], (sampler.batch, d_code))
        num_left = min(sampler.batch, len(codes) - start)
        image, recorded = program(network, padded, new_key(seed), np.int32(start))
        images.append(np.asarray(image)[:num_left])
        activations.append({name: np.asarray(layer)[:num_left] for name, layer in recorded.items()})
    joined = {name: np.concatenate([part[name] for part in activations]) for name in activations[0]}
    return np.concatenate(images), joined
