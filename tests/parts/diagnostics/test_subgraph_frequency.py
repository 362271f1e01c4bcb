import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

import recombine as rc
from recombine.parts.diagnostics.subgraph_frequency import (
    SubgraphFrequency,
    count_subgraphs,
    within_groups,
)
from recombine.parts.families.chain import Chain
from recombine.parts.models.sequence_transformer import SequenceTransformer
from recombine.parts.prng import new_key
from recombine.parts.protocols import Split
from tests.tiny import TINY

FAMILY = Chain(num_modules=3, max_length=4, size=5)


def test_counts_agree_with_a_count_of_beginnings():
    rows = FAMILY.tasks()
    order = np.random.default_rng(0).permutation(len(rows))

    class Lab:
        net = encoding = world = None
        family = FAMILY
        table = jnp.asarray(rows)
        split = Split(jnp.asarray(order), jnp.int32(50), jnp.int32(70))

        def observe(self, key, part, n, net=None):
            raise NotImplementedError

        def look(self, key, rows, net=None):
            raise NotImplementedError

    test = rows[order[50:]]
    tasks = jax.vmap(lambda row: FAMILY.weigh(new_key(0), row))(jnp.asarray(test))
    counts = np.asarray(count_subgraphs(Lab(), tasks))
    train = [tuple(row) for row in rows[order[:50]].tolist()]
    for row, of_nodes in zip(test.tolist(), counts, strict=True):
        for node in range(1, sum(word > 0 for word in row) + 1):
            assert of_nodes[node] == sum(other[:node] == tuple(row[:node]) for other in train)


def test_the_permutation_test_finds_frequency_but_not_depth():
    rng = np.random.default_rng(0)
    group = jnp.asarray(np.repeat(np.arange(1, 5), 200))
    log_count = jnp.asarray(5 - group + rng.normal(size=800) * 0.5, jnp.float32)
    exists = jnp.ones(800, bool)

    def measure(right):
        return within_groups(
            new_key(0), jnp.asarray(right, jnp.float32), log_count, exists, group, 99
        )

    depth_only = rng.random(800) < 1 - np.asarray(group) / 5
    assert np.corrcoef(depth_only, log_count)[0, 1] > 0.3, "deep nodes are rare and wrong"
    correlation, p = measure(depth_only)
    assert abs(correlation) < 0.1
    assert p > 0.05
    by_count = rng.random(800) < 1 / (1 + np.exp(-2 * np.asarray(log_count + group - 5)))
    correlation, p = measure(by_count)
    assert correlation > 0.2
    assert p == 0.01


def test_nodes_that_do_not_exist_change_nothing():
    rng = np.random.default_rng(1)
    right, log_count = jnp.asarray(rng.normal(size=(2, 60)), jnp.float32)
    group = jnp.asarray(rng.integers(1, 4, 60))
    expected, _ = within_groups(new_key(0), right, log_count, jnp.ones(60, bool), group, 2)
    padded = [jnp.concatenate([a, jnp.full(9, 7, a.dtype)]) for a in (right, log_count)]
    exists = jnp.arange(69) < 60
    all_groups = jnp.concatenate([group, jnp.zeros(9, group.dtype)])
    correlation, _ = within_groups(new_key(0), *padded, exists, all_groups, 2)
    np.testing.assert_allclose(correlation, expected, rtol=1e-5)


def test_it_is_measured_in_a_run():
    run = dataclasses.replace(
        TINY,
        family=FAMILY,
        encoding=rc.Language(),
        model=SequenceTransformer(1, 8, 2, 12, targets="scratchpad"),
        diagnostics=(SubgraphFrequency(num_tasks=40, num_permutations=20),),
        num_evals=1,
    )
    row = rc.train(run, progress=False).iloc[-1]
    assert 0 < row["SubgraphFrequency/test/unseen"] < 1
    assert 1 / 21 - 1e-6 <= row["SubgraphFrequency/test/within/p"] <= 1
    assert -1 <= row["SubgraphFrequency/test/within/correlation"] <= 1
