"""How students are optimised: the paper's recipe, and a fast one that reaches its quality in far fewer steps."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from recombine.core import Knob, check, require


def _matrices(params):
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)


def _dimensions(params):
    # Equinox keeps weights as (out, in). None: Adam.
    numbers = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0)
    return jax.tree.map(lambda leaf: numbers if leaf.ndim == 2 else None, params)


@dataclass(frozen=True)
class Paper:
    """AdamW at a constant rate, weight decay on matrices only (paper, appendix; 300,000 steps)."""

    learning_rate: Knob = 3e-4
    weight_decay: Knob = 0.003

    def __post_init__(self):
        check(self, learning_rate=0, weight_decay=0)

    def optimiser(self, num_steps: int) -> optax.GradientTransformation:
        """The optax transformation for a run of so many steps."""
        return optax.adamw(self.learning_rate, weight_decay=self.weight_decay, mask=_matrices)


@dataclass(frozen=True)
class Fast:
    """Muon for matrices, Adam with Nesterov momentum for the rest, warm-up and cosine decay.

    With `ema` > 0 a running average of the network is evaluated in its place.
    """

    learning_rate: Knob = 0.02
    weight_decay: Knob = 0.0
    frac_warmup: float = 0.05
    final: float = 0.01  # the last learning rate, as a fraction of the highest
    ema: float = 0.0

    def __post_init__(self):
        check(self, learning_rate=0, weight_decay=0, frac_warmup=0, final=0, ema=0)
        require(self.frac_warmup < 1, f"Fast.frac_warmup must be below 1, got {self.frac_warmup}")
        require(self.ema < 1, f"Fast.ema must be below 1, got {self.ema}")

    def optimiser(self, num_steps: int) -> optax.GradientTransformation:
        """The optax transformation for a run of so many steps."""
        warmup = max(1, round(self.frac_warmup * num_steps))
        # Peak 1, multiplied afterwards: optax's schedules refuse a traced peak.
        shape = optax.warmup_cosine_decay_schedule(0.0, 1.0, warmup, max(num_steps, warmup + 1), self.final)

        def schedule(step):
            return self.learning_rate * jnp.asarray(shape(step))

        return optax.contrib.muon(schedule, weight_decay=self.weight_decay, muon_weight_dimension_numbers=_dimensions)
