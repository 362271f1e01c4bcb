"""Maximum-sum non-adjacent subsequence: which elements of a list does the best choice take?

    dp[i] = max(dp[i+1], a[i] + dp[i+2], 0),   from the end of the list to its beginning
    take[i] = 1 if a[i] + dp[i+2] = dp[i] and element i-1 was not taken, else 0

Among all best choices, this one takes elements as early as possible. A task is one instance: a
list. Models are trained on short lists and tested on longer ones. Source: Dziri et al. 2023 (arXiv
2305.18654).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from recombine.parts import sequences
from recombine.parts.field_checks import check
from recombine.parts.protocols import Graph, Nodes


@dataclass(frozen=True)
class Subsequence:
    """Lists of integers; the answer is 0 or 1 for each element.

    - `max_value`: elements are from -max_value to max_value.
    - `listed_length`: the table has all lists up to this length.
    - `max_length`: the length of the longest lists.
    - `num_longer`: the number of lists of each greater length, drawn with `table_seed`.

    The rows of the table are words: the element v is v + max_value + 1, and 0 fills rows up. The
    list is in the code, and x is constant: every encoding of words or of one-hot rows applies.
    """

    max_value: int = 5
    listed_length: int = 5
    max_length: int = 10
    num_longer: int = 1000
    table_seed: int = 0
    deterministic: ClassVar[bool] = True
    views: ClassVar[tuple[str, ...]] = sequences.VIEWS

    def __post_init__(self):
        check(self, max_value=1, listed_length=1, num_longer=1, table_seed=0)
        check(self, max_length=self.listed_length)
        num_listed = sum(self.num_modules**k for k in range(1, min(self.listed_length, 64) + 1))
        num_longer = (self.max_length - self.listed_length) * self.num_longer
        sequences.check_table(
            "Subsequence", num_listed + num_longer, self.num_modules, self.max_length
        )

    @property
    def num_modules(self) -> int:
        """The number of different elements."""
        return 2 * self.max_value + 1

    @property
    def num_outputs(self) -> int:
        """Two logits for each element: leave it, or take it."""
        return 2 * self.max_length

    @property
    def num_inputs(self) -> int:
        """The elements are the inputs of the graph."""
        return self.max_length

    @property
    def num_values(self) -> int:
        """The number of different values of a node: elements and sums, both shifted to 0 and up."""
        return self.max_value * max(2, (self.max_length + 1) // 2) + 1

    def tasks(self) -> Int[np.ndarray, "N L"]:
        """All lists up to `listed_length`, and `num_longer` of each greater length."""
        blocks = []
        for length in range(1, self.max_length + 1):
            most = sequences.MAX_ROWS if length <= self.listed_length else self.num_longer
            blocks.append(
                sequences.rows_of_length(
                    self.num_modules, length, self.max_length, True, most, self.table_seed
                )
            )
        return np.concatenate(blocks)

    def modules(self, tasks: np.ndarray) -> np.ndarray:
        """Which elements each list contains."""
        return self.view("modules", tasks)

    def view(self, name: str, tasks: np.ndarray) -> np.ndarray:
        """Elements, neighbors, positions or lengths of the lists, as 0/1 rows."""
        return sequences.view(name, tasks, self.num_modules)

    def groups(self, tasks: np.ndarray) -> dict[str, np.ndarray]:
        """Scores are also reported by the length of the list."""
        return {"length": sequences.lengths(tasks)}

    def init(self, key: PRNGKeyArray) -> tuple[()]:
        """Nothing is hidden: the rule has no arrays."""
        return ()

    def weigh(self, key: PRNGKeyArray, row: Shaped[Array, " L"]) -> Float[Array, " features"]:
        """The list as a float row: 1 where a position has a value."""
        return sequences.one_hot(row, self.num_modules)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """The padding and the elements."""
        return ("-", *map(str, range(-self.max_value, self.max_value + 1)))

    def sentence(self, task: Float[Array, " features"]) -> Int[Array, " L"]:
        """One word for each element."""
        return sequences.words_of(task, self.num_modules)

    def sample(
        self, world: tuple[()], key: PRNGKeyArray, task: Float[Array, " features"], n: int
    ) -> tuple[Float[Array, "n 1"], Nodes]:
        """The instance n times. The key is not used."""
        x = jnp.ones((n, 1))
        taken = self.trace(world, task, x)[:, -self.max_length :]
        exists = jnp.broadcast_to(self.sentence(task) > 0, taken.shape)
        answer = jnp.broadcast_to(jnp.arange(self.max_length), taken.shape)
        return x, Nodes(taken, exists, answer)

    def score(self, prediction: Array, y: Nodes) -> dict[str, Array]:
        """Cross-entropy, the fraction of whole answers that are right, and that of elements.

        A prediction has shape (n, 2 L), or (n, L, 2).
        """
        return sequences.classification_scores(prediction, y)

    def graph(self, task: Float[Array, " features"]) -> Graph:
        """The elements, the best sums (of the last element first), and the decisions."""
        length = self.max_length
        i = np.arange(length)
        node_of_sum = 2 * length - 1 - i
        after = np.where(i + 1 < length, node_of_sum - 1, -1)  # the sum of the elements from i + 1
        second = np.where(i + 2 < length, node_of_sum - 2, -1)
        decided = np.where(i > 0, 2 * length + i - 1, -1)
        nothing = np.full(length, -1)
        inputs = np.stack([nothing] * 4, axis=1)
        sums = np.stack([i, after, second, nothing], axis=1)[::-1]
        decisions = np.stack([i, node_of_sum, second, decided], axis=1)
        parents = np.concatenate([inputs, sums, decisions])
        exists = self.sentence(task) > 0
        num_left = exists.sum() - i  # the elements from i to the end
        num_all = exists.sum()
        layer = jnp.concatenate([jnp.zeros(length, int), num_left[::-1], num_all + 1 + i])
        all_exist = jnp.concatenate([exists, exists[::-1], exists])
        return Graph(jnp.asarray(parents), jnp.where(all_exist, layer, -1))

    def trace(
        self, world: tuple[()], task: Float[Array, " features"], x: Float[Array, "n 1"]
    ) -> Int[Array, "n nodes"]:
        """The elements plus `max_value`, the best sums in reverse order, and the decisions."""
        words = self.sentence(task)
        value = words - 1 - self.max_value
        exists = words > 0

        def add(sums, element):
            after, second = sums
            own_value, is_there = element
            best = jnp.maximum(jnp.maximum(after, own_value + second), 0)
            best = jnp.where(is_there, best, 0)
            return (best, after), (best, second)

        zero = jnp.zeros((), words.dtype)
        reverse = (value[::-1], exists[::-1])
        _, (best, second) = jax.lax.scan(add, (zero, zero), reverse)

        def decide(was_taken, element):
            is_best, is_there = element
            is_taken = is_best & is_there & ~was_taken
            return is_taken, is_taken

        is_best = value + second[::-1] == best[::-1]
        _, taken = jax.lax.scan(decide, jnp.zeros((), bool), (is_best, exists))
        shifted = jnp.where(exists, words - 1, 0)
        nodes = jnp.concatenate([shifted, best, taken.astype(words.dtype)])
        return jnp.broadcast_to(nodes, (len(x), *nodes.shape))

    def operate(
        self, world: tuple[()], task: Float[Array, " features"], values: Int[Array, "n nodes"]
    ) -> Int[Array, "n nodes"]:
        """The operation of every node, applied to the values of its parents."""
        length = self.max_length
        exists = self.sentence(task) > 0
        shifted, reverse_sums, taken = jnp.split(values, 3, axis=1)
        element = shifted - self.max_value
        sums = jnp.pad(reverse_sums[:, ::-1] * exists, ((0, 0), (0, 2)))
        with_element = element + sums[:, 2:]
        best = jnp.maximum(jnp.maximum(sums[:, 1 : length + 1], with_element), 0) * exists
        was_taken = jnp.pad(taken[:, :-1], ((0, 0), (1, 0))) > 0
        decision = (with_element == sums[:, :length]) & ~was_taken & exists
        return jnp.concatenate([shifted, best[:, ::-1], decision.astype(values.dtype)], axis=1)

    def emitted(self, prediction: Float[Array, "n L 2"]) -> Int[Array, "n L"]:
        """The decisions: leave or take."""
        return prediction.argmax(axis=-1)

    def right(self, values: Array, true: Array) -> Array:
        """Equal values."""
        return values == true

    def subgraphs(self, task: Float[Array, " features"]) -> Int[Array, "nodes key"]:
        """The elements that a node depends on, aligned to its own.

        An input is its element. A sum depends on the elements from its own to the end of the list.
        A decision depends on the whole list.
        """
        length = self.max_length
        words = self.sentence(task)
        i = jnp.arange(length)
        ahead = i[:, None] + i
        suffix = jnp.where(ahead < length, words[jnp.minimum(ahead, length - 1)], 0)
        own = jnp.where(i == 0, words[:, None], 0)
        whole = jnp.broadcast_to(words, (length, length))
        elements = jnp.concatenate([own, suffix[::-1], whole])
        kind = jnp.repeat(jnp.arange(3), length)
        position = jnp.concatenate([jnp.zeros(2 * length, int), i])
        return jnp.concatenate([kind[:, None], position[:, None], elements], axis=1)
