"""A fast recipe: Muon for matrices, Adam for vectors, with warm-up and cosine decay.

Source of Muon: Jordan 2024 (`muon.py`).
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

from recombine.basics.errors import require
from recombine.parts.field_checks import Knob, added, check
from recombine.parts.muon import scale_by_muon
from recombine.parts.precision import Precision, matmul_dtype


def _optimizer_names(params):
    """Which optimizer each leaf gets: "muon" for matrices, "adam" for vectors and embeddings.

    An embedding is a list of vectors, not a matrix that is multiplied.
    """

    def optimizer_name(path, leaf):
        is_embedding = any(getattr(entry, "name", "") == "embedding" for entry in path)
        return "muon" if leaf.ndim >= 2 and not is_embedding else "adam"

    return jax.tree_util.tree_map_with_path(optimizer_name, params)


@dataclass(frozen=True)
class Fast:
    """Muon for matrices and Adam with Nesterov momentum for vectors and embeddings.

    - `learning_rate`: the peak learning rate of matrices.
    - `weight_decay`: of matrices.
    - `frac_warmup`: the fraction of steps in which the learning rate grows linearly.
    - `final`: the last learning rate of the cosine decay, as a fraction of the peak.
    - `ema`: if above 0, the decay of a running average of the weights, which is evaluated in place
      of the weights.
    - `precision`: the type in which matrices are multiplied.
    - `vector_rate`: the learning rate of vectors, as a fraction of that of matrices.

    With a high learning rate, a network can reach a good score while most of its units are dead.
    Check the columns `activity/…` when you raise `learning_rate` or `vector_rate`, or train longer.
    """

    learning_rate: Knob = 0.02
    weight_decay: Knob = 0.05
    frac_warmup: float = 0.05
    final: float = 0.01
    ema: float = 0.0
    precision: Precision = "auto"
    vector_rate: Knob = added(0.1, before=1.0)

    def __post_init__(self):
        check(self, learning_rate=0, weight_decay=0, frac_warmup=0, final=0, ema=0, vector_rate=0)
        require(self.frac_warmup < 1, f"Fast.frac_warmup must be below 1, got {self.frac_warmup}")
        require(self.ema < 1, f"Fast.ema must be below 1, got {self.ema}")

    def optimiser(self, num_steps: int) -> optax.GradientTransformation:
        """The optax transformation for a run of `num_steps` steps."""
        num_warmup = max(1, round(self.frac_warmup * num_steps))
        # With a peak of 1: the schedules of optax do not accept a traced peak.
        unit_schedule = optax.warmup_cosine_decay_schedule(
            init_value=0.0,
            peak_value=1.0,
            warmup_steps=num_warmup,
            decay_steps=max(num_steps, num_warmup + 1),
            end_value=self.final,
        )

        def schedule(step):
            return self.learning_rate * jnp.asarray(unit_schedule(step))

        muon = optax.chain(
            scale_by_muon(matmul_dtype(self.precision)),
            optax.add_decayed_weights(self.weight_decay),
            optax.scale_by_learning_rate(schedule),
        )
        adam = optax.adam(lambda step: self.vector_rate * schedule(step), nesterov=True)
        return optax.partition({"muon": muon, "adam": adam}, _optimizer_names)


# Earlier recipes, which leave most units of a 4x1024 MLP dead (docs/log.md). Experiments whose
# stored results were trained with them still use them, so that their rows are found.
EARLIER_DEFAULT = Fast(0.04, 0.05, vector_rate=1.0)  # the earlier default of Fast()
EARLIER_FAST = Fast(0.05, 0.02, vector_rate=1.0)  # of the MLP tables at full scale
