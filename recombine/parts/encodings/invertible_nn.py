"""The code is a nonlinear but invertible function of the task: three affine coupling layers.

(a, b) -> (a, b * (1 + tanh(s(a)) / 2) + t(a)),   s and t from one small sigmoid network; a and b swap in between
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from recombine.basics.errors import require
from recombine.parts.field_checks import check, check_layers
from recombine.parts.protocols import Family

Coupling = tuple[Float[Array, "_ _"], ...]


@dataclass(frozen=True)
class InvertibleNN:
    """The model is given a tangled version of the module weights, from which they can still be recovered.

    `scale` is the standard deviation of the coupling networks' weights: 0.1 in the public code, which makes a code that
    is nearly linear in the task. 1.0 is a variant of ours.
    """

    num_layers: int = 3
    scale: float = 0.1

    def __post_init__(self):
        check(self, num_layers=1, scale=0)
        check_layers(self, self.num_layers)

    def num_tokens(self, family: Family) -> int:
        """Codes are float vectors."""
        return 0

    def init(self, key: PRNGKeyArray, family: Family) -> tuple[Coupling, ...]:
        """Draw the coupling networks: two hidden layers of width 2M each, normal weights, no biases."""
        num_modules = family.num_modules
        require(
            num_modules >= 2,
            "InvertibleNN couples two halves of a task: the family needs at least 2 modules",
        )
        layers = []
        for i, key_layer in enumerate(jax.random.split(key, self.num_layers)):
            num_kept = _num_kept(num_modules, i)
            sizes = (num_kept, 2 * num_modules, 2 * num_modules, 2 * (num_modules - num_kept))
            keys = jax.random.split(key_layer, 3)
            shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
            layers.append(tuple(self.scale * jax.random.normal(k, (i, o)) for k, i, o in shapes))
        return tuple(layers)

    def encode(
        self, params: tuple[Coupling, ...], key: PRNGKeyArray, task: Float[Array, " M"], examples
    ) -> Float[Array, " M"]:
        """Pass the task through the couplings."""
        for i, layer in enumerate(params):
            kept, moved = _halves(task, i)
            scale, shift = _scale_and_shift(layer, kept)
            task = _join(kept, moved * scale + shift, i)
        return task

    def decode(self, params: tuple[Coupling, ...], code: Float[Array, " M"]) -> Float[Array, " M"]:
        """Recover the task from its code."""
        for i, layer in reversed(list(enumerate(params))):
            kept, moved = _halves(code, i)
            scale, shift = _scale_and_shift(layer, kept)
            code = _join(kept, (moved - shift) / scale, i)
        return code


def _num_kept(num_modules: int, i: int) -> int:
    # Even layers keep the first half and odd layers the second; an odd M gives the longer half to the second.
    return num_modules // 2 if i % 2 == 0 else num_modules - num_modules // 2


def _halves(z: Array, i: int) -> tuple[Array, Array]:
    first, second = jnp.split(z, [z.shape[0] // 2])
    return (first, second) if i % 2 == 0 else (second, first)


def _join(kept: Array, moved: Array, i: int) -> Array:
    return jnp.concatenate([kept, moved] if i % 2 == 0 else [moved, kept])


def _scale_and_shift(layer: Coupling, kept: Array) -> tuple[Array, Array]:
    first, second, last = layer
    scale, shift = jnp.split(jax.nn.sigmoid(jax.nn.sigmoid(kept @ first) @ second) @ last, 2)
    return 1 + jnp.tanh(scale) / 2, shift
