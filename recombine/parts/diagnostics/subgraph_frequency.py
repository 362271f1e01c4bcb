"""Is a node right because training contained its computation? Counts of subgraphs in train tasks.

The subgraph of a node is the node with all its ancestors. Its frequency is the number of train
tasks that contain it. Deep nodes are both rarer and harder, so frequencies are compared among nodes
of the same layer in tasks of the same length, and a permutation test shuffles within these groups.
Source: Dziri et al. 2023 (arXiv 2305.18654).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped, UInt32

from recombine.parts.field_checks import check
from recombine.parts.node_values import (
    NodeValues,
    Source,
    graph_family,
    observe_nodes,
    values_reader,
)
from recombine.parts.prng import new_key, stream
from recombine.parts.protocols import GraphFamily, Lab

FACTORS = (0x9E3779B1, 0x85EBCA77)  # odd multipliers of the two words of a hash
CHUNK_ROWS = 4096  # tasks of the table that are hashed at a time


@dataclass(frozen=True)
class SubgraphFrequency:
    """Frequencies of the subgraphs of right and of wrong nodes, on `num_tasks` test tasks.

    `source` and `num_fit` are as in `ErrorPropagation`. The permutation test has
    `num_permutations`.
    """

    source: Source = "emitted"
    num_tasks: int = 512
    num_fit: int = 512
    num_permutations: int = 200
    needs_graph: ClassVar[bool] = True

    def __post_init__(self):
        check(self, num_tasks=2, num_fit=2, num_permutations=1)

    def measure(self, key: PRNGKeyArray, lab: Lab) -> dict[str, Array]:
        """Means of log(1 + frequency), and correlations of it with being right.

        - `test/right/log_count`, `test/wrong/log_count`, and the same by `layer=K`.
        - `test/unseen`: the fraction of nodes whose subgraph is in no train task.
        - `test/correlation` over all nodes; `test/within/correlation` within groups of equal layer
          and length; `test/within/p` is its p-value by permutation.
        """
        read = values_reader(stream(key, "decoders"), lab, self.source, self.num_fit)
        nodes = observe_nodes(stream(key, "test"), lab, "test", self.num_tasks, read)
        counts = count_subgraphs(lab, nodes.task)
        scores = frequency_scores(stream(key, "permutations"), nodes, counts, self.num_permutations)
        return {f"test/{name}": value for name, value in scores.items()}


def count_subgraphs(lab: Lab, tasks: Float[Array, "tasks features"]) -> Int[Array, "tasks nodes"]:
    """For every node of some tasks, the number of train tasks that contain its subgraph."""
    family = graph_family(lab)
    num_rows = len(lab.table)
    is_train = jnp.zeros(num_rows, bool)
    is_train = is_train.at[lab.split.order].set(jnp.arange(num_rows) < lab.split.num_train)

    def hash_row(row):
        # The weights of tasks with graphs are not random, so any key will do.
        return hash_nodes(family, family.weigh(new_key(0), row))

    train_hashes, train_exists = jax.lax.map(hash_row, lab.table, batch_size=CHUNK_ROWS)
    hashes, _ = jax.vmap(lambda task: hash_nodes(family, task))(tasks)
    counts = count_equal(
        hashes.reshape(-1, 2),
        train_hashes.reshape(-1, 2),
        (train_exists & is_train[:, None]).reshape(-1),
    )
    return counts.reshape(hashes.shape[:2])


def hash_nodes(
    family: GraphFamily, task: Array
) -> tuple[UInt32[Array, "nodes 2"], Bool[Array, " nodes"]]:
    """A hash of 64 bits of every node's subgraph, and which nodes are there and no inputs."""
    rows = family.subgraphs(task).astype(jnp.uint32)
    words = []
    for factor in FACTORS:
        word = jnp.full(rows.shape[0], factor, jnp.uint32)
        for column in rows.T:
            word = (word ^ (column + 1)) * jnp.uint32(factor)
            word = word ^ (word >> 15)
        words.append(word)
    return jnp.stack(words, axis=1), family.graph(task).layer > 0


def count_equal(
    queries: UInt32[Array, "q 2"], items: UInt32[Array, "n 2"], counts: Shaped[Array, " n"]
) -> Int[Array, " q"]:
    """How many of the items that count are equal to each query."""
    num_queries = len(queries)
    everything = jnp.concatenate([queries, items])
    weight = jnp.concatenate([jnp.zeros(num_queries, int), counts.astype(int)])
    index = jnp.arange(len(everything))
    high, low, order = jax.lax.sort((everything[:, 0], everything[:, 1], index), num_keys=2)
    is_new = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    group = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(is_new)])
    totals = jax.ops.segment_sum(weight[order], group, len(everything))
    return jnp.zeros(len(everything), int).at[order].set(totals[group])[:num_queries]


def frequency_scores(
    key: PRNGKeyArray,
    nodes: NodeValues,
    counts: Int[Array, "tasks nodes"],
    num_permutations: int,
) -> dict[str, Array]:
    """The scores of `SubgraphFrequency`, without the name of the side."""
    exists = nodes.layer > 0
    log_count = jnp.log1p(counts.astype(jnp.float32))
    right = nodes.right.mean(axis=1)  # of a node, over points
    result = {
        "unseen": (exists & (counts == 0)).sum() / exists.sum(),
        "correlation": _correlation(right, log_count, exists),
    }
    result |= _means(right, log_count, exists)
    for layer in range(1, nodes.layer.shape[1]):
        means = _means(right, log_count, nodes.layer == layer)
        result |= {f"layer={layer}/{name}": value for name, value in means.items()}
    group = nodes.layer * nodes.layer.shape[1] + nodes.layer.max(axis=1, keepdims=True)
    group = jnp.where(exists, group, 0).reshape(-1)
    flat = (right.reshape(-1), log_count.reshape(-1), exists.reshape(-1))
    within, p = within_groups(key, *flat, group, num_permutations)
    return result | {"within/correlation": within, "within/p": p}


def within_groups(
    key: PRNGKeyArray,
    right: Float[Array, " n"],
    log_count: Float[Array, " n"],
    exists: Bool[Array, " n"],
    group: Int[Array, " n"],
    num_permutations: int,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The correlation of two variables about the means of their groups, and its p-value."""
    # Numbers of groups are below the number of nodes squared, which is below n for many tasks; the
    # ranks of the groups are always below n.
    order = jnp.argsort(group, stable=True)
    is_new = group[order][1:] != group[order][:-1]
    rank_of_ordered = jnp.concatenate([jnp.zeros(1, int), jnp.cumsum(is_new)])
    rank = jnp.zeros(len(group), int).at[order].set(rank_of_ordered)

    def center(values):
        size = jax.ops.segment_sum(exists.astype(jnp.float32), rank, len(rank))
        total = jax.ops.segment_sum(jnp.where(exists, values, 0), rank, len(rank))
        return jnp.where(exists, values - (total / jnp.maximum(size, 1))[rank], 0)

    right = center(right)
    log_count = center(log_count)
    scale = jnp.sqrt(jnp.square(right).sum() * jnp.square(log_count).sum())
    observed = (right * log_count).sum()

    def permuted(key):
        shuffled = jnp.lexsort((jax.random.uniform(key, rank.shape), rank))
        return (jnp.zeros_like(right).at[order].set(right[shuffled]) * log_count).sum()

    values = jax.lax.map(permuted, jax.random.split(key, num_permutations))
    # A tolerance, so that rounding does not decide between equal sums.
    num_larger = (values >= observed - 1e-5 * scale).sum()
    correlation = jnp.where(scale > 0, observed / jnp.where(scale > 0, scale, 1), jnp.nan)
    return correlation, (1 + num_larger) / (1 + num_permutations)


def _means(right: Array, log_count: Array, mask: Array) -> dict[str, Array]:
    of_right = jnp.where(mask, right, 0)
    of_wrong = jnp.where(mask, 1 - right, 0)
    return {
        "right/log_count": (of_right * log_count).sum() / of_right.sum(),
        "wrong/log_count": (of_wrong * log_count).sum() / of_wrong.sum(),
    }


def _correlation(a: Array, b: Array, mask: Array) -> Array:
    a = jnp.where(mask, a - jnp.where(mask, a, 0).sum() / mask.sum(), 0)
    b = jnp.where(mask, b - jnp.where(mask, b, 0).sum() / mask.sum(), 0)
    return (a * b).sum() / jnp.sqrt(jnp.square(a).sum() * jnp.square(b).sum())
