"""A student with the structure of the hyperteacher: the code c mixes one weight matrix per entry.

    f(x) = Omega^T relu((sum_m c_m Theta_m)^T x + sum_m c_m b_m),   Omega, Theta and b are learned

It is an upper baseline: a student that knows how tasks are composed. It gets the shapes of the
teacher's arrays but not their values.
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
    """The network. It is called with the points (n, I) and the code (M,) of one task.

    Matrices are (out, in), as Muon expects them.
    """

    mixed_precision: ClassVar[bool] = True  # products have the type of the weights
    activation: ClassVar[str] = "relu"

    modules: tuple[Float[Array, "M H _"], ...]
    biases: tuple[Float[Array, "H M"], ...]
    readout: Float[Array, "O H"]

    def __call__(
        self, x: Float[Array, "n I"], code: Float[Array, " M"]
    ) -> tuple[Float[Array, "n O"], dict[str, Array]]:
        """Predict every point, and return the activations.

        Activations are each hidden layer before (`pre0`, …) and after (`hidden0`, …) its ReLU, and
        the prediction (`output`).
        """
        return jax.tree.map(lambda leaf: leaf[0], self.many(x[None], code[None]))

    def many(
        self, x: Float[Array, "tasks n I"], code: Float[Array, "tasks M"]
    ) -> tuple[Float[Array, "tasks n O"], dict[str, Array]]:
        """The same for several tasks at once: one product mixes a layer's matrices for all."""
        activations = {}
        h = x
        for i, (modules, biases) in enumerate(zip(self.modules, self.biases, strict=True)):
            num_modules, d_out, d_in = modules.shape
            mixed = _product(code, modules.reshape(num_modules, -1).T)
            matrix = mixed.reshape(len(x), d_out, d_in).astype(modules.dtype)
            pre = _product(h, matrix) + _product(code, biases)[:, None]
            h = jax.nn.relu(pre)
            activations[f"pre{i}"] = pre
            activations[f"hidden{i}"] = h
        activations["output"] = _product(h, self.readout)
        return activations["output"], activations


def _product(h: Array, weight: Array) -> Float[Array, "..."]:
    # In the type of the weights, which may be lower than the type of other arrays.
    return (h.astype(weight.dtype) @ weight.mT).astype(jnp.float32)


@dataclass(frozen=True)
class ModularOracle:
    """A student with the hyperteacher's structure, for codes with one float per module.

    `d_hidden` is the width of its hidden layers; 0 means the width of the teacher.
    """

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
        """Draw matrices from the teacher's distribution, and biases of zero.

        The distribution is truncated normal with variance scaling (fan-in, scale sqrt 3).
        """
        teacher_shapes = _module_shapes(world)
        num_modules, _, teacher_width = teacher_shapes[0]
        num_layers = len(teacher_shapes)
        d_hidden = self.d_hidden or teacher_width
        _check_code(example.code, num_modules)
        scaled = jax.nn.initializers.variance_scaling
        draw_modules = scaled(
            math.sqrt(3), "fan_in", "truncated_normal", in_axis=2, out_axis=1, batch_axis=0
        )
        draw_readout = scaled(math.sqrt(3), "fan_in", "truncated_normal", in_axis=1, out_axis=0)
        d_inputs = (example.x.shape[1],) + (d_hidden,) * (num_layers - 1)
        keys = jax.random.split(stream(key, "modules"), num_layers)
        modules = tuple(
            draw_modules(k, (num_modules, d_hidden, d_input))
            for k, d_input in zip(keys, d_inputs, strict=True)
        )
        biases = tuple(jnp.zeros((d_hidden, num_modules)) for _ in range(num_layers))
        readout = draw_readout(stream(key, "readout"), (num_outputs, d_hidden))
        return Mixture(modules, biases, readout)


def _check_code(code: Any, num_modules: int) -> None:
    require(
        code.shape == (num_modules,) and jnp.issubdtype(code.dtype, jnp.floating),
        f"ModularOracle needs a code of one float for each of {num_modules} modules, got shape "
        f"{code.shape} and type {code.dtype}: choose Identity or Orthogonal (InvertibleNN and "
        "IntervalShuffle have the right shape but are not linear in the task)",
    )


def _module_shapes(world: Any) -> list[tuple[int, int, int]]:
    """The shapes (M, in, H) of the teacher's modules, one for each hidden layer."""
    modules = getattr(world, "modules", ())
    is_hyperteacher = (
        isinstance(modules, tuple)
        and len(modules) > 0
        and all(getattr(layer, "ndim", 0) == 3 for layer in modules)
        and all(hasattr(world, name) for name in ("biases", "readout"))
    )
    require(
        is_hyperteacher,
        "ModularOracle has the structure of a hyperteacher: choose family=Hyperteacher(), or "
        "another model for this family",
    )
    return [layer.shape for layer in modules]
