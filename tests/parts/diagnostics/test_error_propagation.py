import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.parts.diagnostics.error_propagation import ErrorPropagation, labels
from recombine.parts.families.chain import Chain
from recombine.parts.families.subsequence import Subsequence
from recombine.parts.models.sequence_transformer import SequenceTransformer
from recombine.parts.node_values import node_values
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch, Observation
from tests.tiny import TINY

FAMILY = Chain(num_modules=3, max_length=4, size=5, invertible=False)
WRITER = SequenceTransformer(1, 8, 2, 12, targets="scratchpad")
RUN = dataclasses.replace(TINY, family=FAMILY, encoding=rc.Language(), model=WRITER, num_evals=1)


class Here:
    """A lab of which only the family and its world are used."""

    net = encoding = table = split = None

    family = FAMILY
    world = FAMILY.init(new_key(1))._replace(
        maps=jnp.array([[1, 2, 3, 4, 0], [0, 0, 2, 3, 4], [0] * 5])
    )

    def observe(self, key, part, n, net=None):
        raise NotImplementedError

    def look(self, key, rows, net=None):
        raise NotImplementedError


def labels_of(chain, start, values):
    """The label of each node of one chain at one point, given the values of its nodes."""
    task = FAMILY.task(chain)[None]
    x = jax.nn.one_hot(jnp.array([[start]]), 5)
    decoded = jnp.array([[values + [0] * (4 - len(values))]])
    batch = Batch(x, None, None, task)
    nodes = node_values(Here(), Observation(batch, None, {}), decoded)
    masks = {name: np.asarray(mask)[0, 0] for name, mask in labels(nodes).items()}
    assert (
        sum(mask.astype(int) for mask in masks.values())
        == np.arange(5).clip(0, 1) * (np.arange(5) <= len(chain))
    ).all()
    return [
        next(name for name, mask in masks.items() if mask[node])
        for node in range(1, len(chain) + 1)
    ]


@pytest.mark.parametrize(
    ("chain", "start", "values", "expected"),
    [
        # Module 0 adds 1 modulo 5, module 1 maps 0 and 1 to 0, module 2 maps all to 0.
        ((0, 0, 0), 0, [1, 2, 3], ["correct", "correct", "correct"]),
        ((0, 0, 0), 0, [2, 3, 4], ["local", "propagated", "propagated"]),
        ((0, 0, 0), 0, [1, 3, 4], ["correct", "local", "propagated"]),
        ((0, 2, 0), 0, [4, 0, 1], ["local", "restored", "restored"]),
        ((0, 0), 0, [4, 2], ["local", "restored"]),
        ((0, 0, 0), 0, [2, 4, 0], ["local", "local", "propagated"]),
    ],
)
def test_labels_by_hand(chain, start, values, expected):
    assert labels_of(list(chain), start, values) == expected


def test_fractions_sum_to_one_and_answers_agree_with_the_score():
    run = dataclasses.replace(RUN, diagnostics=(ErrorPropagation(num_tasks=40),))
    row = rc.train(run, progress=False).iloc[-1]
    for side in ("seen", "test"):
        parts = [
            row[f"ErrorPropagation/{side}/{label}"]
            for label in ("correct", "local", "propagated", "restored")
        ]
        np.testing.assert_allclose(sum(parts), 1, rtol=1e-5)
        assert 0 < row[f"ErrorPropagation/{side}/step_error"] <= 1
    assert np.isfinite(row["ErrorPropagation/test/layer=4/correct"])


def test_intermediates_are_decoded_where_they_are_and_not_where_they_are_not():
    """Planted activations: the true values of the nodes, or noise."""
    world = FAMILY.init(new_key(0))

    class Lab(Here):
        def observe(self, key, part, n, net=None):
            rows = jax.random.choice(key, jnp.asarray(FAMILY.tasks()), (n,))
            tasks = jax.vmap(lambda row: FAMILY.weigh(key, row))(rows)
            draw = jax.vmap(lambda key, task: FAMILY.sample(self.world, key, task, 6))
            x, y = draw(jax.random.split(key, n), tasks)
            hidden = jax.nn.one_hot(y.values, 5).reshape(n, 6, -1)
            if not self.planted:
                hidden = jax.random.normal(key, hidden.shape)
            return Observation(
                Batch(x, y, tasks, tasks), hidden, {"hidden0": hidden, "output": hidden}
            )

    Lab.world = world
    measured = {}
    for planted in (True, False):
        Lab.planted = planted
        scores = ErrorPropagation("decoded", num_tasks=64, num_fit=128).measure(new_key(3), Lab())
        measured[planted] = float(scores["test/correct"])
    assert measured[True] > 0.99
    assert measured[False] < 0.4


def test_students_without_intermediates_are_refused_in_one_line():
    emitted = (ErrorPropagation(num_tasks=8),)
    with pytest.raises(InputError, match="emits no intermediate values: choose source='decoded'"):
        rc.train(
            dataclasses.replace(
                RUN, model=rc.MLP((8,)), encoding=rc.Identity(), diagnostics=emitted
            ),
            progress=False,
        )
    with pytest.raises(
        InputError,
        match="ErrorPropagation needs the steps of a computation, but Hyperteacher has no graph",
    ):
        dataclasses.replace(TINY, diagnostics=emitted)
    lists = Subsequence(listed_length=2, num_longer=4, max_length=3)
    parallel = dataclasses.replace(WRITER, targets="parallel")
    with pytest.raises(
        InputError,
        match="Subsequence has 6 nodes beside its inputs, but this student emits the values of 3",
    ):
        rc.train(
            dataclasses.replace(RUN, family=lists, model=parallel, diagnostics=emitted),
            progress=False,
        )
