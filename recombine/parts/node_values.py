"""The values of intermediate nodes that a network predicts, or that are decoded from it.

A prediction with an axis of nodes *emits* their values. From any other network they are *decoded*:
a ridge regression for every node, fitted on train tasks, from the activations at its word
(`nodes0`, …) or from the hidden layers. The layer is chosen for each node on fresh samples of train
tasks. Diagnostics of computation graphs share this code.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from recombine.basics.errors import require
from recombine.parts.decoder import fit_ridges, probed_layers
from recombine.parts.prng import stream
from recombine.parts.protocols import GraphFamily, Lab, Nodes, Observation, Part

Source = Literal["emitted", "decoded"]
Decode = Callable[[Observation], Array]
L2 = 1e-3  # penalty of the decoders, relative to the mean variance of a layer's features


class NodeValues(NamedTuple):
    """The nodes of several tasks: their true values, and those of the network.

    Arrays begin with (tasks, points, nodes), `layer` and `parents` with (tasks, nodes). The
    network's values of inputs are the true ones.
    """

    task: Float[Array, "tasks features"]
    true: Array
    found: Array
    parents: Int[Array, "tasks nodes most"]
    layer: Int[Array, "tasks nodes"]
    right: Bool[Array, "tasks points nodes"]
    expected_right: Bool[Array, "tasks points nodes"]  # as computed from the network's parents

    @property
    def exists(self) -> Bool[Array, "tasks 1 nodes"]:
        """Which nodes a task has, apart from inputs."""
        return (self.layer > 0)[:, None]


def graph_family(lab: Lab) -> GraphFamily:
    """The family, which declares its computation graph (`Run` has checked it)."""
    return cast(GraphFamily, lab.family)


def values_reader(key: PRNGKeyArray, lab: Lab, source: Source, num_fit: int) -> Decode:
    """The function that gives the values (tasks, points, nodes, …) of the last nodes."""
    if source == "emitted":
        return lambda observed: _emitted(lab, observed)
    return _fit_decoders(key, lab, num_fit)


def observe_nodes(key: PRNGKeyArray, lab: Lab, part: Part, n: int, read: Decode) -> NodeValues:
    """The nodes of n tasks of a part."""
    observed = lab.observe(key, part, n)
    return node_values(lab, observed, read(observed))


def node_values(lab: Lab, observed: Observation, values: Array) -> NodeValues:
    """Compare the values of the last nodes with the true ones, and with their own parents."""
    family = graph_family(lab)
    batch = observed.batch

    def of_task(task, x, values):
        graph = family.graph(task)
        true = family.trace(lab.world, task, x)
        num_inputs = true.shape[1] - values.shape[1]
        computed = jnp.concatenate([true[:, :num_inputs], values], axis=1)
        expected = family.operate(lab.world, task, computed)
        right = family.right(computed, true)
        as_expected = family.right(computed, expected)
        return NodeValues(task, true, computed, graph.parents, graph.layer, right, as_expected)

    _check_nodes(lab, batch.task, batch.x, values)
    return jax.vmap(of_task)(batch.task, batch.x, values)


def _check_nodes(lab: Lab, tasks: Array, x: Array, values: Array) -> None:
    """Raise an `InputError` if some nodes that are no inputs have no values."""
    graph = jax.eval_shape(graph_family(lab).graph, tasks[0])
    num_nodes = len(graph.layer)
    num_inputs = graph_family(lab).num_inputs
    require(
        values.shape[2] == num_nodes - num_inputs,
        f"{type(lab.family).__name__} has {num_nodes - num_inputs} nodes beside its inputs, but "
        f"this student emits the values of {values.shape[2]}: choose source='decoded'",
    )


def _emitted(lab: Lab, observed: Observation) -> Array:
    num_axes = jax.tree.leaves(observed.prediction)[0].ndim
    require(
        num_axes == 4,
        "this student emits no intermediate values: choose source='decoded', or a model that "
        "writes every step, such as SequenceTransformer(targets='scratchpad')",
    )
    return jax.vmap(graph_family(lab).emitted)(observed.prediction)


def _fit_decoders(key: PRNGKeyArray, lab: Lab, num_fit: int) -> Decode:
    """Fit decoders of all nodes from all layers, and choose a layer for each node."""
    fit = lab.observe(stream(key, "fit"), "train", num_fit)
    choose = lab.observe(stream(key, "choose"), "train", num_fit)
    fit_nodes = _true_nodes(lab, fit)
    choose_nodes = _true_nodes(lab, choose)
    num_nodes = fit_nodes.values.shape[2]
    decoders = []
    best = []
    for node in range(num_nodes):
        layers = {name: _flat(h, node, num_nodes) for name, h in _layers(fit).items()}
        target = _as_columns(lab, fit_nodes, node)
        fitted = fit_ridges(layers, target, L2)
        errors = []
        for name, h in _layers(choose).items():
            error = fitted[name](_flat(h, node, num_nodes)) - _as_columns(lab, choose_nodes, node)
            exists = choose_nodes.exists[:, :, node].reshape(-1, 1)
            errors.append(jnp.where(exists, jnp.square(error), 0).sum())
        decoders.append(fitted)
        best.append(jnp.argmin(jnp.stack(errors)))

    def decode(observed):
        shape = observed.batch.x.shape[:2]
        decoded = []
        for node, (fitted, index) in enumerate(zip(decoders, best, strict=True)):
            layers = _layers(observed)
            by_layer = [fitted[name](_flat(h, node, num_nodes)) for name, h in layers.items()]
            columns = jnp.stack(by_layer)[index]
            value = columns.argmax(axis=-1) if graph_family(lab).num_values else columns
            decoded.append(value.reshape(*shape, *value.shape[1:]))
        return jnp.stack(decoded, axis=2)

    return decode


def _true_nodes(lab: Lab, observed: Observation) -> Nodes:
    """The true values (tasks, points, nodes, …) of all nodes that are no inputs."""
    num_inputs = graph_family(lab).num_inputs

    def of_task(task, x):
        values = graph_family(lab).trace(lab.world, task, x)[:, num_inputs:]
        layer = graph_family(lab).graph(task).layer[num_inputs:]
        exists = jnp.broadcast_to(layer > 0, (len(values), len(layer)))
        return Nodes(values, exists, jnp.zeros((len(values), 1), int))

    return jax.vmap(of_task)(observed.batch.task, observed.batch.x)


def _as_columns(lab: Lab, nodes: Nodes, node: int) -> Float[Array, "samples columns"]:
    """The targets of a decoder: one-hot values, or vectors; zeros for nodes that do not exist."""
    values = nodes.values[:, :, node]
    if graph_family(lab).num_values:
        values = jax.nn.one_hot(values, graph_family(lab).num_values)
    exists = nodes.exists[:, :, node, None]
    return jnp.where(exists, values, 0).reshape(-1, values.shape[-1])


def _layers(observed: Observation) -> dict[str, Array]:
    """The activations at the words if a network has them, and otherwise its hidden layers."""
    activations = observed.activations
    at_words = {name: h for name, h in activations.items() if name.startswith("nodes")}
    hidden = {name: h for name, h in probed_layers(activations).items() if name != "output"}
    return at_words or hidden


def _flat(h: Array, node: int, num_nodes: int) -> Float[Array, "samples features"]:
    """One sample for each point: the activations at the word of a node, or all of them."""
    if h.ndim == 4 and h.shape[2] == num_nodes:
        h = h[:, :, node]
    return h.reshape(h.shape[0] * h.shape[1], -1).astype(jnp.float32)
