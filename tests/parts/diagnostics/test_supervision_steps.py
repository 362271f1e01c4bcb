import jax
import jax.numpy as jnp
import numpy as np
import pytest

import recombine as rc
from recombine.basics.errors import InputError
from recombine.parts.diagnostics.supervision_steps import SupervisionSteps
from recombine.parts.prng import new_key
from recombine.parts.protocols import Batch, Nodes, Observation
from recombine.training.task_sampler import TaskSampler

RIGHT = jnp.array([2, 0, 1])


class Counter:
    """After k steps, the first k symbols of three are right."""

    def unroll(self, x, code, num_steps):
        def prediction(k):
            symbols = jnp.where(jnp.arange(3) < k, RIGHT, (RIGHT + 1) % 3)
            return jax.nn.one_hot(symbols, 3).reshape(1, -1)

        return None, jnp.stack([prediction(k + 1) for k in range(num_steps)])


class Planted(TaskSampler):
    """Tasks whose answer is the same row of three symbols."""

    def __init__(self):
        self.family = rc.Sudoku(4, 2, 2)
        self.net = Counter()
        self.encoding = rc.Language()
        self.world = self.table = self.split = ()

    def observe(self, key, part, n, net=None):
        y = Nodes(
            jnp.broadcast_to(RIGHT, (n, 1, 3)),
            jnp.ones((n, 1, 3), bool),
            jnp.broadcast_to(jnp.arange(3), (n, 1, 3)),
        )
        batch = Batch(
            jnp.ones((n, 1, 1)), y, jnp.tile(jnp.array([5, 4]), (n, 1)), jnp.zeros((n, 2))
        )
        return Observation(batch, None, {})


def test_scores_and_answers_after_each_step():
    measured = SupervisionSteps((1, 2, 5), num_tasks=2, record=True).measure(new_key(0), Planted())
    for side in ("seen", "test"):
        accuracy = [float(measured[f"{side}/steps={k}/accuracy"]) for k in (1, 2, 5)]
        cells = [float(measured[f"{side}/steps={k}/node_accuracy"]) for k in (1, 2, 5)]
        assert accuracy == [0, 0, 1]
        np.testing.assert_allclose(cells, [1 / 3, 2 / 3, 1], rtol=1e-6)
    assert measured["example/word=*"].tolist() == [5, 4]
    assert measured["example/right=*"].tolist() == [2, 0, 1]
    assert measured["example/steps=1/value=*"].tolist() == [2, 1, 2]
    assert measured["example/steps=5/value=*"].tolist() == [2, 0, 1]
    plain = SupervisionSteps((1,), num_tasks=2).measure(new_key(0), Planted())
    assert not any(name.startswith("example") for name in plain)


def test_steps_must_be_positive():
    with pytest.raises(InputError, match="at least one number of at least 1"):
        SupervisionSteps((0, 1))
