"""The protocols that every part follows, the few tuples that travel between them.

Every part is a frozen dataclass of plain numbers with pure methods, written for one task; the trainer vmaps over
tasks, then over runs. A frozen dataclass hashes by value, so it is a correct static argument of `jax.jit`.
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
    """Samples of one task (or, with a leading axis, of several)."""

    x: PyTree[Array]
    y: PyTree[Array]
    code: Array
    task: Array


class Observation(NamedTuple):
    """A batch, and what a network made of it."""

    batch: Batch
    prediction: PyTree[Array]
    activations: dict[str, Array]


class Split(NamedTuple):
    """Rows of the task table in a random order: first the train rows, then the test rows, then the unused ones."""

    order: Array
    num_train: Array
    num_test: Array


class Family(Protocol):
    """What is to be learned: a set of tasks composed of modules. Optional:

    `extrapolation() -> rows`: tasks beyond the table (more active modules, say), scored but never part of a split;
    `horizon`: points are the steps of episodes of this length, so a batch has a multiple of it (`episode.py`);
    `examples(world, key, task, n) -> arrays`: what few-shot codes are made of, where `sample` would be too wide;
    `vocabulary` (words) and `sentence(task) -> numbers of words`: the task as the family itself puts it.
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


class Support(Protocol):
    """What is trained on. `parts` marks every row of the table: 0 unused, 1 train, 2 test."""

    guarantees: ClassVar[frozenset[str]]

    def parts(
        self, modules: np.ndarray, rng: np.random.Generator, frac_test: float
    ) -> np.ndarray: ...


class Encoding(Protocol):
    """How a task is told to the model, as a vector, or as a sequence of vectors (for a model that reads sequences).
    `examples(key, n)` draws fresh (x, y) pairs of the task."""

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
    """What learns. `init` gives an equinox module called as `net(x, code) -> (prediction, activations)`, one task at
    a time. Optional:

    `loss(net, batch, score)`, where training is more than `score(...)["loss"]`;
    `together = True`, where a point's prediction depends on the points beside it: evaluation then shows as many at a
    time as training did;
    a net's `many`, the same for all tasks of a batch at once;
    a net's `activation`, the name of its nonlinearity ("relu", "gelu", …): unit activity uses it to decide when a unit
    of `hidden0`, … is dead; activations named `feedforward0`, … are measured too, but not probed;
    a net's `mixed_precision = True`, where it works with matrices of a lower type than the rest
    (`weight @ h.astype(weight.dtype)`).
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
    """What a diagnostic may look at, inside the compiled program."""

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
    """What is measured on the way. Its metrics are stored under its `label`, or its class name where it has none."""

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]: ...


class Recipe(Protocol):
    """How a network is optimised. Optional: `ema`, the decay of a running average that is evaluated in its place;
    `precision`, the type in which matrices are multiplied (`recombine.recipe`)."""

    def optimiser(self, num_steps: int) -> Any: ...


# What distinguishes the kinds of parts: the methods that only this kind has. A model is what has nothing but `init`.
MARKS = {
    "family": ("sample", "score", "tasks"),
    "support": ("parts",),
    "encoding": ("encode",),
    "diagnostic": ("measure",),
    "recipe": ("optimiser",),
    "model": ("init",),
}


def kind_of(part: Any) -> str | None:
    """The kind of a part or of its class: "family", "support", … or None."""
    return next(
        (kind for kind, marks in MARKS.items() if all(hasattr(part, mark) for mark in marks)), None
    )


def examples_of(
    family: Family, world: PyTree[Array], task: Array
) -> Callable[[PRNGKeyArray, int], Any]:
    """The examples of a task that an encoding may draw: the family's own, or else its samples."""
    draw = getattr(family, "examples", family.sample)
    return lambda key, n: draw(world, key, task, n)
