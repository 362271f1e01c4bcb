"""The code is a sentence: the family's own where it has one, otherwise for each module in order, absent ones too, the
two words m + 1 and M + 1 + round(10 z_m).

A model may embed the words or read their numbers as floats (`MLP.tokens`), which makes the spelled sentence an affine
copy of z. With continuous weights different tasks can share a sentence.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from recombine.parts.protocols import Family


class Speaker(eqx.Module):
    """Who says the sentence. Nothing is drawn, so there is no array in it."""

    family: Any = eqx.field(static=True)


@dataclass(frozen=True)
class Language:
    """The model is given the family's own sentence, or 2M integers below 2M + 11: module, weight, module, weight, …"""

    def num_tokens(self, family: Family) -> int:
        """The family's vocabulary, or the published one, of which the words 0 and above M + 11 never occur."""
        return len(getattr(family, "vocabulary", range(2 * family.num_modules + 11)))

    def init(self, key: PRNGKeyArray, family: Family) -> Speaker:
        """Nothing to draw."""
        return Speaker(family)

    def encode(
        self, params: Speaker, key: PRNGKeyArray, task: Float[Array, " M"], examples
    ) -> Int[Array, " words"]:
        """Say which task it is."""
        return getattr(params.family, "sentence", spell)(task)


def spell(task: Float[Array, " M"]) -> Int[Array, " 2*M"]:
    """Spell a task out, module by module."""
    num_modules = task.shape[0]
    names = jnp.arange(1, num_modules + 1)
    # Rounding, not truncation: 10 * 0.6 is 6.0000002 or 5.9999995 in float32, depending on how 0.6 was made.
    amounts = num_modules + 1 + jnp.round(10 * task).astype(names.dtype)
    return jnp.stack([names, amounts], axis=1).reshape(-1)
