"""The code is a set of examples: fresh pairs of the task, phi(z) = (x_1, …, x_n, f_z(x_1), …, f_z(x_n)), concatenated.

Nothing in it names a module; the model has to infer the task. The pairs are drawn anew every time. A model that reads
sequences may be given them as one: pair by pair, (x_i, f_z(x_i)).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from recombine.parts.field_checks import check
from recombine.parts.protocols import Family


@dataclass(frozen=True)
class FewShot:
    """The model is given examples of the task instead of its name: end to end, or as a `sequence` of pairs."""

    num_pairs: int = 50
    sequence: bool = False

    def __post_init__(self):
        check(self, num_pairs=1)

    def num_tokens(self, family: Family) -> int:
        """Codes are float vectors."""
        return 0

    def init(self, key: PRNGKeyArray, family: Family) -> tuple[()]:
        """Nothing to draw."""
        return ()

    def encode(
        self, params: tuple[()], key: PRNGKeyArray, task: Float[Array, " M"], examples
    ) -> Float[Array, "*code"]:
        """Draw fresh pairs and lay them end to end."""
        leaves = jax.tree.leaves(examples(key, self.num_pairs))
        rows = [leaf.reshape(self.num_pairs, -1).astype(jnp.float32) for leaf in leaves]
        return (
            jnp.concatenate(rows, axis=1)
            if self.sequence
            else jnp.concatenate([row.reshape(-1) for row in rows])
        )
