"""A fast recipe: Muon for matrices, Adam for vectors, warm-up and cosine decay."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from recombine.basics.errors import require
from recombine.parts.field_checks import Knob, added, check
from recombine.parts.muon import scale_by_muon
from recombine.parts.precision import Precision, multiplied_in


def _kinds(params):
    """Which leaves are matrices that multiply. The rows of an embedding are looked up one by one: they are vectors."""

    def kind(path, leaf):
        embeds = any(getattr(entry, "name", "") == "embedding" for entry in path)
        return "muon" if leaf.ndim >= 2 and not embeds else "adam"

    return jax.tree_util.tree_map_with_path(kind, params)


@dataclass(frozen=True)
class Fast:
    """Muon for matrices, Adam with Nesterov momentum for vectors (and embeddings), warm-up and cosine decay.

    With `ema` > 0 a running average of the network is evaluated in its place.

    High learning rates can reach a good score while most units are dead. Watch the columns `activity/…` when you raise
    `learning_rate` or `vector_rate`, or train for longer.
    """

    learning_rate: Knob = 0.02
    weight_decay: Knob = 0.05
    frac_warmup: float = 0.05
    final: float = 0.01  # the last learning rate, as a fraction of the highest
    ema: float = 0.0
    precision: Precision = "auto"
    vector_rate: Knob = added(
        0.1, before=1.0
    )  # the learning rate of vectors, as a fraction of that of matrices

    def __post_init__(self):
        check(self, learning_rate=0, weight_decay=0, frac_warmup=0, final=0, ema=0, vector_rate=0)
        require(self.frac_warmup < 1, f"Fast.frac_warmup must be below 1, got {self.frac_warmup}")
        require(self.ema < 1, f"Fast.ema must be below 1, got {self.ema}")

    def optimiser(self, num_steps: int) -> optax.GradientTransformation:
        """The optax transformation for a run of so many steps."""
        warmup = max(1, round(self.frac_warmup * num_steps))
        # Peak 1, multiplied afterwards: optax's schedules refuse a traced peak.
        shape = optax.warmup_cosine_decay_schedule(
            0.0, 1.0, warmup, max(num_steps, warmup + 1), self.final
        )

        def schedule(step):
            return self.learning_rate * jnp.asarray(shape(step))

        muon = optax.chain(
            scale_by_muon(multiplied_in(self.precision)),
            optax.add_decayed_weights(self.weight_decay),
            optax.scale_by_learning_rate(schedule),
        )
        adam = optax.adam(lambda step: self.vector_rate * schedule(step), nesterov=True)
        return optax.partition({"muon": muon, "adam": adam}, _kinds)


# Earlier recipes, which leave most units of a 4x1024 MLP dead (docs/log.md). Experiments whose stored results used them
# still name them, so that their runs are found.
EARLIER_DEFAULT = Fast(0.04, 0.05, vector_rate=1.0)  # the earlier default of Fast()
EARLIER_FAST = Fast(
    0.05, 0.02, vector_rate=1.0
)  # of the full-scale MLP tables: 5,000 steps of 512 tasks x 4 points
