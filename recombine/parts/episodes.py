"""Points that are the steps of episodes, laid end to end: `horizon` steps each, the label -1 where one has ended.

A family of episodes has a field `horizon`. Its points come in whole episodes; where fewer are asked for, in a few-shot
code say, the last episode is cut.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

PADDING = -1


def end_to_end(steps: Array, n: int) -> Array:
    """The first n steps of episodes (episodes, horizon, …), one after the other."""
    return steps.reshape(-1, *steps.shape[2:])[:n]


def normalise(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Every observation divided by the root of its mean square."""
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + 1e-6)


def score(prediction: Float[Array, "n A"], y: Int[Array, " n"], horizon: int) -> dict[str, Array]:
    """Cross-entropy and accuracy over the steps that count, and the fraction of episodes without a mistake.

    Of one task: the trainer averages tasks, so that a short episode weighs as much as a long one. (The public code
    weighs every step of a batch the same.)
    """
    counts = y != PADDING
    target = jnp.where(counts, y, 0)
    log_p = jnp.take_along_axis(jax.nn.log_softmax(prediction), target[:, None], axis=1)[:, 0]
    right = prediction.argmax(axis=1) == target
    total = jnp.maximum(counts.sum(), 1)
    whole = jnp.pad(right | ~counts, (0, -len(y) % horizon), constant_values=True)
    return {
        "loss": -jnp.where(counts, log_p, 0).sum() / total,
        "accuracy": (right & counts).sum() / total,
        "trajectory_accuracy": whole.reshape(-1, horizon).all(axis=1).mean(),
    }
