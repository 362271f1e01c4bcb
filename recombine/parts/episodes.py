"""Families whose points are the steps of episodes.

Such a family has a field `horizon`. Every episode takes `horizon` steps; the label of steps after
its end is `PADDING`. The episodes of a task are concatenated, so the number of points is a multiple
of the horizon. If fewer points are requested, as in a few-shot code, the last episode is cut.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

PADDING = -1


def join_episodes(steps: Array, n: int) -> Array:
    """Concatenate episodes (episodes, horizon, …) into the first n steps (n, …)."""
    return steps.reshape(-1, *steps.shape[2:])[:n]


def normalize(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Divide every observation by the root of its mean square."""
    return x * jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + 1e-6)


def score(prediction: Float[Array, "n A"], y: Int[Array, " n"], horizon: int) -> dict[str, Array]:
    """Cross-entropy and accuracy over steps, and the fraction of episodes without a wrong action.

    `prediction` holds logits of A actions. Padding is ignored. These are the scores of one task;
    the trainer averages them over tasks, so a task with short episodes weighs as much as another.
    (The public code gives all steps of a batch the same weight.)
    """
    counts = y != PADDING
    target = jnp.where(counts, y, 0)
    log_p = jnp.take_along_axis(jax.nn.log_softmax(prediction), target[:, None], axis=1)[:, 0]
    correct = prediction.argmax(axis=1) == target
    num_steps = jnp.maximum(counts.sum(), 1)
    no_mistake = jnp.pad(correct | ~counts, (0, -len(y) % horizon), constant_values=True)
    return {
        "loss": -jnp.where(counts, log_p, 0).sum() / num_steps,
        "accuracy": (correct & counts).sum() / num_steps,
        "trajectory_accuracy": no_mistake.reshape(-1, horizon).all(axis=1).mean(),
    }


# Earlier names, which work until the next release.
end_to_end = join_episodes
normalise = normalize
