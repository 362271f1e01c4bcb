"""The protocols of the six kinds of parts, and the named tuples that they exchange.

Every part is a frozen dataclass of plain numbers with pure methods, written for one task; the
trainer vmaps over tasks, then over runs. A frozen dataclass hashes by value, so it is a correct
static argument of `jax.jit`.

Words: a *module* is a reusable component of a family. A *row* of the task table says which modules
a task contains. A *task* is a row after `weigh`: one float weight per module. A *world* holds the
arrays of the hidden teacher. A *code* is a task as the model sees it. A *point* is one sample
(x, y) of a task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    import equinox as eqx
    from jaxtyping import Array, PRNGKeyArray, PyTree


Part = Literal["train", "test"]


class Batch(NamedTuple):
    """Samples of one task, or of several tasks with a leading axis.

    `x` (n, …) and `y` (n, …) are points, `code` is what the model knows about the task, and `task`
    (M,) holds the true module weights.
    """

    x: PyTree[Array]
    y: PyTree[Array]
    code: Array
    task: Array


class Observation(NamedTuple):
    """A batch, with the predictions and activations of a network."""

    batch: Batch
    prediction: PyTree[Array]
    activations: dict[str, Array]


class Split(NamedTuple):
    """A permutation of the rows of the task table: train rows, then test rows, then unused rows."""

    order: Array
    num_train: Array
    num_test: Array


class Nodes(NamedTuple):
    """Targets of a family whose answers have several steps: values of nodes of a computation.

    `values` (n, nodes, …) are the true values, `exists` (n, nodes) says which of the nodes the task
    has, and `answer` (n, answers) has the numbers of the nodes that are the answer.
    """

    values: Array
    exists: Array
    answer: Array


class Graph(NamedTuple):
    """The computation graph of a task. Parents have smaller numbers than their children.

    `parents` (nodes, most) has the numbers of every node's parents, filled up with -1. `layer`
    (nodes,) is the length of the longest path from an input: 0 for inputs, and -1 for nodes that
    the task does not have.
    """

    parents: Array
    layer: Array


class Family(Protocol):
    """A set of tasks that are composed of modules.

    - `num_modules`, `num_outputs`: the number of modules M and the size of a prediction.
    - `tasks()`: the task table, one row per task.
    - `modules(tasks)`: 0/1 rows (N, M) that say which modules each task contains.
    - `groups(tasks)`: labels of tasks; scores are also reported for each label.
    - `init(key)`: draw the world.
    - `weigh(key, row)`: draw the module weights of a task, (M,) floats.
    - `sample(world, key, task, n)`: draw n points (x, y) of a task.
    - `score(prediction, y)`: named scores; `loss` is the one that is minimized.

    Optional:

    - `extrapolation()`: rows outside the table, for example with more active modules. They are
      scored but never part of a split.
    - `horizon`: points are the steps of episodes of this length, so the number of points in a batch
      is a multiple of it (`episodes.py`).
    - `examples(world, key, task, n)`: the examples in a few-shot code, if samples are too large.
    - `vocabulary` (words) and `sentence(task)` (indices of words): the family's own description of
      a task in language. Word 0 is for padding: sequence models skip it.
    - `views` (names) and `view(name, tasks)`: further 0/1 rows of tasks, for supports that read
      more than the set of modules. Sequences have `neighbors`, `positions` and `lengths`.
    - `deterministic = True`: a task is one instance, so all samples of it are equal. One point per
      task is then enough.
    - `graph(task)`, `trace(world, task, x)` and `operate(world, task, values)`: the computation
      behind the answers (`GraphFamily`).
    """

    @property
    def num_modules(self) -> int: ...
    @property
    def num_outputs(self) -> int: ...
    def tasks(self) -> np.ndarray: ...
    def modules(self, tasks: np.ndarray) -> np.ndarray: ...
    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]: ...
    def init(self, key: PRNGKeyArray) -> PyTree[Array]: ...
    def weigh(self, key: PRNGKeyArray, row: Array) -> Array: ...
    def sample(
        self, world: PyTree[Array], key: PRNGKeyArray, task: Array, n: int
    ) -> tuple[Any, Any]: ...
    def score(self, prediction: PyTree[Array], y: PyTree[Array]) -> dict[str, Array]: ...


class GraphFamily(Family, Protocol):
    """A family that declares its computation graph, for diagnostics of single steps.

    - `graph(task)`: the nodes of a task. The last nodes are those of `y.values`, in this order.
    - `trace(world, task, x)`: the true values of all nodes, (n, nodes, …).
    - `operate(world, task, values)`: the operation of every node, applied to the values that
      `values` (n, nodes, …) has at its parents. Inputs keep their values.
    - `emitted(prediction)`: the values (n, nodes, …) in a prediction with an axis of nodes.
    - `right(values, true)`: which values count as correct, (n, nodes).
    - `subgraphs(task)`: a row of integers (nodes, …) for every node. Two nodes, of any tasks, have
      equal rows if and only if they are the same node with the same ancestors.
    - `num_values`: the number of different values of a node; 0 if values are vectors of floats.
    - `num_inputs`: how many nodes, the first ones, are inputs.
    """

    @property
    def num_inputs(self) -> int: ...
    @property
    def num_values(self) -> int: ...
    def graph(self, task: Array) -> Graph: ...
    def trace(self, world: PyTree[Array], task: Array, x: PyTree[Array]) -> Array: ...
    def operate(self, world: PyTree[Array], task: Array, values: Array) -> Array: ...
    def emitted(self, prediction: Array) -> Array: ...
    def right(self, values: Array, true: Array) -> Array: ...
    def subgraphs(self, task: Array) -> Array: ...


class Support(Protocol):
    """Which tasks are train tasks and which are test tasks.

    `parts(modules, rng, frac_test)` marks every row of the table: 0 unused, 1 train, 2 test.
    `guarantees` names the conditions of `conditions.py` that every result meets.

    Optional: `view`, the name of the family's view of its tasks that `parts` receives in place of
    the modules.
    """

    guarantees: ClassVar[frozenset[str]]

    def parts(
        self, modules: np.ndarray, rng: np.random.Generator, frac_test: float
    ) -> np.ndarray: ...


class Encoding(Protocol):
    """How a task is described to the model: as a vector, or as a sequence of vectors.

    - `num_tokens(family)`: the size of the vocabulary if codes are integers, 0 if they are floats.
    - `init(key, family)`: draw the arrays of the encoding.
    - `encode(params, key, task, examples)`: the code of a task. `examples(key, n)` draws n fresh
      pairs (x, y) of the task.
    """

    def num_tokens(self, family: Family) -> int: ...
    def init(self, key: PRNGKeyArray, family: Family) -> PyTree[Array]: ...
    def encode(
        self,
        params: PyTree[Array],
        key: PRNGKeyArray,
        task: Array,
        examples: Callable[[PRNGKeyArray, int], Any],
    ) -> Array: ...


class Model(Protocol):
    """What is trained. `init` draws a network: an equinox module for one task at a time.

    The network is called as `net(x, code) -> (prediction, activations)`. Optional attributes of the
    model:

    - `loss(net, batch, score)`: the training loss, if it is not `score(...)["loss"]`.
    - `random_loss = True`: the loss draws random numbers. It gets a key as a fourth argument.
    - `memory(batch)` with `loss(net, batch, score, key, memory) -> (loss, memory)`: what the model
      keeps from one training step to the next, for one task of a batch. Every step draws a new
      batch; a model that still works on an earlier sample keeps that sample in its memory, and
      takes the new one with `jnp.where` where it has finished. `memory` gets a batch that has only
      shapes (its values are zero), so the first memory must count as finished. It is a tree of
      arrays without random keys, of shapes that the loss does not change. The memory is part of
      checkpoints; evaluations do not use it.
    - `needs_nodes = True`: it learns the steps of a computation, so the family's `y` must be
      `Nodes` and the code a sequence of words.
    - `together = True`: the prediction at a point depends on the other points. Evaluation then uses
      as many points at a time as training.

    Optional attributes of the network:

    - `many(x, code)`: the same as a call, for all tasks of a batch at once.
    - `activation`: the name of the nonlinearity ("relu", "gelu", …), with which the unit activity
      measure decides whether a unit of `hidden0`, … is dead. Activations named `feedforward0`, …
      are included in this measure but not probed.
    - `mixed_precision = True`: the network accepts matrices of lower precision than other arrays
      (it computes `weight @ h.astype(weight.dtype)`).
    """

    def init(
        self,
        key: PRNGKeyArray,
        example: Batch,
        num_outputs: int,
        num_tokens: int = 0,
        world: PyTree[Array] | None = None,
    ) -> eqx.Module: ...


class Lab(Protocol):
    """What a diagnostic has access to inside the compiled program.

    `observe(key, part, n)` draws batches of n tasks of a part of the split and applies the network.
    `look(key, rows)` does so for given rows of the task table. Both apply `net` if it is given.
    """

    @property
    def net(self) -> eqx.Module: ...
    @property
    def family(self) -> Family: ...
    @property
    def world(self) -> PyTree[Array]: ...
    @property
    def table(self) -> Array: ...
    @property
    def split(self) -> Split: ...
    @property
    def encoding(self) -> Encoding: ...
    def observe(
        self, key: PRNGKeyArray, part: Part, n: int, net: eqx.Module | None = None
    ) -> Observation: ...
    def look(
        self, key: PRNGKeyArray, rows: Array, net: eqx.Module | None = None
    ) -> Observation: ...


class Diagnostic(Protocol):
    """What is measured at every evaluation.

    Columns of the results begin with its `label`, or with its class name if it has none.

    Optional: `needs_graph = True`, if it measures the steps of a computation (`GraphFamily`).
    """

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]: ...


class Recipe(Protocol):
    """How a network is optimized: `optimiser(num_steps)` is an optax transformation.

    Optional: `ema`, the decay of a running average of the weights, which is evaluated in place of
    the weights; `precision`, the type in which matrices are multiplied (`precision.py`).
    """

    def optimiser(self, num_steps: int) -> Any: ...


# The methods by which the kind of a part is recognized, in this order: a model has only `init`,
# which other kinds have too.
DEFINING_METHODS = {
    "family": ("sample", "score", "tasks"),
    "support": ("parts",),
    "encoding": ("encode",),
    "diagnostic": ("measure",),
    "recipe": ("optimiser",),
    "model": ("init",),
}


def kind_of(part: Any) -> str | None:
    """The kind of a part or of its class ("family", "support", …); None if it is not a part."""
    for kind, methods in DEFINING_METHODS.items():
        if all(hasattr(part, method) for method in methods):
            return kind
    return None


def has_graph(family: Any) -> bool:
    """Whether a family declares its computation graph."""
    return all(hasattr(family, name) for name in ("graph", "trace", "operate"))


def has_memory(model: Any) -> bool:
    """Whether a model keeps a memory from one training step to the next."""
    return callable(getattr(type(model), "memory", None))  # it may have a field of this name


def example_sampler(
    family: Family, world: PyTree[Array], task: Array
) -> Callable[[PRNGKeyArray, int], Any]:
    """The function `examples(key, n)` of a task that encodings receive.

    It draws the family's own `examples` if it has them, and samples otherwise.
    """
    draw = getattr(family, "examples", family.sample)
    return lambda key, n: draw(world, key, task, n)


examples_of = example_sampler  # the earlier name, which works until the next release
