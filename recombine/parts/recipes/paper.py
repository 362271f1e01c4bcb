"""The recipe of the paper: AdamW at a constant learning rate (arXiv 2507.07207, appendix)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from recombine.basics.errors import require
from recombine.parts.field_checks import Knob, added, check
from recombine.parts.precision import Precision, matmul_dtype


def _is_matrix(params):
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)


@dataclass(frozen=True)
class Paper:
    """AdamW at a constant learning rate, with weight decay on matrices only.

    The paper trains for 300,000 steps in float32. With `precision="bfloat16"`, matrices are
    multiplied in bfloat16 and the first moment is stored in it, which is faster on a GPU.

    Options that the paper does not use:

    - `frac_warmup`: the fraction of steps in which the learning rate grows linearly.
    - `ema`: if above 0, the decay of a running average of the weights, which is evaluated in place
      of the weights.
    """

    learning_rate: Knob = 3e-4
    weight_decay: Knob = 0.003
    precision: Precision = "float32"
    frac_warmup: float = added(0.0, before=0.0)
    ema: float = added(0.0, before=0.0)

    def __post_init__(self):
        check(self, learning_rate=0, weight_decay=0, frac_warmup=0, ema=0)
        require(self.frac_warmup < 1, f"Paper.frac_warmup must be below 1, got {self.frac_warmup}")
        require(self.ema < 1, f"Paper.ema must be below 1, got {self.ema}")

    def optimiser(self, num_steps: int) -> optax.GradientTransformation:
        """The optax transformation for a run of `num_steps` steps."""
        return optax.adamw(
            self._schedule(num_steps),
            weight_decay=self.weight_decay,
            mask=_is_matrix,
            mu_dtype=matmul_dtype(self.precision),
        )

    def _schedule(self, num_steps: int):
        """The learning rate: a number, or with a warm-up a function of the step.

        Step s of w warm-up steps, counted from 0, has the fraction (s + 1) / w of the rate.
        """
        if self.frac_warmup == 0:
            return self.learning_rate
        num_warmup = max(1, round(self.frac_warmup * num_steps))
        return lambda step: self.learning_rate * jnp.minimum(1.0, (step + 1) / num_warmup)
