"""The number of first-layer neurons that a network needs, as a measure of how simple it is.

Neurons are ranked by the standard deviation of their activation times the norm of their outgoing
weights. The first ones are kept, the others are replaced by their mean activation, and nothing is
retrained. A simple solution in a rotated basis therefore does not count as simple.
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

MAX_R2_LOSS = 0.01
NUM_LEVELS = 32  # numbers of neurons that are tried, on a logarithmic scale


@dataclass(frozen=True)
class Compression:
    """For an MLP with two hidden layers, ReLU, and no norms or residual connections.

    R2 is measured on `num_tasks` seen tasks and as many test tasks.
    """

    num_tasks: int = 256

    def __post_init__(self):
        check(self, num_tasks=2)

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """The smallest number of neurons that loses at most 0.01 R2 on seen tasks, and its test R2.

        The columns are `neurons` and `test/r2`.
        """
        net: Any = lab.net
        options = tuple(getattr(net, name, None) for name in ("norms", "activation", "residual"))
        require(
            len(getattr(net, "layers", ())) == 3 and options == ((), "relu", False),
            "Compression needs a plain ReLU network with two hidden layers: "
            "set, for example, model=MLP(widths=(128, 128))",
        )
        key_fit, key_seen, key_test = jax.random.split(key, 3)
        fit = lab.observe(key_fit, "train", self.num_tasks).activations["hidden0"]
        sides = (
            lab.observe(key_seen, "train", self.num_tasks),
            lab.observe(key_test, "test", self.num_tasks),
        )
        _, second, last = net.layers
        mean = fit.mean(axis=(0, 1))
        outgoing_norm = jnp.sqrt(jnp.square(second.weight).sum(axis=0))
        importance = fit.std(axis=(0, 1)) * outgoing_norm
        rank = jnp.argsort(jnp.argsort(-importance))
        counts = jnp.asarray(np.unique(np.geomspace(1, len(mean), NUM_LEVELS).round().astype(int)))

        def r2(side, count):
            h = jnp.where(rank < count, side.activations["hidden0"], mean)
            output = jax.nn.relu(h @ second.weight.T + second.bias) @ last.weight.T + last.bias
            return jax.vmap(lab.family.score)(output, side.batch.y)["r2"].mean()

        seen, test = jax.lax.map(lambda count: [r2(side, count) for side in sides], counts)
        fewest = jnp.argmax(seen >= seen[-1] - MAX_R2_LOSS)
        return {"neurons": counts[fewest], "test/r2": test[fewest]}
