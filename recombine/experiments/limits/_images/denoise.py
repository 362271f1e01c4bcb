"""Train networks to remove noise from scenes, many at a time, and let one make images of codes.

    noisy = cos(t pi/2) image + sin(t pi/2) noise,   t from 0 to 1;    loss = |image - net(noisy)|^2 / sin^2(t pi/2)

The network says what the clean image is, not what the noise is: scenes are of few dimensions and noise is not, so that
a narrow network can do the one and not the other (Li and He 2511.13720). The weight is that of the velocity, cut off.
Every image of training is drawn anew, of codes that are in training alike often. Images are made with DDIM, without
noise on the way and without guidance, by the mean of the weights over the last steps of training.

Networks of one shape train side by side in one program: which codes are trained, and the seed, are data. Each has the
draws that it would have alone, so that it differs from itself alone by rounding only, as far as rounding carries over
the steps. An image's noise is drawn from its own number, however many are made at once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from recombine.experiments.limits._images import ahead
from recombine.experiments.limits._images.scenes import SIDE, Scenes
from recombine.experiments.limits._images.unet import UNet
from recombine.parts.prng import new_key
from recombine.training import device

KEEP = 0.998  # of the mean of the weights, at each step
RATE = 2e-3
LEAST = 0.3  # noise that the weight of the loss counts: with less, an error counts no more
STRIDE = 250  # steps between two looks of the host


def level(t: Array) -> tuple[Array, Array]:
    """How much image and how much noise there is at a level."""
    return jnp.cos(t * jnp.pi / 2), jnp.sin(t * jnp.pi / 2)


def loss(
    net: Any, key: PRNGKeyArray, scenes: Scenes, codes: Array, num_codes: Array, batch: int
) -> Array:
    """The weighted squared error of the predicted images, on fresh ones of the first `num_codes` codes."""
    which, draw, hide, when = jax.random.split(key, 4)
    code = codes[jax.random.randint(which, (batch,), 0, num_codes)]
    keys = jax.random.split(draw, batch)
    code = jax.vmap(scenes.vary)(keys, code)
    image = jax.vmap(scenes.draw)(keys, code)
    noise = jax.random.normal(hide, image.shape)
    t = (
        jnp.arange(batch) + jax.random.uniform(when, (batch,))
    ) / batch  # one level in each of `batch` equal parts
    share, much = (part[:, None, None, None] for part in level(t))
    predicted, _ = jax.vmap(net)(share * image + much * noise, t, code)
    return jnp.mean(((predicted - image) / jnp.maximum(much, LEAST)) ** 2)


class Shape(NamedTuple):
    """What networks that train side by side share, and how many they are."""

    scenes: Scenes
    width: int
    num_steps: int
    batch: int
    num: int
    told: str = "together"  # or "apart": how networks are told the code

    def programs(self) -> tuple[Any, Any]:
        """What begins training, and what goes on with it for so many steps."""
        return ahead.made(self, self._compiled)

    def begin(self) -> None:
        """Compile both ahead, where there is a processor for it."""
        ahead.begin(self, self._compiled)

    def _compiled(self) -> tuple[Any, Any]:
        scenes, optimizer = self.scenes, _optimizer(self.num_steps)

        def start(keys: Array) -> Any:
            about = self.width, scenes.blocks, self.told
            params: Any = jax.vmap(lambda key: UNet(jax.random.fold_in(key, 0), *about))(keys)
            return params, params, jax.vmap(optimizer.init)(params)

        def one(
            params: Any, mean: Any, moments: Any, i: Array, key: Array, codes: Array, num: Array
        ) -> Any:
            gradient = jax.grad(loss)(
                params, jax.random.fold_in(key, i + 1), scenes, codes, num, self.batch
            )
            update, moments = optimizer.update(gradient, moments, params)
            params = optax.apply_updates(params, update)
            keep = jnp.minimum(KEEP, (i + 1) / (i + 10))
            mean = jax.tree.map(lambda m, p: keep * m + (1 - keep) * p, mean, params)
            return params, mean, moments

        step: Any = jax.vmap(one, (0, 0, 0, None, 0, 0, 0))

        def advance(state: Any, first: Array, count: Array, *about: Array) -> Any:
            return jax.lax.fori_loop(
                first, first + count, lambda i, now: step(*now, i, *about), state
            )

        keys = jnp.stack([new_key(0)] * self.num)
        number = jax.ShapeDtypeStruct((), jnp.int32)
        codes = jax.ShapeDtypeStruct((self.num, *scenes.codes.shape), jnp.float32)
        counts = jax.ShapeDtypeStruct((self.num,), jnp.int32)
        state = jax.eval_shape(start, keys)
        options = device.compiler_options()
        going = jax.jit(advance, donate_argnums=0).lower(state, number, number, keys, codes, counts)
        return jax.jit(start).lower(keys).compile(options), going.compile(options)


def train(
    shape: Shape,
    trained: Sequence[np.ndarray],
    seeds: Sequence[int],
    stops: Sequence[int] = (),
    tell: Callable[[int], None] = lambda step: None,
) -> Iterator[tuple[int, Any]]:
    """The networks (their leaves stacked) at each of the stops and at the end, one for each set of combinations and
    seed: the mean of their weights. `tell` hears of the steps that are done."""
    start, advance = shape.programs()
    total, codes = len(shape.scenes.codes), shape.scenes.codes
    keys = jnp.stack([new_key(seed) for seed in seeds])
    # Filled up to the number of all: students of any number of combinations share a program.
    told = jnp.array(np.stack([codes[np.resize(rows, total)] for rows in trained]))
    counts = jnp.array([len(rows) for rows in trained], jnp.int32)
    state, done = start(keys), 0
    for stop in sorted({*stops, shape.num_steps}):
        while done < stop:
            count = min(stop - done, STRIDE)
            state = advance(state, jnp.int32(done), jnp.int32(count), keys, told, counts)
            jax.block_until_ready(state)
            done += count
            tell(done)
        yield stop, jax.tree.map(np.asarray, state[1])


def _optimizer(num_steps: int) -> optax.GradientTransformation:
    rate = optax.warmup_cosine_decay_schedule(
        0, RATE, min(200, num_steps // 5 + 1), num_steps + 1, RATE / 50
    )
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))


class Making(NamedTuple):
    """How images are made: how many steps, where activations are kept, how many at once."""

    num_steps: int
    kept: tuple[float, ...]
    num: int

    def program(self, net: Any, d_code: int) -> Any:
        """What makes images, and keeps what the network held."""
        return ahead.made((self, _layout(net), d_code), lambda: self._compiled(net, d_code))

    def begin(self, net: Any, d_code: int) -> None:
        """Compile it ahead, where there is a processor for it."""
        ahead.begin((self, _layout(net), d_code), lambda: self._compiled(net, d_code))

    def _compiled(self, net: Any, d_code: int) -> Any:
        levels = jnp.linspace(1.0, 0.0, self.num_steps + 1)
        places = [
            min(round(fraction * self.num_steps), self.num_steps - 1) for fraction in self.kept
        ]

        def make(
            net: Any, codes: Array, key: Array, first: Array
        ) -> tuple[Array, dict[str, Array]]:
            keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(first + jnp.arange(self.num))
            image = jax.vmap(lambda own: jax.random.normal(own, (SIDE, SIDE, 3)))(keys)

            def step(image: Array, ends: tuple[Array, Array]) -> tuple[Array, dict[str, Array]]:
                now, then = ends
                clean, seen = jax.vmap(net, (0, None, 0))(image, now, codes)
                clean = jnp.clip(clean, -1, 1)
                share, much = level(now)
                noise = (image - share * clean) / much
                share, much = level(then)
                return share * clean + much * noise, seen

            image, seen = jax.lax.scan(step, image, (levels[:-1], levels[1:]))
            at = list(zip(self.kept, places, strict=True))
            return image, {f"{name}@{f:g}": value[i] for name, value in seen.items() for f, i in at}

        net = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32), net)
        codes = jax.ShapeDtypeStruct((self.num, d_code), jnp.float32)
        lowered = jax.jit(make).lower(net, codes, new_key(0), jax.ShapeDtypeStruct((), jnp.int32))
        return lowered.compile(device.compiler_options())


def _layout(net: Any) -> Any:
    leaves, structure = jax.tree.flatten(net)
    return structure, tuple(leaf.shape for leaf in leaves)


def at_once(count: int) -> int:
    """How many images are made in one call: what keeps the device busy, but no more than are wanted."""
    return min(64, count) if device.on_cpu() else 512 if count <= 512 else 1792


def sample(
    net: Any,
    codes: np.ndarray,
    seed: int,
    num_steps: int = 50,
    kept: Sequence[float] = (0.5,),
    num: int = 0,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Images of the codes, and the activations on the way, by layer and fraction of the steps that were done."""
    making = Making(num_steps, tuple(kept), num or at_once(len(codes)))
    program, images, parts = making.program(net, codes.shape[1]), [], []
    for start in range(0, len(codes), making.num):
        some = np.resize(codes[start : start + making.num], (making.num, codes.shape[1]))
        left = min(making.num, len(codes) - start)
        image, seen = program(net, some, new_key(seed), np.int32(start))
        images.append(np.asarray(image)[:left])
        parts.append({name: np.asarray(value)[:left] for name, value in seen.items()})
    return np.concatenate(images), {
        name: np.concatenate([part[name] for part in parts]) for name in parts[0]
    }
