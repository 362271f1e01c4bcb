"""A code made of examples: phi(z) = (x_1, …, x_n, f_z(x_1), …, f_z(x_n)).

The code does not name the modules, so the model has to infer the task. The examples are drawn anew
for every sample. Source: arXiv 2507.07207, section 4.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from recombine.parts.field_checks import check
from recombine.parts.protocols import Family


@dataclass(frozen=True)
class FewShot:
    """The model receives `num_pairs` examples (x, f_z(x)) of the task.

    The code is one float vector: all x, then all f_z(x). With `sequence=True` it is a sequence of
    shape (num_pairs, d) instead, with one pair (x_i, f_z(x_i)) per row, for models that read
    sequences. A family may define its own `examples`; otherwise they are samples of the task.
    """

    num_pairs: int = 50
    sequence: bool = False

    def __post_init__(self):
        check(self, num_pairs=1)

    def num_tokens(self, family: Family) -> int:
        """0: codes are floats."""
        return 0

    def init(self, key: PRNGKeyArray, family: Family) -> tuple[()]:
        """No arrays."""
        return ()

    def encode(
        self, params: tuple[()], key: PRNGKeyArray, task: Float[Array, " M"], examples
    ) -> Float[Array, "*code"]:
        """Draw fresh examples and concatenate them."""
        leaves = jax.tree.leaves(examples(key, self.num_pairs))
        rows = [leaf.reshape(self.num_pairs, -1).astype(jnp.float32) for leaf in leaves]
        if self.sequence:
            return jnp.concatenate(rows, axis=1)
        return jnp.concatenate([row.reshape(-1) for row in rows])
