"""Where do wrong answers come from? Every node of the computation gets one of four labels.

    correct      its value is right, and all its parents are correct
    restored     its value is right, but some parent is not correct
    propagated   its value is wrong, but equal to the operation on the values of its parents
    local        its value is wrong, and is not the operation on the values of its parents

So a node below a restored one is never correct. Values are those that the student writes (emitted),
or those decoded from its activations. Source: Dziri et al. 2023 (arXiv 2305.18654).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from recombine.parts.field_checks import check
from recombine.parts.node_values import NodeValues, Source, observe_nodes, values_reader
from recombine.parts.prng import stream
from recombine.parts.protocols import Lab, Part

LABELS = ("correct", "local", "propagated", "restored")


@dataclass(frozen=True)
class ErrorPropagation:
    """The fractions of the four labels by layer of the graph, on train and on test tasks.

    `source` is where intermediate values come from: `"emitted"` by the student, or `"decoded"` by
    ridge regressions that are fitted on `num_fit` train tasks. Compare decoded ones with those of
    an untrained student. `num_tasks` tasks of each side are labeled.
    """

    source: Source = "emitted"
    num_tasks: int = 512
    num_fit: int = 512
    needs_graph: ClassVar[bool] = True

    def __post_init__(self):
        check(self, num_tasks=2, num_fit=2)

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """`SIDE/LABEL`, `SIDE/layer=K/LABEL` and `SIDE/layer=K/step_error`.

        `SIDE` is `seen` or `test`. `step_error` is the fraction of wrong nodes among those whose
        parents are all correct. Layers without a node have NaN.
        """
        read = values_reader(stream(key, "decoders"), lab, self.source, self.num_fit)
        result = {}
        sides: dict[str, Part] = {"seen": "train", "test": "test"}
        for side, part in sides.items():
            nodes = observe_nodes(stream(key, side), lab, part, self.num_tasks, read)
            result |= {f"{side}/{name}": value for name, value in _fractions(nodes).items()}
        return result


def correct_nodes(nodes: NodeValues) -> tuple[Bool[Array, "..."], Bool[Array, "..."]]:
    """Which nodes are correct, and which have only correct parents, (tasks, points, nodes)."""

    def of_point(right, parents, layer):
        def visit(correct, node):
            own = parents[node]
            is_parent = (own >= 0) & (layer[own] >= 0)
            all_correct = (correct[own] | ~is_parent).all()
            return correct.at[node].set(right[node] & all_correct), all_correct

        # Parents have smaller numbers than their children.
        return jax.lax.scan(visit, jnp.ones_like(right), jnp.arange(len(right)))

    of_task = jax.vmap(of_point, in_axes=(0, None, None))
    return jax.vmap(of_task)(nodes.right, nodes.parents, nodes.layer)


def labels(nodes: NodeValues) -> dict[str, Bool[Array, "tasks points nodes"]]:
    """The four labels as masks; exactly one is true for every node that exists."""
    correct, _ = correct_nodes(nodes)
    exists = nodes.exists
    return {
        "correct": correct & exists,
        "local": ~nodes.right & ~nodes.expected_right & exists,
        "propagated": ~nodes.right & nodes.expected_right & exists,
        "restored": nodes.right & ~correct & exists,
    }


def _fractions(nodes: NodeValues) -> dict[str, Array]:
    masks = labels(nodes)
    _, parents_correct = correct_nodes(nodes)
    exists = jnp.broadcast_to(nodes.exists, nodes.right.shape)
    has_correct_parents = exists & parents_correct
    result = {name: mask.sum() / exists.sum() for name, mask in masks.items()}
    result["step_error"] = (has_correct_parents & ~nodes.right).sum() / has_correct_parents.sum()
    for layer in range(1, nodes.layer.shape[1]):
        is_layer = (nodes.layer == layer)[:, None]
        num_nodes = (exists & is_layer).sum()
        for name, mask in masks.items():
            result[f"layer={layer}/{name}"] = (mask & is_layer).sum() / num_nodes
        counts = has_correct_parents & is_layer
        step_error = (counts & ~nodes.right).sum() / counts.sum()
        result[f"layer={layer}/step_error"] = step_error
    return result
