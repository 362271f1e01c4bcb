"""The hyperteacher's own structure, learned: a code c mixes weight matrices, one for each of its entries.

    f(x) = Omega^T relu((sum_m c_m Theta_m)^T x + sum_m c_m b_m),   Omega, Theta and b learned

What a student reaches that knows how tasks are composed. Of the teacher it is told the shapes, never the numbers.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from recombine.basics.errors import require
from recombine.parts.field_checks import check
from recombine.parts.prng import stream
from recombine.parts.protocols import Batch


class Mixture(eqx.Module):
    """The network, its matrices (out, in) as Muon takes them. Called with the points and the code of one task."""

    mixed_precision: ClassVar[bool] = True  # products are in the type of the weights
    activation: ClassVar[str] = "relu"

    modules: tuple[Float[Array, "M H _"], ...]
    biases: tuple[Float[Array, "H M"], ...]
    readout: Float[Array, "O H"]

    def __call__(
        self, x: Float[Array, "n I"], code: Float[Array, " M"]
    ) -> tuple[Float[Array, "n O"], dict[str, Array]]:
        """Predict every point; also give each hidden layer before (`pre0`, …) and after (`hidden0`, …) its ReLU."""
        return jax.tree.map(lambda leaf: leaf[0], self.many(x[None], code[None]))

    def many(
        self, x: Float[Array, "tasks n I"], code: Float[Array, "tasks M"]
    ) -> tuple[Float[Array, "tasks n O"], dict[str, Array]]:
        """The same for many tasks at once: a layer's mixtures are made in one product."""
        activations, h = {}, x
        for i, (modules, biases) in enumerate(zip(self.modules, self.biases, strict=True)):
            mixed = _product(code, modules.reshape(len(modules), -1).T).reshape(
                len(x), *modules.shape[1:]
            )
            pre = _product(h, mixed.astype(modules.dtype)) + _product(code, biases)[:, None]
            h = jax.nn.relu(pre)
            activations |= {f"pre{i}": pre, f"hidden{i}": h}
        activations["output"] = _product(h, self.readout)
        return activations["output"], activations


def _product(h: Array, weight: Array) -> Float[Array, "..."]:
    # In the type of the weights, which may be lower than that of everything else.
    return (h.astype(weight.dtype) @ weight.mT).astype(jnp.float32)


@dataclass(frozen=True)
class ModularOracle:
    """A student built as the hyperteacher is. `d_hidden` is the width of its hidden layers, 0 the teacher's own."""

    d_hidden: int = 0

    def __post_init__(self):
        check(self, d_hidden=0)

    def init(
        self,
        key: PRNGKeyArray,
        example: Batch,
        num_outputs: int,
        num_tokens: int = 0,
        world: PyTree[Array] | None = None,
    ) -> Mixture:
        """Draw matrices as the teacher's are drawn (truncated normal, fan-in, scale sqrt 3), and biases of zero."""
        theirs = _shapes(world)
        num_modules, _, d_hidden = theirs[0]
        d_hidden, code = self.d_hidden or d_hidden, example.code
        require(
            code.shape == (num_modules,) and jnp.issubdtype(code.dtype, jnp.floating),
            f"ModularOracle reads one float for each of {num_modules} modules, got a code of shape {code.shape} and "
            f"type {code.dtype}: choose Identity or Orthogonal (InvertibleNN and IntervalShuffle fit in shape only)",
        )
        scaled = jax.nn.initializers.variance_scaling
        draw_modules = scaled(
            math.sqrt(3), "fan_in", "truncated_normal", in_axis=2, out_axis=1, batch_axis=0
        )
        draw_readout = scaled(math.sqrt(3), "fan_in", "truncated_normal", in_axis=1, out_axis=0)
        d_inputs = (example.x.shape[1],) + (d_hidden,) * (len(theirs) - 1)
        keys = jax.random.split(stream(key, "modules"), len(theirs))
        modules = tuple(
            draw_modules(k, (num_modules, d_hidden, d)) for k, d in zip(keys, d_inputs, strict=True)
        )
        biases = tuple(jnp.zeros((d_hidden, num_modules)) for _ in theirs)
        return Mixture(
            modules, biases, draw_readout(stream(key, "readout"), (num_outputs, d_hidden))
        )


def _shapes(world: Any) -> list[tuple[int, int, int]]:
    """The shapes of the teacher's modules, (M, in, H) for each hidden layer, known by their names and axes."""
    modules = getattr(world, "modules", ())
    require(
        isinstance(modules, tuple)
        and len(modules) > 0
        and all(getattr(layer, "ndim", 0) == 3 for layer in modules)
        and all(hasattr(world, name) for name in ("biases", "readout")),
        "ModularOracle is the hyperteacher's structure: choose family=Hyperteacher(), or another model for this family",
    )
    return [layer.shape for layer in modules]
