"""How few neurons of its first layer does a network need? A measure of how simple the solution is that it found.

Those are kept that send most on: the deviation of the activation, times the length of the outgoing weights. The others
are replaced by their mean, and nothing is trained again: a solution in a rotated basis does not look simple by this.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from recombine.basics.errors import require
from recombine.parts.field_checks import check
from recombine.parts.protocols import Lab

WITHIN = 0.01  # R2 that may be lost
NUM_LEVELS = 32  # numbers of neurons that are tried, each some 20% above the one before


@dataclass(frozen=True)
class Compression:
    """Of a plain ReLU network of two hidden layers."""

    num_tasks: int = 256

    def __post_init__(self):
        check(self, num_tasks=2)

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """The fewest neurons that keep R2 on seen tasks within .01, and R2 on test tasks with these."""
        net: Any = lab.net
        plain = (getattr(net, name, None) for name in ("norms", "activation", "residual"))
        require(
            len(getattr(net, "layers", ())) == 3 and tuple(plain) == ((), "relu", False),
            "Compression is of a plain ReLU network of two hidden layers: set model=MLP(widths=(128, 128)), say",
        )
        key_fit, key_seen, key_test = jax.random.split(key, 3)
        fit = lab.observe(key_fit, "train", self.num_tasks).activations["hidden0"]
        sides = (
            lab.observe(key_seen, "train", self.num_tasks),
            lab.observe(key_test, "test", self.num_tasks),
        )
        _, second, last = net.layers
        mean, sent = (
            fit.mean(axis=(0, 1)),
            fit.std(axis=(0, 1)) * jnp.sqrt(jnp.square(second.weight).sum(axis=0)),
        )
        place = jnp.argsort(jnp.argsort(-sent))
        counts = jnp.asarray(np.unique(np.geomspace(1, len(mean), NUM_LEVELS).round().astype(int)))

        def r2(side, count):
            h = jnp.where(place < count, side.activations["hidden0"], mean)
            answer = jax.nn.relu(h @ second.weight.T + second.bias) @ last.weight.T + last.bias
            return jax.vmap(lab.family.score)(answer, side.batch.y)["r2"].mean()

        seen, test = jax.lax.map(lambda count: [r2(side, count) for side in sides], counts)
        fewest = jnp.argmax(seen >= seen[-1] - WITHIN)
        return {"neurons": counts[fewest], "test/r2": test[fewest]}
