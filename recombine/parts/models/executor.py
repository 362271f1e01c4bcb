"""A learned executor of single steps, which is applied as often as the task has steps.

    value <- step(value, word)   for every word of the code, from value = x

It is trained on true intermediate values, one step at a time, and evaluated on its own. It cannot
learn anything about whole sequences, so its errors are those of its steps: it is the control that
must not collapse on longer tasks.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from recombine.basics.errors import require
from recombine.parts.field_checks import check, check_layers
from recombine.parts.linear_layer import linear
from recombine.parts.perceptron import Perceptron
from recombine.parts.prng import stream
from recombine.parts.protocols import Batch, Nodes


class Machine(eqx.Module):
    """The network: one step, and its repetition."""

    mixed_precision: ClassVar[bool] = True
    activation: ClassVar[str] = "relu"

    step: Perceptron
    is_choice: bool = eqx.field(static=True)

    def __call__(
        self, x: Float[Array, "n O"], code: Int[Array, " words"]
    ) -> tuple[Float[Array, "n words O"], dict[str, Array]]:
        """Apply the words in order, each to the result of the previous one.

        The activations are those of the step after every word (`hidden0` has shape (n, words H)),
        and the prediction (`output`).
        """

        def apply(value, word):
            output, activations = self.step(value, word[None])
            state = self.state(output)
            return jnp.where(word > 0, state, value), activations

        _, activations = jax.lax.scan(apply, x, code)
        activations = {name: jnp.moveaxis(h, 0, 1) for name, h in activations.items()}
        prediction = activations["output"]
        flat = {name: h.reshape(len(x), -1) for name, h in activations.items()}
        return prediction, flat

    def state(self, output: Float[Array, "n O"]) -> Float[Array, "n O"]:
        """The value after a step: the likeliest one, one-hot, or the output itself."""
        if not self.is_choice:
            return output
        return jax.nn.one_hot(output.argmax(axis=-1), output.shape[-1])


@dataclass(frozen=True)
class Executor:
    """A multilayer perceptron that learns single steps, for codes with one word for each step.

    `widths` are those of its hidden layers, `d_embed` is the size of a word's vector.
    """

    widths: tuple[int, ...] = (128, 128)
    d_embed: int = 32
    needs_nodes: ClassVar[bool] = True

    def __post_init__(self):
        check(self, d_embed=1)
        check_layers(self, len(self.widths))
        require(
            len(self.widths) > 0 and min(self.widths) >= 1,
            f"Executor.widths must be at least one width of at least 1, got {self.widths}",
        )

    def init(
        self,
        key: PRNGKeyArray,
        example: Batch,
        num_outputs: int,
        num_tokens: int = 0,
        world: PyTree[Array] | None = None,
    ) -> Machine:
        """Draw a network for inputs that have the shape of a step's value."""
        x = example.x
        y = example.y
        code = example.code
        require(
            isinstance(y, Nodes) and num_tokens > 0 and code.ndim == 1,
            "Executor needs a family with steps and a code of words: choose Chain with "
            "encoding=Language()",
        )
        has_same_shape = x.ndim == 2 and x.shape[1] == num_outputs
        require(
            has_same_shape and y.values.shape[1] == len(code),
            "Executor needs one step for each word, and inputs x with the shape of a step's value: "
            "choose Chain, or another model",
        )
        embedding = eqx.nn.Embedding(num_tokens, self.d_embed, key=stream(key, "embedding"))
        sizes = (self.d_embed + num_outputs, *self.widths, num_outputs)
        keys = jax.random.split(stream(key, "layers"), len(sizes) - 1)
        layers = tuple(
            linear(k, d_in, d_out)
            for k, d_in, d_out in zip(keys, sizes[:-1], sizes[1:], strict=True)
        )
        is_choice = jnp.issubdtype(y.values.dtype, jnp.integer)
        return Machine(Perceptron(layers, embedding), is_choice)

    def loss(self, net: Machine, batch: Batch, score: Any) -> Array:
        """The family's loss, of every step from the true value before it."""
        values = batch.y.values[:, :-1]
        before = jax.nn.one_hot(values, batch.x.shape[1]) if net.is_choice else values
        before = jnp.concatenate([batch.x[:, None], before], axis=1)
        outputs, _ = net.step.many(jnp.moveaxis(before, 1, 0), batch.code[:, None])
        return score(jnp.moveaxis(outputs, 0, 1), batch.y)["loss"]
