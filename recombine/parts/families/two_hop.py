"""Two lookups, one after the other: relation r leads from symbol s to map[r, s].

    t = second[r2, first[r1, s]]

A task is one instance (s, r1, r2), and both maps are random. There are two versions.

- Two maps, instances of two lookups only. With as many relations as symbols this is the two-hop
  task of Chang et al. 2025 (arXiv 2505.20278): t = f2(f1(x1, x2), x3), with random functions of
  pairs of tokens.
- `facts`: one map for both lookups, and every lookup is also a task of its own, a fact. Some facts
  are apart: they are known alone, but never used in training to infer another. The design follows
  Wang et al. 2024 (arXiv 2405.15071).
"""

import functools
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from recombine.basics.errors import require
from recombine.basics.random_streams import generator
from recombine.parts import sequences
from recombine.parts.field_checks import check
from recombine.parts.protocols import Graph, Nodes

ALONE, PAIR, MIXED, APART = 1, 2, 3, 4  # the kinds of tasks
NUM_KINDS = 4


@dataclass(frozen=True)
class TwoHop:
    """Instances of two lookups; with `facts`, also of one.

    - `num_symbols`: S, the number of symbols that a lookup starts from and leads to.
    - `num_relations`: R, the number of relations.
    - `facts`: one map for both lookups, and the table has every lookup as a task of its own.
    - `frac_apart`: the fraction of the facts that are apart. It has no effect without `facts`.
    - `table_seed`: draws the maps and the facts that are apart. They are the same for all seeds of
      runs, because the kinds of tasks depend on them.

    The rows of the table are (s + 1, r1 + 1, r2 + 1); r2 is 0 for a fact. The symbol is x, and the
    relations are words of the code. The kind of a task is `ALONE` for a fact, `PAIR` for two facts
    that are not apart, `APART` for two that are, and `MIXED` for one of each.
    """

    num_symbols: int = 16
    num_relations: int = 16
    facts: bool = False
    frac_apart: float = 0.25
    table_seed: int = 0
    deterministic: ClassVar[bool] = True
    views: ClassVar[tuple[str, ...]] = ("modules", "positions", "kinds")
    num_inputs: ClassVar[int] = 1

    def __post_init__(self):
        check(self, num_symbols=2, num_relations=2, frac_apart=0, table_seed=0)
        require(
            self.frac_apart < 1,
            f"TwoHop.frac_apart must be below 1, got {self.frac_apart}",
        )
        num_rows = self.num_symbols * self.num_relations * (self.num_relations + 1)
        num_features = self.num_symbols + 2 * self.num_relations
        sequences.check_table("TwoHop", num_rows, num_features, 1)

    @property
    def num_modules(self) -> int:
        """The number of relations."""
        return self.num_relations

    @property
    def num_outputs(self) -> int:
        """One logit for each symbol."""
        return self.num_symbols

    @property
    def num_values(self) -> int:
        """Every node is one of the symbols."""
        return self.num_symbols

    def tasks(self) -> Int[np.ndarray, "N 3"]:
        """All instances of two lookups, after all facts if there are any."""
        first = 0 if self.facts else 1
        sizes = (self.num_symbols, self.num_relations, self.num_relations + 1 - first)
        rows = np.indices(sizes).reshape(3, -1).T + np.array([1, 1, first])
        is_pair = rows[:, 2] > 0
        return np.concatenate([rows[~is_pair], rows[is_pair]]).astype(np.int16)

    def modules(self, tasks: np.ndarray) -> np.ndarray:
        """Which relations each task uses."""
        return self.view("modules", tasks)

    def view(self, name: str, tasks: np.ndarray) -> np.ndarray:
        """Relations, words at their positions, or kinds of tasks, as 0/1 rows."""
        relations = np.eye(self.num_relations + 1, dtype=np.int8)[:, 1:][tasks[:, 1:]]
        if name == "modules":
            return relations.max(axis=1)
        if name == "positions":
            symbol = np.eye(self.num_symbols, dtype=np.int8)[tasks[:, 0] - 1]
            return np.concatenate([symbol, relations.reshape(len(tasks), -1)], axis=1)
        require(
            name == "kinds", f"there is no view {name!r}: choose one of {', '.join(self.views)}"
        )
        return np.eye(NUM_KINDS, dtype=np.int8)[self.kinds(tasks) - 1]

    def kinds(self, tasks: np.ndarray) -> Int[np.ndarray, " N"]:
        """The kind of each task, from `ALONE` to `APART`."""
        symbol, r1, r2 = tasks.T.astype(np.int64)
        apart = _apart(self)
        first, _ = _maps(self)
        bridge = first[r1 - 1, symbol - 1]
        num_apart = apart[r1 - 1, symbol - 1].astype(int) + apart[r2 - 1, bridge]
        return np.where(r2 == 0, ALONE, PAIR + num_apart).astype(np.int32)

    def first_map(self) -> Int[np.ndarray, "R S"]:
        """The symbol to which the first lookup leads, by relation and symbol, counted from 0."""
        return _maps(self)[0]

    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]:
        """With facts, scores are also reported by the kind of task."""
        return {"kind": self.kinds(tasks)} if self.facts else {}

    def init(self, key: PRNGKeyArray) -> tuple[()]:
        """The maps belong to the table, so a world has no arrays."""
        return ()

    def weigh(self, key: PRNGKeyArray, row: Shaped[Array, " 3"]) -> Float[Array, " features"]:
        """The instance as a float row: one-hot vectors of the symbol and of both relations."""
        row = row.astype(jnp.int32)
        symbol = jax.nn.one_hot(row[0] - 1, self.num_symbols)
        relations = jax.nn.one_hot(row[1:] - 1, self.num_relations)
        return jnp.concatenate([symbol, relations.reshape(-1)])

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The padding and the relations, those of the second map apart from those of the first."""
        names = [f"r{r}" for r in range(self.num_relations)]
        if self.facts:
            return ("-", *names)
        return ("-", *names, *(f"{name}'" for name in names))

    def sentence(self, task: Float[Array, " features"]) -> Int[Array, " 2"]:
        """One word for each relation."""
        relations = sequences.words_of(task[self.num_symbols :], self.num_relations)
        if self.facts:
            return relations
        return relations + jnp.array([0, self.num_relations]) * (relations > 0)

    def sample(
        self, world: tuple[()], key: PRNGKeyArray, task: Float[Array, " features"], n: int
    ) -> tuple[Float[Array, "n S"], Nodes]:
        """The instance n times. The key is not used."""
        x = jnp.broadcast_to(task[: self.num_symbols], (n, self.num_symbols))
        values = self.trace(world, task, x)[:, 1:]
        exists = self.sentence(task) > 0
        answer = jnp.full((n, 1), exists.sum() - 1)
        return x, Nodes(values, jnp.broadcast_to(exists, (n, 2)), answer)

    def score(self, prediction: Array, y: Nodes) -> dict[str, Array]:
        """Cross-entropy, and the fraction of answers that are right."""
        return sequences.classification_scores(prediction, y)

    def graph(self, task: Float[Array, " features"]) -> Graph:
        """Node 0 is the symbol, node t the symbol after t lookups, with node t - 1 as parent."""
        node = jnp.arange(3)
        length = (self.sentence(task) > 0).sum()
        return Graph(jnp.arange(-1, 2)[:, None], jnp.where(node <= length, node, -1))

    def trace(
        self, world: tuple[()], task: Float[Array, " features"], x: Float[Array, "n S"]
    ) -> Int[Array, "n 3"]:
        """The symbols of all nodes. After the last lookup, the symbol stays."""
        start = x.argmax(axis=-1)
        bridge = self._look_up(task, 0, start)
        return jnp.stack([start, bridge, self._look_up(task, 1, bridge)], axis=1)

    def operate(
        self, world: tuple[()], task: Float[Array, " features"], values: Int[Array, "n 3"]
    ) -> Int[Array, "n 3"]:
        """Apply every lookup to the symbol that its parent has in `values`."""
        after = [self._look_up(task, hop, values[:, hop]) for hop in (0, 1)]
        return jnp.stack([values[:, 0], *after], axis=1)

    def emitted(self, prediction: Float[Array, "n nodes S"]) -> Int[Array, "n nodes"]:
        """The likeliest symbols."""
        return prediction.argmax(axis=-1)

    def right(self, values: Array, true: Array) -> Array:
        """Equal symbols."""
        return values == true

    def subgraphs(self, task: Float[Array, " features"]) -> Int[Array, "nodes 3"]:
        """The symbol and the words of the lookups up to each node."""
        row = jnp.concatenate([task[: self.num_symbols].argmax()[None] + 1, self.sentence(task)])
        return jnp.where(jnp.arange(3) <= jnp.arange(3)[:, None], row, 0)

    def _look_up(self, task: Array, hop: int, symbol: Int[Array, " n"]) -> Int[Array, " n"]:
        """One lookup of n symbols; they stay if the task does not have it."""
        word = sequences.words_of(task[self.num_symbols :], self.num_relations)[hop]
        table = jnp.asarray(_maps(self)[hop])
        return jnp.where(word > 0, table[jnp.maximum(word - 1, 0), symbol], symbol)


@functools.lru_cache(maxsize=16)
def _maps(family: TwoHop) -> Int[np.ndarray, "2 R S"]:
    """The maps of the first and of the second lookup: the same one if there are facts."""
    rng = generator(family.table_seed, "maps")
    shape = (family.num_relations, family.num_symbols)
    first = rng.integers(0, family.num_symbols, shape)
    second = first if family.facts else rng.integers(0, family.num_symbols, shape)
    return np.stack([first, second]).astype(np.int32)


@functools.lru_cache(maxsize=16)
def _apart(family: TwoHop) -> Bool[np.ndarray, "R S"]:
    """Which facts are apart."""
    num_facts = family.num_relations * family.num_symbols
    num_apart = round(family.frac_apart * num_facts) if family.facts else 0
    order = generator(family.table_seed, "apart").permutation(num_facts)
    return (order < num_apart).reshape(family.num_relations, family.num_symbols)
