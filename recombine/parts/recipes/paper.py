"""The paper's recipe: AdamW at a constant rate."""

from dataclasses import dataclass

import jax
import optax

from recombine.parts.field_checks import Knob, check
from recombine.parts.precision import Precision, multiplied_in


def _matrices(params):
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)


@dataclass(frozen=True)
class Paper:
    """AdamW at a constant rate, weight decay on matrices only (paper, appendix; 300,000 steps).

    The paper's runs are float32. With `bfloat16` a step takes half the time and the momentum is kept in it too.
    """

    learning_rate: Knob = 3e-4
    weight_decay: Knob = 0.003
    precision: Precision = "float32"

    def __post_init__(self):
        check(self, learning_rate=0, weight_decay=0)

    def optimiser(self, num_steps: int) -> optax.GradientTransformation:
        """The optax transformation for a run of so many steps."""
        kept_in = multiplied_in(self.precision)
        return optax.adamw(
            self.learning_rate, weight_decay=self.weight_decay, mask=_matrices, mu_dtype=kept_in
        )
