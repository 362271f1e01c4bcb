"""The code is a sentence that describes the task, as indices of words.

A family may have a sentence of its own. Otherwise the sentence names every module m in order,
including absent ones, with two words: m + 1 and M + 1 + round(10 z_m).

A model may embed the words or use their indices as floats (`MLP.tokens`). As floats, such a
sentence is an affine copy of z. With continuous weights, different tasks can have the same
sentence. Source: arXiv 2507.07207, section 4.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recombine.parts.protocols import Family


class Speaker(eqx.Module):
    """The family that describes its tasks. It has no arrays."""

    family: Any = eqx.field(static=True)


@dataclass(frozen=True)
class Language:
    """The model receives the family's own sentence, or 2M integers: module, weight, module, …

    The integers are below `num_tokens(family)`, the size of the vocabulary.
    """

    def num_tokens(self, family: Family) -> int:
        """The size of the family's vocabulary, or 2M + 11.

        2M + 11 is the size in the public code. Word 0 and words above M + 11 never occur.
        """
        return len(getattr(family, "vocabulary", range(2 * family.num_modules + 11)))

    def init(self, key: PRNGKeyArray, family: Family) -> Speaker:
        """Remember the family; no arrays are drawn."""
        return Speaker(family)

    def encode(
        self, params: Speaker, key: PRNGKeyArray, task: Float[Array, " M"], examples
    ) -> Int[Array, " words"]:
        """The sentence of a task."""
        return getattr(params.family, "sentence", module_sentence)(task)


def module_sentence(task: Float[Array, " M"]) -> Int[Array, " 2*M"]:
    """The sentence that names every module and its weight."""
    num_modules = task.shape[0]
    names = jnp.arange(1, num_modules + 1)
    # Rounding, not truncation: in float32, 10 * 0.6 can be 6.0000002 or 5.9999995.
    amounts = num_modules + 1 + jnp.round(10 * task).astype(names.dtype)
    return jnp.stack([names, amounts], axis=1).reshape(-1)
