"""Chains of modules: f_c(f_b(f_a(x))). The order and the number of modules matter.

There are two kinds of modules. Discrete modules are random maps of S symbols. Continuous modules
act on d units: an orthogonal matrix, then a centered absolute value on half of the units,

    h <- Q_m h,   h_i <- (|h_i| - sqrt(2 / pi)) / sqrt(1 - 2 / pi)   for the first half of the units

They keep information with depth, which plain ReLU layers do not. After every module the values of
an intermediate are known, so a wrong answer can be traced to its first wrong step. The protocol of
computation graphs follows Dziri et al. 2023 (arXiv 2305.18654).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from recombine.basics.errors import require
from recombine.parts import khot, sequences
from recombine.parts.field_checks import check
from recombine.parts.protocols import Graph, Nodes

MEAN_ABS = math.sqrt(2 / math.pi)  # of a standard normal variable
DEVIATION_ABS = math.sqrt(1 - 2 / math.pi)
# A continuous node is right if its root mean squared error over units is below this number, a tenth
# of the standard deviation of an input's unit. The same number holds at all depths, so that errors
# can be compared. Units of deeper nodes vary by up to a quarter more, so the rule is a little
# stricter there.
TOLERANCE = 0.1


class Modules(NamedTuple):
    """The hidden modules: `maps[m, s]` is the symbol to which module m maps s, or `matrices[m]` is
    the orthogonal matrix of module m. The other field is empty.
    """

    maps: Int[Array, "M S"]
    matrices: Float[Array, "M d d"]


@dataclass(frozen=True)
class Chain:
    """Sequences of 1 to D of M modules, which are applied one after the other.

    - `num_modules`, `max_length`: M and D. The table is as wide as its longest chain.
    - `kind`: `"discrete"` or `"continuous"` modules.
    - `size`: the number of symbols S, or of units d.
    - `invertible`: every discrete module is a permutation of the symbols. Otherwise it is a random
      map, and chains lose information with depth: few symbols are left, so answers can be guessed.
    - `repeat`: a module may occur several times in a chain.
    - `max_per_length`: the most chains of each length in the table, drawn with `table_seed`.

    The rows of the table are words: module m is m + 1, and 0 fills rows up. `weigh` makes a float
    row of them, with one entry for each position and module.
    """

    num_modules: int = 8
    max_length: int = 6
    kind: Literal["discrete", "continuous"] = "discrete"
    size: int = 16
    invertible: bool = True
    repeat: bool = True
    max_per_length: int = 1000
    table_seed: int = 0
    views: ClassVar[tuple[str, ...]] = sequences.VIEWS
    num_inputs: ClassVar[int] = 1

    def __post_init__(self):
        check(self, num_modules=2, max_length=1, size=2, max_per_length=1, table_seed=0)
        require(
            self.repeat or self.max_length <= self.num_modules,
            f"Chain.max_length={self.max_length} is longer than {self.num_modules} modules without "
            "repetition: lower it, or set repeat=True",
        )
        require(
            self.max_length * math.log(self.num_modules) < 600,
            f"Chain.max_length={self.max_length} gives too many chains to draw from: lower it",
        )
        num_rows = self.max_length * self.max_per_length
        sequences.check_table("Chain", num_rows, self.num_modules, self.max_length)
        require(
            self.num_modules * self.size**2 <= sequences.MAX_CELLS,
            f"Chain.size={self.size} is too large for {self.num_modules} modules: lower it",
        )

    @property
    def num_outputs(self) -> int:
        """One logit for each symbol, or one number for each unit."""
        return self.size

    @property
    def num_values(self) -> int:
        """The number of symbols; 0 if nodes are vectors of floats."""
        return self.size if self.kind == "discrete" else 0

    def tasks(self) -> Int[np.ndarray, "N D"]:
        """All chains of length 1 to D, or `max_per_length` of each length."""
        return np.concatenate(
            [
                sequences.rows_of_length(
                    self.num_modules,
                    length,
                    self.max_length,
                    self.repeat,
                    self.max_per_length,
                    self.table_seed,
                )
                for length in range(1, self.max_length + 1)
            ]
        )

    def modules(self, tasks: np.ndarray) -> np.ndarray:
        """Which modules each chain contains."""
        return self.view("modules", tasks)

    def view(self, name: str, tasks: np.ndarray) -> np.ndarray:
        """Modules, neighbors, positions or lengths of the chains, as 0/1 rows."""
        return sequences.view(name, tasks, self.num_modules)

    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]:
        """Scores are also reported by the length of the chain."""
        return {"length": sequences.lengths(tasks)}

    def task(self, modules: Sequence[int]) -> Float[Array, " features"]:
        """The task that applies these modules, counted from 0, one after the other."""
        require(
            0 < len(modules) <= self.max_length,
            f"a chain of {len(modules)} modules does not fit the table of chains of 1 to "
            f"{self.max_length}: raise Chain.max_length",
        )
        require(
            all(0 <= module < self.num_modules for module in modules),
            f"modules of a chain are numbered from 0 to {self.num_modules - 1}, got {modules}",
        )
        words = [module + 1 for module in modules] + [0] * (self.max_length - len(modules))
        return sequences.one_hot(jnp.array(words), self.num_modules)

    def init(self, key: PRNGKeyArray) -> Modules:
        """Draw permutations or maps of symbols, or orthogonal matrices."""
        shape = (self.num_modules, self.size)
        if self.kind == "continuous":
            draw = jax.nn.initializers.orthogonal()
            keys = jax.random.split(key, self.num_modules)
            matrices = jax.vmap(lambda key: draw(key, (self.size, self.size)))(keys)
            return Modules(jnp.zeros((self.num_modules, 0), jnp.int32), matrices)
        if self.invertible:
            maps = jax.random.uniform(key, shape).argsort(axis=1)
        else:
            maps = (jax.random.bits(key, shape) % jnp.uint32(self.size)).astype(jnp.int32)
        return Modules(maps, jnp.zeros((self.num_modules, 0, 0)))

    def weigh(self, key: PRNGKeyArray, row: Shaped[Array, " D"]) -> Float[Array, " features"]:
        """The chain as a float row: 1 where a position has a module."""
        return sequences.one_hot(row, self.num_modules)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The padding and the modules."""
        return ("-", *(f"f{m}" for m in range(self.num_modules)))

    def sentence(self, task: Float[Array, " features"]) -> Int[Array, " D"]:
        """One word for each module, in the order in which they are applied."""
        return sequences.words_of(task, self.num_modules)

    def sample(
        self, world: Modules, key: PRNGKeyArray, task: Float[Array, " features"], n: int
    ) -> tuple[Float[Array, "n size"], Nodes]:
        """Draw n inputs of one chain, and the values after each of its modules.

        A symbol is uniform, and x is its one-hot vector. Units are standard normal.
        """
        if self.kind == "discrete":
            symbol = (jax.random.bits(key, (n,)) % jnp.uint32(self.size)).astype(jnp.int32)
            x = jax.nn.one_hot(symbol, self.size)
        else:
            x = jax.random.normal(key, (n, self.size))
        values = self.trace(world, task, x)[:, 1:]
        length = (self.sentence(task) > 0).sum()
        exists = jnp.broadcast_to(jnp.arange(self.max_length) < length, (n, self.max_length))
        return x, Nodes(values, exists, jnp.full((n, 1), length - 1))

    def examples(
        self, world: Modules, key: PRNGKeyArray, task: Float[Array, " features"], n: int
    ) -> tuple[Float[Array, "n size"], Float[Array, "n size"]]:
        """The examples of a few-shot code: inputs and answers only, both as vectors."""
        x, y = self.sample(world, key, task, n)
        answer = sequences.at_answer(y.values, y)[:, 0]
        return x, jax.nn.one_hot(answer, self.size) if self.kind == "discrete" else answer

    def score(self, prediction: Array, y: Nodes) -> dict[str, Array]:
        """Discrete: cross-entropy and accuracy. Continuous: mean squared error, R2 and accuracy.

        A prediction (n, size) is the answer; a prediction (n, D, size) is the value of every node,
        and the loss is then a mean over nodes.
        """
        if self.kind == "discrete":
            return sequences.classification_scores(prediction, y)
        true = sequences.at_answer(y.values, y)[:, 0]
        if prediction.ndim == 2:
            answer = prediction
            loss = jnp.square(answer - true).mean()
        else:
            answer = sequences.at_answer(prediction, y)[:, 0]
            errors = jnp.square(prediction - y.values).mean(axis=-1)
            loss = jnp.where(y.exists, errors, 0).sum() / jnp.maximum(y.exists.sum(), 1)
        scores = khot.regression_scores(answer, true)
        return {"loss": loss, "r2": scores["r2"], "accuracy": self.right(answer, true).mean()}

    def graph(self, task: Float[Array, " features"]) -> Graph:
        """Node 0 is x, node t the value after t modules, with node t - 1 as its parent."""
        parents = jnp.arange(-1, self.max_length)[:, None]
        node = jnp.arange(self.max_length + 1)
        length = (self.sentence(task) > 0).sum()
        return Graph(parents, jnp.where(node <= length, node, -1))

    def trace(
        self, world: Modules, task: Float[Array, " features"], x: Float[Array, "n size"]
    ) -> Array:
        """The values of all nodes: symbols (n, D+1), or units (n, D+1, d).

        After the end of a chain, the value stays.
        """
        start = x.argmax(axis=-1) if self.kind == "discrete" else x

        def step(value, word):
            after = self._apply(world, jnp.maximum(word - 1, 0), value)
            value = jnp.where(word > 0, after, value)
            return value, value

        # Unrolled: a loop of such short steps takes longer than the steps on a CPU.
        _, values = jax.lax.scan(step, start, self.sentence(task), unroll=True)
        return jnp.concatenate([start[:, None], jnp.moveaxis(values, 0, 1)], axis=1)

    def operate(self, world: Modules, task: Float[Array, " features"], values: Array) -> Array:
        """Apply the module of every node to the value that its parent has in `values`."""
        words = self.sentence(task)
        before = jnp.moveaxis(values[:, :-1], 1, 0)
        after = jax.vmap(lambda word, value: self._apply(world, jnp.maximum(word - 1, 0), value))(
            words, before
        )
        is_module = (words > 0).reshape(-1, *(1,) * (after.ndim - 1))
        after = jnp.moveaxis(jnp.where(is_module, after, before), 0, 1)
        return jnp.concatenate([values[:, :1], after], axis=1)

    def emitted(self, prediction: Float[Array, "n D size"]) -> Array:
        """The likeliest symbols, or the units themselves."""
        return prediction.argmax(axis=-1) if self.kind == "discrete" else prediction

    def right(self, values: Array, true: Array) -> Array:
        """Equal symbols, or units with a root mean squared error below `TOLERANCE`."""
        if self.kind == "discrete":
            return values == true
        return jnp.square(values - true).mean(axis=-1) < TOLERANCE**2

    def subgraphs(self, task: Float[Array, " features"]) -> Int[Array, "nodes D"]:
        """The modules up to each node: the beginning of the chain, for any input x."""
        node = jnp.arange(self.max_length + 1)[:, None]
        return jnp.where(jnp.arange(self.max_length) < node, self.sentence(task), 0)

    def _apply(self, world: Modules, module: Int[Array, ""], value: Array) -> Array:
        """One module, for n values."""
        if self.kind == "discrete":
            return world.maps[module][value]
        h = jnp.matmul(value, world.matrices[module].T, precision=jax.lax.Precision.HIGHEST)
        folded = (jnp.abs(h) - MEAN_ABS) / DEVIATION_ABS
        return jnp.where(jnp.arange(self.size) < self.size // 2, folded, h)
