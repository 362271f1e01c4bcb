"""The code is a nonlinear, invertible function of the task: a stack of affine coupling layers.

    (a, b) -> (a, b * (1 + tanh(s(a)) / 2) + t(a))

a and b are the two halves of the task, and swap roles from layer to layer. s and t are the outputs
of one small sigmoid network. Source: arXiv 2507.07207, section 4.
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
    """The model receives M floats, from which the module weights can be recovered (`decode`).

    `num_layers` is the number of coupling layers. `scale` is the standard deviation of their
    networks' weights. The public code uses 0.1, which makes the code nearly linear in the task; 1.0
    makes it clearly nonlinear.
    """

    num_layers: int = 3
    scale: float = 0.1

    def __post_init__(self):
        check(self, num_layers=1, scale=0)
        check_layers(self, self.num_layers)

    def num_tokens(self, family: Family) -> int:
        """0: codes are floats."""
        return 0

    def init(self, key: PRNGKeyArray, family: Family) -> tuple[Coupling, ...]:
        """Draw the coupling networks: two hidden layers of width 2M, normal weights, no biases."""
        num_modules = family.num_modules
        require(
            num_modules >= 2,
            "InvertibleNN couples two halves of a task: use a family with at least 2 modules",
        )
        layers = []
        for i, key_layer in enumerate(jax.random.split(key, self.num_layers)):
            num_fixed = _num_fixed(num_modules, i)
            sizes = (num_fixed, 2 * num_modules, 2 * num_modules, 2 * (num_modules - num_fixed))
            keys = jax.random.split(key_layer, 3)
            layers.append(
                tuple(
                    self.scale * jax.random.normal(k, (d_in, d_out))
                    for k, d_in, d_out in zip(keys, sizes[:-1], sizes[1:], strict=True)
                )
            )
        return tuple(layers)

    def encode(
        self, params: tuple[Coupling, ...], key: PRNGKeyArray, task: Float[Array, " M"], examples
    ) -> Float[Array, " M"]:
        """Apply the coupling layers."""
        for i, layer in enumerate(params):
            fixed, changed = _halves(task, i)
            scale, shift = _scale_and_shift(layer, fixed)
            task = _join(fixed, changed * scale + shift, i)
        return task

    def decode(self, params: tuple[Coupling, ...], code: Float[Array, " M"]) -> Float[Array, " M"]:
        """Recover the task from its code."""
        for i, layer in reversed(list(enumerate(params))):
            fixed, changed = _halves(code, i)
            scale, shift = _scale_and_shift(layer, fixed)
            code = _join(fixed, (changed - shift) / scale, i)
        return code


def _num_fixed(num_modules: int, i: int) -> int:
    # Even layers keep the first half fixed, odd layers the second. If M is odd, the second half is
    # longer.
    return num_modules // 2 if i % 2 == 0 else num_modules - num_modules // 2


def _halves(z: Array, i: int) -> tuple[Array, Array]:
    first, second = jnp.split(z, [z.shape[0] // 2])
    return (first, second) if i % 2 == 0 else (second, first)


def _join(fixed: Array, changed: Array, i: int) -> Array:
    return jnp.concatenate([fixed, changed] if i % 2 == 0 else [changed, fixed])


def _scale_and_shift(layer: Coupling, fixed: Array) -> tuple[Array, Array]:
    first, second, last = layer
    h = jax.nn.sigmoid(jax.nn.sigmoid(fixed @ first) @ second)
    scale, shift = jnp.split(h @ last, 2)
    return 1 + jnp.tanh(scale) / 2, shift
