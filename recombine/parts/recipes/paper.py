"""The recipe of the paper: AdamW at a constant learning rate (arXiv 2507.07207, appendix)."""

from dataclasses import dataclass

import jax
import optax

from recombine.parts.field_checks import Knob, check
from recombine.parts.precision import Precision, matmul_dtype


def _is_matrix(params):
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)


@dataclass(frozen=True)
class Paper:
    """AdamW at a constant learning rate, with weight decay on matrices only.

    The paper trains for 300,000 steps in float32. With `precision="bfloat16"`, matrices are
    multiplied in bfloat16 and the first moment is stored in it, which is faster on a GPU.
    """

    learning_rate: Knob = 3e-4
    weight_decay: Knob = 0.003
    precision: Precision = "float32"

    def __post_init__(self):
        check(self, learning_rate=0, weight_decay=0)

    def optimiser(self, num_steps: int) -> optax.GradientTransformation:
        """The optax transformation for a run of `num_steps` steps."""
        return optax.adamw(
            self.learning_rate,
            weight_decay=self.weight_decay,
            mask=_is_matrix,
            mu_dtype=matmul_dtype(self.precision),
        )
